"""The one error that is the user's to mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Wrong input: one line that says what, where and what to do. The command prints it and exits with 2."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """Tail of a message about a wrong name: the nearest right one where there is one, and all of them."""
    names = sorted(choices)
    begun = [choice for choice in names if len(name) > 2 and choice.startswith(name)]
    beginnings = {choice[: len(name)]: choice for choice in reversed(names)}  # adaptve -> adaptive_temperature
    misspelt = [beginnings[part] for part in difflib.get_close_matches(name, beginnings, n=1, cutoff=0.75)]
    near = difflib.get_close_matches(name, names, n=1) or begun or misspelt
    guess = f"; did you mean '{near[0]}'?" if near else ""
    return f"{guess} (choices: {', '.join(names)})" if names else guess


class NotFinite(Exception):
    """The loss or the gradient is no longer a number; training cannot recover from it."""


class Interrupted(BaseException):
    """A signal asked the process to stop (SIGINT or SIGTERM); the command exits with 128 plus its number."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def one_line(error: BaseException) -> str:
    """An error's message as a single line, whatever it was."""
    return " ".join(str(error).split()) or type(error).__name__
