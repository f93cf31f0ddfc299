"""What follows from rotations at any distance: equation 3, p-RoPE's listing, propositions 3.1 and 3.2, the lemmas of
appendix A, and numbers that arXiv:2410.06205 computes in passing.

Tested by tests/papers/test_claims.py and tests/papers/test_rope_claims.py.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from roundround.papers.claim import CheckedNumber, Finding, Trained, as_printed, at_least, at_most, near
from roundround.papers.constructions import (
    HEAD_DIM,
    THETA,
    aligned,
    before_rotation,
    calls,
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
from roundround.pe.p_rope import PRoPE
from roundround.pe.rotary import rotation
from roundround.probing.layout import PAIRINGS, Layout
from roundround.probing.probe import observe
from roundround.probing.probed_model import ProbedDecoder, run
from roundround.support.panels import Curve, Panel

SHIFT = 1000  # tokens; only the logits know of positions, and they of distances alone
N_TOKENS = 24  # of a trained model's text: as many rows of as many tokens
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the layers below, relative to the logits
ROUNDING_OF_HALF = 0.2  # of float16 and bfloat16: a wrong rotation is above 1
LOSS = 2.0  # nats per token; the model reaches about 1.2 on its own stories, and ln 512 = 6.2 is an even guess


def equation_3() -> Finding:
    """The logit of a query at i with a key at j depends on j - i alone, pair by pair, the key turned by that distance.

    (R^i q_i)^T (R^j k_j) = sum_k q_i^(k)T rho(g_k)^(j - i) k_j^(k), with pair k in the channels (k, k + d/2)

    Barbero et al. 2024, arXiv:2410.06205, equation 3.
    """
    q, k, pos = random_vector(HEAD_DIM, seed=1), random_vector(HEAD_DIM, seed=2), torch.arange(128)
    layout = Layout(ladder_by_formula(HEAD_DIM, THETA), "half-split", HEAD_DIM)
    ours = rotated(q, pos, frequencies()) @ rotated(k, pos, frequencies()).T
    formula = by_formula(q.expand(1, 128, -1), k.expand(1, 128, -1), layout)[0]
    trained = stories260k()
    tokens, text = trained.texts[0], torch.tensor(trained.texts)
    with torch.no_grad():
        here, there = run(trained.probed, [(tokens, 0), (tokens, SHIFT)])
        loss = float(trained.probed.token_loss(text[:, :-1], text[:, 1:]).mean())
    comparisons = [
        at_most("largest error of random vectors' logits, over their size", relative_error(ours, formula), 1e-9),
        *equation_3_of_model(trained).comparisons,
        at_most(f"largest change of its output where all tokens stand {SHIFT:,} places later, over its size",
                relative_error(there, here), ROUNDING[torch.float64]),  # values are not rotated
        at_most("loss of stories260k on its own story, nats per token", loss, LOSS),
    ]  # fmt: skip
    return Finding(comparisons, of_one_query(ours, formula, 64))


def equation_3_of_model(trained: Trained) -> Finding:
    """The logits of every layer on the beginning of a text against the formula on its unrotated queries and keys."""
    probed, tokens = trained.probed, trained.texts[0][:N_TOKENS]
    tolerance = ROUNDING.get(next(probed.model.parameters()).dtype, ROUNDING_OF_HALF)
    if isinstance(probed, ProbedDecoder):  # a decoder of this program: half-split
        tables, layouts = probed.tables(), []  # one for all layers, or one a layer
        for layer, normaliser in enumerate(probed.normalisers):
            table_P = tables[layer % len(tables)].double()
            resting = normaliser.shape.head_dim // 2 - len(table_P)
            layouts.append(Layout(torch.nn.functional.pad(table_P, (0, resting)), PAIRINGS[0], 2 * len(table_P)))
    else:
        layouts = observe(probed, trained.texts[:1], rows=False, entropy=False).layouts
    comparisons, picture = [], None
    of_layers = zip(layouts, calls(probed, [(tokens, 0)]), before_rotation(probed, tokens), strict=True)
    for layer, (layout, call, (q, k)) in enumerate(of_layers):
        ours, formula = call.q_BHTC[0].double() @ call.k_BHTC[0].double().mT, by_formula(q, k, layout)
        what = f"largest error of {probed.name}'s logits in layer {layer}, over their size"
        comparisons.append(at_most(what, relative_error(ours, formula), tolerance))
        picture = picture or of_one_query(ours[0], formula[0], len(tokens) // 2)
    return Finding(comparisons, picture)


def of_one_query(ours_TT: Tensor, formula_TT: Tensor, i: int) -> Panel:
    """The logits of one query with every key."""
    distance = torch.arange(len(ours_TT)) - i
    few = slice(None, None, max(1, len(ours_TT) // 32))
    written_out = Curve("equation 3, written out", distance[few], formula_TT[i, few], points=True)
    return Panel("j - i in tokens", "q . k", [written_out, Curve("as rotated", distance, ours_TT[i])])


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


ROTATED = {(64, 0.1): 3, (128, 0.1): 6, (256, 0.1): 12, (256, 0.9): 115, (256, 0.75): 96}  # p d / 2 = 3.2, ..., 115.2
POSITIONS = torch.tensor([0, 1, 2, 7, 100, 8191])
EPS = 2.0**-52  # of float64; an angle of 8,191 is exact to about this share, its sine and cosine to the same in radians


def timescales(head_dim: int, p: float) -> np.ndarray:
    """1 / g_k in tokens by the listing: int(p * head_dim // 2) powers of the base, then infinity: [P]."""
    rope_angles = int(p * head_dim // 2)
    fraction = 2.0 * np.arange(0, rope_angles) / head_dim
    return np.pad(THETA**fraction, (0, head_dim // 2 - rope_angles), constant_values=np.inf)


def p_rope_listing() -> Finding:
    """p-RoPE rotates the first int(p d / 2) pairs at the frequencies of the whole ladder, and leaves the others alone.

    fraction = 2 arange(int(p * head_dim // 2)) / head_dim; timescale = base^fraction, padded with inf; angle =
    position / timescale

    Barbero et al. 2024, arXiv:2410.06205, appendix D (listing).
    """
    comparisons = []
    for head_dim in (64, 128, 256):
        error, widest, wrong = 0.0, 0.0, 0
        for p in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0):
            ours, listed = p_rope_frequencies(p, head_dim).numpy(), 1 / timescales(head_dim, p)
            wrong += int(((ours == 0) != (listed == 0)).sum())
            error = max(error, float(np.abs(ours - listed).max()))
            # of a random query, and a key, as this program's encoding rotates them, against the listing, line by line
            encoding = PRoPE(shape(head_dim), p=p, theta=THETA)
            x_NC = random_vector(len(POSITIONS) * head_dim, seed=0).view(len(POSITIONS), head_dim)
            prepared = encoding.prepare(POSITIONS[None], torch.float64)
            sinusoid_inp = POSITIONS.numpy()[:, None] / timescales(head_dim, p)
            sin, cos = np.sin(sinusoid_inp), np.cos(sinusoid_inp)
            one, two = np.split(x_NC.numpy(), 2, axis=-1)
            expected_NC = np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)
            for turn in (encoding.rotate_queries, encoding.rotate_keys):
                turned_NC = turn(x_NC[None, None], prepared)[0, 0].numpy()
                widest = max(widest, float(np.abs(turned_NC - expected_NC).max()))
        bound = float(POSITIONS.max()) * 8 * EPS * 6  # angles, then coordinates of at most 6 standard deviations
        comparisons += [
            near(f"pairs that rest here and rotate there, or the reverse, head_dim = {head_dim}", wrong, 0, 0),
            near(f"largest difference of a frequency, head_dim = {head_dim}", error, 0.0, 8 * EPS),
            near(f"largest difference of a rotated coordinate up to token 8,191, head_dim = {head_dim}",
                 widest, 0.0, bound),
        ]  # fmt: skip
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


def side_computations() -> Finding:
    """The slow pairs of Gemma and Llama turn as far within a context as the paper says, with one exception.

    128,000 / 10,000 / 2 pi = 2.04 rotations; 8000 g_119 = 1.64, about pi / 2; 10,000^-0.8 = 0.0006; printed
    500,000^(-40/64) = 0.0001 is 0.00027

    Barbero et al. 2024, arXiv:2410.06205, sections 5 and 6 and appendix C.
    """
    gemma, llama = frequencies().numpy(), frequencies(128, 500_000.0).numpy()
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
    curves = [
        Curve("Gemma: d = 256, theta = 10,000", range(1, len(gemma) + 1), gemma),
        Curve("Llama 3.1: d = 128, theta = 500,000", range(1, len(llama) + 1), llama),
        Curve("g_119 of Gemma, as printed", [119], [2.05e-4], points=True),
        Curve("printed for 40 of 64 pairs of Llama", [41], [1e-4], points=True),
        Curve(f"pi / 2 in {8000:,} tokens", [1, HEAD_DIM // 2], [math.pi / 2 / 8000] * 2),
    ]
    return Finding(comparisons, Panel("pair k", "radians per token", curves, log="y"))


PAIR = 118  # g_119, pairs from 0
QUERY = (-4.1, 11.3)
# the key, q . k, and after how many tokens it changes its sign, to a hundred
KEYS = {"other keys": ((11.2, -3.5), -85.5, 12_100), "the first token": ((-2.5, 1.3), 24.9, 11_300)}
CONTEXT = 8192


def apostrophe() -> Finding:
    """In the slow channel of Gemma 7B's apostrophe head the first token is liked and others are not, up to about 11,000
    tokens; then both turn round.

    q = [-4.1, 11.3]; q . k = -85.5 for k = [11.2, -3.5] and 24.9 for the first token's k = [-2.5, 1.3];
    q^T rho(g_119)^-r k changes its sign at r = 12,100 and 11,300

    Barbero et al. 2024, arXiv:2410.06205, section 5.2 and appendix E.1 (vectors); equation 3 (orientation).
    """
    comparisons: list[CheckedNumber] = []
    curves, distances = [], torch.arange(2 * CONTEXT)
    for name, (key, product, expected) in KEYS.items():
        # the logit of a head that holds nothing but this channel
        logits_N = logits(on_pair(*QUERY, PAIR), on_pair(*key, PAIR), distances, frequencies())
        sign = math.copysign(1.0, product)
        flip = int((sign * logits_N < 0).int().argmax())  # 0 where it never turns
        # |q| |k| cos(angle - r g) is 0 first where r g is this, angle from the query to the key, counter-clockwise
        angle = math.atan2(key[1], key[0]) - math.atan2(QUERY[1], QUERY[0]) - math.pi / 2
        comparisons += [
            as_printed(f"q . k, {name}", float(logits_N[0]), product, 0.05),
            near(f"tokens until its sign turns, {name}", flip, expected, 50),
            near(f"the same by the formula, {name}", flip, angle % math.pi / float(ladder_by_formula()[PAIR]), 1),
            at_least(f"smallest size within {CONTEXT:,} tokens, {name}", float((sign * logits_N[:CONTEXT]).min()), 1.0),
        ]
        curves.append(Curve(name, distances[::16], logits_N[::16]))
    curves.append(Curve(f"Gemma's context, {CONTEXT:,} tokens", [CONTEXT, CONTEXT], [-120.0, 120.0]))
    curves.append(Curve("0", [0, 2 * CONTEXT], [0.0, 0.0]))
    return Finding(comparisons, Panel("distance in tokens", "q . k in the channel", curves))


FOLLOWED = 8192
ANGLE_ROUNDING = 1e-9  # of n g in float64, n up to 8192; what is nearer to 0 counts as 0


def lemma_a_1() -> Finding:
    """A pair whose frequency is algebraic and not 0 never returns to its first angle, though it comes near.

    n g = 0 mod 2 pi only for n = 0; holds for every g_k = theta^(-2(k-1)/d), rational or not

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.1.
    """
    away_NP = angles(frequencies(), FOLLOWED).abs()
    returns = int((away_NP[1:] < ANGLE_ROUNDING).sum())
    seventh = angles(torch.tensor([2 * math.pi / 7], dtype=torch.float64), FOLLOWED).abs()
    n = torch.arange(1, FOLLOWED)
    near_n = away_NP[1:, 0] <= 2 * math.pi / n
    comparisons = [
        near(f"returns of 128 pairs within {FOLLOWED:,} tokens", returns, 0, 0),
        at_least("nearest that any comes, radians", float(away_NP[1:].min()), ANGLE_ROUNDING),
        *[
            near(f"how near g = 1 comes after {place} tokens, radians", float(away_NP[place, 0]), miss, 1e-9)
            for place, miss in ((44, 44 - 14 * math.pi), (710, 710 - 226 * math.pi))  # from 22/7 and 355/113
        ],
        near("its nearest miss is after as many tokens", int(away_NP[1:, 0].argmin()) + 1, 710, 0),
        near("tokens until a pair with g = 2 pi / 7 returns",
             int((seventh[1:, 0] < ANGLE_ROUNDING).nonzero()[0]) + 1, 7, 0),
    ]  # fmt: skip
    curves = [
        Curve("g = 1, where it is at most 2 pi / n", n[near_n], away_NP[n[near_n], 0], points=True),
        Curve("nearest so far", n, torch.cummin(away_NP[1:, 0], 0).values),
        Curve("2 pi / n", n, 2 * math.pi / n),
    ]
    remark = 'The paper\'s "g rational" is true of few of these frequencies; all are algebraic, which suffices.'
    return Finding(comparisons, Panel("tokens n", "radians from the first angle", curves, log="xy"), remark)


def angles(frequencies_P: Tensor, n: int) -> Tensor:
    """0, g, 2g, ..., (n - 1) g of every pair as this program rotates, between -pi and pi: [n, P]."""
    cos, sin = rotation(torch.arange(n)[None], frequencies_P)
    n_pairs = len(frequencies_P)
    return torch.atan2(sin[0, :, n_pairs:], cos[0, :, n_pairs:])


def lemma_a_2() -> Finding:
    """The angles that a pair passes through leave no gap: they are dense in the circle.

    {n g mod 2 pi} is dense: of M + 1 angles two lie within 2 pi / M, so some n <= M moves by delta <= 2 pi / M, and the
    multiples of n leave no gap above delta after one turn

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.2.
    """
    comparisons, curves = [], []
    for pair, parts in ((0, 100), (32, 100), (64, 1000)):  # from 0; parts of the circle; g = 1, 0.1 and 0.01
        g_1 = frequencies()[pair : pair + 1]
        g = float(g_1)
        few = angles(g_1, parts + 1)[:, 0].abs()
        n = int(few[1:].argmin()) + 1
        step = float(few[n])
        # where one turn takes more than 4,000,000 tokens, the gap stays above its bound
        longest = min(n * math.ceil(2 * math.pi / step) + 1, 4_000_000)
        all_angles = angles(g_1, longest)[:, 0]
        lengths = [2**k for k in range(2, 30) if 2**k < longest] + [longest]
        gaps = []  # the largest between neighbours on the circle
        for length in lengths:
            sorted_N = all_angles[:length].sort().values
            gaps.append(float(torch.cat([sorted_N, sorted_N[:1] + 2 * math.pi]).diff().max()))
        comparisons += [
            near(f"frequency of pair {pair}", g, 10.0 ** (-pair / 32), 1e-12),
            at_most(f"smallest step of g = {g:g} in {parts} tokens, radians", step, 2 * math.pi / parts),
            at_most(f"largest gap after {longest:,} tokens of g = {g:g}, radians", gaps[-1], step * (1 + 1e-6)),
        ]
        curves.append(Curve(f"g = {g:g}", lengths, gaps))
    evenly = [2**k for k in range(2, 21)]
    curves.append(Curve("2 pi / n: spread evenly", evenly, [2 * math.pi / n for n in evenly]))
    return Finding(comparisons, Panel("tokens n", "largest gap between angles, radians", curves, log="xy"))


HALF = 0.5 + 1e-12  # one half, and rounding
GAP = 1e-6  # between the two logits of a row that comes near the bound


def lemma_a_3() -> Finding:
    """A key whose logit is below another's has at most half of the weight.

    a_i < a_j for some j  =>  alpha_i <= 1/2

    Barbero et al. 2024, arXiv:2410.06205, Lemma A.3.
    """
    comparisons, spread_S11 = [], torch.tensor([0.1, 1.0, 10.0, 100.0], dtype=torch.float64)[:, None, None]
    for n in (2, 3, 10, 100, 1000):
        logits_RN = (random_vector(4, 200, n, seed=n) * spread_S11).flatten(0, 1)
        alpha_RN = weights(logits_RN)
        below_RN = logits_RN < logits_RN.amax(-1, keepdim=True)
        most = float(alpha_RN.masked_fill(~below_RN, 0.0).max())
        wrong = int(((alpha_RN > HALF) & below_RN).sum())
        comparisons += [
            at_most(f"largest weight below a larger logit, {n:,} keys", most, HALF),
            near(f"keys with more than half the weight and not the largest logit, {n:,} keys", wrong, 0, 0),
        ]
    close = float(weights(torch.tensor([[0.0, -GAP]], dtype=torch.float64))[0, 1])
    comparisons += [
        at_least(f"weight of a key whose logit is {GAP:g} below the other", close, 0.5 - GAP),
        at_most("the same: below one half", close, 0.5),
    ]
    gap = torch.linspace(0, 5, 101, dtype=torch.float64)
    curves = []
    for n in (2, 3, 10):
        rows = torch.zeros(len(gap), n, dtype=torch.float64)
        rows[:, 1:] = -gap[:, None]
        curves.append(Curve(f"{n} keys", gap, weights(rows)[:, 1]))
    curves.append(Curve("one half", gap, torch.full_like(gap, 0.5)))
    return Finding(comparisons, Panel("how far below the largest logit", "weight of the second", curves))


BLOCK = 16  # tokens to a point of the figure, or the lines would cover each other
FAR = 32_768  # how far equal norms are followed


def prop_3_1() -> Finding:
    """For every query and every distance r there is a key whose weight is largest at exactly that distance.

    k = R^r q, so that a(n) = sum_k |q_k|^2 cos((n - r) g_k), with its only maximum |q|^2 at n = r

    Barbero et al. 2024, arXiv:2410.06205, Proposition 3.1.
    """
    q, distances = random_vector(HEAD_DIM, seed=0), torch.arange(8192)
    comparisons, curves = [], []
    for r in (0, 1, 5, 100, 3000):  # distances at which the maximum is asked for
        logits_N = logits(q, turned(q, r * ladder_by_formula()), distances, frequencies())
        top, second = logits_N.topk(2)
        comparisons += [
            near(f"distance of the largest logit, {r:,} asked for", int(logits_N.argmax()), r, 0),
            near(f"that logit over |q|^2, r = {r:,}", float(top[0] / (q @ q)), 1.0, 1e-9),
            at_least(f"its lead on the next as a share of it, r = {r:,}", float(1 - top[1] / top[0]), 0.01),
            near(f"distance from there to the next, r = {r:,}", abs(int(second[1]) - r), 1, 0),
        ]
        if r in (0, 3000):
            largest = (logits_N / float(q @ q)).view(-1, BLOCK).amax(-1)
            curves.append(Curve(f"r = {r:,}", distances[::BLOCK], largest))
    # where every pair has the same norm: the logit falls fast to 0.74, and never comes back
    f_N = aligned(torch.arange(FAR), frequencies())
    comparisons += [
        near(f"logit over |q|^2 at distance {n}, equal norms", float(f_N[n]), expected, 5e-4)
        for n, expected in enumerate((0.972, 0.902, 0.823, 0.765, 0.739), start=1)  # mean_k cos(n g_k)
    ]
    comparisons += [
        near(f"distance of the largest of the others, up to {FAR:,}", int(f_N[1:].argmax()) + 1, 1, 0),
        at_most(f"largest from 100 to {FAR:,}, equal norms", float(f_N[100:].max()), 0.4655),
    ]
    return Finding(comparisons, Panel("distance in tokens", f"logit over |q|^2, largest of {BLOCK} tokens", curves))


SAMPLES = 20_000
# allowed are four standard errors: one check of 12 numbers in 1,300 would miss by chance, and the seed is fixed
OF_MEAN = 4 * math.sqrt(HEAD_DIM / SAMPLES)
OF_VARIANCE = 4 * math.sqrt((2 * HEAD_DIM**2 + 6 * HEAD_DIM) / SAMPLES)  # from E[(q . k)^4] = 3 d^2 + 6 d


def prop_3_2() -> Finding:
    """The logit of independent Gaussian queries and keys is 0 on average at every distance, and its variance is d.

    q, k ~ N(0, I) independent: E[q^T R^r k] = 0 and Var[q^T R^r k] = d for all r (the variance follows; it is not in
    the paper)

    Barbero et al. 2024, arXiv:2410.06205, Proposition 3.2.
    """
    q_NC, k_NC = random_vector(2, SAMPLES, HEAD_DIM, seed=0)
    comparisons: list[CheckedNumber] = []
    means, variances, distances = [], [], (0, 1, 10, 100, 1000, 5000)
    for r in distances:
        logits_N = (q_NC * rotated(k_NC, torch.tensor([-r]), frequencies())).sum(-1)
        means.append(float(logits_N.mean()))
        variances.append(float(logits_N.var()))
        comparisons += [
            near(f"mean logit at distance {r:,}", means[-1], 0.0, OF_MEAN, published=0.0),
            near(f"its variance at distance {r:,}", variances[-1], HEAD_DIM, OF_VARIANCE),
        ]
    x, unit = distances[1:], math.sqrt(HEAD_DIM)  # distance 0 has no place on the axis
    curves = [
        Curve("mean", x, [mean / unit for mean in means[1:]], points=True),
        Curve("standard deviation", x, [math.sqrt(variance) / unit for variance in variances[1:]], points=True),
        Curve("expected mean", x, [0.0] * len(x)),
        Curve("expected standard deviation", x, [1.0] * len(x)),
    ]
    return Finding(comparisons, Panel("distance in tokens", "logit over the square root of d", curves, log="x"))
