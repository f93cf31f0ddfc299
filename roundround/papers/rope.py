"""The statements of arXiv:2410.06205 ("Round and Round We Go!"), each a function that checks it.

Shapes: N positions, T tokens, H heads, R rows, C head channels, P pairs.

Tested by tests/papers/test_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows
from roundround.kernels.keys import Keys
from roundround.model.block import Attention, LayerKind
from roundround.papers.claim import CheckedNumber, Finding, as_printed, at_least, at_most, near
from roundround.papers.constructions import (
    HEAD_DIM,
    THETA,
    aligned,
    before_rotation,
    calls,
    causal_weights,
    frequencies,
    ladder_by_formula,
    logits,
    on_pair,
    p_rope_frequencies,
    random_vector,
    rotated,
    shape,
    stories260k,
    turned,
    weights,
)
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.p_rope import PRoPE
from roundround.pe.rope import RoPE
from roundround.pe.rotary import rotation
from roundround.probing.layout import PAIRINGS, Layout
from roundround.probing.probe import observe
from roundround.probing.probed_model import ProbedDecoder, ProbedModel, run
from roundround.softmax.softmax import Softmax
from roundround.support.panels import Curve, Panel

ROUNDING_OF_LOGITS = {torch.float64: 1e-9, torch.float32: 1e-3}  # relative to their root mean square


def equation_3() -> Finding:
    """The logit of a query at i with a key at j depends only on j - i: every pair of the key is turned by j - i steps.

    (R^i q_i)^T (R^j k_j) = sum_k q_i^(k)T rho(g_k)^(j - i) k_j^(k), with pair k in the channels (k, k + d/2)

    Barbero et al. 2024, arXiv:2410.06205, equation 3.
    """
    q, k, pos = random_vector(HEAD_DIM, seed=1), random_vector(HEAD_DIM, seed=2), torch.arange(128)
    ours = rotated(q, pos, frequencies()) @ rotated(k, pos, frequencies()).T
    layout = Layout(ladder_by_formula(HEAD_DIM, THETA), "half-split", HEAD_DIM)
    formula = by_formula(q.expand(1, 128, -1), k.expand(1, 128, -1), layout)[0]
    probed, tokens = stories260k()
    with torch.no_grad():
        here, there = run(probed, [(tokens, 0), (tokens, 1000)])
    return Finding([
        at_most("largest error of random vectors' logits, over their size", relative_error(ours, formula), 1e-9),
        *equation_3_of_model(probed, [tokens]).comparisons,
        at_most("largest change of its output where all tokens stand 1,000 places later, over its size",
                relative_error(there, here), ROUNDING_OF_LOGITS[torch.float64]),  # values are not rotated
    ])  # fmt: skip


def equation_3_of_model(probed: ProbedModel, texts: Sequence[Sequence[int]]) -> Finding:
    """Compare every layer's logits on the beginning of a text with equation 3 for the unrotated queries and keys."""
    tokens = texts[0][:24]
    # 0.2 for float16 and bfloat16: a wrong rotation has an error above 1
    tolerance = ROUNDING_OF_LOGITS.get(next(probed.model.parameters()).dtype, 0.2)
    if isinstance(probed, ProbedDecoder):  # this program's decoder splits its channels into halves
        tables, layouts = probed.tables(), []  # one table for all layers, or one per layer
        for layer, normaliser in enumerate(probed.normalisers):
            table_P = tables[layer % len(tables)].double()
            resting = normaliser.shape.head_dim // 2 - len(table_P)
            layouts.append(Layout(torch.nn.functional.pad(table_P, (0, resting)), PAIRINGS[0], 2 * len(table_P)))
    else:
        layouts = observe(probed, texts[:1], rows=False, entropy=False).layouts
    comparisons = []
    of_layers = zip(layouts, calls(probed, [(tokens, 0)]), before_rotation(probed, tokens), strict=True)
    for layer, (layout, call, (q, k)) in enumerate(of_layers):
        ours = call.q_BHTC[0].double() @ call.k_BHTC[0].double().mT
        what = f"largest error of {probed.name}'s logits in layer {layer}, over their size"
        comparisons.append(at_most(what, relative_error(ours, by_formula(q, k, layout)), tolerance))
    return Finding(comparisons)


def by_formula(q_HTC: Tensor, k_HTC: Tensor, layout: Layout) -> Tensor:
    """The right side of equation 3 for i, j = 0 .. T-1: [H, T, T]. rho(a) = [[cos, -sin], [sin, cos]]."""
    place = torch.arange(q_HTC.shape[1])
    angle_TTP = (place[None, :] - place[:, None])[..., None] * layout.frequencies_P
    q0, q1 = layout.split(q_HTC.double())[:, :, None].unbind(-1)
    k0, k1 = layout.split(k_HTC.double())[:, None].unbind(-1)
    return (angle_TTP.cos() * (q0 * k0 + q1 * k1) + angle_TTP.sin() * (q1 * k0 - q0 * k1)).sum(-1)


def relative_error(ours: Tensor, formula: Tensor) -> float:
    """The largest difference between `ours` and `formula`, divided by the root mean square of `formula`."""
    return float((ours - formula).abs().max() / formula.square().mean().sqrt())


EPS = 2.0**-52  # relative rounding of float64; an angle's error in radians is also the error of its sine and cosine


def p_rope_listing() -> Finding:
    """p-RoPE rotates the first int(p d / 2) pairs at the frequencies of the whole ladder, and leaves the others alone.

    fraction = 2 arange(int(p * head_dim // 2)) / head_dim; timescale = base^fraction, padded with inf; angle =
    position / timescale

    Barbero et al. 2024, arXiv:2410.06205, appendix D (listing).
    """
    comparisons, pos = [], torch.tensor([0, 1, 2, 7, 100, 8191])
    for head_dim in (64, 128, 256):
        error, widest, wrong = 0.0, 0.0, 0
        x_NC = random_vector(len(pos) * head_dim, seed=0).view(len(pos), head_dim)
        one, two = np.split(x_NC.numpy(), 2, axis=-1)
        for p in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0):
            ours, rope_angles = p_rope_frequencies(p, head_dim).numpy(), int(p * head_dim // 2)
            fraction = 2.0 * np.arange(0, rope_angles) / head_dim
            listed = np.pad(THETA**fraction, (0, head_dim // 2 - rope_angles), constant_values=np.inf)
            wrong += int(((ours == 0) != (1 / listed == 0)).sum())
            error = max(error, float(np.abs(ours - 1 / listed).max()))
            sinusoid_inp = pos.numpy()[:, None] / listed
            sin, cos = np.sin(sinusoid_inp), np.cos(sinusoid_inp)
            expected_NC = np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)
            turned_NC = encoded(PRoPE(shape(head_dim), p=p, theta=THETA), x_NC, pos).numpy()
            widest = max(widest, float(np.abs(turned_NC - expected_NC).max()))
        bound = float(pos.max()) * 8 * EPS * 6  # an angle's error times a coordinate of up to 6 deviations
        comparisons += [
            near(f"pairs that rest here and rotate there, or the reverse, head_dim = {head_dim}", wrong, 0, 0),
            near(f"largest difference of a frequency, head_dim = {head_dim}", error, 0.0, 8 * EPS),
            near(f"largest difference of a rotated coordinate up to token 8,191, head_dim = {head_dim}",
                 widest, 0.0, bound),
        ]  # fmt: skip
    comparisons += [
        near(f"pairs that rotate, head_dim = {head_dim}, p = {p:g}",
             int((p_rope_frequencies(p, head_dim) > 0).sum()), expected, 0)
        for head_dim, p, expected in ((64, 0.1, 3), (128, 0.1, 6), (256, 0.1, 12), (256, 0.9, 115), (256, 0.75, 96))
    ]  # fmt: skip
    slowest = float(p_rope_frequencies(0.75)[95]) / THETA ** (-190 / 256)
    what = "slowest that rotates, head_dim = 256, p = 0.75, over 10,000^(-190/256)"
    return Finding([*comparisons, near(what, slowest, 1.0, 8 * EPS * 10)])


TURN = 2 * math.pi


def side_computations() -> Finding:
    """The slow pairs of Gemma and Llama turn as far within a context as the paper says, with one exception.

    128,000 / 10,000 / 2 pi = 2.04 rotations; 8000 g_119 = 1.64, about pi / 2; 10,000^-0.8 = 0.0006;
    500,000^(-40/64) = 0.00027, but 0.0001 is printed

    Barbero et al. 2024, arXiv:2410.06205, sections 5 and 6 and appendix C.
    """
    gemma, llama = frequencies().numpy(), frequencies(128, 500_000.0).numpy()
    fifths = frequencies(10, THETA).numpy()  # pairs at 10,000^0, ^-0.2, ... ^-0.8
    return Finding([
        as_printed("rotations in 128,000 tokens at 1 / theta", 128_000 / THETA / TURN, 2.04, 0.005),
        near("rotations in 128,000 tokens of the slowest pair", 128_000 * gemma[-1] / TURN, 2.189, 5e-4),
        as_printed("g_119 of Gemma", gemma[118], 2.05e-4, 5e-7),
        as_printed("8,000 g_119", 8000 * gemma[118], 1.64, 0.005),
        as_printed("10,000^-0.8", fifths[4], 0.0006, 5e-5),
        near("500,000^(-40/64), printed as 0.0001", llama[40], 2.74e-4, 5e-7, published=1e-4),
        near("g_97, the first that p = 0.75 leaves out", gemma[96], 1e-3, 1e-12),
        near("pairs that take more than 8,192 tokens for a turn", int((TURN / gemma > 8192).sum()), 28, 0),
        near("tokens for a turn of the slowest pair", TURN / gemma[-1], 58_470, 1),
        near("radians of the slowest pair in 8,192 tokens", 8192 * gemma[-1], 0.88, 0.005),
        near("radians of g_97 in 8,192 tokens", 8192 * gemma[96], 8.2, 0.05),
    ])  # fmt: skip


PAIR, GEMMAS = 118, (-4.1, 11.3)  # the pair with g_119, counted from 0; the query's coordinates in it


def apostrophe() -> Finding:
    """In the slow channel of Gemma 7B's apostrophe head, the first token has a positive logit and other tokens have
    negative ones; beyond about 11,000 tokens both signs change.

    q = [-4.1, 11.3]; q . k = -85.5 for k = [11.2, -3.5] and 24.9 for the first token's k = [-2.5, 1.3];
    q^T rho(g_119)^-r k changes its sign at r = 12,100 and 11,300

    Barbero et al. 2024, arXiv:2410.06205, section 5.2 and appendix E.1 (vectors); equation 3 (orientation).
    """
    comparisons: list[CheckedNumber] = []
    for name, key, product, expected in (  # q . k, and the tokens until its sign changes, rounded to a hundred
        ("other keys", (11.2, -3.5), -85.5, 12_100),
        ("the first token", (-2.5, 1.3), 24.9, 11_300),
    ):
        # the logit of a head with this channel alone
        logits_N = logits(on_pair(*GEMMAS, PAIR), on_pair(*key, PAIR), torch.arange(2 * 8192), frequencies())
        own_sign_N = math.copysign(1.0, product) * logits_N
        flip = int((own_sign_N < 0).int().argmax())  # 0 if it never does
        # angle: from the query to the key, counter-clockwise, less pi / 2; the logit is first 0 at r g = angle mod pi
        angle = math.atan2(key[1], key[0]) - math.atan2(GEMMAS[1], GEMMAS[0]) - math.pi / 2
        comparisons += [
            as_printed(f"q . k, {name}", float(logits_N[0]), product, 0.05),
            near(f"tokens until its sign turns, {name}", flip, expected, 50),
            near(f"the same by the formula, {name}", flip, angle % math.pi / float(ladder_by_formula()[PAIR]), 1),
            at_least(f"smallest size within 8,192 tokens, {name}", float(own_sign_N[:8192].min()), 1.0),
        ]
    return Finding(comparisons)


ANGLE_ROUNDING = 1e-9  # rounding of n g in float64 for n up to 8192; an angle nearer to 0 counts as 0


def lemma_a_1() -> Finding:
    """A pair whose frequency is algebraic and not 0 never returns to its first angle, though it comes near.

    n g = 0 mod 2 pi only for n = 0; holds for every g_k = theta^(-2(k-1)/d), rational or not

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.1.
    """
    away_NP = angles(frequencies(), 8192).abs()
    seventh_N = angles(torch.tensor([TURN / 7], dtype=torch.float64), 8192)[1:, 0].abs()
    comparisons = [
        near("returns of 128 pairs within 8,192 tokens", int((away_NP[1:] < ANGLE_ROUNDING).sum()), 0, 0),
        at_least("nearest that any comes, radians", float(away_NP[1:].min()), ANGLE_ROUNDING),
        *[
            near(f"how near g = 1 comes after {place} tokens, radians", float(away_NP[place, 0]), miss, 1e-9)
            for place, miss in ((44, 44 - 14 * math.pi), (710, 710 - 226 * math.pi))  # from 22/7 and 355/113
        ],
        near("its nearest miss is after as many tokens", int(away_NP[1:, 0].argmin()) + 1, 710, 0),
        near("tokens until a pair with g = 2 pi / 7 returns",
             int((seventh_N < ANGLE_ROUNDING).nonzero()[0]) + 1, 7, 0),
    ]  # fmt: skip
    return Finding(
        comparisons,
        remark='The paper\'s "g rational" is true of few of these frequencies; all are algebraic, which suffices.',
    )


def angles(frequencies_P: Tensor, n: int) -> Tensor:
    """The angles 0, g, ..., (n - 1) g of every pair, computed with this program's rotation: [n, P], from -pi to pi."""
    cos, sin = (x[0, :, len(frequencies_P) :] for x in rotation(torch.arange(n)[None], frequencies_P))
    return torch.atan2(sin, cos)


def lemma_a_2() -> Finding:
    """The angles that a pair passes through leave no gap: they are dense in the circle.

    {n g mod 2 pi} is dense: of M + 1 angles two lie within 2 pi / M, so some n <= M moves by delta <= 2 pi / M, and the
    multiples of n leave no gap above delta after one turn

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.2.
    """
    comparisons = []
    for pair, parts in ((0, 100), (32, 100), (64, 1000)):  # pair from 0, with g = 1, 0.1, 0.01; parts of the circle
        g_1 = frequencies()[pair : pair + 1]
        g, few_N = float(g_1), angles(g_1, parts + 1)[1:, 0].abs()
        step, n = float(few_N.min()), int(few_N.argmin()) + 1
        # where one turn takes more than 4,000,000 tokens, the gap stays above its bound
        longest = min(n * math.ceil(TURN / step) + 1, 4_000_000)
        sorted_N = angles(g_1, longest)[:, 0].sort().values
        gap = float(torch.cat([sorted_N, sorted_N[:1] + TURN]).diff().max())  # between neighbours on the circle
        comparisons += [
            near(f"frequency of pair {pair}", g, 10.0 ** (-pair / 32), 1e-12),
            at_most(f"smallest step of g = {g:g} in {parts} tokens, radians", step, TURN / parts),
            at_most(f"largest gap after {longest:,} tokens of g = {g:g}, radians", gap, step * (1 + 1e-6)),
        ]
    return Finding(comparisons)


HALF = 0.5 + 1e-12  # one half, and rounding


def lemma_a_3() -> Finding:
    """A key whose logit is below another's has at most half of the weight.

    a_i < a_j for some j  =>  alpha_i <= 1/2

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.3.
    """
    comparisons, spread_S11 = [], torch.tensor([0.1, 1.0, 10.0, 100.0], dtype=torch.float64)[:, None, None]
    for n in (2, 3, 10, 100, 1000):
        logits_RN = (random_vector(4, 200, n, seed=n) * spread_S11).flatten(0, 1)
        alpha_RN, below_RN = weights(logits_RN), logits_RN < logits_RN.amax(-1, keepdim=True)
        wrong = int(((alpha_RN > HALF) & below_RN).sum())
        comparisons += [
            at_most(f"largest weight below a larger logit, {n:,} keys", float((alpha_RN * below_RN).max()), HALF),
            near(f"keys with more than half the weight and not the largest logit, {n:,} keys", wrong, 0, 0),
        ]
    close = float(weights(torch.tensor([[0.0, -1e-6]], dtype=torch.float64))[0, 1])
    return Finding([
        *comparisons,
        at_least("weight of a key whose logit is 1e-06 below the other", close, 0.5 - 1e-6),
        at_most("the same: below one half", close, 0.5),
    ])  # fmt: skip


FAR = 32_768  # the largest distance at which pairs of equal norm are checked


def prop_3_1() -> Finding:
    """For every query and every distance r there is a key whose weight is largest at exactly that distance.

    k = R^r q, so that a(n) = sum_k |q_k|^2 cos((n - r) g_k), with its only maximum |q|^2 at n = r

    Barbero et al. 2024, arXiv:2410.06205, Proposition 3.1.
    """
    q, comparisons = random_vector(HEAD_DIM, seed=0), []
    for r in (0, 1, 5, 100, 3000):  # distances at which the maximum is wanted
        logits_N = logits(q, turned(q, r * ladder_by_formula()), torch.arange(8192), frequencies())
        top, second = logits_N.topk(2)
        comparisons += [
            near(f"distance of the largest logit, {r:,} asked for", int(logits_N.argmax()), r, 0),
            near(f"that logit over |q|^2, r = {r:,}", float(top[0] / (q @ q)), 1.0, 1e-9),
            at_least(f"its lead on the next as a share of it, r = {r:,}", float(1 - top[1] / top[0]), 0.01),
            near(f"distance from there to the next, r = {r:,}", abs(int(second[1]) - r), 1, 0),
        ]
    # where every pair has the same norm: the logit falls fast to 0.74, and never comes back
    f_N = aligned(torch.arange(FAR), frequencies())
    comparisons += [
        near(f"logit over |q|^2 at distance {n}, equal norms", float(f_N[n]), expected, 5e-4)
        for n, expected in enumerate((0.972, 0.902, 0.823, 0.765, 0.739), start=1)  # mean_k cos(n g_k)
    ]
    return Finding([
        *comparisons,
        near(f"distance of the largest of the others, up to {FAR:,}", int(f_N[1:].argmax()) + 1, 1, 0),
        at_most(f"largest from 100 to {FAR:,}, equal norms", float(f_N[100:].max()), 0.4655),
    ])  # fmt: skip


SAMPLES = 20_000


def prop_3_2() -> Finding:
    """The logit of independent Gaussian queries and keys is 0 on average at every distance, and its variance is d.

    q, k ~ N(0, I) independent: E[q^T R^r k] = 0 and Var[q^T R^r k] = d for all r (the variance follows; it is not in
    the paper)

    Barbero et al. 2024, arXiv:2410.06205, Proposition 3.2.
    """
    q_NC, k_NC = random_vector(2, SAMPLES, HEAD_DIM, seed=0)
    # the tolerance is four standard errors: with other seeds, about one check of these 12 numbers in 1,300 would fail
    # by chance; E[(q . k)^4] = 3 d^2 + 6 d
    of_mean, of_variance = (4 * math.sqrt(x / SAMPLES) for x in (HEAD_DIM, 2 * HEAD_DIM**2 + 6 * HEAD_DIM))
    comparisons: list[CheckedNumber] = []
    for r in (0, 1, 10, 100, 1000, 5000):
        logits_N = (q_NC * rotated(k_NC, torch.tensor([-r]), frequencies())).sum(-1)
        comparisons += [
            near(f"mean logit at distance {r:,}", float(logits_N.mean()), 0.0, of_mean, published=0.0),
            near(f"its variance at distance {r:,}", float(logits_N.var()), HEAD_DIM, of_variance),
        ]
    return Finding(comparisons)


WEIGHT = 0.99
LENGTHS, EVERY_ROW = (20, 8192), 1024  # tokens of context where the last row is checked, and where every row is
BANDS = {  # pairs, from 0
    "8 fastest": range(8),
    "16 fastest": range(16),
    "32 fastest": range(32),
    "all 128": range(128),
    "32 middle": range(48, 80),
    "32 slowest": range(96, 128),
    "fastest alone": range(1),
}
JUMPS = (45, 711)  # lengths at which the fastest pair alone has a new near miss: 44 and 710 are nearly whole turns
PLACES_ASKED = ("itself", "the token before")


def thm_5_3() -> Finding:
    """With RoPE a head can put as much weight as it likes on the token itself, or on the one before, in every row of a
    context of any length.

    q = k = psi: alpha_ii = 1 / sum_n exp(|psi|^2 (f(n) - 1)), n = 0 .. i, -> 1 as |psi|^2 grows, f(n) = sum_k w_k
    cos(n g_k); k = R psi has f(n - 1) and moves the maximum to the token before

    Barbero et al. 2024, arXiv:2410.06205, Theorem 5.3, with "can learn" as in definition 5.1: every row i <= N.
    """
    comparisons, curves, pos = [], [], torch.arange(EVERY_ROW)
    lengths = sorted({2**k for k in range(1, 14)} | {n - 1 for n in JUMPS} | set(JUMPS))
    for name, pairs in BANDS.items():
        for place, where in enumerate(PLACES_ASKED):
            f_N, formula_N = shares(pairs, place), shares_by_formula(pairs, place)
            comparisons += [
                near(f"|psi|^2 for weight {WEIGHT} on {where}, {name}, {n:,} tokens, over the formula's",
                     needed(f_N[:n], place) / needed_by_formula(formula_N[:n]), 1.0, 1e-4)
                for n in LENGTHS
            ]  # fmt: skip
            # definition 5.1: every row of a causal context, queries and keys rotated where they stand
            norm = needed_by_formula(formula_N[:EVERY_ROW])
            psi = math.sqrt(norm) * equal_norms(pairs)
            q_NC, k_NC = (rotated(turned(psi, n * ladder_by_formula()), pos, frequencies()) for n in (0, place))
            ours_N = causal_weights(q_NC, k_NC).diagonal(-place)
            expected_N = 1 / torch.from_numpy(np.exp(norm * (formula_N[:EVERY_ROW] - 1))).cumsum(0)[place:]
            rounding = 16 * EPS * norm  # a logit is a sum of rotated products, each rounded a few times
            row = f"{where}, {name}, |psi|^2 = {norm:.4g}"
            comparisons += [
                at_least(f"least weight of {EVERY_ROW:,} rows on {row}", float(ours_N.min()), WEIGHT - 1e-6 - rounding),
                near(f"largest error of a row's weight on {row}", float((ours_N - expected_N).abs().max()),
                     0.0, rounding),
            ]  # fmt: skip
        if name not in ("16 fastest", "32 fastest"):
            f_N = shares(pairs)
            curves.append(Curve(name, lengths, [needed(f_N[:n]) for n in lengths]))
    f_N = shares(range(1))  # a single frequency of 1 all but repeats: 44 is near 7 turns and 710 near 113
    for n in JUMPS:
        there, before = needed(f_N[:n]), needed(f_N[: n - 1])
        alone = math.log(WEIGHT / (1 - WEIGHT)) / (1 - math.cos(n - 1))  # against the near miss and no other key
        comparisons += [
            near(f"|psi|^2 for the fastest pair alone, over that for its near miss alone, {n} tokens",
                 there / alone, 1.0, 0.01),
            at_most(f"what one token less needs, as a share, {n - 1} tokens", before / there, 0.1),
        ]  # fmt: skip
    psi = equal_norms(range(8))  # figure 1 turns the query where the appendix turns the key
    drawn_N = logits(turned(psi, ladder_by_formula()), psi, torch.arange(-5, 6), frequencies())
    what = "distance of the largest weight with the vectors of figure 1, q = R psi and k = psi: one token ahead"
    norms = (f"{name} {needed_by_formula(shares_by_formula(pairs)):.3g}" for name, pairs in BANDS.items())
    return Finding(
        [*comparisons, near(what, int(drawn_N.argmax()) - 5, -1, 0, published=1)],
        {
            "rope.thm_5_3": Panel(
                "tokens N", f"|psi|^2 needed for weight {WEIGHT} on the token itself", curves, log="xy"
            )
        },
        f"|psi|^2 for the token itself at 8,192 tokens, by the formula: {', '.join(norms)}.",
    )


def shares(pairs: range, place: int = 0) -> Tensor:
    """The logit of q = psi with k = R^place psi at distances 0 .. 8191, for psi = `equal_norms(pairs)`: [N].

    psi has length 1, so the largest possible logit is 1, and every logit is a share of it.
    """
    psi = equal_norms(pairs)
    return logits(psi, turned(psi, place * ladder_by_formula()), torch.arange(max(LENGTHS)), frequencies())


def shares_by_formula(pairs: range, place: int = 0) -> np.ndarray:
    """The logits of `shares`, computed with their formula, the mean of cos((n - place) g_k) over the pairs: [N]."""
    g_P = ladder_by_formula()[pairs.start : pairs.stop].numpy()
    mean_N: np.ndarray = np.cos(np.outer(np.arange(max(LENGTHS)) - place, g_P)).mean(1)
    return mean_N


def equal_norms(pairs: range) -> Tensor:
    """A vector of length 1 that has the same norm on each of these pairs, and is 0 elsewhere: [C]."""
    psi = torch.zeros(HEAD_DIM, dtype=torch.float64)
    psi[list(pairs)] = len(pairs) ** -0.5
    return psi


def needed(f_N: Tensor, place: int = 0) -> float:
    """The least |psi|^2 at which this program's softmax gives the key at distance `place` the weight WEIGHT.

    f_N: the logits for |psi| = 1.
    """
    return smallest(lambda norm: float(weights(norm * f_N[None])[0, place]) >= WEIGHT)


def needed_by_formula(f_N: np.ndarray) -> float:
    """`needed`, computed with the formula of the weight. f_N must be 1 at the key that gets the weight."""
    return smallest(lambda norm: np.exp(norm * (f_N - 1)).sum() <= 1 / WEIGHT)


def smallest(enough: Callable[[float], bool]) -> float:
    """The smallest number from 1 to e^40 for which `enough` is true, found by bisection on a logarithmic scale."""
    low, high = 0.0, 40.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)


TEN, SCALE = 10.0, HEAD_DIM**-0.5  # SCALE multiplies Gemma's logits; the paper's theory omits it, but norms need it


def figure_6() -> Finding:
    """Norms of about 10 in a few of the fastest pairs suffice for a diagonal head over Gemma's whole context.

    q = k, |q^(k)| on each of 8 pairs: logits |q^(k)|^2 sum_k cos(n g_k) / sqrt(d), d = 256, theta = 10,000

    Barbero et al. 2024, arXiv:2410.06205, section 5.1 and figure 6 ("norms not above about 10").
    """
    fastest, slowest = range(8), range(HEAD_DIM // 2 - 8, HEAD_DIM // 2)
    fast_N, slow_N = (8 * SCALE * shares(pairs) for pairs in (fastest, slowest))  # logits at norms of 1
    of_a_pair = math.sqrt(needed(fast_N))
    by_formula = math.sqrt(needed_by_formula(shares_by_formula(fastest)) / SCALE / 8)
    psi_NC = rotated(TEN * math.sqrt(8) * equal_norms(fastest), torch.arange(EVERY_ROW), frequencies())
    of_rows = causal_weights(psi_NC * SCALE, psi_NC).diagonal()
    fast, slow = (float(weights(TEN**2 * x_N[None])[0, 0]) for x_N in (fast_N, slow_N))
    return Finding([
        at_most("norm of a pair for a weight of 0.99 at 8,192 tokens, 8 fastest pairs", of_a_pair, TEN),
        near("the same over the formula's", of_a_pair / by_formula, 1.0, 1e-4),
        at_least("weight on itself of token 8,192 with norms of 10", fast, 0.99),
        at_least(f"least weight on itself of {EVERY_ROW:,} tokens with norms of 10", float(of_rows.min()), 0.99),
        at_most("weight on itself of token 8,192, norms of 10 in the 8 slowest pairs", slow, 0.01),
    ])  # fmt: skip


DRAWS, TOKENS = 200, 200  # the number of draws of keys and a target; the number of tokens in each draw
NORMS, LEADS = 4.0, (5.0, 25.0)  # largest norm of another key, |q| = 1; range of the target's lead in logits over all
TARGET, OTHER = 64.0, 8.0  # q . k of the target and of other keys before rotation, for the share of places
QUERY = torch.tensor([1.0, 0.0], dtype=torch.float64)  # the angles of all keys are measured from it


def thm_6_1() -> Finding:
    """A head that finds a token by one slow pair loses it in some order of the tokens, if the context is long enough.

    one frequency g, any q, k_1 .. k_N in R^2 and any target: logits |q| |k| cos(theta + g n), so where N g > 2 pi the
    target can be put where its logit is negative, and then another key where its logit is positive: alpha <= 1/2

    Barbero et al. 2024, arXiv:2410.06205, Theorem 6.1; with the swaps of its proof.
    """
    found = [swaps_to_lose(draw, TURN / TOKENS * (1.01 + 7 * draw / DRAWS)) for draw in range(DRAWS)]
    still = [swaps_to_lose(draw, 0.0) for draw in range(DRAWS)]
    orders = [torch.randperm(TOKENS, generator=torch.Generator().manual_seed(i)) for i in range(10)]
    of_draws = [keys_of(draw, 0.0)[0] for draw in range(DRAWS)]
    least = min(weight_of_target(*keys_of(draw, g), g) for g in (0.0, TURN / TOKENS) for draw in range(DRAWS))
    n = 1000  # places of the target; at some of them the last token wins, while no other key moves
    cosine_N = logits(QUERY, QUERY, torch.arange(n), torch.tensor([TURN / n], dtype=torch.float64))
    rows_NN = (OTHER * cosine_N).repeat(n, 1)
    rows_NN.diagonal().copy_(TARGET * cosine_N)
    lost = float((weights(rows_NN).diagonal() <= 0.5).double().mean())
    # for whole turns, 64 cos x <= ln(n I_0(8)), I_0 the mean of exp(8 cos x) over a turn
    expected = 1 - math.acos(math.log(n * float(np.i0(OTHER))) / TARGET) / math.pi
    comparisons = [
        near("draws whose target the swaps make lose, N g from 1 to 8 turns", DRAWS - found.count(None), DRAWS, 0),
        at_least("draws that needed the first swap alone", found.count(1), 1),
        at_least("draws that needed both", found.count(2), 1),
        at_least("least weight of a target to begin with, N g = 0 and one turn", least, 0.99),
        near("draws whose target the swaps make lose, g = 0", DRAWS - still.count(None), 0, 0),
        near(f"random orders in which it loses, {len(orders)} of each draw, g = 0",
             sum(weight_of_target(keys, order_N, 0.0) <= 0.5 for keys in of_draws for order_N in orders), 0, 0),
        near("share of places where a target of 64 loses to 1,000 keys of 8, one turn", lost, expected, 0.003),
    ]  # fmt: skip
    n_g, some = [0.1 * 1.4**x for x in range(16)], [draw for draw in range(DRAWS) if draw % 16 < 2]
    losing = [sum(swaps_to_lose(draw, x / TOKENS) is not None for draw in some) / len(some) for x in n_g]
    curves = [Curve("26 of the draws", n_g, losing), Curve("N g = 2 pi", [TURN, TURN], [0.0, 1.0])]
    return Finding(
        comparisons,
        {"rope.thm_6_1": Panel("N g in radians", "share of draws with a losing order", curves, log="x")},
        f"Each of {DRAWS} draws has {TOKENS} keys with random phases and norms, and a target that begins at its best "
        "place, with 0.99 of the weight. In every second draw the other keys are longer, and turned away from the "
        "query. Then the proof's swaps are made: the target moves to where its logit is negative; if it still has "
        "more than half of the weight, the longest other key moves to where its own logit is largest.",
    )


def keys_of(draw: int, g: float) -> tuple[Tensor, Tensor]:
    """Keys [N, 2] for a query at angle 0, and the distance of each key from the query [N]. Key 0 is the target."""
    generator = torch.Generator().manual_seed(draw)
    uniform_3N = torch.rand(3, TOKENS, generator=generator, dtype=torch.float64)
    angle_N, norm_N = uniform_3N[0] * TURN, uniform_3N[1] * NORMS
    angle_N[0] = 0.9 * math.pi * (uniform_3N[2, 0] - 0.5)
    norm_N[0] = NORMS + math.log(TOKENS) + LEADS[0] + (LEADS[1] - LEADS[0]) * uniform_3N[2, 1]
    norm_N[0] /= angle_N[0].cos()  # so that it is found without rotation, too
    target_2 = norm_N[0] * torch.stack([angle_N[0].cos(), angle_N[0].sin()])
    best = int(at_all_places(target_2, g).argmax())
    distance_N = swapped(torch.randperm(TOKENS, generator=generator), 0, best)
    if draw % 2:
        angle_N[1:] = (math.pi * (0.9 + 0.2 * uniform_3N[0]) + g * distance_N)[1:]
        norm_N[1:] = norm_N[0] * (2 + uniform_3N[1, 1:])
    return norm_N[:, None] * torch.stack([angle_N.cos(), angle_N.sin()], -1), distance_N


def at_all_places(key_2: Tensor, g: float) -> Tensor:
    """Logit of a key at distances 0 .. N - 1: [N]."""
    return logits(QUERY, key_2, torch.arange(TOKENS), torch.tensor([g], dtype=torch.float64))


def swapped(distance_N: Tensor, key: int, place: int) -> Tensor:
    """The distances after `key` and the key at distance `place` have been exchanged: [N]."""
    changed_N = distance_N.clone()
    changed_N[distance_N == place], changed_N[key] = distance_N[key], place
    return changed_N


def weight_of_target(keys_N2: Tensor, distance_N: Tensor, g: float) -> float:
    """The weight of the target, computed with this program's rotation and softmax."""
    turned_N2 = rotated(keys_N2, -distance_N, torch.tensor([g], dtype=torch.float64))
    return float(weights((turned_N2 @ QUERY)[None])[0, 0])


def swaps_to_lose(draw: int, g: float) -> int | None:
    """The number of the proof's swaps, 0 to 2, until the target has at most half of the weight.

    None if the target has more than half even after both swaps.
    """
    keys_N2, distance_N = keys_of(draw, g)
    longest = 1 + int(keys_N2[1:].norm(dim=-1).argmax())
    for n_swaps, key in enumerate((None, 0, longest)):
        if key is not None:
            logits_N = at_all_places(keys_N2[key], g)
            # the target moves to where its logit is negative and largest, another key to where its logit is largest,
            # except to the target's place
            logits_N[distance_N[0] if key else logits_N >= 0] = -torch.inf
            distance_N = swapped(distance_N, key, int(logits_N.argmax()))
        if weight_of_target(keys_N2, distance_N, g) <= 0.5:
            return n_swaps
    return None


WIDTH, ROUNDING = 64, 1e-12  # the width of the head; the rounding error of a weight


def prop_5_2() -> Finding:
    """A single head without positional encoding can attend neither to the token itself nor to the one before it.

    On [bos, x, x]: a_33 = a_32, so alpha_33 = alpha_32 = 1 / (exp(a_31 - a_33) + 2) < 1/2

    Barbero et al. 2024, arXiv:2410.06205, Proposition 5.2.
    """
    logits_B3, alpha_B3 = last_rows(NoPE(shape(WIDTH)))
    _, with_rope_B3 = last_rows(RoPE(shape(WIDTH), theta=THETA))
    lead_B = logits_B3[:, 0] - logits_B3[:, 2]
    error_B = alpha_B3[:, 2] - 1 / (lead_B.exp() + 2)
    comparisons = [
        at_most("largest difference of the weights on the two copies",
                float((alpha_B3[:, 2] - alpha_B3[:, 1]).abs().max()), ROUNDING),
        at_most("largest weight on the token itself", float(alpha_B3[:, 2].max()), 0.5 + ROUNDING),
        at_most("largest weight on the token before", float(alpha_B3[:, 1].max()), 0.5 + ROUNDING),
        at_most("largest error of the formula", float(error_B.abs().max()), ROUNDING),
        at_least("the same draws with RoPE: largest weight on one copy", float(with_rope_B3[:, 1:].max()), 0.9),
    ]  # fmt: skip
    x, seen = torch.linspace(-8, 8, 161, dtype=torch.float64), slice(None, None, 9)
    curves = [
        Curve("NoPE", lead_B[seen].clamp(-8, 8), alpha_B3[seen, 2], points=True),
        Curve("1 / (exp(x) + 2)", x, 1 / (x.exp() + 2)),
        Curve("one half", x, torch.full_like(x, 0.5)),
    ]
    x_label = "logit of the first token minus that of the last"
    return Finding(comparisons, {"rope.prop_5_2": Panel(x_label, "weight of the last token on itself", curves)})


@torch.no_grad()
def last_rows(encoding: PositionalEncoding) -> tuple[Tensor, Tensor]:
    """Logits and attention weights [B, 3] of the last token of [bos, x, x], for random tokens and random matrices.

    This program's attention computes them; a hook on its softmax records them.
    """
    generator = torch.Generator().manual_seed(0)
    tokens_B2D = torch.randn(300, 2, WIDTH, generator=generator, dtype=torch.float64)
    x_B3D, pos = tokens_B2D[:, [0, 1, 1]], torch.arange(3)[None]
    keys = Keys(q_pos_BQ=pos, k_pos_BK=pos)
    logits_of_all, alpha_of_all = [], []
    for spread in (0.1, 1.0, 3.0):  # of the matrices' entries
        attention = Attention(shape(WIDTH), LayerKind(make_softmax=Softmax)).double()
        for matrix in attention.parameters():
            torch.nn.init.normal_(matrix, std=spread * WIDTH**-0.5, generator=generator)
        seen: list[tuple[Tensor, Tensor]] = []
        with attention.softmax.register_forward_pre_hook(lambda _, qkv, seen=seen: seen.append(qkv[:2])):
            attention(x_B3D, encoding, encoding.prepare(pos, x_B3D.dtype), keys, None, lambda x_BTW, site: x_BTW)
        logits, visible = logits_of_rows(*seen[0], attention.shape.scale, keys, None, 0, 3)
        logits_of_all.append(logits[:, 0, 2])
        alpha = attention.softmax.weights(logits, visible, {"n_visible": visible.sum(-1, keepdim=True)})
        alpha_of_all.append(alpha[:, 0, 2])
    return torch.cat(logits_of_all), torch.cat(alpha_of_all)


TURNS_ONCE, EVERY = 65_536, 16  # tokens in which the slowest pair turns more than once, and by 0.002 radians


def table_1() -> Finding:
    """NoPE cannot have patterns of position, RoPE cannot have lasting patterns of meaning, p-RoPE can have both.

    position: a weight above 0.99 on the token itself, or the one before, in every row; q = psi on the 8 fastest pairs

    meaning: a target keeps a weight above 1/2 wherever it and another key stand; q and k on the slowest pair

    Barbero et al. 2024, arXiv:2410.06205, table 1, definition 5.1 and theorem 6.1, for single heads.
    """
    encodings: dict[str, tuple[PositionalEncoding, bool, bool]] = {  # can have patterns of position, of meaning
        "NoPE": (NoPE(shape()), False, True),
        "RoPE": (RoPE(shape(), theta=THETA), True, False),
        "0.75-RoPE": (PRoPE(shape(), p=0.75, theta=THETA), True, True),
        "0.25-RoPE": (PRoPE(shape(), p=0.25, theta=THETA), True, True),
    }
    comparisons, curves = [], []
    x, distances_N = on_pair(1.0, 0.0, HEAD_DIM // 2 - 1), torch.arange(0, TURNS_ONCE, EVERY)
    for name, (encoding, positional, semantic) in encodings.items():
        cells = [
            (f"{name}: least weight of {EVERY_ROW:,} rows on {where}", least_weight(encoding, place), positional)
            for place, where in enumerate(PLACES_ASKED)
        ]
        # a target at every 16th distance, and one other key at the distance where its logit is largest
        cosine_N = encoded(encoding, x.expand(len(distances_N), -1), -distances_N) @ x
        other_N = torch.full_like(cosine_N, OTHER * float(cosine_N.max()))
        at_N = weights(torch.stack([TARGET * cosine_N, other_N], -1))[:, 0]
        what = f"{name}: least weight of a target within {TURNS_ONCE:,} tokens, another key at its best place"
        cells.append((what, float(at_N.min()), semantic))
        comparisons += [at_least(what, ours, 0.99) if yes else at_most(what, ours, 0.5) for what, ours, yes in cells]
        curves.append(Curve(name, distances_N[::16], at_N[::16]))
    return Finding(
        comparisons,
        {"rope.table_1": Panel("distance of the target in tokens", "its weight", curves)},
        "Each cell is one head. Proposition 5.2 says that no head of NoPE has positions, Theorem 6.1 that no pair of "
        "RoPE keeps its target. p-RoPE keeps the order of two keys at any distance; among n keys the weight still "
        "falls as 1/n, by Lemma 2.1 of arXiv:2410.01104.",
    )


def least_weight(encoding: PositionalEncoding, place: int) -> float:
    """The least weight of a row on the token `place` positions before. The first row with such a token does not count.

    The key is psi, rotated by the encoding for position `place`; so its logit is largest at that distance.
    """
    psi, pos = 40.0**0.5 * equal_norms(range(8)), torch.arange(EVERY_ROW)  # 20 suffice RoPE for a weight of 0.99
    key = encoded(encoding, psi[None], torch.tensor([place]))[0]
    q_NC, k_NC = (encoded(encoding, x.expand(EVERY_ROW, -1), pos) for x in (psi, key))
    return float(causal_weights(q_NC, k_NC).diagonal(-place)[1:].min())


def encoded(encoding: PositionalEncoding, x_NC: Tensor, pos_N: Tensor) -> Tensor:
    """x after the rotation that the encoding gives to queries and keys at these positions: [N, C]."""
    prepared = encoding.prepare(pos_N[None], x_NC.dtype)
    queries, keys = (turn(x_NC[None, None], prepared)[0, 0] for turn in (encoding.rotate_queries, encoding.rotate_keys))
    assert torch.equal(queries, keys), "these encodings turn both alike"
    return queries
