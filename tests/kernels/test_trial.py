"""A kernel is tried before it is used: one that raises, or gives other numbers, is left alone, and a line says why."""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from roundround.kernels import trial
from roundround.kernels.sdpa import repeated
from roundround.kernels.trial import Attention, FallsBack, passes


@pytest.fixture(autouse=True)
def nothing_tried_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trial, "outcomes", {})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ repeated(k, q).mT, -1) @ repeated(v, q)


def tried(attend: Attention, dtype: torch.dtype = torch.float32, **options: object) -> bool:
    asked = {"device": "cpu", "dtype": dtype, "n_channels": 16, "variant": (), "instead": "something else runs"}
    return passes("a kernel", attend, definition, **(asked | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_kernel_is_used_and_nothing_is_said(dtype: torch.dtype) -> None:
    assert tried(definition, dtype)


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return 1.05 * grad


def raising(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    raise RuntimeError("out of resource: shared memory\nand a second line")


@pytest.mark.parametrize(
    ("attend", "reason"),
    [
        (lambda q, k, v: 1.02 * definition(q, k, v), "the relative error of its output is 2.0e-02"),
        (lambda q, k, v: definition(q, k, v) * float("nan"), "the relative error of its output is nan"),
        (lambda q, k, v: definition(q, WrongGradient.apply(k), v), "the relative error of its gradient of k is 5"),
        (raising, "RuntimeError: out of resource: shared memory;"),
    ],
    ids=["wrong", "NaN", "wrong gradient", "raises"],
)
def test_a_kernel_that_is_wrong_or_raises_is_left_alone(attend: Attention, reason: str) -> None:
    with pytest.warns(FallsBack) as said:
        assert not tried(attend)
    (line,) = [str(one.message) for one in said]
    assert line.startswith("a kernel fails on cpu in float32 (")
    assert reason in line
    assert line.endswith("): something else runs")
    path = re.search(r"log: (\S+\.log)\)", line)
    assert path is not None
    assert "Traceback" in Path(path[1]).read_text()


def test_a_kernel_is_tried_once_for_each_device_precision_and_variant() -> None:
    seen = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append(q.dtype)
        return definition(q, k, v)

    for _ in range(3):
        assert tried(attend)
    assert len(seen) == 2  # with gradients and without
    assert tried(attend, torch.bfloat16)
    assert tried(attend, variant=("causal",))
    assert len(seen) == 6


def test_a_trial_moves_no_random_number_and_needs_no_gradients_to_be_on() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with torch.inference_mode():
        assert tried(definition)
    assert torch.equal(torch.rand(3), expected)


def test_a_log_that_cannot_be_written_is_no_second_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    with pytest.warns(FallsBack, match="no log: "):
        assert not tried(raising)


def test_a_compiled_model_asks_as_it_is_compiled() -> None:
    """Not in its graph: a kernel is tried on tensors of its own."""
    from roundround.kernels.torch_internals import once_per_compilation

    seen: list[str] = []

    @once_per_compilation
    def works(device: str, dtype: torch.dtype) -> bool:
        seen.append(device)
        return tried(definition, dtype, device=device)

    def attend(x: Tensor) -> Tensor:
        return 2 * x if works(str(x.device), x.dtype) else x

    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    compiled(torch.zeros(3))
    assert seen == ["cpu"]
    torch.compiler.reset()


def test_a_trial_inside_a_layer_that_is_recomputed_is_no_part_of_it() -> None:
    """Its own backward pass would else recompute the layer, in which the kernel was not tried."""

    def layer(x: Tensor) -> Tensor:
        return x.exp() if tried(definition) else x.cos()

    x = torch.ones(3, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())
