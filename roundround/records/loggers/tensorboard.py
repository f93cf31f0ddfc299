"""TensorBoard, by torch's writer of its event files. The only importer of it.

Tested by tests/records/test_loggers.py.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from roundround.config.recorded import flat
from roundround.records.loggers.base import Logger, columns_of
from roundround.support.errors import UserError
from roundround.support.markdown import markdown_table

FOLDER = "tensorboard"  # of the run directory
MOST_ROWS = 1000  # of the table of results, which TensorBoard shows as text


@final
class TensorBoard(Logger):
    """TensorBoard: event files in the run directory; `tensorboard --logdir outputs` shows all runs.

    The config and the results as text, the metrics as scalars, the figures as images, the config with the headline
    numbers for the tab HPARAMS, and how the run ended. Its folder appears with the first line of metrics.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError("logger=tensorboard needs TensorBoard: pip install 'roundround[tensorboard]'")
        self.writer: Any = None
        self.purge_step: int | None = None
        self.step = 0  # of the last metrics, which everything without a step of its own gets

    def start(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.config = directory / FOLDER, manifest["config"]

    def events(self) -> Any:
        """The writer. It is made late, so that a run which is refused leaves nothing."""
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

    def results(self, records: Sequence[Mapping[str, Any]]) -> None:
        columns = columns_of(records)
        found = [[record.get(name) for name in columns] for record in records[:MOST_ROWS]]
        table = markdown_table(columns, [["" if value is None else str(value) for value in row] for row in found])
        left_out = len(records) - len(found)
        table += f"\n{left_out:,} more are in results.json" if left_out else ""
        self.events().add_text("results", table, self.step)

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
