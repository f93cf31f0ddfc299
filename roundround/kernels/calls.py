"""Which module calls: asked of the stack of Python by what sees single calls of attention in other people's models.

Tested by tests/model/test_replaced.py and tests/probing/test_watch.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from torch import nn


def calling_modules() -> Iterator[tuple[nn.Module, int]]:
    """The modules on the stack, the innermost first, each with the instruction of its code that runs.

    A function belongs to a module if the module is its first argument.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and isinstance(first := frame.f_locals.get(code.co_varnames[0]), nn.Module):
            yield first, frame.f_lasti
        frame = frame.f_back
