"""What single heads can do with and without RoPE: theorems 5.3 and 6.1, proposition 5.2, figure 6 and table 1 of
arXiv:2410.06205.

Tested by tests/papers/test_claims.py and tests/papers/test_rope_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows
from roundround.kernels.keys import Keys
from roundround.model.block import Attention
from roundround.papers.claim import CheckedNumber, Finding, at_least, at_most, near, shown
from roundround.papers.constructions import (
    HEAD_DIM,
    THETA,
    causal_weights,
    frequencies,
    ladder_by_formula,
    logits,
    on_pair,
    rotated,
    shape,
    turned,
    weights,
)
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.p_rope import PRoPE
from roundround.pe.rope import RoPE
from roundround.softmax.softmax import Softmax
from roundround.support.panels import Curve, Panel

WEIGHT = 0.99
LENGTHS, EVERY_ROW = (20, 8192), 1024  # tokens: asked of the last one, and of every one
BANDS = {  # pairs, from 0
    "8 fastest": range(8),
    "16 fastest": range(16),
    "32 fastest": range(32),
    "all 128": range(128),
    "32 middle": range(48, 80),
    "32 slowest": range(96, 128),
    "fastest alone": range(1),
}
ROUNDING_OF_WEIGHT = 16 * 2.0**-52  # times |psi|^2: a logit is a sum of rotated products, each rounded a few times
JUMPS = (45, 711)  # lengths at which the fastest pair alone has a new near miss: 44 and 710 are nearly whole turns
PLACES_ASKED = ("itself", "the token before")


def thm_5_3() -> Finding:
    """With RoPE a head can put as much weight as it likes on the token itself, or on the one before, in every row of a
    context of any length.

    q = k = psi: alpha_ii = 1 / sum_n exp(|psi|^2 (f(n) - 1)), n = 0 .. i, -> 1 as |psi|^2 grows, f(n) = sum_k w_k
    cos(n g_k); k = R psi has f(n - 1) and moves the maximum to the token before

    Barbero et al. 2024, arXiv:2410.06205, Theorem 5.3, with "can learn" as in definition 5.1: every row i <= N.
    """
    comparisons, curves = [], []
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
            psi, pos = math.sqrt(norm) * equal_norms(pairs), torch.arange(EVERY_ROW)
            key = turned(psi, place * ladder_by_formula())
            alpha_NN = causal_weights(rotated(psi, pos, frequencies()), rotated(key, pos, frequencies()))
            ours_N = alpha_NN.diagonal(-place)
            expected_N = 1 / torch.from_numpy(np.exp(norm * (formula_N[:EVERY_ROW] - 1))).cumsum(0)[place:]
            error, rounding = float((ours_N - expected_N).abs().max()), ROUNDING_OF_WEIGHT * norm
            row = f"{where}, {name}, |psi|^2 = {norm:.4g}"
            comparisons += [
                at_least(f"least weight of {EVERY_ROW:,} rows on {row}", float(ours_N.min()), WEIGHT - 1e-6 - rounding),
                near(f"largest error of a row's weight on {row}", error, 0.0, rounding),
            ]
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
    norms = (f"{name} {needed_by_formula(shares_by_formula(pairs)):.3g}" for name, pairs in BANDS.items())
    return Finding(
        [*comparisons, of_figure_1()],
        Panel("tokens N", f"|psi|^2 needed for weight {WEIGHT} on the token itself", curves, log="xy"),
        f"|psi|^2 for the token itself at 8,192 tokens, by the formula: {', '.join(norms)}.",
    )


def shares(pairs: range, place: int = 0) -> Tensor:
    """Logit of q = psi with k = R^place psi over |psi|^2, psi equal on these pairs, at distances 0 .. 8191: [N]."""
    psi = equal_norms(pairs)
    key = turned(psi, place * ladder_by_formula())
    return logits(psi, key, torch.arange(max(LENGTHS)), frequencies())


def shares_by_formula(pairs: range, place: int = 0) -> np.ndarray:
    """The same, mean of cos((n - place) g_k) over the pairs: [N]."""
    g_P = ladder_by_formula()[pairs.start : pairs.stop].numpy()
    mean_N: np.ndarray = np.cos(np.outer(np.arange(max(LENGTHS)) - place, g_P)).mean(1)
    return mean_N


def equal_norms(pairs: range) -> Tensor:
    """A vector of length 1, of equal norm on these pairs: [C]."""
    psi = torch.zeros(HEAD_DIM, dtype=torch.float64)
    psi[list(pairs)] = len(pairs) ** -0.5
    return psi


def needed(f_N: Tensor, place: int = 0) -> float:
    """The norm |psi|^2 at which the key at this distance has the weight WEIGHT, by this program's softmax."""
    return smallest(lambda norm: float(weights(norm * f_N[None])[0, place]) >= WEIGHT)


def needed_by_formula(f_N: np.ndarray) -> float:
    """The same with the weight written out; the key that is asked for has f = 1."""
    return smallest(lambda norm: np.exp(norm * (f_N - 1)).sum() <= 1 / WEIGHT)


def smallest(enough: Callable[[float], bool]) -> float:
    """The smallest norm that is enough, from 1 to e^40, by bisection of its logarithm."""
    low, high = 0.0, 40.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)


def of_figure_1() -> CheckedNumber:
    """Its vectors, q = R psi and k = psi, attend one token ahead under equation 3."""
    psi = equal_norms(range(8))
    drawn_N = logits(turned(psi, ladder_by_formula()), psi, torch.arange(-5, 6), frequencies())
    what = "distance of the largest weight with the vectors of figure 1, q = R psi and k = psi: one token ahead"
    return near(what, int(drawn_N.argmax()) - 5, -1, 0, published=1)


TEN, SCALE = 10.0, HEAD_DIM**-0.5  # the paper's theory leaves the scale of Gemma's logits out; norms need it


def figure_6() -> Finding:
    """Norms of about 10 in a few of the fastest pairs suffice for a diagonal head over Gemma's whole context.

    q = k, |q^(k)| on each of 8 pairs: logits |q^(k)|^2 sum_k cos(n g_k) / sqrt(d), d = 256, theta = 10,000

    Barbero et al. 2024, arXiv:2410.06205, section 5.1 and figure 6 ("norms not above about 10").
    """
    fastest, slowest = range(8), range(HEAD_DIM // 2 - 8, HEAD_DIM // 2)
    fast_N, slow_N = (len(pairs) * SCALE * shares(pairs) for pairs in (fastest, slowest))  # logits at norms of 1
    of_a_pair = math.sqrt(needed(fast_N))
    by_formula = math.sqrt(needed_by_formula(shares_by_formula(fastest)) / SCALE / len(fastest))
    pos, psi = torch.arange(EVERY_ROW), TEN * math.sqrt(len(fastest)) * equal_norms(fastest)
    psi_NC = rotated(psi, pos, frequencies())
    of_rows = causal_weights(psi_NC * SCALE, psi_NC).diagonal()
    drawn = torch.zeros(HEAD_DIM, dtype=torch.float64)
    # the pairs with the largest norms in the figure; the first and the last norm were read off it
    drawn[[0, 1, 2, 4, 5, 6]] = torch.linspace(8.9, 6.8, 6, dtype=torch.float64)
    drawn_N = SCALE * logits(drawn, drawn, torch.arange(max(LENGTHS)), frequencies())
    comparisons = [
        at_most("norm of a pair for a weight of 0.99 at 8,192 tokens, 8 fastest pairs", of_a_pair, TEN),
        near("the same over the formula's", of_a_pair / by_formula, 1.0, 1e-4),
        at_least("weight on itself of token 8,192 with norms of 10", of_last_row(fast_N, TEN), 0.99),
        at_least(f"least weight on itself of {EVERY_ROW:,} tokens with norms of 10", float(of_rows.min()), 0.99),
        at_most("weight on itself of token 8,192, norms of 10 in the 8 slowest pairs", of_last_row(slow_N, TEN), 0.01),
        shown("the same, the six norms of figure 6, 8.9 to 6.8, those between on a line", of_last_row(drawn_N, 1.0)),
    ]
    norms = torch.linspace(0.5, 15, 59).tolist()
    curves = [
        Curve("8 fastest pairs", norms, [of_last_row(fast_N, norm) for norm in norms]),
        Curve("8 slowest pairs", norms, [of_last_row(slow_N, norm) for norm in norms]),
    ]
    return Finding(comparisons, Panel("norm of each of 8 pairs", "weight on itself of token 8,192", curves))


def of_last_row(logits_N: Tensor, norm: float) -> float:
    """Weight of the last token on itself, its pairs this many times as long: logits at distances 0, 1, 2, ..."""
    return float(weights(norm**2 * logits_N[None])[0, 0])


DRAWS, TOKENS = 200, 200  # of queries, keys and targets; tokens of each
NORMS, LEADS = 4.0, (5.0, 25.0)  # largest norm of another key, |q| = 1; by how much the target can exceed them all
TARGET, OTHER = 64.0, 8.0  # q . k of the target and of every other key before any rotation, where places are counted
TURN = 2 * math.pi
QUERY = torch.tensor([1.0, 0.0], dtype=torch.float64)  # all phases are from it


def thm_6_1() -> Finding:
    """A head that finds a token by one slow pair loses it in some order of the tokens, if the context is long enough.

    one frequency g, any q, k_1 .. k_N in R^2 and any target: logits |q| |k| cos(theta + g n), so where N g > 2 pi the
    target can be put where its logit is negative, and then another key where its logit is positive: alpha <= 1/2

    Barbero et al. 2024, arXiv:2410.06205, Theorem 6.1; with the swaps of its proof.
    """
    above_a_turn = [TURN / TOKENS * (1.01 + 7 * draw / DRAWS) for draw in range(DRAWS)]
    found = [swaps_to_lose(draw, g) for draw, g in enumerate(above_a_turn)]
    orders = [torch.randperm(TOKENS, generator=torch.Generator().manual_seed(i)) for i in range(10)]
    of_draws = [keys_of(draw, 0.0)[0] for draw in range(DRAWS)]
    still = [swaps_to_lose(draw, 0.0) for draw in range(DRAWS)]
    least = min(weight_of_target(*keys_of(draw, g), g) for g in (0.0, TURN / TOKENS) for draw in range(DRAWS))
    n = 1000  # places of the target; at some of them the last token wins, while no other key moves
    cosine_N = logits(QUERY, QUERY, torch.arange(n), torch.tensor([TURN / n], dtype=torch.float64))
    rows_NN = (OTHER * cosine_N).repeat(n, 1)
    rows_NN.diagonal().copy_(TARGET * cosine_N)
    lost = float((weights(rows_NN).diagonal() <= 0.5).double().mean())
    comparisons = [
        near("draws whose target the swaps make lose, N g from 1 to 8 turns", DRAWS - found.count(None), DRAWS, 0),
        at_least("draws that needed the first swap alone", found.count(1), 1),
        at_least("draws that needed both", found.count(2), 1),
        at_least("least weight of a target to begin with, N g = 0 and one turn", least, 0.99),
        near("draws whose target the swaps make lose, g = 0", DRAWS - still.count(None), 0, 0),
        near(f"random orders in which it loses, {len(orders)} of each draw, g = 0",
             sum(weight_of_target(keys, order_N, 0.0) <= 0.5 for keys in of_draws for order_N in orders), 0, 0),
        near("share of places where a target of 64 loses to 1,000 keys of 8, one turn",
             lost, share_by_formula(n), 0.003),
    ]  # fmt: skip
    n_g, some = [0.1 * 1.4**x for x in range(16)], [draw for draw in range(DRAWS) if draw % 16 < 2]
    shares = [sum(swaps_to_lose(draw, x / TOKENS) is not None for draw in some) / len(some) for x in n_g]
    curves = [Curve("26 of the draws", n_g, shares), Curve("N g = 2 pi", [TURN, TURN], [0.0, 1.0])]
    remark = (
        f"{DRAWS} draws of {TOKENS} keys of random phases and norms, and of a target with 0.99 of the weight at "
        "its best place, where it begins. In every second draw the others are longer, and turned away from the "
        "query where they stand. Then come the proof's swaps: the target to where its logit is negative, and if it "
        "still has more than half, the longest other key to where its own is largest."
    )
    return Finding(comparisons, Panel("N g in radians", "share of draws with a losing order", curves, log="x"), remark)


def keys_of(draw: int, g: float) -> tuple[Tensor, Tensor]:
    """Keys [N, 2] for a query at angle 0, and the distance of each from it [N]; the target is key 0."""
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
    """The order in which this key stands at this distance, and the key that stood there where it came from."""
    changed_N, other = distance_N.clone(), int((distance_N == place).nonzero())
    changed_N[key], changed_N[other] = place, distance_N[key]
    return changed_N


def weight_of_target(keys_N2: Tensor, distance_N: Tensor, g: float) -> float:
    """By this program's rotation and softmax."""
    turned_N2 = rotated(keys_N2, -distance_N, torch.tensor([g], dtype=torch.float64))
    return float(weights((turned_N2 @ QUERY)[None])[0, 0])


def swaps_to_lose(draw: int, g: float) -> int | None:
    """After how many of the proof's swaps the target has half of the weight or less; None where both leave it more."""
    keys_N2, distance_N = keys_of(draw, g)
    longest = 1 + int(keys_N2[1:].norm(dim=-1).argmax())
    for n_swaps, key in enumerate((None, 0, longest)):
        if key is not None:
            logits_N = at_all_places(keys_N2[key], g)
            # the target to where its logit is negative, just so; another key to any place but the target's
            logits_N[distance_N[0] if key else logits_N >= 0] = -torch.inf
            distance_N = swapped(distance_N, key, int(logits_N.argmax()))
        if weight_of_target(keys_N2, distance_N, g) <= 0.5:
            return n_swaps
    return None


def share_by_formula(n: int) -> float:
    """Share of the target's places at which it loses, for whole turns.

    64 cos x <= ln(n I_0(8)), I_0 the mean of exp(8 cos x) over a turn
    """
    return 1 - math.acos(math.log(n * float(np.i0(OTHER))) / TARGET) / math.pi


WIDTH, TEXTS = 64, 300  # of the head; draws of two tokens
ROUNDING = 1e-12


def prop_5_2() -> Finding:
    """A single head without positional encoding can attend neither to the token itself nor to the one before it.

    On [bos, x, x]: a_33 = a_32, so alpha_33 = alpha_32 = 1 / (exp(a_31 - a_33) + 2) < 1/2

    Barbero et al. 2024, arXiv:2410.06205, Proposition 5.2.
    """
    logits_B3, alpha_B3 = last_rows(NoPE(shape(WIDTH)))
    _, with_rope_B3 = last_rows(RoPE(shape(WIDTH), theta=THETA))
    formula_B = 1 / ((logits_B3[:, 0] - logits_B3[:, 2]).exp() + 2)
    difference = float((alpha_B3[:, 2] - alpha_B3[:, 1]).abs().max())
    comparisons = [
        at_most("largest difference of the weights on the two copies", difference, ROUNDING),
        at_most("largest weight on the token itself", float(alpha_B3[:, 2].max()), 0.5 + ROUNDING),
        at_most("largest weight on the token before", float(alpha_B3[:, 1].max()), 0.5 + ROUNDING),
        at_most("largest error of the formula", float((alpha_B3[:, 2] - formula_B).abs().max()), ROUNDING),
        at_least("the same draws with RoPE: largest weight on one copy", float(with_rope_B3[:, 1:].max()), 0.9),
    ]
    x, seen = torch.linspace(-8, 8, 161, dtype=torch.float64), slice(None, None, 9)
    curves = [
        Curve("NoPE", (logits_B3[:, 0] - logits_B3[:, 2])[seen].clamp(-8, 8), alpha_B3[seen, 2], points=True),
        Curve("1 / (exp(x) + 2)", x, 1 / (x.exp() + 2)),
        Curve("one half", x, torch.full_like(x, 0.5)),
    ]
    x_label, y_label = "logit of the first token minus that of the last", "weight of the last token on itself"
    return Finding(comparisons, Panel(x_label, y_label, curves))


@torch.no_grad()
def last_rows(encoding: PositionalEncoding) -> tuple[Tensor, Tensor]:
    """Logits and weights [B, 3] of the last token of [bos, x, x], of random tokens and random weights of every size.

    This program's attention computes them; they are recorded where it calls its softmax.
    """
    generator = torch.Generator().manual_seed(0)
    tokens_B2D = torch.randn(TEXTS, 2, WIDTH, generator=generator, dtype=torch.float64)
    x_B3D, pos = tokens_B2D[:, [0, 1, 1]], torch.arange(3)[None]
    keys = Keys(q_pos_BQ=pos, k_pos_BK=pos)
    logits_of_all, alpha_of_all = [], []
    for spread in (0.1, 1.0, 3.0):  # of the weights
        attention = Attention(shape(WIDTH), Softmax(shape(WIDTH))).double()
        for matrix in attention.parameters():
            torch.nn.init.normal_(matrix, std=spread * WIDTH**-0.5, generator=generator)
        seen: list[tuple[Tensor, Tensor]] = []
        with attention.softmax.register_forward_pre_hook(lambda _, qkv, seen=seen: seen.append(qkv[:2])):
            attention(x_B3D, encoding, encoding.prepare(pos, x_B3D.dtype), keys)
        ((q, k),) = seen
        logits, visible = logits_of_rows(q, k, attention.shape.scale, keys, None, 0, 3)
        logits_of_all.append(logits[:, 0, 2])
        alpha = attention.softmax.weights(logits, visible, {"n_visible": visible.sum(-1, keepdim=True)})
        alpha_of_all.append(alpha[:, 0, 2])
    return torch.cat(logits_of_all), torch.cat(alpha_of_all)


NORM = 40.0  # |psi|^2 on the 8 fastest pairs: 20 suffice RoPE for a weight of 0.99
FAR = 65_536  # tokens: more than a turn of the slowest pair of the ladder, 58,470
EVERY = 16  # tokens: the slowest pair turns 0.002 radians meanwhile


def encodings() -> dict[str, tuple[PositionalEncoding, bool, bool]]:
    """Name: (encoding, has patterns of position, has patterns of meaning), as the table says."""
    return {
        "NoPE": (NoPE(shape()), False, True),
        "RoPE": (RoPE(shape(), theta=THETA), True, False),
        "0.75-RoPE": (PRoPE(shape(), p=0.75, theta=THETA), True, True),
        "0.25-RoPE": (PRoPE(shape(), p=0.25, theta=THETA), True, True),
    }


def table_1() -> Finding:
    """NoPE has no patterns of position, RoPE none of meaning that last, p-RoPE has both.

    position: a weight above 0.99 on the token itself, or the one before, in every row; q = psi on the 8 fastest pairs

    meaning: a target keeps a weight above 1/2 wherever it and another key stand; q and k on the slowest pair

    Barbero et al. 2024, arXiv:2410.06205, table 1, definition 5.1 and theorem 6.1, for single heads.
    """
    comparisons, curves = [], []
    x, pos = on_pair(1.0, 0.0, HEAD_DIM // 2 - 1), -torch.arange(0, FAR, EVERY)
    for name, (encoding, positional, semantic) in encodings().items():
        cells = [
            (f"{name}: least weight of {EVERY_ROW:,} rows on {where}", least_weight(encoding, place), positional)
            for place, where in enumerate(PLACES_ASKED)
        ]
        # a target at every 16th distance, beside one other key where that one's logit is largest
        cosine_N = encoded(encoding, x.expand(len(pos), -1), pos) @ x
        other_N = torch.full_like(cosine_N, OTHER * float(cosine_N.max()))
        at_N = weights(torch.stack([TARGET * cosine_N, other_N], -1))[:, 0]
        what = f"{name}: least weight of a target within {FAR:,} tokens, another key at its best place"
        cells.append((what, float(at_N.min()), semantic))
        comparisons += [at_least(what, ours, 0.99) if yes else at_most(what, ours, 0.5) for what, ours, yes in cells]
        curves.append(Curve(name, torch.arange(0, FAR, EVERY)[::16], at_N[::16]))
    remark = (
        "Each cell is one head. That no head of NoPE has positions is Proposition 5.2, and that no pair of RoPE "
        "keeps its target is Theorem 6.1. What p-RoPE keeps at any distance is the order of two keys; among n keys "
        "the weight still falls as 1/n, by Lemma 2.1 of arXiv:2410.01104."
    )
    return Finding(comparisons, Panel("distance of the target in tokens", "its weight", curves), remark)


def least_weight(encoding: PositionalEncoding, place: int) -> float:
    """On the token `place` before, over the rows that have one; the key is the query as it stands there."""
    psi, pos = NORM**0.5 * equal_norms(range(8)), torch.arange(EVERY_ROW)
    key = encoded(encoding, psi[None], torch.tensor([place]))[0]
    q_NC, k_NC = (encoded(encoding, x.expand(EVERY_ROW, -1), pos) for x in (psi, key))
    return float(causal_weights(q_NC, k_NC).diagonal(-place)[1:].min())


def encoded(encoding: PositionalEncoding, x_NC: Tensor, pos_N: Tensor) -> Tensor:
    """Queries or keys as this program's encoding turns them at these positions: [N, C]."""
    prepared = encoding.prepare(pos_N[None], x_NC.dtype)
    queries, keys = (turn(x_NC[None, None], prepared)[0, 0] for turn in (encoding.rotate_queries, encoding.rotate_keys))
    assert torch.equal(queries, keys), "these encodings turn both alike"
    return queries
