"""What a person sees while a model trains: a live bar on a terminal, plain lines elsewhere; both on standard error."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from roundround.support.console import print_status

SECONDS_BETWEEN_LINES = 5.0


class Display:
    """Step, the numbers it is given, time left. Silent on every rank but the first."""

    def __init__(self, n_steps: int, first_step: int, *, shown: bool, unit: str = "step") -> None:
        self.n_steps = n_steps
        self.first_step = first_step
        self.shown = shown
        self.unit = unit
        self.started = self.last_line = time.monotonic()
        self.live: Progress | None = None
        if shown and sys.stderr.isatty():
            self.live = Progress(
                TextColumn(f"{unit} {{task.completed}}/{{task.total}}"),
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=Console(file=sys.stderr),
                transient=True,
            )
            self.task = self.live.add_task("", total=n_steps, completed=first_step, numbers="")
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
            self.say(f"{self.unit} {step}/{self.n_steps}  {numbers}  {self.left(step)} left")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.shown:
            return
        if self.live is not None:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            print_status(text)

    def left(self, step: int) -> str:
        done = max(1, step - self.first_step)
        seconds = (time.monotonic() - self.started) / done * (self.n_steps - step)
        minutes, seconds = divmod(round(seconds), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}" if minutes >= 60 else f"{minutes}:{seconds:02d}"

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
