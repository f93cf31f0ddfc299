"""Runs a verb in a process of its own and shows its lines and a progress bar in a Jupyter notebook.

Tested by tests/test_api.py and tests/test_notebook.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from roundround.distributed.child import VerbFailed, start
from roundround.support.console import print_status
from roundround.support.errors import AlreadyReported, Interrupted, UserError

STEP = re.compile(r"\w+ (\d+)/(\d+)  .* left")  # of `Display.metrics` in training/bookkeeping.py
LINES = 12  # shown of what has been printed, the last


def run_shown(verb: str, words: Sequence[str]) -> Path:
    """Run `roundround VERB WORDS` in a process of its own and show its lines; the run directory.

    Raises UserError if the words were refused, RuntimeError if the verb failed, and KeyboardInterrupt if a signal
    stopped it, each with the line about it.
    """
    ipython = sys.modules.get("IPython")  # in a notebook's kernel, which shows what is displayed
    in_notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    lines, show = list[str](), Shown().tell if in_notebook else print_status

    def tell(line: str) -> None:
        lines.append(line)
        show(line)

    def told(beginning: str, otherwise: str) -> str:
        return next((line.removeprefix(beginning) for line in reversed(lines) if line.startswith(beginning)), otherwise)

    command = f"roundround {verb}"
    try:
        return start([verb, *words], tell=tell)
    except AlreadyReported as error:
        raise UserError(told(f"{command}: ", str(error))) from None
    except VerbFailed as error:
        raise RuntimeError(told(f"{command}: ", str(error))) from None
    except Interrupted:
        resume = told(f"resume with: {command} ", "")
        hint = f'; rr.{verb}("{resume}") resumes it' if resume else ""
        raise KeyboardInterrupt(f"{command} was stopped{hint}") from None


class Shown:
    """The output of a notebook cell, which shows the lines of a verb and is updated with each line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.step, self.done, self.n_steps = "", 0, 0
        self.handle: Any = None

    def tell(self, line: str) -> None:
        """Show one more line; a line of progress replaces the one before."""
        found = STEP.fullmatch(line)
        if found is None:
            self.lines.append(line)
        else:
            self.step, self.done, self.n_steps = line, int(found[1]), int(found[2])
        from IPython.display import display

        if self.handle is None:
            self.handle = display(self.bundle(), raw=True, display_id=True)
        else:
            self.handle.update(self.bundle(), raw=True)

    def bundle(self) -> dict[str, str]:
        """The output as HTML and as text."""
        lines = [*self.lines[-LINES:], *([self.step] if self.step else [])]
        bar = f'<progress value="{self.done}" max="{self.n_steps}"></progress>' if self.n_steps else ""
        return {"text/plain": "\n".join(lines), "text/html": f"{bar}<pre>{escape(chr(10).join(lines))}</pre>"}
