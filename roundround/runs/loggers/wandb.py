"""Weights & Biases. The only importer of wandb."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from roundround.errors import one_line
from roundround.runs.loggers.base import Logger

log = logging.getLogger(__name__)


@final
class WandB(Logger):
    """Weights & Biases: online where a login exists, else offline in the run directory; never prompts."""

    def __init__(self, *, project: str, entity: str | None, group: str | None, tags: list[str]) -> None:
        self.project, self.entity, self.group, self.tags = project, entity, group, tags

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # wandb's own deprecations
            import wandb

        earlier = manifest["wandb"] or {}
        sweep = manifest["sweep"]
        settings = wandb.Settings(console="off", silent=True, init_timeout=30)
        options: dict[str, Any] = {
            "project": self.project,
            "entity": self.entity,
            "group": self.group or (Path(sweep).name if sweep else None),
            "tags": self.tags,
            "dir": str(directory),
            "name": "/".join(directory.parts[-2:]),
            "id": earlier.get("id"),
            "resume": "allow" if earlier else None,
            "config": manifest["config"],
            "settings": settings,
        }
        mode = os.environ.get("WANDB_MODE") or ("online" if has_login() else "offline")
        try:
            self.run = wandb.init(mode=mode, **options)  # type: ignore[arg-type]
        except (wandb.errors.CommError, wandb.errors.UsageError) as error:
            log.warning("Weights & Biases cannot be reached (%s); logging offline", one_line(error))
            self.run = wandb.init(mode="offline", **options)
        offline = self.run.settings.mode == "offline"
        return {"id": self.run.id, "mode": self.run.settings.mode, "url": None if offline else self.run.url}

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def finish(self, manifest: dict[str, Any]) -> None:
        self.run.summary.update({"status": manifest["status"], **manifest["headline"]})
        self.run.finish(exit_code=0 if manifest["status"] == "done" else 1)


def has_login() -> bool:
    """Whether wandb knows an API key, from its variable or from a netrc file."""
    import netrc

    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
