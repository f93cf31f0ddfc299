"""RoPE and p-RoPE as the paper writes them, equation 3 and the listing of appendix D, and numbers it computes.

Tested by tests/papers/test_claims.py and test_rope_claims.py.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import (
    CheckedNumber,
    Claim,
    Finding,
    Trained,
    as_printed,
    at_most,
    near,
)
from roundround.papers.constructions import (
    HEAD_DIM,
    THETA,
    before_rotation,
    calls,
    frequencies,
    ladder_by_formula,
    layouts,
    logits,
    on_pair,
    p_rope_frequencies,
    random_vector,
    rotated,
    shape,
    stories260k,
)
from roundround.pe.p_rope import PRoPE
from roundround.probing.layout import Layout
from roundround.probing.probed_model import run
from roundround.support.panels import Curve, Panel

SHIFT = 1000  # tokens; only the logits know of positions, and they of distances alone
N_TOKENS = 24  # of a trained model's text: as many rows of as many tokens
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the layers below, relative to the logits
ROUNDING_OF_HALF = 0.2  # of float16 and bfloat16: a wrong rotation is above 1
LOSS = 2.0  # nats per token; the model reaches about 1.2 on its own stories, and ln 512 = 6.2 is an even guess


@final
class Equation3(Claim):
    """The logit of a query at i with a key at j depends on j - i alone, pair by pair, the key turned by that distance.

    (R^i q_i)^T (R^j k_j) = sum_k q_i^(k)T rho(g_k)^(j - i) k_j^(k), with pair k in the channels (k, k + d/2)

    Barbero et al. 2024, arXiv:2410.06205, equation 3.
    """

    title: ClassVar[str] = "the orientation of RoPE"

    def check(self) -> Finding:
        q, k, pos = random_vector(HEAD_DIM, seed=1), random_vector(HEAD_DIM, seed=2), torch.arange(128)
        layout = Layout(ladder_by_formula(HEAD_DIM, THETA), "half-split", HEAD_DIM)
        ours = rotated(q, pos, frequencies()) @ rotated(k, pos, frequencies()).T
        formula = by_formula(q.expand(1, 128, -1), k.expand(1, 128, -1), layout)[0]
        trained = stories260k()
        comparisons = [
            at_most("largest error of random vectors' logits, over their size", relative_error(ours, formula), 1e-9),
            *of_model(trained).comparisons,
            at_most(f"largest change of its output where all tokens stand {SHIFT:,} places later, over its size",
                    shifted(trained), ROUNDING[torch.float64]),
            at_most("loss of stories260k on its own story, nats per token", loss(trained), LOSS),
        ]  # fmt: skip
        return Finding(comparisons, of_one_query(ours, formula, 64))

    def check_model(self, trained: Trained) -> Finding:
        return of_model(trained)


def of_model(trained: Trained) -> Finding:
    """The logits of every layer on the beginning of a text against the formula on its unrotated queries and keys."""
    probed, tokens = trained.probed, trained.texts[0][:N_TOKENS]
    tolerance = ROUNDING.get(next(probed.model.parameters()).dtype, ROUNDING_OF_HALF)
    comparisons, picture = [], None
    for layer, (layout, call, (q, k)) in enumerate(
        zip(layouts(probed, trained.texts), calls(probed, [(tokens, 0)]), before_rotation(probed, tokens), strict=True)
    ):
        ours, formula = call.q_BHTC[0].double() @ call.k_BHTC[0].double().mT, by_formula(q, k, layout)
        what = f"largest error of {probed.name}'s logits in layer {layer}, over their size"
        comparisons.append(at_most(what, relative_error(ours, formula), tolerance))
        picture = picture or of_one_query(ours[0], formula[0], len(tokens) // 2)
    return Finding(comparisons, picture)


def of_one_query(ours_TT: Tensor, formula_TT: Tensor, i: int) -> Panel:
    """The logits of one query with every key."""
    distance = torch.arange(len(ours_TT)) - i
    few = slice(None, None, max(1, len(ours_TT) // 32))
    return Panel(
        "j - i in tokens",
        "q . k",
        [
            Curve("equation 3, written out", distance[few], formula_TT[i, few], points=True),
            Curve("as rotated", distance, ours_TT[i]),
        ],
    )


def by_formula(q_HTC: Tensor, k_HTC: Tensor, layout: Layout) -> Tensor:
    """The right side for queries at i and keys at j, i, j = 0 .. T-1: [H, T, T]. rho(a) = [[cos, -sin], [sin, cos]]."""
    place = torch.arange(q_HTC.shape[1])
    angle_TTP = (place[None, :] - place[:, None])[..., None] * layout.frequencies_P
    (q0, q1), (k0, k1) = layout.split(q_HTC.double()).unbind(-1), layout.split(k_HTC.double()).unbind(-1)
    q0, q1, k0, k1 = q0[:, :, None], q1[:, :, None], k0[:, None], k1[:, None]
    return (angle_TTP.cos() * (q0 * k0 + q1 * k1) + angle_TTP.sin() * (q1 * k0 - q0 * k1)).sum(-1)


def relative_error(ours: Tensor, formula: Tensor) -> float:
    """The largest difference as a share of the root mean square."""
    return float((ours - formula).abs().max() / formula.square().mean().sqrt())


def shifted(trained: Trained) -> float:
    """How far the output moves with all positions, as a share of its root mean square: values are not rotated."""
    tokens = trained.texts[0]
    with torch.no_grad():
        here, there = run(trained.probed, [(tokens, 0), (tokens, SHIFT)])
    return relative_error(there, here)


def loss(trained: Trained) -> float:
    """Mean over the tokens of a text after the first."""
    tokens = torch.tensor([trained.texts[0]])
    with torch.no_grad():
        return float(trained.probed.token_loss(tokens[:, :-1], tokens[:, 1:]).mean())


HEAD_DIMS, FRACTIONS = (64, 128, 256), (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
ROTATED = {(64, 0.1): 3, (128, 0.1): 6, (256, 0.1): 12, (256, 0.9): 115, (256, 0.75): 96}  # p d / 2 = 3.2, ..., 115.2
POSITIONS = torch.tensor([0, 1, 2, 7, 100, 8191])
EPS = 2.0**-52  # of float64; an angle of 8,191 is exact to about this share, its sine and cosine to the same in radians


def timescales(head_dim: int, p: float) -> np.ndarray:
    """1 / g_k in tokens by the listing: int(p * head_dim // 2) powers of the base, then infinity: [P]."""
    rope_angles = int(p * head_dim // 2)
    fraction = 2.0 * np.arange(0, rope_angles) / head_dim
    return np.pad(THETA**fraction, (0, head_dim // 2 - rope_angles), constant_values=np.inf)


@final
class PRopeListing(Claim):
    """p-RoPE rotates the first int(p d / 2) pairs at the frequencies of the whole ladder, and leaves the others alone.

    fraction = 2 arange(int(p * head_dim // 2)) / head_dim; timescale = base^fraction, padded with inf; angle =
    position / timescale

    Barbero et al. 2024, arXiv:2410.06205, appendix D (listing).
    """

    title: ClassVar[str] = "p-RoPE as code"

    def check(self) -> Finding:
        comparisons = []
        for head_dim in HEAD_DIMS:
            errors, wrong = [0.0], 0
            for p in FRACTIONS:
                ours, listed = p_rope_frequencies(p, head_dim).numpy(), 1 / timescales(head_dim, p)
                wrong += int(((ours == 0) != (listed == 0)).sum())
                errors.append(float(np.abs(ours - listed).max()))
            widest = max(self.largest_difference(head_dim, p) for p in FRACTIONS)
            bound = float(POSITIONS.max()) * 8 * EPS * 6  # angles, then coordinates of at most 6 standard deviations
            comparisons += [
                near(f"pairs that rest here and rotate there, or the reverse, head_dim = {head_dim}", wrong, 0, 0),
                near(f"largest difference of a frequency, head_dim = {head_dim}", max(errors), 0.0, 8 * EPS),
                near(
                    f"largest difference of a rotated coordinate up to token 8,191, head_dim = {head_dim}",
                    widest,
                    0.0,
                    bound,
                ),
            ]
        comparisons += [
            near(f"pairs that rotate, head_dim = {head_dim}, p = {p:g}",
                 int((p_rope_frequencies(p, head_dim) > 0).sum()), expected, 0)
            for (head_dim, p), expected in ROTATED.items()
        ]  # fmt: skip
        slowest = p_rope_frequencies(0.75)[95]
        comparisons.append(near("slowest that rotates, head_dim = 256, p = 0.75, over 10,000^(-190/256)",
                                float(slowest) / THETA ** (-190 / 256), 1.0, 8 * EPS * 10))  # fmt: skip
        pairs = np.arange(1, 129)
        curves = [
            Curve(f"p = {p:g}", pairs[: int(p * 128)], p_rope_frequencies(p)[: int(p * 128)]) for p in (1.0, 0.75, 0.25)
        ]
        curves.append(Curve("listing, p = 0.75", pairs[:96:8], 1 / timescales(256, 0.75)[:96:8], points=True))
        return Finding(comparisons, Panel("pair k, of those that rotate", "radians per token", curves, "y"))

    def largest_difference(self, head_dim: int, p: float) -> float:
        """Of a random query, and a key, as this program's encoding rotates them, against the listing."""
        encoding = PRoPE(shape(head_dim), p=p, theta=THETA)
        x_NC = random_vector(len(POSITIONS) * head_dim, seed=0).view(len(POSITIONS), head_dim)
        prepared = encoding.prepare(POSITIONS[None], torch.float64)
        sinusoid_inp = POSITIONS.numpy()[:, None] / timescales(head_dim, p)  # the listing, line by line
        sin, cos = np.sin(sinusoid_inp), np.cos(sinusoid_inp)
        first_half, second_half = np.split(x_NC.numpy(), 2, axis=-1)
        listed = np.concatenate([first_half * cos - second_half * sin, second_half * cos + first_half * sin], axis=-1)
        rotate = (encoding.rotate_queries, encoding.rotate_keys)
        return max(float(np.abs(turn(x_NC[None, None], prepared)[0, 0].numpy() - listed).max()) for turn in rotate)


LLAMA_HEAD_DIM, LLAMA_THETA = 128, 500_000.0


@final
class SideComputations(Claim):
    """The slow pairs of Gemma and Llama turn as far within a context as the paper says, with one exception.

    128,000 / 10,000 / 2 pi = 2.04 rotations; 8000 g_119 = 1.64, about pi / 2; 10,000^-0.8 = 0.0006; printed
    500,000^(-40/64) = 0.0001 is 0.00027

    Barbero et al. 2024, arXiv:2410.06205, sections 5 and 6 and appendix C.
    """

    title: ClassVar[str] = "numbers in passing"

    def check(self) -> Finding:
        gemma = frequencies().numpy()
        llama = frequencies(LLAMA_HEAD_DIM, LLAMA_THETA).numpy()
        fifths = frequencies(10, THETA).numpy()  # pairs at 10,000^0, ^-0.2, ... ^-0.8
        turn = 2 * math.pi
        comparisons = [
            as_printed("rotations in 128,000 tokens at 1 / theta", 128_000 / THETA / turn, 2.04, 0.005),
            near("rotations in 128,000 tokens of the slowest pair", 128_000 * gemma[-1] / turn, 2.189, 5e-4),
            as_printed("g_119 of Gemma", gemma[118], 2.05e-4, 5e-7),
            as_printed("8,000 g_119", 8000 * gemma[118], 1.64, 0.005),
            as_printed("10,000^-0.8", fifths[4], 0.0006, 5e-5),
            near("500,000^(-40/64), printed as 0.0001", llama[40], 2.74e-4, 5e-7, published=1e-4),
            near("g_97, the first that p = 0.75 leaves out", gemma[96], 1e-3, 1e-12),
            near("pairs that take more than 8,192 tokens for a turn", int((turn / gemma > 8192).sum()), 28, 0),
            near("tokens for a turn of the slowest pair", turn / gemma[-1], 58_470, 1),
            near("radians of the slowest pair in 8,192 tokens", 8192 * gemma[-1], 0.88, 0.005),
            near("radians of g_97 in 8,192 tokens", 8192 * gemma[96], 8.2, 0.05),
        ]
        pairs = [range(1, len(ladder) + 1) for ladder in (gemma, llama)]
        picture = Panel(
            "pair k",
            "radians per token",
            [
                Curve("Gemma: d = 256, theta = 10,000", pairs[0], gemma),
                Curve("Llama 3.1: d = 128, theta = 500,000", pairs[1], llama),
                Curve("g_119 of Gemma, as printed", [119], [2.05e-4], points=True),
                Curve("printed for 40 of 64 pairs of Llama", [41], [1e-4], points=True),
                Curve(f"pi / 2 in {8000:,} tokens", [1, HEAD_DIM // 2], [math.pi / 2 / 8000] * 2),
            ],
            log="y",
        )
        return Finding(comparisons, picture)


PAIR = 118  # g_119, pairs from 0
QUERY = (-4.1, 11.3)
KEYS = {"other keys": (11.2, -3.5), "the first token": (-2.5, 1.3)}
PRODUCTS = {"other keys": -85.5, "the first token": 24.9}
FLIPS = {"other keys": 12_100, "the first token": 11_300}  # tokens, to a hundred
CONTEXT, LONGEST = 8192, 16_384


@final
class Apostrophe(Claim):
    """In the slow channel of Gemma 7B's apostrophe head the first token is liked and others are not, up to about 11,000
    tokens; then both turn round.

    q = [-4.1, 11.3]; q . k = -85.5 for k = [11.2, -3.5] and 24.9 for the first token's k = [-2.5, 1.3];
    q^T rho(g_119)^-r k changes its sign at r = 12,100 and 11,300

    Barbero et al. 2024, arXiv:2410.06205, section 5.2 and appendix E.1 (vectors); equation 3 (orientation).
    """

    title: ClassVar[str] = "the apostrophe head's channel"

    def check(self) -> Finding:
        comparisons: list[CheckedNumber] = []
        curves = []
        for name, key in KEYS.items():
            logits_N = channel(key)
            sign = math.copysign(1.0, PRODUCTS[name])
            flip = first(sign * logits_N < 0)
            early = float((sign * logits_N[:CONTEXT]).min())
            # |q| |k| cos(angle - r g) is 0 first where r g is this, angle from the query to the key, counter-clockwise
            angle = math.atan2(key[1], key[0]) - math.atan2(QUERY[1], QUERY[0]) - math.pi / 2
            by_formula = angle % math.pi / float(ladder_by_formula()[PAIR])
            comparisons += [
                as_printed(f"q . k, {name}", float(logits_N[0]), PRODUCTS[name], 0.05),
                near(f"tokens until its sign turns, {name}", flip, FLIPS[name], 50),
                near(f"the same by the formula, {name}", flip, by_formula, 1),
                CheckedNumber(f"smallest size within {CONTEXT:,} tokens, {name}", early, 1.0, math.inf),
            ]
            curves.append(Curve(name, torch.arange(LONGEST)[::16], logits_N[::16]))
        zero = Curve("0", [0, LONGEST], [0.0, 0.0])
        context = Curve(f"Gemma's context, {CONTEXT:,} tokens", [CONTEXT, CONTEXT], [-120.0, 120.0])
        return Finding(comparisons, Panel("distance in tokens", "q . k in the channel", [*curves, context, zero]))


def channel(key: tuple[float, float]) -> Tensor:
    """The logit of a head that holds nothing but this channel, at distances 0 .. LONGEST - 1: [N]."""
    distances = torch.arange(LONGEST)
    return logits(on_pair(*QUERY, PAIR), on_pair(*key, PAIR), distances, frequencies())


def first(true_N: Tensor) -> int:
    """The first place that is true; -1 where none is."""
    return int(true_N.int().argmax()) if bool(true_N.any()) else -1
