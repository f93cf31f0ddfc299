"""Lemma 2.1, proposition 3.1 and theorem 2.2 of arXiv:2410.01104: bounded logits disperse, and what bounds them.

Tested by tests/papers/test_claims.py and tests/papers/test_softmax_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows, query_blocks, rows_between
from roundround.kernels.keys import Keys
from roundround.kernels.row_measures import entropy_bound, entropy_of_weights, extreme_logits, largest_weight_bound
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder
from roundround.papers.claim import CheckedNumber, Finding, at_least, at_most, near
from roundround.papers.constructions import random_vector, weights_at
from roundround.pe.p_rope import PRoPE
from roundround.probing.probed_model import watching
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax
from roundround.support.panels import Curve, Panel

TEMPERATURES, LENGTHS, HALF_RANGE = (1.0, 0.5, 0.1), (10, 100, 1000, 10_000, 100_000), 3.0
ROUNDING = 1e-9  # relative, of float64 sums over 100,000 keys


def weight_bounds(n: float, spread: float, temperature: float) -> tuple[float, float]:
    """The lemma's: (least, largest) weight."""
    return math.exp(-spread / temperature) / n, math.exp(spread / temperature) / n


def attainable(n: int, spread: float, temperature: float) -> float:
    """The largest weight that any row can have: one logit at the top, all others at the bottom."""
    return 1 / (1 + (n - 1) * math.exp(-spread / temperature))


def lemma_2_1() -> Finding:
    """Where logits lie between fixed bounds, every weight is of the order of 1/n, at any fixed temperature.

    exp(-delta / theta) / n <= alpha_k <= exp(delta / theta) / n, delta = max e - min e

    attained: max alpha = exp(delta / theta) / (exp(delta / theta) + n - 1), one logit at the top and the rest at the
    bottom

    Velickovic et al. 2024, arXiv:2410.01104, Lemma 2.1; the attained maximum is derived here.
    """
    comparisons: list[CheckedNumber] = []
    curves, closest = [], "closest of n = 10 to 100,000"
    for theta in TEMPERATURES:
        found = np.array([ratios(n, theta) for n in LENGTHS])
        farthest = found[np.abs(found[:, 2] - 1).argmax(), 2]
        comparisons += [
            at_least(f"least weight over its bound, {closest}, theta = {theta:g}", found[:, 0].min(), 1),
            at_most(f"largest weight over its bound, {closest}, theta = {theta:g}", found[:, 1].max(), 1),
            near(f"attained maximum over its formula, farthest, theta = {theta:g}", farthest, 1, ROUNDING),
        ]
        curves.append(Curve(f"largest weight of random rows, theta = {theta:g}", LENGTHS, found[:, 3]))
    expected = math.exp(HALF_RANGE) * HALF_RANGE / math.sinh(HALF_RANGE)  # 1 / mean of exp(e - max e)
    largest = LENGTHS[-1] * ratios(LENGTHS[-1], 1.0)[3]
    comparisons.append(near("n times the largest weight at theta = 1, n = 100,000", largest, expected, 0.11))
    for n, delta in ((1000, 3.0), (10, 0.5), (100, 40.0)):  # the bounds that this program's tables print
        spread, ln_n = torch.tensor(delta, dtype=torch.float64), math.log(n)
        least, most = float(entropy_bound(ln_n, spread)), float(largest_weight_bound(ln_n, spread))
        alpha_1N = weights_at(1.0, lone_row(n, delta))
        where = f"delta = {delta:g}, n = {n:,}"
        comparisons += [
            near(f"this program's bound on the entropy, {where}", least, max(0.0, ln_n - delta), 1e-12),
            near(f"its bound on the largest weight, {where}", most, min(1.0, weight_bounds(n, delta, 1.0)[1]), 1e-12),
            at_least(
                f"entropy of a row less the bound on it, {where}", float(entropy_of_weights(alpha_1N)) - least, 0.0
            ),
            at_most(f"largest weight of the row over the bound, {where}", float(alpha_1N.max()) / most, 1 + ROUNDING),
        ]
    spread_of_range = 2 * HALF_RANGE
    curves += [
        Curve("bound, theta = 1", LENGTHS, [min(1, weight_bounds(n, spread_of_range, 1.0)[1]) for n in LENGTHS]),
        Curve("1 / n", LENGTHS, [1 / n for n in LENGTHS]),
        Curve("attained, theta = 1", LENGTHS, [attainable(n, spread_of_range, 1.0) for n in LENGTHS], points=True),
    ]
    remark = "The tolerance of n times the largest weight is four standard errors of a mean over 100,000 keys."
    return Finding(comparisons, Panel("keys n", "largest weight", curves, log="xy"), remark)


def ratios(n: int, theta: float) -> tuple[float, float, float, float]:
    """A random row's least and largest weight over their bounds; the weight of one key at the top of a row whose other
    keys are at the bottom, over its formula; and the random row's largest weight."""
    uniform_N = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    logits_N = (2 * uniform_N - 1) * HALF_RANGE
    spread = float(logits_N.max() - logits_N.min())
    alpha_N = weights_at(theta, logits_N[None])[0]
    low, high = weight_bounds(n, spread, theta)
    best = float(weights_at(theta, lone_row(n, spread))[0, 0]) / attainable(n, spread, theta)
    return float(alpha_N.min()) / low, float(alpha_N.max()) / high, best, float(alpha_N.max())


def lone_row(n: int, lead: float) -> Tensor:
    """Logits of n keys, all alike but the first, which leads them: [1, N]."""
    row_1N = torch.zeros(1, n, dtype=torch.float64)
    row_1N[0, 0] = lead
    return row_1N


DRAWS, ITEM_WIDTH, ITEMS = 500, 16, 32


def spread_bound(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
    """2 sigma_max(Q) sigma_max(K) |y| max |x_i|, by numpy."""
    largest = [float(np.linalg.svd(weight.numpy(), compute_uv=False)[0]) for weight in (q_DD, k_DD)]
    norms = np.linalg.norm(x_ND.numpy(), axis=1)
    return 2 * largest[0] * largest[1] * float(np.linalg.norm(y_D.numpy())) * float(norms.max())


def spread_of(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
    """delta of the logits (Q y) . (K x_i), by this program's attention."""
    q, k = (q_DD @ y_D)[None, None, None], (x_ND @ k_DD.T)[None, None]
    keys = Keys(q_pos_BQ=torch.tensor([[len(x_ND) - 1]]), k_pos_BK=torch.arange(len(x_ND))[None])
    largest, smallest = extreme_logits(*logits_of_rows(q, k, 1.0, keys, None, 0, 1))
    return float(largest - smallest)


def prop_3_1() -> Finding:
    """How far the logits of a row can lie apart is bounded by the singular values of Q and K and the items' norms.

    delta = max e - min e <= 2 sigma_max(Q) sigma_max(K) |y| max_i |x_i|, e_i = (Q y) . (K x_i); equal for Q = K = 1 and
    items y and -y

    Velickovic et al. 2024, arXiv:2410.01104, Proposition 3.1.
    """
    generator, shares, scales = torch.Generator().manual_seed(0), [], []
    for draw in range(DRAWS):  # random matrices and items of many scales
        sizes = (ITEM_WIDTH, ITEM_WIDTH), (ITEM_WIDTH, ITEM_WIDTH), (ITEM_WIDTH,), (ITEMS, ITEM_WIDTH)
        q_DD, *others = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
        made = (10 ** (draw / DRAWS * 2 - 1) * q_DD, *others)
        scales.append(spread_bound(*made))
        shares.append(spread_of(*made) / scales[-1])
    y_D, one_DD = random_vector(ITEM_WIDTH, seed=1), torch.eye(ITEM_WIDTH, dtype=torch.float64)
    both_ND = torch.stack([y_D, -y_D])
    turn_DD, _ = torch.linalg.qr(random_vector(ITEM_WIDTH, ITEM_WIDTH, seed=2))
    equal, turned = (
        spread_of(q_DD, k_DD, y_D, both_ND) / spread_bound(q_DD, k_DD, y_D, both_ND)
        for q_DD, k_DD in ((one_DD, one_DD), (3 * turn_DD, 0.5 * turn_DD))
    )
    growth = spread_of(2 * one_DD, 3 * one_DD, y_D, both_ND) / spread_of(one_DD, one_DD, y_D, both_ND)
    comparisons = [
        at_most(f"delta over its bound, closest of {DRAWS:,} random draws", max(shares), 1.0),
        at_least("the same, that the bound is within a factor of 10 of a random draw", max(shares), 0.1),
        near("delta over its bound for Q = K = 1 and items y, -y", equal, 1.0, ROUNDING),
        near("delta over its bound for Q = 3 U, K = U / 2, U a rotation", turned, 1.0, ROUNDING),
        near("growth of delta when Q doubles and K triples", growth, 6.0, ROUNDING),
    ]
    curves = [
        Curve("random draws", scales[::5], (np.array(shares) * scales)[::5], points=True),
        Curve("bound", [min(scales), max(scales)], [min(scales), max(scales)]),
    ]
    return Finding(comparisons, Panel("bound on delta", "delta", curves, log="xy"))


VOCABULARY, LAYERS, HEADS, WIDTH, HEAD_DIM = 16, 3, 4, 32, 8
LONGEST, DELTA = 1024, 6.2  # exp(6.2) / 1024 = 0.481: below one half
ODD_AT = (31, 255, LONGEST - 1)  # place of the one odd token among equal ones, a text each
RANDOM_TEXTS = 2
NORM_EPS = 1e-6  # makes a normed input shorter than sqrt(WIDTH), by half of this as a share


def thm_2_2() -> Finding:
    """In a Transformer over a finite vocabulary every weight of every global head falls below any epsilon.

    alpha <= exp(delta) / n < epsilon for n > exp(delta) / epsilon, with one delta for all texts and all n, because the
    inputs of every layer stay in a compact set: here |x| <= sqrt(D) by the norm before attention, so delta = 2
    sigma_max(Q) sigma_max(K) D / sqrt(d)

    Velickovic et al. 2024, arXiv:2410.01104, Theorem 2.2, with Proposition 3.1 for delta.
    """
    decoder = random_decoder()
    odd_BN = torch.zeros(len(ODD_AT), LONGEST, dtype=torch.long)  # token 1 once among tokens 0
    odd_BN[torch.arange(len(ODD_AT)), torch.tensor(ODD_AT)] = 1
    random_BN = torch.randint(VOCABULARY, (RANDOM_TEXTS, LONGEST), generator=torch.Generator().manual_seed(1))
    largest_LBHN, spread_L = rows_of_decoder(decoder, torch.cat([odd_BN, random_BN]))
    delta_LH = torch.from_numpy(delta_of_weights(decoder))
    share_LBHN = largest_LBHN * torch.arange(1, LONGEST + 1) * (-delta_LH)[:, None, :, None].exp()
    odd = [float(largest_LBHN[0, text, 0, n]) for text, n in enumerate(ODD_AT)]
    comparisons = [
        *[
            at_most(f"n times the largest weight over exp(delta), any row of any text, layer {layer}", share, 1.0)
            for layer, share in enumerate(share_LBHN.flatten(1).amax(1).tolist())
        ],
        at_most("largest spread of a row's logits over the delta of the weights", max(spread_L) / DELTA, 1.0),
        at_most("exp(delta) / n at n = 1,024, any head", float(delta_LH.exp().max()) / LONGEST, 0.5),
        at_most("largest weight of a row of 1,024 keys, any head and text", float(largest_LBHN[..., -1].max()), 0.5),
        *[
            near(f"weight of the odd token among {n:,} over exp(delta) / (exp(delta) + n - 1)",
                 weight * (1 + n * math.exp(-DELTA)), 1.0, 2 * NORM_EPS * DELTA)
            for weight, n in zip(odd, ODD_AT, strict=True)
        ],
    ]  # fmt: skip
    some = torch.unique(torch.logspace(0, math.log2(LONGEST), 60, base=2).long())
    remark = (
        f"Of {LAYERS} layers with random weights, the queries and keys of each head scaled so that its weights "
        f"alone bound delta by {DELTA}. Texts: {RANDOM_TEXTS} of random tokens, and {len(ODD_AT)} of equal tokens "
        "with an odd one. The first head of the first layer looks for the odd token and attains the bound on delta."
    )
    curves = [
        Curve(f"layer {layer}, random texts", some, of_BHN[len(ODD_AT) :].amax((0, 1))[some - 1])
        for layer, of_BHN in enumerate(largest_LBHN)
    ] + [
        Curve("the odd token's weight", [n + 1 for n in ODD_AT], odd, points=True),
        Curve("exp(delta) / n", some, (math.exp(DELTA) / some).clamp(max=1)),
        Curve("1 / n", some, 1 / some),
    ]
    return Finding(comparisons, Panel("visible tokens n", "largest weight", curves, log="xy"), remark)


@torch.no_grad()
def random_decoder(make_softmax: type[AttentionSoftmax] = Softmax) -> Decoder:
    """A decoder in float64. Head 0 of layer 0 multiplies what token 0 has in common with the query by -1 for 1.

    It does so in the pair that p-RoPE leaves alone, so that distances change nothing.
    """
    torch.manual_seed(0)
    decoder = Decoder(
        n_vocab=VOCABULARY, d_model=WIDTH,
        kinds=[LayerKind(make_encoding=partial(PRoPE, p=0.75, theta=100.0), make_softmax=make_softmax)],
        n_layers=LAYERS, n_heads=HEADS, n_key_heads=HEADS, head_dim=HEAD_DIM, d_mlp=2 * WIDTH, train_length=LONGEST,
        tied_embeddings=True, geglu=False, scaled_embeddings=False, norm_eps=NORM_EPS, initializer_range=0.15,
    ).double().requires_grad_(False)  # fmt: skip
    decoder.embed_tokens.weight[:2] = 0.0
    decoder.embed_tokens.weight[:2, 0] = torch.tensor([1.0, -1.0], dtype=torch.float64) * math.sqrt(WIDTH)
    for matrix in (projections(decoder, 0, "q_proj"), projections(decoder, 0, "k_proj")):
        matrix[0] = 0.0
        matrix[0, HEAD_DIM // 2 - 1, 0] = 1.0
    for layer, delta_H in enumerate(delta_of_weights(decoder)):
        factor_H11 = torch.from_numpy(np.sqrt(DELTA / delta_H))[:, None, None]
        for name in ("q_proj", "k_proj"):
            projections(decoder, layer, name).mul_(factor_H11)
    return decoder


def projections(decoder: Decoder, layer: int, name: str) -> Tensor:
    """The matrices of all heads, a view: [H, C, D]."""
    return decoder.get_parameter(f"layers.{layer}.self_attn.{name}.weight").view(HEADS, HEAD_DIM, WIDTH)


def delta_of_weights(decoder: Decoder) -> np.ndarray:
    """2 sigma_max(Q) sigma_max(K) D / sqrt(d) of each head, by numpy: [L, H]. The gains of the norms are 1."""
    sigmas = [
        [np.linalg.svd(projections(decoder, layer, name).numpy(), compute_uv=False)[:, 0] for layer in range(LAYERS)]
        for name in ("q_proj", "k_proj")
    ]
    delta_LH: np.ndarray = 2 * np.array(sigmas[0]) * np.array(sigmas[1]) * WIDTH / math.sqrt(HEAD_DIM)
    return delta_LH


@torch.no_grad()
def rows_of_decoder(decoder: Decoder, tokens_BN: Tensor) -> tuple[Tensor, list[float]]:
    """The largest weight of every row [L, B, H, N], and the largest spread of a row's logits in each layer."""
    largest: list[Tensor] = []
    spreads: list[float] = []

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        found, keys, spread = [], options["keys"], 0.0
        for a, b in query_blocks(qkv[0], keys):
            logits, seen = logits_of_rows(qkv[0], qkv[1], options["scale"], keys, options["bias"], a, b)
            found.append(softmax.weights(logits, seen, rows_between(options["rows"], seen, a, b)).amax(-1))
            top, bottom = extreme_logits(logits, seen)
            spread = max(spread, float((top - bottom).max()))
        largest.append(torch.cat(found, -1))
        spreads.append(spread)

    with watching([m for m in decoder.modules() if isinstance(m, AttentionSoftmax)], take_in):
        decoder.hidden(tokens_BN)
    return torch.stack(largest), spreads
