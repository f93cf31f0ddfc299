"""What every training loop does between two steps: show, save, delete old checkpoints, stop when asked.

Tested by tests/training/test_train.py and tests/training/test_stopping_together.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from torch import Tensor

from roundround.distributed.interruption import StopSignal
from roundround.records import checkpoints
from roundround.records.run import Run
from roundround.support.console import print_status
from roundround.support.errors import NotFinite

if TYPE_CHECKING:
    from roundround.records.sharded_checkpoints import ShardedSaver

SECONDS_BETWEEN_LINES = 5.0


class Bookkeeping:
    """From the first step of a process to its last: the display, the clock, the stop signal and the checkpoints."""

    saver: ShardedSaver | None = None

    def __init__(self, run: Run, *, first_step: int, n_steps: int) -> None:
        self.run, self.first_step = run, first_step
        self.display = Display(n_steps, first_step, shown=run.writes)
        self.stop_signal = StopSignal()

    def start(self, *, sharded: bool = False) -> None:
        """Training begins, in all processes at once. sharded: each process has its share of the weights."""
        self.run.forget_after(self.first_step)
        self.folder = self.run.directory / "checkpoints"
        if sharded:
            from roundround.records.sharded_checkpoints import (
                ShardedSaver,  # torch.distributed takes a second to import
            )

            self.saver = ShardedSaver(self.folder)
        self.display.start()
        self.stop_signal.start()
        self.clock = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap, or since the clock was last set."""
        seconds = time.monotonic() - self.clock
        self.clock += seconds
        return seconds

    def skip(self) -> None:
        """Leave out the time since the last lap, which went into something other than training."""
        self.clock = time.monotonic()

    def save(
        self,
        step: int,
        *,
        weights: Mapping[str, Tensor],
        optimizer: dict[str, Any],
        state: dict[str, Any],
    ) -> None:
        """Write the checkpoint of a step, and delete those that are neither among the newest nor the best.

        If each process has its share of the weights, all of them call this, and a thread writes them.
        """
        if self.saver is None:
            checkpoints.save(self.folder, step=step, weights=weights, optimizer=optimizer, state=state)
        else:
            self.saver.save(step, weights=weights, optimizer=optimizer, state=state)

    def wait_until_saved(self) -> None:
        """Wait until the last checkpoint is written. Raises the error of a failed write."""
        if self.saver is not None:
            self.saver.wait()

    def not_finite(self, what: str, step: int) -> NotFinite:
        """The error for a step that went wrong; it names the checkpoint to go back to."""
        self.wait_until_saved()
        newest = checkpoints.newest(self.folder)
        left = f"the last good checkpoint is {newest}" if newest else "there is no checkpoint yet"
        return NotFinite(f"{what} at step {step}; {left}; try a lower optim.lr")

    def close(self) -> None:
        """Give the signals and the terminal back."""
        self.stop_signal.close()
        self.display.close()


class Display:
    """Shows the step, some numbers and the time left. Silent on every rank but the first."""

    def __init__(self, n_steps: int, first_step: int, *, shown: bool, unit: str = "step") -> None:
        self.n_steps = n_steps
        self.first_step = first_step
        self.shown = shown
        self.unit = unit
        self.live: Progress | None = None

    def start(self) -> None:
        self.started = self.last_line = time.monotonic()
        if self.shown and sys.stderr.isatty():
            self.live = Progress(
                TextColumn(f"{self.unit} {{task.completed}}/{{task.total}}"),
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=Console(file=sys.stderr, soft_wrap=True),  # the terminal wraps what is printed meanwhile
                transient=True,
            )
            self.task = self.live.add_task("", total=self.n_steps, completed=self.first_step, numbers="")
            self.live.start()

    def advance(self, step: int) -> None:
        if self.live is not None:
            self.live.update(self.task, completed=step)

    def metrics(self, step: int, numbers: str) -> None:
        """Show the numbers of a logging step; as a plain line at most every few seconds."""
        if self.live is not None:
            self.live.update(self.task, numbers=numbers)
        elif time.monotonic() - self.last_line >= SECONDS_BETWEEN_LINES or step == self.n_steps:
            self.last_line = time.monotonic()
            seconds_per_step = (self.last_line - self.started) / max(1, step - self.first_step)
            minutes, seconds = divmod(round(seconds_per_step * (self.n_steps - step)), 60)
            left = f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"
            self.say(f"{self.unit} {step}/{self.n_steps}  {numbers}  {left} left")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.shown:
            return
        if self.live is not None:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            print_status(text)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
