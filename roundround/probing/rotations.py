"""How a layer rotates its queries and keys: measured on single tokens at known positions, not read in a config.

In a text of one token, the input of a layer does not depend on the token's position, so only the rotation makes queries
and keys differ between positions. An angle can be measured only up to whole turns, so it is measured at the positions
1, 2, 4, ...: the frequency found at one position predicts the angle at the next position with an error below half a
turn. The second half of the module finds the scheme of RoPE that has the measured frequencies, and its parameters.

Shapes: N positions, T tokens, H heads, G key heads, C head channels, P channel pairs, V vectors (T H).

Tested by tests/asking/test_applied_rotations.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from roundround.kernels.keys import Keys
from roundround.probing.layout import PAIRINGS
from roundround.softmax.base import AttentionSoftmax

N_TOKENS = 16  # different tokens measured at each position
NOISE = {torch.float64: 1e-6, torch.float32: 1e-5}  # error of an angle in radians; cosines are float32 in any model
NOISE_OF_HALF = 2e-2  # the same for half precision: bfloat16 has eight bits
RELATIVE = 1e-4  # tolerance of a frequency, as a fraction: float32 rounds far less, and two schemes differ by more
AT_REST = 3  # a pair does not rotate if it turns by less than this many times the noise up to the farthest position
BETWEEN = (3, 11, 100)  # positions that are no powers of two: they show an angle that does not grow evenly


@dataclass(frozen=True, kw_only=True)
class Turning:
    """The rotation of one layer, measured at positions up to `farthest`.

    pairing: `half-split`, `interleaved`, or None if no pair rotates. frequencies_P: the frequency in radians per token
    of each pair in the model's table, in the table's order; 0 if the pair does not rotate, negative if it turns
    clockwise. channels_P2: the two channels of each pair. n_pairs: half the number of a head's channels. farthest: the
    largest position. noise: the error of a measured angle in radians. odd: what is odd about the layer if no rotation
    with a fixed frequency for each pair describes it; empty otherwise.
    """

    pairing: str | None
    frequencies_P: Tensor
    channels_P2: Tensor
    n_pairs: int
    farthest: int
    noise: float
    odd: str = ""

    @property
    def n_rotated(self) -> int:
        return int((self.frequencies_P != 0).sum())

    def tolerance(self, frequencies_P: Tensor) -> Tensor:
        """The largest error of the measurement for each of these frequencies, in radians per token."""
        return RELATIVE * frequencies_P.abs() + (1 + AT_REST) * self.noise / self.farthest

    def rotates_at(self, frequencies_P: Tensor) -> bool:
        """Whether the layer rotates at these frequencies, within `tolerance`; zeros fill up the shorter list."""
        n = max(len(frequencies_P), len(self.frequencies_P))
        own, other = (nn.functional.pad(x.double(), (0, n - len(x))) for x in (self.frequencies_P, frequencies_P))
        return bool(((own - other).abs() <= self.tolerance(other)).all())

    def same_as(self, other: Turning) -> bool:
        alike = self.pairing == other.pairing and self.odd == other.odd
        return alike and (self if self.farthest <= other.farthest else other).rotates_at(
            (other if self.farthest <= other.farthest else self).frequencies_P
        )


@dataclass(frozen=True, kw_only=True)
class LayerSeen:
    """What one attention layer did with single tokens.

    turning: the measured rotation. factor: the attention factor, which multiplies cosines and sines; None if no module
    outputs the queries before the rotation. norm: the class name of the module that normalises queries; None if there
    is none. norm_after: whether that module comes after the rotation. scale: the factor that multiplies q . k. growth:
    the norm of queries at the farthest position, divided by their norm at position 0. keys: the keys that the
    normaliser reads. biased: whether the logits have a bias.
    """

    turning: Turning
    factor: float | None
    norm: str | None
    norm_after: bool
    scale: float
    growth: float
    keys: Keys
    biased: bool


@torch.no_grad()
def see_layers(
    attentions: Sequence[nn.Module],
    normalisers: Sequence[AttentionSoftmax],
    forward: Callable[[Tensor, Tensor], Any],
    *,
    n_vocab: int,
    farthest: int,
) -> list[LayerSeen]:
    """What each layer does with single tokens at positions up to `farthest`.

    attentions, normalisers: the attention module of each layer, and the normaliser that it calls. forward: a function
    that runs the model on tokens and positions, both [B, 1].
    """
    powers = [2**i for i in range(max(0, farthest).bit_length())]
    positions = sorted({0, *(p for p in (*powers, *BETWEEN) if p <= farthest), max(0, farthest)})
    n_tokens = min(N_TOKENS, n_vocab)
    tokens_T = torch.linspace(0, n_vocab - 1, n_tokens).long()
    pos_NT = torch.tensor(positions)[:, None].expand(-1, n_tokens)
    found: list[LayerSeen] = []
    before: list[tuple[nn.Module, Tensor]] = []  # the modules of the layer and their outputs, in the order of the calls
    inputs: list[Tensor] = []

    def begin(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        before.clear()
        inputs[:] = [args[0] if args else options["hidden_states"]]

    def keep(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        if isinstance(output, Tensor):
            before.append((module, output))

    def record(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        found.append(seen_in(qkv[0], qkv[1], positions, inputs[0], before, options))
        before.clear()

    with ExitStack() as hooks:
        for attention, softmax in zip(attentions, normalisers, strict=True):
            hooks.callback(attention.register_forward_pre_hook(begin, with_kwargs=True).remove)
            hooks.callback(softmax.register_forward_pre_hook(record, with_kwargs=True).remove)
            for module in attention.modules():
                if module is not attention and module is not softmax:
                    hooks.callback(module.register_forward_hook(keep).remove)
        forward(tokens_T.repeat(len(positions))[:, None], pos_NT.reshape(-1, 1))
    return found


def seen_in(
    q_BHTC: Tensor,
    k_BGTC: Tensor,
    positions: Sequence[int],
    x_BTD: Tensor,
    before: Sequence[tuple[nn.Module, Tensor]],
    options: dict[str, Any],
) -> LayerSeen:
    """What one layer did, from the inputs of its normaliser. The batch has single tokens, sorted by position."""
    noise = NOISE.get(q_BHTC.dtype, NOISE_OF_HALF)
    q_NTHC, k_NTGC, x_NTD = (
        x.detach().double().cpu().reshape(len(positions), -1, *shape)
        for x, shape in ((q_BHTC, q_BHTC.shape[1::2]), (k_BGTC, k_BGTC.shape[1::2]), (x_BTD, x_BTD.shape[2:]))
    )
    growth_N = q_NTHC.flatten(1).norm(dim=1) / q_NTHC[0].norm()
    turning = turning_of(q_NTHC.flatten(1, 2) / growth_N[:, None, None], positions, noise)
    of_keys = turning_of(k_NTGC.flatten(1, 2), positions, noise)
    if float((x_NTD - x_NTD[:1]).flatten(1).norm(dim=1).max()) > 100 * noise * float(x_NTD[0].norm()):
        turning = replace(turning, odd="the input of a layer depends on the position")
    elif not turning.odd and not turning.same_as(of_keys):
        turning = replace(turning, odd=of_keys.odd or "keys rotate differently from queries")
    factor, norm, after, reordered = source_of(q_NTHC, before, turning)
    if reordered:
        turning = replace(turning, pairing=PAIRINGS[1])
    return LayerSeen(
        turning=turning,
        factor=factor,
        norm=norm,
        norm_after=after and turning.n_rotated > 0,
        scale=float(options["scale"]),
        growth=float(growth_N[-1]),
        keys=options["keys"],
        biased=options.get("bias") is not None,
    )


def turning_of(x_NVC: Tensor, positions: Sequence[int], noise: float) -> Turning:
    """The rotation that turns the vectors at position 0, the first of `positions`, into the vectors at each position.

    If channels i and j of vectors x rotate as a pair by an angle t and give y, then sum x_i y_i + x_j y_j = n cos t and
    sum x_i y_j - x_j y_i = n sin t, where n is the product of the norms. If two channels are not a pair, the vector
    with these two sums as its components is shorter than n.
    """
    x_VC, n_channels = x_NVC[0], x_NVC.shape[-1]
    size_C = x_VC.norm(dim=0)
    moved_C = (x_NVC - x_VC).norm(dim=1).amax(0) > AT_REST * noise * size_C.clamp(min=1e-30)
    about = partial(Turning, n_pairs=n_channels // 2, farthest=max(positions[-1], 1), noise=noise)
    at_rest_P2 = torch.zeros(n_channels // 2, 2, dtype=torch.int64)
    none = about(pairing=None, frequencies_P=at_rest_P2[:, 0].double(), channels_P2=at_rest_P2)
    if not moved_C.any():
        return none
    products_NCC = x_VC.T @ x_NVC
    diagonal_NC = products_NCC.diagonal(dim1=1, dim2=2)
    cos_NCC = diagonal_NC[:, :, None] + diagonal_NC[:, None]
    sin_NCC = products_NCC - products_NCC.mT
    squares_NC = x_NVC.square().sum(1)
    sizes_NCC = ((squares_NC[:, :, None] + squares_NC[:, None]) * (squares_NC[0] + squares_NC[0][:, None])).sqrt()
    misfit_CC = (1 - torch.hypot(cos_NCC, sin_NCC) / sizes_NCC.clamp(min=1e-30)).sum(0)
    moved = moved_C.nonzero().flatten().tolist()
    others_CC = misfit_CC.clone().fill_diagonal_(math.inf)
    others_CC[:, ~moved_C] = math.inf
    offset = Counter(abs(i - int(others_CC[i].argmin())) for i in moved).most_common(1)[0][0]
    start = 0 if 2 * offset == n_channels else moved[0]
    if offset == 1 and n_channels > 2:
        start -= start % 2
        first_P = torch.arange(start, moved[-1] + 1, 2)
        pairing = PAIRINGS[1]
    else:
        first_P = torch.arange(start, min(start + offset, n_channels - offset))
        pairing = PAIRINGS[0]
    second_P = first_P + offset
    channels_P2 = torch.stack([first_P, second_P], 1)
    if int(moved_C[channels_P2].sum()) < int(moved_C.sum()):
        return replace(none, odd="channels that change do not form pairs")
    angles_NP = torch.atan2(sin_NCC[:, first_P, second_P], cos_NCC[:, first_P, second_P])
    frequencies_P = angles_NP[list(positions).index(1)].clone() if 1 in positions else torch.zeros_like(angles_NP[0])
    for n in (n for n in positions if n > 1 and n & (n - 1) == 0):
        frequencies_P += wrapped(angles_NP[positions.index(n)] - n * frequencies_P) / n
    frequencies_P[frequencies_P.abs() * positions[-1] < AT_REST * noise] = 0
    pos_N1 = torch.tensor(positions, dtype=torch.float64)[:, None]
    # a model computes its angles in float32, so their error grows with the angle
    allowed_NP = 10 * noise + 5e-7 * pos_N1 * frequencies_P.abs()
    uneven_P = (wrapped(angles_NP - pos_N1 * frequencies_P).abs() > allowed_NP).any(0)
    made = about(pairing=pairing, frequencies_P=frequencies_P, channels_P2=channels_P2)
    lengths_NP = torch.sqrt((squares_NC[:, first_P] + squares_NC[:, second_P]) / sizes_NCC[0, first_P, second_P])
    if float(misfit_CC[first_P, second_P].max()) > len(positions) * (10 * noise) ** 2:
        return replace(made, odd="channels that change do not form pairs")
    if float((lengths_NP - 1).abs().max()) > 10 * noise:
        return replace(made, odd="pairs change their length with the position")
    return replace(made, odd="angles do not grow evenly with the position") if bool(uneven_P.any()) else made


def wrapped(angle: Tensor) -> Tensor:
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def source_of(
    q_NTHC: Tensor, before: Sequence[tuple[nn.Module, Tensor]], turning: Turning
) -> tuple[float | None, str | None, bool, bool]:
    """Finds the last module of the layer whose output is proportional to the queries at position 0.

    Returns four values: the factor that turns this output into the queries, the class name of the module (None if the
    module does not normalise), whether the module normalises after the rotation, and whether the layer moves the
    channels of interleaved pairs apart before it rotates them (DeepSeek-V3): the weights are then interleaved. The
    first two are None if there is no such module. If some channels rotate, only the rotating channels are compared,
    because the attention factor does not multiply the channels outside the table. A scale of those is a scale of all
    channels (LongCat-Flash), and the factor is divided by it.
    """
    n_positions, n_tokens, _, n_channels = q_NTHC.shape
    rotating_P = turning.frequencies_P != 0
    channels = turning.channels_P2[rotating_P].flatten() if rotating_P.any() else torch.arange(n_channels)
    others = [i for i in range(n_channels) if i not in turning.channels_P2]  # outside the table: not multiplied
    at_rest_THC, q_NTHC, orders = q_NTHC[0][..., others], q_NTHC[..., channels], [channels]
    if turning.pairing == PAIRINGS[0]:
        orders.append(channels.sort().values)
    for module, output in reversed(before):
        if output.numel() % (n_positions * n_tokens * n_channels) or output.shape[0] != n_positions * n_tokens:
            continue
        whole_NTBC = output.detach().double().cpu().reshape(n_positions, n_tokens, -1, n_channels)
        for number, order in enumerate(orders):
            given_NTBC = whole_NTBC[..., order]
            factor = multiple(q_NTHC[0], given_NTBC[0], turning.noise)
            if factor is not None:
                norm = None if isinstance(module, nn.Linear) or "norm" not in type(module).__name__.lower() else module
                name = None if norm is None else type(norm).__name__
                after = norm is not None and multiple(q_NTHC[-1], given_NTBC[-1], turning.noise) is not None
                scale = multiple(at_rest_THC, whole_NTBC[0][..., others], turning.noise) if others else None
                return factor / (scale or 1.0), name, after, bool(number)
    return None, None, False, False


def multiple(q_THC: Tensor, given_TBC: Tensor, noise: float) -> float | None:
    """The one factor f for which every head of q is f times some block of `given_TBC`; None if there is none."""
    dots_HB = torch.einsum("thc,tbc->hb", q_THC, given_TBC)
    squares_B = given_TBC.square().sum((0, 2)).clamp(min=1e-30)
    best_H = (dots_HB / squares_B.sqrt()).argmax(1)
    factors_H = dots_HB[range(len(dots_HB)), best_H] / squares_B[best_H]
    left_H = (q_THC - factors_H[:, None] * given_TBC[:, best_H]).norm(dim=(0, 2))
    factor = float(factors_H.mean())
    alike = bool((left_H <= 3 * noise * q_THC.norm(dim=(0, 2))).all())
    return factor if alike and bool(((factors_H / factor - 1).abs() <= 3 * noise).all()) else None


UNKNOWN = "no known scheme"


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A scheme of RoPE.

    name: an option of `pe=` (none, rope, p_rope, p_rope_reversed, partial_rope, linear, ntk_dynamic, yarn, llama3,
    longrope or clipped_rope), or UNKNOWN. base: theta. factor: the scaling factor, as in `ScaledRoPE`. Base or factor
    is None if the scheme has no such number or if the frequencies do not determine it. why: the reason why the scheme
    is UNKNOWN, else empty.
    """

    name: str
    base: float | None = None
    factor: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """The rotation of a layer in texts of three lengths, and further numbers that help to find its scheme.

    within: the rotation in texts up to the trained length. beyond: the rotation in texts a few times as long. far: the
    rotation in much longer texts. trained: the trained length in tokens. attention_factor: the factor of cosines and
    sines. bases: bases of RoPE to try first, such as the base in a config.
    """

    within: Turning
    beyond: Turning
    far: Turning
    trained: int
    attention_factor: float | None = None
    bases: Sequence[float] = ()


def scheme_of(seen: Readings) -> Scheme:
    """The scheme that gives these rotations, in texts of all three lengths.

    Two of the schemes change their frequencies with the length of the text: LongRoPE does so once, beyond the trained
    length, and dynamic NTK scaling does so at every length beyond it.
    """
    for turning in (seen.within, seen.beyond, seen.far):
        if turning.odd:
            return Scheme(name=UNKNOWN, why=turning.odd)
    if seen.far.same_as(seen.within):
        return fixed(seen.far, seen.attention_factor, seen.bases)
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
    """The scheme that gives these frequencies, which do not depend on the length of the text."""
    f_P = turning.frequencies_P
    if not f_P.any():
        return Scheme(name="none")
    f_P = f_P.abs()
    rotating = f_P.nonzero().flatten()
    first, n = int(rotating[0]), len(rotating)
    if int(rotating[-1]) - first + 1 != n:
        return Scheme(name=UNKNOWN, why="pairs that do not rotate lie between pairs that do")
    n_ladder = len(f_P)
    tolerance_P = (turning.tolerance(f_P) / f_P.clamp(min=1e-30))[rotating]  # of the logarithms
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
        return Scheme(name=UNKNOWN, why="the fastest pairs do not rotate, and the others are not part of a ladder")
    guesses = [*bases, *(math.exp(n_ladder * float(log_P[i] - log_P[i + 1])) for i in (0, max(0, n - 3), n - 2))]
    for base in guesses:
        if base > 1:
            ratio_P = f_P * base ** (torch.arange(n_ladder) / n_ladder)
            named = scaled(ratio_P, turning, attention_factor)
            if named is not None:
                return Scheme(name=named[0], base=rounded(base), factor=named[1])
    return Scheme(name=UNKNOWN, why="the frequencies fit no ladder, whole, cut or scaled")


def scaled(ratio_P: Tensor, turning: Turning, attention_factor: float | None) -> tuple[str, float | None] | None:
    """Name and factor of the scheme that multiplies RoPE's frequencies by these ratios; None if no scheme does."""
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
        kept_P = (ratio_P - 1 / factor) / (1 - 1 / factor)  # 1: unchanged; 0: slowed by the whole factor
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
    """The line through the values strictly between 0 and 1, clamped to [0, 1].

    Fewer than two such values do not determine a line: the result is then the clamped values, or None if they increase.
    """
    between = ((value_P > 2e-3) & (value_P < 1 - 2e-3)).nonzero().flatten()
    if len(between) < 2:
        return value_P.clamp(0, 1) if bool((value_P.diff() <= 2e-3).all()) else None
    first, last = between[0], between[-1]
    slope = (value_P[last] - value_P[first]) / (along_P[last] - along_P[first])
    return (value_P[first] + slope * (along_P - along_P[first])).clamp(0, 1)


def rounded(value: float) -> float:
    """A number without the last digits, which the measurement does not give: 9,999.98 becomes 10,000."""
    return float(f"{value:.4g}") if abs(float(f"{value:.3g}") / value - 1) > 5e-4 else float(f"{value:.3g}")
