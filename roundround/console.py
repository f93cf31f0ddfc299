"""Lines for the person at the terminal, on standard error: standard output is for the run directory."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def print_status(text: str) -> None:
    """Print one line on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def warnings_as_lines(kind: type[Warning]) -> Iterator[None]:
    """Inside, print warnings of this kind as plain lines, each text once; others are shown as always."""
    printed = set()
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if not issubclass(category, kind):
                shown(message, category, *place, **options)
            elif str(message) not in printed:
                printed.add(str(message))
                print_status(str(message))

        warnings.showwarning = show
        warnings.simplefilter("always", kind)
        yield
