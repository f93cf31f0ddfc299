"""Ways to break this program's mathematics, each of which some check of `roundround theory` has to see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from roundround.pe import rotary
from roundround.softmax import adaptive_temperature


def everywhere(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, broken: Callable[..., Any]) -> None:
    """Replace a function in its own module and wherever it was imported by name."""
    import sys

    original = getattr(module, name)
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("roundround") and vars(other).get(name) is original:
            monkeypatch.setattr(other, name, broken)


def wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rotary.rotation

    def broken(pos_BT: Tensor, frequencies_P: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = whole(pos_BT, frequencies_P)
        return cos, -sin

    everywhere(monkeypatch, rotary, "rotation", broken)


def interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rotary.apply_rotation

    def broken(x_BHTC: Tensor, cos_BTR: Tensor, sin_BTR: Tensor) -> Tensor:
        n = cos_BTR.shape[-1]
        order = torch.arange(n).reshape(-1, 2).T.reshape(-1)  # 0, 2, 4, ..., 1, 3, 5, ...
        there = torch.cat([order, torch.arange(n, x_BHTC.shape[-1])])
        return whole(x_BHTC[..., there], cos_BTR, sin_BTR)[..., there.argsort()]

    everywhere(monkeypatch, rotary, "apply_rotation", broken)


def k_for_k_minus_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(n_pairs: int, width: int, theta: float, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        exponents = torch.arange(2, 2 * n_pairs + 2, 2, device=device).to(dtype) / width
        return 1.0 / theta**exponents

    everywhere(monkeypatch, rotary, "ladder", broken)


def reversed_polynomial(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = adaptive_temperature.polynomial

    def broken(coefficients: Sequence[float], x: Tensor) -> Tensor:
        return whole(coefficients[::-1], x)

    everywhere(monkeypatch, adaptive_temperature, "polynomial", broken)


def binary_logarithm(monkeypatch: pytest.MonkeyPatch) -> None:
    from roundround.attention import row_measures

    whole = row_measures.shannon_entropy
    everywhere(monkeypatch, row_measures, "shannon_entropy", lambda *args, **named: whole(*args, **named) / math.log(2))


MUTATIONS = {
    "wrong sign of the rotation": wrong_sign,
    "interleaved for half-split pairs": interleaved,
    "k for k-1 in the exponent": k_for_k_minus_1,
    "a reversed polynomial": reversed_polynomial,
    "binary for natural logarithm": binary_logarithm,
}
