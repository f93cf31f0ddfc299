"""Weights & Biases. The only importer of wandb.

Tested by tests/records/test_wandb.py.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from roundround.records.loggers.base import Logger
from roundround.support.console import print_passing, print_status
from roundround.support.errors import UserError, check_no_credentials, one_line
from roundround.verbs import verb_named

log = logging.getLogger(__name__)
OFF = "logger=none turns it off"
MODES = ("online", "offline", "shared", "disabled", "dryrun", "run")
NOT_IN_PROJECTS = set("/\\#?%:")
SECONDS_TO_REACH = 15  # the server, before the first line of a run
LONGEST_PROJECT, LONGEST_TAG = 128, 64  # characters


@final
class WandB(Logger):
    """Weights & Biases: online where a login exists and the run is a training or the command names the logger, else
    offline in the run directory; never prompts.

    The config, the metrics, the results as a table, the figures as images, where asked for the checkpoint as an
    artifact, and how the run ended. The jobs of a sweep are a group; a resumed run is the same run there.
    """

    # pydantic, which they define models with, looks through all modules there are: behind torch's that takes 0.6 s more
    libraries = ("wandb", "wandb.sdk.launch.inputs.internal")

    def __init__(
        self,
        *,
        project: str,
        entity: str | None,
        group: str | None,
        tags: list[str],
        log_checkpoint: str | bool | None = None,
    ) -> None:
        check_names(project, tags)
        mode, url = os.environ.get("WANDB_MODE"), os.environ.get("WANDB_BASE_URL")
        if mode and mode not in MODES:
            raise ValueError(f"WANDB_MODE={mode} must be one of {', '.join(MODES)}")
        check_no_credentials(url or saved_url() or "", "WANDB_BASE_URL")  # wandb's address of the run would have them
        if url and (not url.startswith(("http://", "https://")) or not host_of(url)):
            raise ValueError(f"WANDB_BASE_URL={url} must be an address such as https://wandb.example.com")
        self.project, self.entity, self.group, self.tags = project, entity, group, tags
        if log_checkpoint not in (None, False, "best", "last"):
            raise ValueError(f"log_checkpoint={log_checkpoint} must be false, best or last")
        self.log_checkpoint = str(log_checkpoint) if log_checkpoint else None

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        verb, wanted = manifest["verb"], f"logger.log_checkpoint={self.log_checkpoint}"
        if self.log_checkpoint and (not verb_named(verb).trains or manifest.get("run") is not None):
            raise UserError(f"{wanted} is for a run that trains, which leaves checkpoints; leave it out")
        if self.log_checkpoint == "best" and verb == "max-retrieval":
            raise UserError(
                f"{wanted}: max-retrieval measures no held-out loss to choose by; give logger.log_checkpoint=last"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # wandb's own deprecations
            import wandb

        for name in [name for name, value in os.environ.items() if name.startswith("WANDB_") and not value.strip()]:
            del os.environ[name]  # as if it were not set; wandb refuses an empty mode
        earlier = manifest.get("wandb") or {}
        sweep = manifest.get("sweep")
        options: dict[str, Any] = {
            "project": self.project,
            "entity": self.entity,
            "group": self.group or (Path(sweep).name if sweep else None),
            "job_type": manifest["verb"],
            "tags": self.tags,
            "dir": str(directory),
            "name": "/".join(directory.parts[-2:]),
            "id": earlier.get("id"),
            "resume": "allow" if earlier else None,
            "config": manifest["config"],
        }
        os.environ.setdefault("WANDB_CACHE_DIR", str(directory / "wandb" / "cache"))  # for this job: else in the home
        self.wandb: Any = wandb
        self.run, self.folder = begun(wandb, mode_of(manifest), options), directory / "wandb"
        # an axis of our own: of wandb's, it drops the steps that it has, which a resumed run repeats
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        mode = self.run.settings.mode
        url = None if mode == "offline" else self.run.url
        if mode == "offline":
            later = "logger=wandb" if has_login() and mode_of(manifest) == "offline" else "wandb sync"
            print_status(f"W&B: offline, in wandb/ of the run directory; {later} uploads it, {OFF}")
        elif url is not None:
            print_status(f"W&B: {url}; {OFF}")
        return {"id": self.run.id, "mode": mode, "url": url}

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.run.log({**metrics, "step": step})

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        columns = list(dict.fromkeys(name for record in records for name in record))
        rows = [[record.get(name) for name in columns] for record in records]
        with staging_in(self.folder):
            self.run.log({"results": self.wandb.Table(columns=columns, data=rows, allow_mixed_types=True)})

    def figures(self, pictures: Mapping[str, Path]) -> None:
        self.run.log({f"figures/{name}": self.wandb.Image(str(path)) for name, path in pictures.items()})

    def checkpoint(self, folder: Path, also: Sequence[Path]) -> None:
        with staging_in(self.folder):
            artifact = self.wandb.Artifact(f"checkpoint-{self.run.id}", type="model", metadata={"folder": folder.name})
            for path in (*sorted(folder.iterdir()), *also):  # add_dir would print
                artifact.add_file(str(path))
            self.run.log_artifact(artifact, aliases=[folder.name, str(self.log_checkpoint)])

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        self.run.summary.update({"status": manifest["status"], **manifest["headline"]})
        self.run.finish(exit_code=exit_code)


def mode_of(manifest: Mapping[str, Any]) -> str:
    """The mode that wandb is asked for: what the environment says; else online where there is a login, and the run is
    a training or its command names the logger.
    """
    typed = any(word.startswith(("logger=", "+logger@logger.")) for word in manifest["overrides"])
    wanted = has_login() and (typed or verb_named(manifest["verb"]).trains)
    return os.environ.get("WANDB_MODE") or ("online" if wanted else "offline")


def begun(wandb: Any, mode: str, options: dict[str, Any]) -> Any:
    """wandb's run, offline where it cannot be reached. Raises UserError where even that cannot be begun."""
    if mode == "online":
        print_passing("reaching W&B")
    settings = wandb.Settings(console="off", silent=True, init_timeout=SECONDS_TO_REACH)
    try:
        return wandb.init(mode=mode, settings=settings, **options)
    except (wandb.errors.Error, ValueError, OSError) as error:
        first = error
    try:
        run = wandb.init(mode="offline", settings=settings, **options)
    except (wandb.errors.Error, ValueError, OSError) as error:
        raise UserError(f"Weights & Biases cannot start: {one_line(error)[:200]}; or give logger=none") from error
    log.warning("Weights & Biases cannot be reached (%s); logging offline", one_line(first)[:200])
    return run


def check_names(project: str, tags: list[str]) -> None:
    """Raises ValueError for names that W&B would refuse, after seconds."""
    if not project or NOT_IN_PROJECTS & set(project) or len(project) > LONGEST_PROJECT:
        raise ValueError(
            f"project={project[:LONGEST_PROJECT]!r} must be a name of 1 to {LONGEST_PROJECT} characters without "
            f"{' '.join(sorted(NOT_IN_PROJECTS))}"
        )
    for tag in tags:
        if not 1 <= len(tag) <= LONGEST_TAG:
            raise ValueError(f"tags: each must have 1 to {LONGEST_TAG} characters, and {tag[:LONGEST_TAG]!r} has not")


@contextmanager
def staging_in(folder: Path) -> Iterator[None]:
    """Let wandb copy the files of artifacts into a folder of the run, unless the user has named another.

    Else they lie in the home folder until somebody uploads them, and do not go where the run directory goes.
    """
    given = os.environ.get("WANDB_DATA_DIR")
    os.environ["WANDB_DATA_DIR"] = given or str(folder)
    try:
        yield
    finally:
        if given is None:
            del os.environ["WANDB_DATA_DIR"]
        else:
            os.environ["WANDB_DATA_DIR"] = given


def host_of(url: str) -> str:
    return url.split("//")[-1].split("/")[0]


def saved_url() -> str | None:
    """The server that `wandb login --host` has kept."""
    import configparser

    folder, settings = os.environ.get("WANDB_CONFIG_DIR"), configparser.ConfigParser(interpolation=None)
    try:
        settings.read(Path(folder or Path.home() / ".config" / "wandb") / "settings")
        return settings.get("default", "base_url", fallback=None)
    except (configparser.Error, RuntimeError, ValueError):
        return None


def has_login() -> bool:
    """Whether wandb knows an API key, from its variable or from a netrc file."""
    import netrc

    if os.environ.get("WANDB_API_KEY"):
        return True
    host = host_of(os.environ.get("WANDB_BASE_URL") or saved_url() or "https://api.wandb.ai")
    try:
        path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, RuntimeError, netrc.NetrcParseError):  # RuntimeError: nobody's home
        return False
