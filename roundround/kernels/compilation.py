"""What `torch.compile` is told about functions that it cannot trace, without importing the compiler where none runs.

Tested by tests/training/test_compile.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import nn

P = ParamSpec("P")
T = TypeVar("T")


def outside_compilation(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run as it is inside a compiled model; the compiler, which takes a second to import, only there."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            disabled: Callable[P, T] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            return disabled(*args, **options)
        return function(*args, **options)

    return call


def once_per_compilation(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run as a model is compiled and not again; for messages and trials, which no graph can hold.

    Its arguments are no tensors.

    It sets what `torch.compiler.assume_constant_result` sets, which would import the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[bool]:
    """Inside, the module and its parts run as they are; whether any is compiled."""
    kept = {part: part._compiled_call_impl for part in module.modules() if part._compiled_call_impl is not None}
    for part in kept:
        part._compiled_call_impl = None
    try:
        yield bool(kept)
    finally:
        for part, call in kept.items():
            part._compiled_call_impl = call


def compile_in_place(module: nn.Module) -> None:
    """`module.compile()`, where a float that differs from layer to layer is a number in each one's graph.

    PyTorch would make a symbol of it the second time, which FlexAttention refuses.
    """
    from torch import _dynamo

    _dynamo.config.specialize_float = True
    module.compile()
