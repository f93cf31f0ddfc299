"""The name of a ladder of frequencies, and its numbers: which scheme of RoPE gives these radians per token.

Shapes: P channel pairs, fastest first.

Tested by tests/asking/test_applied_rotations.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roundround.probing.rotations import Turning

UNKNOWN = "no known scheme"


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A scheme of RoPE with its numbers; None for one that it has not, or that the frequencies do not tell.

    name: none, rope, p_rope, p_rope_reversed, partial_rope, linear, ntk_dynamic, yarn, llama3, longrope, clipped_rope,
    the options of `pe=`; else UNKNOWN. base: theta. factor: how many times slower. why: what is not known.
    """

    name: str
    base: float | None = None
    factor: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """The rotation of a layer in texts of three lengths, and what may help to name it.

    within: up to the trained length; beyond: a few times that; far: much farther. trained: that length.
    attention_factor: of cosines and sines. bases: bases of RoPE to try first, such as a config's.
    """

    within: Turning
    beyond: Turning
    far: Turning
    trained: int
    attention_factor: float | None = None
    bases: Sequence[float] = ()


def scheme_of(seen: Readings) -> Scheme:
    """The scheme that rotates so."""
    for turning in (seen.within, seen.beyond, seen.far):
        if turning.odd:
            return Scheme(name=UNKNOWN, why=turning.odd)
    if not seen.far.same_as(seen.within):
        return changing_with_length(seen)
    return fixed(seen.far, seen.attention_factor, seen.bases)


def changing_with_length(seen: Readings) -> Scheme:
    """LongRoPE switches once beyond the trained length; dynamic NTK scaling goes on."""
    before = fixed(seen.within, None, seen.bases)
    if seen.beyond.same_as(seen.far):
        a, base = seen.attention_factor, before.base or (seen.bases[0] if seen.bases else None)
        factor = rounded(math.exp((a * a - 1) * math.log(seen.trained))) if a is not None and a > 1 else None
        return Scheme(name="longrope", base=base, factor=factor)
    d = 2 * len(seen.within.frequencies_P)
    factors = []
    for turning in (seen.beyond, seen.far):
        after = fixed(turning, None, ())
        if before.base is None or after.base is None or before.name != "rope" or after.name != "rope" or d < 4:
            return Scheme(name=UNKNOWN, why="frequencies change with the length of the text")
        grown, longer = (after.base / before.base) ** ((d - 2) / d), (turning.farthest + 1) / seen.trained
        factors.append((grown - 1) / (longer - 1))
    if abs(factors[0] / factors[1] - 1) >= 0.02:
        return Scheme(name=UNKNOWN, why="frequencies change with the length of the text")
    return Scheme(name="ntk_dynamic", base=before.base, factor=rounded(factors[1]))


def fixed(turning: Turning, attention_factor: float | None, bases: Iterable[float]) -> Scheme:
    """The scheme of frequencies that do not follow the length."""
    f_P = turning.frequencies_P
    if not f_P.any():
        return Scheme(name="none")
    f_P = f_P.abs()
    rotating = f_P.nonzero().flatten()
    first, n = int(rotating[0]), len(rotating)
    if int(rotating[-1]) - first + 1 != n:
        return Scheme(name=UNKNOWN, why="pairs that do not rotate lie between pairs that do")
    n_ladder = len(f_P)
    tolerance_P = (turning.tolerance(f_P) / f_P.clamp(min=1e-30))[rotating]  # of a logarithm
    log_P = f_P[rotating].log()
    if n == 1:
        name = "rope" if n_ladder == 1 else "p_rope"
        return Scheme(name=name) if float(log_P[0].abs()) < 10 * float(tolerance_P[0]) else Scheme(name=UNKNOWN)
    slope = float((log_P[0] - log_P[-1]) / (n - 1))
    straight_P = log_P[0] - slope * torch.arange(n)
    if slope > 0 and bool(((log_P - straight_P).abs() <= 3 * (tolerance_P + tolerance_P[0] + tolerance_P[-1])).all()):
        base, start = rounded(math.exp(slope * n_ladder)), math.exp(float(log_P[0]) + slope * first)
        factor = None if abs(start - 1) < 1e-3 else rounded(1 / start)
        whole = n == n_ladder
        name = ("rope" if n_ladder == turning.n_pairs else "partial_rope") if whole else "p_rope"
        name = "p_rope_reversed" if first else name
        return Scheme(name=name if factor is None else "linear", base=base, factor=factor)
    if first:
        return Scheme(name=UNKNOWN, why="the fastest pairs do not rotate, and the others are no part of a ladder")
    guesses = [*bases, *(math.exp(n_ladder * float(log_P[i] - log_P[i + 1])) for i in (0, max(0, n - 3), n - 2))]
    for base in guesses:
        if base > 1:
            ratio_P = f_P * base ** (torch.arange(n_ladder) / n_ladder)
            named = scaled(ratio_P, turning, attention_factor)
            if named is not None:
                return Scheme(name=named[0], base=rounded(base), factor=named[1])
    return Scheme(name=UNKNOWN, why="the frequencies are no ladder, cut or scaled")


def scaled(ratio_P: Tensor, turning: Turning, attention_factor: float | None) -> tuple[str, float | None] | None:
    """Name and factor of a scheme by which RoPE's frequencies are multiplied so; None where there is none."""
    n, f_P = len(ratio_P), turning.frequencies_P.abs()
    tolerance_P = 5 * turning.tolerance(f_P) / f_P.clamp(min=float(f_P[f_P > 0].min()))

    def fits(expected_P: Tensor) -> bool:
        return bool(((ratio_P - expected_P).abs() <= tolerance_P.clamp(min=5e-4) * expected_P.clamp(min=0.01)).all())

    if ratio_P[-1] == 0:
        for n_clipped in range(2, n + 1):
            taper = 0.5 * (1 + torch.linspace(0, math.pi, n_clipped, dtype=torch.float64).cos())
            if fits(torch.cat([torch.ones(n - n_clipped, dtype=torch.float64), taper])):
                return "clipped_rope", None
        return None
    if not (ratio_P[-1] < 1 - 1e-3 and abs(float(ratio_P[0]) - 1) < 1e-3):
        return None
    sharpened = 1.0 if attention_factor is None else attention_factor
    factors = [1 / float(ratio_P[-1]), *([math.exp((sharpened - 1) / 0.1)] if sharpened > 1 else [])]
    found: dict[str, float] = {}
    for factor in factors:
        kept_P = (ratio_P - 1 / factor) / (1 - 1 / factor)  # 1: left alone; 0: slowed by the whole factor
        if float(kept_P.min()) < -1e-2:
            continue
        for name, along_P in (("yarn", torch.arange(n, dtype=torch.float64)), ("llama3", f_P / ratio_P)):
            line_P = clamped_line(along_P, kept_P)
            if name not in found and line_P is not None and fits(line_P + (1 - line_P) / factor):
                found[name] = factor
    if not found:
        return None
    name = "yarn" if "yarn" in found and (sharpened > 1 or "llama3" not in found) else "llama3"
    name = name if name in found else "yarn"
    return name, rounded(found[name])


def clamped_line(along_P: Tensor, value_P: Tensor) -> Tensor | None:
    """The line through the values that lie strictly between 0 and 1, cut off there; a step where there is none.

    With a single value in between, the line ends halfway to its neighbours; no check can tell it from others.
    """
    between = ((value_P > 2e-3) & (value_P < 1 - 2e-3)).nonzero().flatten()
    if len(between) < 2:
        return value_P.clamp(0, 1) if bool((value_P.diff() <= 2e-3).all()) else None
    first, last = between[0], between[-1]
    slope = (value_P[last] - value_P[first]) / (along_P[last] - along_P[first])
    return (value_P[first] + slope * (along_P - along_P[first])).clamp(0, 1)


def rounded(value: float) -> float:
    """A number without the last digits, which the measurement does not tell: 9,999.98 is 10,000."""
    return float(f"{value:.4g}") if abs(float(f"{value:.3g}") / value - 1) > 5e-4 else float(f"{value:.3g}")
