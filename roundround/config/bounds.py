"""Bounds that values of several verbs must keep.

Tested by tests/command_line/test_wrong_starts.py and tests/training/test_preflight.py.
"""

from __future__ import annotations

import re

from roundround.support.errors import UserError, nearest

MOST_INPUTS = 10_000_000  # that a model is asked


def is_utf8(text: str) -> bool:
    """Whether a text of the command line was UTF-8: Python keeps other bytes as halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_checkpoint(name: str) -> None:
    """Raises UserError where it names no checkpoint."""
    if not re.fullmatch(r"best|last|step-\d+", name):
        raise UserError(f"no checkpoint={name}{nearest(name, ['best', 'last', 'step-00000100'])}")


def at_least_one(**values: int) -> None:
    """Raises UserError for the first value below 1."""
    for name, value in values.items():
        if value < 1:
            raise UserError(f"{name}={value} must be at least 1")


def at_most_inputs(**values: int) -> None:
    """Raises UserError for the first number of inputs that would take years."""
    for name, value in values.items():
        if value > MOST_INPUTS:
            raise UserError(f"{name}={value} must be at most {MOST_INPUTS:,}, from which a share is known to 0.02 %")


def check_seed(**values: int) -> None:
    """Raises UserError for a seed that not all generators of random numbers take."""
    for name, value in values.items():
        if not 0 <= value < 2**32:
            raise UserError(f"{name}={value} must lie between 0 and 2^32 - 1")


def checked_bos(bos: str) -> str:
    """auto, true or false; the latter two come as True and False."""
    if bos.lower() not in ("auto", "true", "false"):
        raise UserError(f"bos={bos.lower()} must be auto, true or false")
    return bos.lower()
