"""Metric loggers: the base class with its hooks, and the loggers of this project.

`metrics.jsonl` and `results.json` are written without any logger. These are not Lightning's loggers: Lightning takes
six seconds to import, and `eval`, `probe` and `max-retrieval` do not import it.

Tested by tests/records/test_loggers.py and tests/records/test_wandb.py.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from roundround.config.recorded import flat
from roundround.records.directories import METRICS
from roundround.support.console import print_status
from roundround.support.errors import UserError, one_line
from roundround.support.files import write_atomically
from roundround.verbs import verb_named

log = logging.getLogger(__name__)
SECONDS_TO_REACH = 15  # the time limit for reaching W&B's server at the start of a run


class Logger:
    """Base of the loggers; every hook does nothing unless a subclass defines it.

    A run calls `start` first. A training run then calls `forget_after`, and `log` many times. When the run has ended,
    successfully or not, it calls `results`, `figures` and `checkpoint`, each only if the run has written such files. It
    calls `finish` last.
    """

    log_checkpoint: str | None = None  # the checkpoint that the logger gets: best, last, or None for no checkpoint

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        """Start logging, and return what the manifest records about the logger.

        Raises UserError if the logger cannot log this run.
        """
        return None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log one line of metrics."""

    def forget_after(self, step: int) -> None:
        """Drop the metrics of all steps after `step`: training starts or resumes there, and logs those steps again."""

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Log the records of results.json, in which a number that is not finite is a string such as "nan"."""

    def figures(self, pictures: Mapping[str, Path]) -> None:
        """Log the run's figures. pictures: the PNG file of each figure, by the figure's name."""

    def checkpoint(self, folder: Path, also: Sequence[Path]) -> None:
        """Log the checkpoint that `log_checkpoint` names. It is not called if that option names none.

        also: other files of the run that are needed to load it.
        """

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        """Finish. manifest: the final manifest, whose status says how the run ended. exit_code: the process's code."""


@final
class NoLogger(Logger):
    """Logs nothing; metrics.jsonl and results.json are written anyway."""


@final
class Several(Logger):
    """A list of loggers. A run calls each of them separately: if one fails, the others still get everything."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = list(loggers)


@final
class CSV(Logger):
    """Writes metrics.csv and results.csv in the run directory when the run ends; an empty cell means no value."""

    def start(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_table(self.directory / "results.csv", records)

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        metrics = self.directory / METRICS
        if metrics.exists():
            write_table(self.directory / "metrics.csv", list(map(json.loads, metrics.read_text("utf-8").splitlines())))


@final
class TensorBoard(Logger):
    """Logs to TensorBoard: event files in the run directory; `tensorboard --logdir outputs` shows all runs.

    TensorBoard gets the config as text, the metrics as scalars, the figures as images, the config and the headline
    numbers for the tab HPARAMS, and the status with which the run ended. The logger creates its folder with the first
    line of metrics.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError("logger=tensorboard needs TensorBoard: pip install 'roundround[tensorboard]'")
        self.writer: Any = None
        self.purge_step: int | None = None
        self.step = 0  # the step of the last metrics; used for everything that has no step of its own

    def start(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.config = directory / "tensorboard", manifest["config"]

    def events(self) -> Any:
        """The writer of event files, created at the first use, so that a refused run leaves no files."""
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder), purge_step=self.purge_step)
            self.writer.add_text("config", f"```\n{json.dumps(self.config, indent=2, default=str)}\n```", self.step)
        return self.writer

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.step = step
        for name, value in metrics.items():
            self.events().add_scalar(name, value, step)
        self.events().flush()  # a killed process leaves what metrics.jsonl has

    def forget_after(self, step: int) -> None:
        self.step, self.purge_step = step, step + 1  # readers drop what earlier files have from this step on

    def figures(self, pictures: Mapping[str, Path]) -> None:
        import numpy as np
        from PIL import Image

        for name, path in pictures.items():
            with Image.open(path) as picture:
                pixels_HWC = np.asarray(picture.convert("RGB"))
            self.events().add_image(f"figures/{name}", pixels_HWC, self.step, dataformats="HWC")

    def finish(self, manifest: dict[str, Any], exit_code: int) -> None:
        if exit_code == 2 and self.writer is None:
            return
        writer = self.events()
        writer.add_text("status", f"{manifest['status']} (exit code {exit_code})", self.step)
        settings = {  # HPARAMS takes no lists
            key: value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)
            for key, value in flat(self.config).items()
        }
        headline = {f"headline/{name}": float(value) for name, value in manifest["headline"].items()}
        writer.add_hparams(settings, headline, run_name=".", global_step=self.step)
        writer.close()


@final
class WandB(Logger):
    """Logs to Weights & Biases, online, or offline into the run directory (`mode_of`); the user is never prompted.

    W&B gets the config, the metrics, the results as a table, the figures as images, and the status with which the run
    ended. If `log_checkpoint` is given, W&B also gets a checkpoint as an artifact. The jobs of a sweep are a group of
    W&B; a resumed run continues its W&B run.
    """

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
        verb = manifest["verb"]
        if self.log_checkpoint and (not verb_named(verb).trains or manifest.get("run") is not None):
            raise UserError(
                "logger.log_checkpoint uploads a checkpoint of a training run, and this run writes no checkpoints; "
                "leave out logger.log_checkpoint"
            )
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
            self.run = self.begin(mode_of(manifest, has_login(wandb.setup().settings.base_url)), options)
        except (wandb.errors.Error, ValueError, OSError) as error:
            raise UserError(
                f"Weights & Biases cannot start: {one_line(error)[:200]}; put this right, or give logger=none"
            ) from error
        # an axis of our own: a resumed run repeats steps, and on its own axis wandb drops steps that it already has
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        mode = self.run.settings.mode
        url = None if mode == "offline" else self.run.url
        where = url or f"{mode}, in wandb/ of the run directory; wandb sync uploads it"
        print_status(f"W&B: {where}; logger=none turns it off")
        return {"id": self.run.id, "mode": mode, "url": url}

    def begin(self, mode: str, options: dict[str, Any]) -> Any:
        """Start and return wandb's run; the run is offline if the server cannot be reached."""
        settings = self.wandb.Settings(console="off", silent=True, init_timeout=SECONDS_TO_REACH)
        try:
            return self.wandb.init(mode=mode, settings=settings, **options)
        except (self.wandb.errors.Error, OSError) as error:
            if mode != "online":
                raise
            log.warning("Weights & Biases cannot be reached (%s); logging offline", one_line(error)[:200])
            return self.wandb.init(mode="offline", settings=settings, **options)

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


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of all columns, in the order in which they first occur in the rows."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace a file by a csv table with a header. Numbers are written in full, so reading them back is exact."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def mode_of(manifest: Mapping[str, Any], login: bool) -> str:
    """The mode in which wandb logs: the value of the environment variable WANDB_MODE, if it is set.

    Otherwise the mode is online under two conditions: there is a login, and either the run trains a model or the
    command of the run names the logger. In all other cases the mode is offline.
    """
    typed = any(word.startswith(("logger=", "+logger@logger.")) for word in manifest["overrides"])
    wanted = login and (typed or verb_named(manifest["verb"]).trains)
    return os.environ.get("WANDB_MODE") or ("online" if wanted else "offline")


def has_login(address: str) -> bool:
    """Whether WANDB_API_KEY is set, or a netrc file has an entry for the server at this address."""
    import requests  # a dependency of wandb

    return bool(os.environ.get("WANDB_API_KEY") or requests.utils.get_netrc_auth(address))
