"""A process that dies before its n-th change to the file system, played inside the test process.

Once dead it changes nothing: each further attempt, those of its own clean-up included, raises again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forkserver

CHANGES = forkserver.CHANGES | {"os.chmod", "shutil.rmtree"}


class Killed(BaseException):
    """What no code may catch and go on."""


class Watch:
    """Counts the changes below a folder; from the `last`-th on each one raises Killed instead."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.seen, self.last = 0, sys.maxsize

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.root is None or not is_change(event, args) or self.root not in f"{args[0]} {args[1]}":
            return
        self.seen += 1
        if self.seen >= self.last:
            raise Killed


def is_change(event: str, args: tuple[Any, ...]) -> bool:
    if event == "open":
        return isinstance(args[0], str) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
    return event in CHANGES


watch = Watch()
sys.addaudithook(watch)  # it cannot be taken back, only be told that there is nothing to watch


@contextmanager
def killed_before(last: int, root: Path) -> Iterator[Watch]:
    """Die before the `last`-th change below `root`; the watch says how many there were."""
    watch.root, watch.seen, watch.last = str(root), 0, last
    try:
        yield watch
    except Killed:
        pass
    finally:
        watch.root = None
