"""Ways to break this program's mathematics, each of which some check of `roundround theory` has to see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from roundround.analysis import intervals
from roundround.attention import blocks, fused, kernels, row_measures
from roundround.attention.keys import Keys
from roundround.pe import p_rope, rotary
from roundround.pe.p_rope_reversed import PRoPEReversed
from roundround.softmax import adaptive_temperature, base
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax


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
    whole = row_measures.shannon_entropy
    everywhere(monkeypatch, row_measures, "shannon_entropy", lambda *args, **named: whole(*args, **named) / math.log(2))


def no_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pos_BT: Tensor, frequencies_P: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = ROTATION(pos_BT, 0 * frequencies_P)
        return cos, sin

    everywhere(monkeypatch, rotary, "rotation", broken)


def cosines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pos_BT: Tensor, frequencies_P: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = ROTATION(pos_BT, frequencies_P)
        return cos, 0 * sin

    everywhere(monkeypatch, rotary, "rotation", broken)


def float32_angles(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pos_BT: Tensor, frequencies_P: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = ROTATION(pos_BT, frequencies_P.float())
        return cos.to(frequencies_P.dtype), sin.to(frequencies_P.dtype)

    everywhere(monkeypatch, rotary, "rotation", broken)


def the_other_end_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, p_rope, "PRoPE", PRoPEReversed)


def a_ladder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial RoPE's frequencies: the kept pairs span the whole range."""

    def broken(self: p_rope.PRoPE, dtype: torch.dtype = torch.float32, device: Any = "cpu") -> Tensor:
        n_pairs = self.shape.head_dim // 2
        kept = rotary.ladder(self.n_kept, 2 * self.n_kept, self.theta, dtype, device)
        return torch.cat([kept, kept.new_zeros(n_pairs - self.n_kept)])

    monkeypatch.setattr(p_rope.PRoPE, "frequencies", broken)


def pairs_rounded_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, p_rope, "kept_pairs", lambda p, head_dim: round(p * head_dim / 2))


def values_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = AttentionSoftmax.forward

    def broken(self: AttentionSoftmax, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        g_P = rotary.ladder(v.shape[-1] // 2, v.shape[-1], 10_000.0, torch.float64, "cpu")
        turned = rotary.apply_rotation(v, *rotary.rotation(options["keys"].k_pos_BK, g_P))
        return whole(self, q, k, turned, **options)

    monkeypatch.setattr(AttentionSoftmax, "forward", broken)


def seeing(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    whole = Keys.visible_to

    def broken(self: Keys, rows_R: Tensor, first: int, last: int) -> Tensor:
        return whole(self, rows_R + ahead, first, last)

    monkeypatch.setattr(Keys, "visible_to", broken)


def ssmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a strength of 1 / ln 64: sharper than the softmax from 65 keys on."""
    monkeypatch.setattr(Softmax, "beta", lambda self, n, entropy: n.clamp(min=1).log() / math.log(64))


def scaled_logits(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    whole = base.softmax_over_visible
    everywhere(monkeypatch, base, "softmax_over_visible", lambda logits, visible: whole(factor * logits, visible))


def products_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = blocks.times_of_key_heads
    everywhere(monkeypatch, blocks, "times_of_key_heads", lambda x, y: 2 * whole(x, y))


def twice_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kernels.scaled_dot_product_attention

    def broken(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
        return whole(q, k, v, 2 * scale, causal)

    monkeypatch.setattr(kernels, "scaled_dot_product_attention", broken)


def half_the_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = row_measures.entropy_bound
    everywhere(monkeypatch, row_measures, "entropy_bound", lambda ln_n, spread: whole(ln_n, spread / 2))


def no_mean_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log-sum-exp alone for the entropy."""
    whole = fused.entropy_and_log_sum_exp

    def broken(*args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        _, log_sum_exp = whole(*args, **named)
        return log_sum_exp, log_sum_exp

    everywhere(monkeypatch, fused, "entropy_and_log_sum_exp", broken)


def wide_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = intervals.half_width
    everywhere(monkeypatch, intervals, "half_width", lambda *args: 10 * whole(*args))


ROTATION = rotary.rotation
MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "wrong sign of the rotation": wrong_sign,
    "interleaved for half-split pairs": interleaved,
    "k for k-1 in the exponent": k_for_k_minus_1,
    "a reversed polynomial": reversed_polynomial,
    "binary for natural logarithm": binary_logarithm,
    "no rotation": no_rotation,
    "a rotation without its sines": cosines_alone,
    "float32 angles": float32_angles,
    "p-RoPE without its fastest pairs": the_other_end_removed,
    "partial RoPE for p-RoPE": a_ladder_of_its_own,
    "pairs rounded to the nearest": pairs_rounded_to_nearest,
    "rotated values": values_rotated,
    "a mask that sees one token ahead": lambda monkeypatch: seeing(monkeypatch, 1),
    "a mask that hides a token from itself": lambda monkeypatch: seeing(monkeypatch, -1),
    "SSMax for softmax": ssmax,
    "softmax of the negative logits": lambda monkeypatch: scaled_logits(monkeypatch, -1.0),
    "softmax to the base of two": lambda monkeypatch: scaled_logits(monkeypatch, math.log(2)),
    "products of queries and keys twice as large": products_doubled,
    "fused attention at twice the scale": twice_the_scale,
    "half the spread in the bound on the entropy": half_the_spread,
    "an entropy without the mean logit": no_mean_logit,
    "intervals ten times as wide": wide_intervals,
}
