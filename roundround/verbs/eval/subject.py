"""Who is asked by `roundround eval`, a run's decoder or a pretrained model, and how each of its questions ends.

Tested by tests/training/test_eval.py, tests/training/test_task_runs.py and tests/training/test_pair_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table

from roundround.asking.losses import check_lengths
from roundround.config.recorded import overridden
from roundround.data.tokenizers import Vocabulary
from roundround.distributed.device import describe_device
from roundround.model.decoder import Decoder
from roundround.records.run import Invocation, Run
from roundround.report.drawing.figures import save_drawing
from roundround.support.console import print_status, print_table
from roundround.support.errors import UserError, printable
from roundround.support.panels import Drawing
from roundround.trained.models import TrainedRun
from roundround.verbs.eval import EvalConfig

if TYPE_CHECKING:
    from roundround.hf.load import ProbedHuggingFaceModel

TO_LEAVE = ("with joints", "nats per byte")  # columns, where a terminal is narrow


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is asked. choices: the option of each config group, as results name it.

    context: tokens that the model was trained on. trained: the run of a decoder.
    """

    model: Decoder | ProbedHuggingFaceModel
    device: torch.device
    choices: dict[str, Any]
    context: int
    trained: TrainedRun | None = None

    @property
    def decoder(self) -> Decoder | None:
        return self.model if isinstance(self.model, Decoder) else None

    @property
    def seed(self) -> int | None:
        return None if self.trained is None else int(self.trained.config.seed)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        owner: Any = self.trained or self.model
        found: Vocabulary = owner.vocabulary()
        return found

    def known(self) -> dict[str, Any]:
        """What the manifest notes of every subject."""
        run = None if self.trained is None else str(self.trained.directory)
        return {"choices": self.choices, "device": describe_device(self.device), "seed": self.seed, "run": run}

    def common(self) -> dict[str, Any]:
        """What every record has."""
        return {"pe": self.choices.get("pe"), "softmax": self.choices.get("softmax"), "seed": self.seed}

    def title(self) -> str:
        """The data, the model and its attention in words."""
        names = self.choices.get
        return printable(f"{names('data')}, {names('model')}, pe={names('pe')}, softmax={names('softmax')}")

    def check_room(self, n_tokens: int, what: str) -> None:
        """UserError where the encoding has fewer positions than `n_tokens`, which `what` asks for."""
        if self.decoder is not None:
            check_lengths(self.decoder, n_tokens, what, self.choices.get("pe"))


def refuse(invocation: Invocation, keys: Iterable[str], why: str) -> None:
    """UserError for the first of these keys that was given: such results have no use for it."""
    given = {name.partition(".")[0] for name in overridden(invocation.overrides)}
    for key in keys:
        if key in given:
            raise UserError(f"{key}= {why}")


def show(run: Run, config: EvalConfig, drawing: Drawing | None, tables: Iterable[Table], lines: Iterable[str]) -> None:
    """Draw the figure, and print tables and lines, in the process that writes."""
    if drawing is not None:
        save_drawing(drawing, run.directory / "figures", config.figures)
    for table in tables:
        print_table(table, on_output=config.table == "stdout", first_to_leave=TO_LEAVE)
    for line in lines:
        print_status(line)
