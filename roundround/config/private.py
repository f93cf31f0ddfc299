"""What this project uses of Hydra's and OmegaConf's private API, all of it: nobody else does.

Hydra hands the results of a sweep's jobs to nobody, and OmegaConf does not say where a node stands in its config.
Tested by tests/config/test_private.py, which names the versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import Container

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn


def where(node: Container) -> str:
    """The dotted key of a node in its config, such as `pe`."""
    return str(node._get_full_key(None)) or "config"


def result_of(job: JobReturn) -> Any:
    """What a job returned, or the exception that it raised."""
    return job._return_value


def collect_jobs(passed_over: type[Exception]) -> list[JobReturn]:
    """A list that gets each job of a sweep when Hydra asks for its result.

    An exception of this class that a job raised is not raised here, so that Hydra asks all jobs. Any other one is,
    without Hydra's line about it: the job has printed a better one.
    """
    from hydra.core.utils import JobReturn, JobStatus

    finished: list[JobReturn] = []

    def value_or_raise(job: JobReturn) -> Any:
        finished.append(job)
        if job.status != JobStatus.COMPLETED and not isinstance(job._return_value, passed_over):
            raise job._return_value
        return job._return_value

    JobReturn.return_value = property(value_or_raise, JobReturn.return_value.fset)  # type: ignore[assignment, attr-defined]
    return finished
