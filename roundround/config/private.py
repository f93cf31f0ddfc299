"""The only module that uses private parts of Hydra and OmegaConf.

Their public API neither returns the results of a sweep's jobs nor gives the dotted key of a node in its config.
Tested by tests/config/test_private.py, which names the versions of Hydra and OmegaConf that have these parts.
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
    """The value that a job returned, or the exception that it raised."""
    return job._return_value


def collect_jobs(passed_over: type[Exception]) -> list[JobReturn]:
    """A list, empty at first, to which each job of a sweep is appended when Hydra reads the result of the job.

    passed_over: the class of exceptions that do not stop the sweep. Any other exception that a job raised is raised
    again, without Hydra's line about it, because the job has printed a better line.
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
