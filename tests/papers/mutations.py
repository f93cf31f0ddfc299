"""Ways to break this program's mathematics, each of which some check of `roundround theory` has to see."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from roundround.kernels import blocks, fused, row_measures
from roundround.kernels.keys import Keys
from roundround.pe import p_rope, rotary
from roundround.pe.p_rope_reversed import PRoPEReversed
from roundround.softmax import adaptive_temperature, base
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax


def interleaved(whole: Any, x_BHTC: Tensor, cos_BTR: Tensor, sin_BTR: Tensor) -> Tensor:
    n = cos_BTR.shape[-1]
    order = torch.arange(n).reshape(-1, 2).T.reshape(-1)  # 0, 2, 4, ..., 1, 3, 5, ...
    there = torch.cat([order, torch.arange(n, x_BHTC.shape[-1])])
    return whole(x_BHTC[..., there], cos_BTR, sin_BTR)[..., there.argsort()]


def one_step_on(whole: Any, n_pairs: int, width: int, theta: float, dtype: torch.dtype, device: Any) -> Tensor:
    """k for k-1 in the exponent."""
    return 1.0 / theta ** (torch.arange(2, 2 * n_pairs + 2, 2, device=device).to(dtype) / width)


def a_ladder_of_its_own(whole: Any, self: p_rope.PRoPE, dtype: Any = torch.float32, device: Any = "cpu") -> Tensor:
    """Partial RoPE's frequencies: the kept pairs span the whole range."""
    kept = rotary.ladder(self.n_kept, 2 * self.n_kept, self.theta, dtype, device)
    return torch.cat([kept, kept.new_zeros(self.shape.head_dim // 2 - self.n_kept)])


def values_rotated(whole: Any, self: AttentionSoftmax, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    g_P = rotary.ladder(v.shape[-1] // 2, v.shape[-1], 10_000.0, torch.float64, "cpu")
    turned = rotary.apply_rotation(v, *rotary.rotation(options["keys"].k_pos_BK, g_P))
    return whole(self, q, k, turned, **options)


# what each breaks: a module or a class, the name in it, and what stands there, which is given the original first
MUTATIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "wrong sign of the rotation": (
        rotary, "rotation", lambda whole, pos, g, *a: (whole(pos, g, *a)[0], -whole(pos, g, *a)[1])
    ),
    "interleaved for half-split pairs": (rotary, "apply_rotation", interleaved),
    "k for k-1 in the exponent": (rotary, "ladder", one_step_on),
    "a reversed polynomial": (
        adaptive_temperature, "polynomial", lambda whole, coefficients, x: whole(coefficients[::-1], x)
    ),
    "binary for natural logarithm": (
        row_measures, "shannon_entropy", lambda whole, *args, **named: whole(*args, **named) / math.log(2)
    ),
    "no rotation": (rotary, "rotation", lambda whole, pos, g, *a: whole(pos, 0 * g, *a)),
    "a rotation without its sines": (
        rotary, "rotation", lambda whole, pos, g, *a: (whole(pos, g, *a)[0], 0 * whole(pos, g, *a)[1])
    ),
    "float32 angles": (
        rotary, "rotation", lambda whole, pos, g, *a: tuple(x.to(g.dtype) for x in whole(pos, g.float(), *a))
    ),
    "p-RoPE without its fastest pairs": (p_rope, "PRoPE", lambda whole, *args, **named: PRoPEReversed(*args, **named)),
    "partial RoPE for p-RoPE": (p_rope.PRoPE, "frequencies", a_ladder_of_its_own),
    "pairs rounded to the nearest": (p_rope, "kept_pairs", lambda whole, p, head_dim: round(p * head_dim / 2)),
    "rotated values": (AttentionSoftmax, "forward", values_rotated),
    "a mask that sees one token ahead": (
        Keys, "visible_to", lambda whole, self, rows_R, first, last: whole(self, rows_R + 1, first, last)
    ),
    "a mask that hides a token from itself": (
        Keys, "visible_to", lambda whole, self, rows_R, first, last: whole(self, rows_R - 1, first, last)
    ),
    "SSMax for softmax": (  # with a strength of 1 / ln 64: sharper than the softmax from 65 keys on
        Softmax, "beta", lambda whole, self, n, entropy: n.clamp(min=1).log() / math.log(64)
    ),
    "softmax of the negative logits": (
        base, "softmax_over_visible", lambda whole, logits, visible: whole(-logits, visible)
    ),
    "softmax to the base of two": (
        base, "softmax_over_visible", lambda whole, logits, visible: whole(math.log(2) * logits, visible)
    ),
    "products of queries and keys twice as large": (blocks, "times_of_key_heads", lambda whole, x, y: 2 * whole(x, y)),
    "half the spread in the bound on the entropy": (
        row_measures, "entropy_bound", lambda whole, ln_n, spread: whole(ln_n, spread / 2)
    ),
    "an entropy without the mean logit": (  # the log-sum-exp alone
        fused, "entropy_and_log_sum_exp", lambda whole, *args, **named: (whole(*args, **named)[1],) * 2
    ),
}  # fmt: skip


def mutate(monkeypatch: pytest.MonkeyPatch, mutation: str) -> None:
    """Replace a method, or a function in its own module and wherever it was imported by name."""
    place, name, broken = MUTATIONS[mutation]
    whole = getattr(place, name)
    ours = [module for key, module in sys.modules.items() if key.startswith("roundround")]
    for holder in [place] if isinstance(place, type) else [m for m in ours if vars(m).get(name) is whole]:
        monkeypatch.setattr(holder, name, lambda *args, **named: broken(whole, *args, **named))
