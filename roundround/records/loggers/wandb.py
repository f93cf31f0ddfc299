"""Weights & Biases. The only importer of wandb.

Tested by tests/records/test_wandb.py.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final
from urllib.parse import urlsplit

from roundround.records.loggers.base import Logger, columns_of
from roundround.support.console import print_status
from roundround.support.errors import UserError, check_no_credentials, one_line
from roundround.verbs import verb_named

log = logging.getLogger(__name__)
OFF = "logger=none turns it off"
SECONDS_TO_REACH = 15  # the server, before the first line of a run


@final
class WandB(Logger):
    """Weights & Biases: online where a login exists and the run is a training or the command names the logger, else
    offline in the run directory; never prompts.

    The config, the metrics, the results as a table, the figures as images, where asked for the checkpoint as an
    artifact, and how the run ended. The jobs of a sweep are a group; a resumed run is the same run there.
    """

    # pydantic, which they define models with, searches all modules there are: after torch's that takes 0.6 s more

    def __init__(
        self,
        *,
        project: str,
        entity: str | None,
        group: str | None,
        tags: list[str],
        log_checkpoint: str | bool | None = None,
    ) -> None:
        if log_checkpoint not in (None, False, "best", "last"):
            raise ValueError(f"log_checkpoint={log_checkpoint} must be false, best or last")
        self.project, self.entity, self.group, self.tags = project, entity, group, tags
        self.log_checkpoint = str(log_checkpoint) if log_checkpoint else None

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        verb, wanted = manifest["verb"], f"logger.log_checkpoint={self.log_checkpoint}"
        if self.log_checkpoint and (not verb_named(verb).trains or manifest.get("run") is not None):
            raise UserError(f"{wanted} is for a run that trains, which leaves checkpoints; leave it out")
        if self.log_checkpoint == "best" and verb == "max-retrieval":
            raise UserError(
                f"{wanted}: max-retrieval measures no held-out loss to choose by; give logger.log_checkpoint=last"
            )
        for name in [name for name, value in os.environ.items() if name.startswith("WANDB_") and not value.strip()]:
            del os.environ[name]  # as if it were not set; wandb refuses an empty mode
        folders = {"WANDB_CACHE_DIR": directory / "wandb" / "cache", "WANDB_DATA_DIR": directory / "wandb"}
        self.folders = {name: str(path) for name, path in folders.items() if name not in os.environ}
        os.environ |= self.folders  # else files that wait for their upload lie in the home folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # wandb's own deprecations
            import wandb
        self.wandb: Any = wandb
        earlier, sweep = manifest.get("wandb") or {}, manifest.get("sweep")
        options: dict[str, Any] = {
            "project": self.project,
            "entity": self.entity,
            "group": self.group or (Path(sweep).name if sweep else None),
            "job_type": verb,
            "tags": self.tags,
            "dir": str(directory),
            "name": "/".join(directory.parts[-2:]),
            "id": earlier.get("id"),
            "resume": "allow" if earlier else None,
            "config": manifest["config"],
        }
        try:
            address = wandb.setup().settings.base_url
            check_no_credentials(address, "WANDB_BASE_URL")  # wandb's address of the run would have them
            login = has_login(address)
            asked = mode_of(manifest, login)
            self.run = self.begin(asked, options)
        except (wandb.errors.Error, ValueError, OSError) as error:
            raise UserError(f"Weights & Biases cannot start: {one_line(error)[:200]}; or give logger=none") from error
        # an axis of our own: on its own axis wandb drops the steps that it has, which a resumed run repeats
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        mode = self.run.settings.mode
        url = None if mode == "offline" else self.run.url
        if mode == "offline":
            later = "logger=wandb" if login and asked == "offline" else "wandb sync"
            print_status(f"W&B: offline, in wandb/ of the run directory; {later} uploads it, {OFF}")
        elif url is not None:
            print_status(f"W&B: {url}; {OFF}")
        return {"id": self.run.id, "mode": mode, "url": url}

    def begin(self, mode: str, options: dict[str, Any]) -> Any:
        """wandb's run, offline if the server cannot be reached."""
        settings = self.wandb.Settings(console="off", silent=True, init_timeout=SECONDS_TO_REACH)
        if mode == "online":
            try:
                return self.wandb.init(mode=mode, settings=settings, **options)
            except (self.wandb.errors.Error, OSError) as error:
                unreached = one_line(error)[:200]
            run = self.wandb.init(mode="offline", settings=settings, **options)
            log.warning("Weights & Biases cannot be reached (%s); logging offline", unreached)
            return run
        return self.wandb.init(mode=mode, settings=settings, **options)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.run.log({**metrics, "step": step})

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        columns = columns_of(records)
        rows = [[record.get(name) for name in columns] for record in records]
        self.run.log({"results": self.wandb.Table(columns=columns, data=rows, allow_mixed_types=True)})

    def figures(self, pictures: Mapping[str, Path]) -> None:
        self.run.log({f"figures/{name}": self.wandb.Image(str(path)) for name, path in pictures.items()})

    def checkpoint(self, folder: Path, also: Sequence[Path]) -> None:
        artifact = self.wandb.Artifact(f"checkpoint-{self.run.id}", type="model", metadata={"folder": folder.name})
        for path in (*sorted(folder.iterdir()), *also):  # add_dir would print
            artifact.add_file(str(path))
        self.run.log_artifact(artifact, aliases=[folder.name, str(self.log_checkpoint)])

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        self.run.summary.update({"status": manifest["status"], **manifest["headline"]})
        self.run.finish(exit_code=exit_code)
        for name in self.folders:  # the next job of a sweep has its own
            os.environ.pop(name, None)


def mode_of(manifest: Mapping[str, Any], login: bool) -> str:
    """The mode that wandb is asked for.

    The environment decides. Without it: online if there is a login, and the run is a training or its command names the
    logger.
    """
    typed = any(word.startswith(("logger=", "+logger@logger.")) for word in manifest["overrides"])
    wanted = login and (typed or verb_named(manifest["verb"]).trains)
    return os.environ.get("WANDB_MODE") or ("online" if wanted else "offline")


def has_login(address: str) -> bool:
    """Whether there is an API key for the server at this address, in wandb's variable or in a netrc file."""
    import netrc

    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        path = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
        return netrc.netrc(path).authenticators(urlsplit(address).hostname or "") is not None
    except (OSError, RuntimeError, netrc.NetrcParseError):  # RuntimeError: there is no home folder
        return False
