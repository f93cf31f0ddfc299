"""What every training loop does between two steps, whoever runs the steps: show, save, prune, stop when asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from roundround.distributed.stop_signal import StopSignal
from roundround.runs import checkpoints
from roundround.runs.run import Run
from roundround.support.errors import NotFinite
from roundround.training.display import Display

if TYPE_CHECKING:
    from roundround.runs.sharded_checkpoints import ShardedSaver


class Bookkeeping:
    """From the first step of a process to its last: the display, the clock, the stop signal and the checkpoints."""

    def __init__(self, run: Run, *, first_step: int, n_steps: int, sharded: bool = False) -> None:
        run.forget_after(first_step)
        self.folder = run.directory / "checkpoints"
        self.saver = new_sharded_saver(self.folder) if sharded else None
        self.display = Display(n_steps, first_step, shown=run.writes)
        self.stop_signal = StopSignal()
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

        Where each process has its share of the weights, all of them call this, and they are written meanwhile.
        """
        if self.saver is None:
            checkpoints.save(self.folder, step=step, weights=weights, optimizer=optimizer, state=state)
        else:
            self.saver.save(step, weights=weights, optimizer=optimizer, state=state)

    def wait_until_saved(self) -> None:
        """Return when the last checkpoint is there. Raises what went wrong with it."""
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


def new_sharded_saver(folder: Path) -> ShardedSaver:
    from roundround.runs.sharded_checkpoints import ShardedSaver  # torch.distributed takes a second to import

    return ShardedSaver(folder)
