"""All uses of private parts of torch, which may change without notice; no other module may use them.

It holds the attention operators that return log-sum-exps, what is asked of function modes, of dispatch modes and of
the compiler, and the marks for functions that `torch.compile` cannot trace; setting a mark does not import the
compiler. All were checked in the source of torch 2.6 to 2.13.

Tested by tests/kernels/test_torch_internals.py and tests/training/test_compile.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

P = ParamSpec("P")
T = TypeVar("T")

flash_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_on_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
flash = torch.ops.aten._scaled_dot_product_flash_attention
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
efficient = torch.ops.aten._scaled_dot_product_efficient_attention
without_dispatch_modes = _disable_current_modes  # nobody who counts or caches operators, as checkpointing, sees them
COMPILED_CALL = "compile_wrapper"  # on the stack, it calls what is compiled; checked in torch 2.13 alone
efficient_backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
function_modes: Callable[[], list[object]] = torch.overrides._get_current_function_mode_stack


def outside_compilation(function: Callable[P, T]) -> Callable[P, T]:
    """Let a compiled model call the function uncompiled. Only such a call imports the compiler; the import is slow."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            disabled: Callable[P, T] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
            return disabled(*args, **options)
        return function(*args, **options)

    return call


def once_per_compilation(function: Callable[P, T]) -> Callable[P, T]:
    """Make the function run once while a model is compiled; for messages and trials, which no graph can contain.

    The arguments must not be tensors.

    `torch.compiler.assume_constant_result` does the same, but imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def nothing_compiled() -> AbstractContextManager[object]:
    """Inside the block, all that `torch.compile` has compiled runs uncompiled; free if nothing was compiled."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[bool]:
    """Inside the block, the module and its parts run uncompiled; yields whether any of them had been compiled."""
    kept = {part: part._compiled_call_impl for part in module.modules() if part._compiled_call_impl is not None}
    for part in kept:
        part._compiled_call_impl = None
    try:
        yield bool(kept)
    finally:
        for part, call in kept.items():
            part._compiled_call_impl = call


def compile_in_place(module: nn.Module) -> None:
    """Call `module.compile()` so that each float is a constant of its graph, even if floats differ between layers.

    By default, PyTorch turns a float that changes into a symbol, which FlexAttention refuses.
    """
    from torch import _dynamo

    _dynamo.config.specialize_float = True
    module.compile()


def recompiling(limit: int) -> AbstractContextManager[None]:
    """Inside the block, a function can be compiled `limit` times, and each float is a constant of its graph."""
    from torch import _dynamo

    patch: AbstractContextManager[None] = _dynamo.config.patch(
        recompile_limit=limit, accumulated_recompile_limit=limit, specialize_float=True
    )
    return patch
