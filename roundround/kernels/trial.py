"""A trial of the kernels that the tests cannot run on every machine: each kernel is tried once before it is used.

A GPU may have too little shared memory for a kernel, a compiler may fail, a package may have changed. So a kernel
from another package or from a compiler first computes a small attention and its gradients, which are compared with the
definition. A kernel that fails or gives other numbers is not used in this process; a warning says so, with the reason
and the path of a log.

Shapes: B batch, T tokens, H heads, G key heads, C head channels.

Tested by tests/kernels/test_trial.py.
"""

from __future__ import annotations

import os
import tempfile
import traceback
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from roundround.kernels.torch_internals import once_per_compilation

N_BATCH, N_HEADS, N_KEY_HEADS, N_TOKENS = 2, 4, 2, 70  # grouped, more than a block of 64, no power of two
# largest relative error (of norms) of the output and of each gradient. The bounds are far below the error of a wrong
# formula and far above rounding errors: TF32 may round to 10 bits, and rounding may add or remove keys of sparse rows
BOUNDS = {torch.float32: (5e-3, 2e-2), torch.float16: (2e-2, 1e-1), torch.bfloat16: (5e-2, 3e-1)}

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

outcomes: dict[tuple[object, ...], bool] = {}  # of this process


class FallsBack(UserWarning):
    """Warns once that the fastest kernel cannot compute a call here, with the reason."""


@once_per_compilation
def say(message: str) -> None:
    """Warn with `FallsBack`; the warning filters decide whether it is shown more than once."""
    warnings.warn(message, FallsBack, stacklevel=3)


def passes(
    kernel: str,
    attend: Attention,
    definition: Attention,
    *,
    device: str,
    dtype: torch.dtype,
    n_channels: int,
    variant: tuple[object, ...],
    instead: str,
    n_tokens: int = N_TOKENS,
) -> bool:
    """Whether `attend` agrees with `definition` on this device, gradients included; tried once in each process.

    attend, definition: functions from queries, keys and values to [B, H, T, C]; `definition` gets float64 inputs.
    variant: everything that selects a kernel besides the name, the device, the dtype and the number of channels.
    instead: the end of the warning, which says what runs if the kernel fails.
    """
    key = (kernel, device, dtype, n_channels, *variant)
    if key not in outcomes:
        outcomes[key] = True  # so that the trial, if it reaches this kernel again, does not start itself again
        try:
            plain = torch.autocast(device.split(":")[0], enabled=False)
            # hooks of activation checkpointing around this layer must not see the tensors that the trial saves
            own = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
            with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad(), plain, own:
                warnings.simplefilter("ignore")  # warnings of the compiler
                check(attend, definition, torch.device(device), dtype, n_channels, n_tokens)
        except Exception as failure:  # a compiler may raise anything
            outcomes[key] = False
            reason = f"{type(failure).__name__}: {failure}".splitlines()[0][:200]
            precision = str(dtype).removeprefix("torch.")
            say(f"{kernel} fails on {device} in {precision} ({reason}; {log(kernel)}): {instead}")
    return outcomes[key]


def check(
    attend: Attention,
    definition: Attention,
    device: torch.device,
    dtype: torch.dtype,
    n_channels: int,
    n_tokens: int,
) -> None:
    """Raises ArithmeticError if kernel and definition differ by more than `BOUNDS`; the kernel may raise any error."""
    generator = torch.Generator().manual_seed(0)
    heads = (N_HEADS, N_KEY_HEADS, N_KEY_HEADS, N_HEADS)
    drawn = [torch.randn(N_BATCH, n, n_tokens, n_channels, generator=generator) for n in heads]
    *inputs, cotangent = (x.to(device, dtype) for x in drawn)
    leaves, exact = ([x.to(to).requires_grad_() for x in inputs] for to in (dtype, torch.float64))
    with torch.no_grad():
        undifferentiated = attend(*leaves)
    out, expected = attend(*leaves), definition(*exact)
    grads = torch.autograd.grad(out, leaves, cotangent.to(out.dtype))
    its_grads = torch.autograd.grad(expected, exact, cotangent.double())
    of_output, of_gradient = BOUNDS[dtype]
    compared = [
        ("output", out, expected, of_output),
        ("output without gradients", undifferentiated, expected, of_output),
        *((f"gradient of {x}", mine, its, of_gradient) for x, mine, its in zip("qkv", grads, its_grads, strict=True)),
    ]
    for what, mine, its, bound in compared:
        error = float((mine.detach().double() - its.detach()).norm() / its.detach().norm())
        if not error <= bound:
            raise ArithmeticError(f"the relative error of its {what} is {error:.1e}")


def log(kernel: str) -> str:
    """Write the current exception's traceback to a file; return its path, or the reason why it was not written."""
    try:
        handle, path = tempfile.mkstemp(prefix=f"roundround-{kernel.replace(' ', '-')}-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(traceback.format_exc())
    except OSError as failure:
        return f"no log: {failure}"
    return f"log: {path}"
