"""The statements of arXiv:2410.01104 ("softmax is not enough"), each a function that checks it.

`gap_counting` is about a number of arXiv:2605.12697, which says on which side of dispersion a row lies.

Shapes: B texts, L layers, N items or tokens, K keys, H heads, C head channels, D model width.

Tested by tests/papers/test_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import entr, softmax
from torch import Tensor

from roundround.kernels import fused
from roundround.kernels.blocks import logits_of_rows, query_blocks, rows_between
from roundround.kernels.keys import Keys
from roundround.kernels.row_measures import (
    contact_index,
    entropy_bound,
    entropy_of_logits,
    entropy_of_weights,
    extreme_logits,
    gap_ratios,
    largest_weight_bound,
    ordered_logits,
)
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder
from roundround.papers.claim import CheckedNumber, Finding, as_printed, at_least, at_most, near
from roundround.papers.constructions import SHAPE, calls, random_vector, stories260k, weights, weights_at
from roundround.pe.p_rope import PRoPE
from roundround.probing.probed_model import watching
from roundround.softmax.adaptive_temperature import PUBLISHED, AdaptiveTemperature, inverse_temperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax
from roundround.support.panels import Curve, Panel

TEMPERATURES, LENGTHS, HALF_RANGE = (1.0, 0.5, 0.1), (10, 100, 1000, 10_000, 100_000), 3.0
ROUNDING = 1e-9  # relative, of float64 sums over 100,000 keys


def weight_bounds(n: int, spread: float, temperature: float) -> tuple[float, float]:
    """The bounds of Lemma 2.1 on a weight: (lower, upper)."""
    return math.exp(-spread / temperature) / n, math.exp(spread / temperature) / n


def lemma_2_1() -> Finding:
    """If logits lie between fixed bounds, every weight is of the order of 1/n, at any fixed temperature.

    exp(-delta / theta) / n <= alpha_k <= exp(delta / theta) / n, delta = max e - min e

    attained: max alpha = exp(delta / theta) / (exp(delta / theta) + n - 1), one logit at the top and the rest at the
    bottom

    Velickovic et al. 2024, arXiv:2410.01104, Lemma 2.1; the attained maximum is derived here.
    """
    comparisons: list[CheckedNumber] = []
    for theta in TEMPERATURES:
        least_N, largest_N, attained_N, _ = np.array([ratios(n, theta) for n in LENGTHS]).T
        farthest, closest = attained_N[np.abs(attained_N - 1).argmax()], "closest of n = 10 to 100,000"
        comparisons += [
            at_least(f"least weight over its bound, {closest}, theta = {theta:g}", least_N.min(), 1),
            at_most(f"largest weight over its bound, {closest}, theta = {theta:g}", largest_N.max(), 1),
            near(f"attained maximum over its formula, farthest, theta = {theta:g}", farthest, 1, ROUNDING),
        ]
    expected = math.exp(HALF_RANGE) * HALF_RANGE / math.sinh(HALF_RANGE)  # 1 / mean of exp(e - max e)
    largest = LENGTHS[-1] * ratios(LENGTHS[-1], 1.0)[3]
    comparisons.append(near("n times the largest weight at theta = 1, n = 100,000", largest, expected, 0.11))
    for n, delta in ((1000, 3.0), (10, 0.5), (100, 40.0)):  # the bounds that this program's tables print
        spread, ln_n = torch.tensor(delta, dtype=torch.float64), math.log(n)
        least, most = float(entropy_bound(ln_n, spread)), float(largest_weight_bound(ln_n, spread))
        alpha_1N, where = weights_at(1.0, lone_row(n, delta)), f"delta = {delta:g}, n = {n:,}"
        room = float(entropy_of_weights(alpha_1N)) - least
        comparisons += [
            near(f"this program's bound on the entropy, {where}", least, max(0.0, ln_n - delta), 1e-12),
            near(f"its bound on the largest weight, {where}", most, min(1.0, weight_bounds(n, delta, 1.0)[1]), 1e-12),
            at_least(f"entropy of a row less the bound on it, {where}", room, 0.0),
            at_most(f"largest weight of the row over the bound, {where}", float(alpha_1N.max()) / most, 1 + ROUNDING),
        ]
    return Finding(
        comparisons,
        remark="The tolerance of n times the largest weight is four standard errors of a mean over 100,000 keys.",
    )


def ratios(n: int, theta: float) -> tuple[float, float, float, float]:
    """Four numbers about two rows of n logits: a random row, and a row with one high logit and n - 1 equal low ones.

    In order: the random row's least weight, divided by the lower bound; the random row's largest weight, divided by the
    upper bound; the second row's largest weight, divided by its formula; the random row's largest weight, undivided.
    """
    uniform_N = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    logits_N = (2 * uniform_N - 1) * HALF_RANGE
    spread = float(logits_N.max() - logits_N.min())
    alpha_N = weights_at(theta, logits_N[None])[0]
    low, high = weight_bounds(n, spread, theta)
    # the largest weight that any row can have: one logit at the top, all others at the bottom
    best = float(weights_at(theta, lone_row(n, spread))[0, 0]) * (1 + (n - 1) * math.exp(-spread / theta))
    return float(alpha_N.min()) / low, float(alpha_N.max()) / high, best, float(alpha_N.max())


def lone_row(n: int, lead: float) -> Tensor:
    """Logits of n keys, `lead` for the first and 0 for the others: [1, N]."""
    return torch.nn.functional.pad(torch.tensor([[lead]], dtype=torch.float64), (0, n - 1))


DRAWS, ITEM_WIDTH, ITEMS = 500, 16, 32


def spread_bound(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
    """2 sigma_max(Q) sigma_max(K) |y| max |x_i|, computed with numpy."""
    largest = [float(np.linalg.svd(weight.numpy(), compute_uv=False)[0]) for weight in (q_DD, k_DD)]
    norms = np.linalg.norm(x_ND.numpy(), axis=1)
    return 2 * largest[0] * largest[1] * float(np.linalg.norm(y_D.numpy())) * float(norms.max())


def spread_of(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
    """The largest minus the smallest of the logits (Q y) . (K x_i), computed with this program's attention."""
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
    generator, shares = torch.Generator().manual_seed(0), []
    for draw in range(DRAWS):  # random matrices and items of many scales
        sizes = (ITEM_WIDTH, ITEM_WIDTH), (ITEM_WIDTH, ITEM_WIDTH), (ITEM_WIDTH,), (ITEMS, ITEM_WIDTH)
        q_DD, *others = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
        made = (10 ** (draw / DRAWS * 2 - 1) * q_DD, *others)
        shares.append(spread_of(*made) / spread_bound(*made))
    y_D, one_DD = random_vector(ITEM_WIDTH, seed=1), torch.eye(ITEM_WIDTH, dtype=torch.float64)
    items = y_D, torch.stack([y_D, -y_D])
    turn_DD, _ = torch.linalg.qr(random_vector(ITEM_WIDTH, ITEM_WIDTH, seed=2))
    equal, turned = (
        spread_of(q_DD, k_DD, *items) / spread_bound(q_DD, k_DD, *items)
        for q_DD, k_DD in ((one_DD, one_DD), (3 * turn_DD, 0.5 * turn_DD))
    )
    growth = spread_of(2 * one_DD, 3 * one_DD, *items) / spread_of(one_DD, one_DD, *items)
    return Finding([
        at_most(f"delta over its bound, closest of {DRAWS:,} random draws", max(shares), 1.0),
        at_least("the same, that the bound is within a factor of 10 of a random draw", max(shares), 0.1),
        near("delta over its bound for Q = K = 1 and items y, -y", equal, 1.0, ROUNDING),
        near("delta over its bound for Q = 3 U, K = U / 2, U a rotation", turned, 1.0, ROUNDING),
        near("growth of delta when Q doubles and K triples", growth, 6.0, ROUNDING),
    ])  # fmt: skip


VOCABULARY, LAYERS, HEADS, WIDTH, HEAD_DIM = 16, 3, 4, 32, 8
LONGEST, DELTA = 1024, 6.2  # exp(6.2) / 1024 = 0.481: below one half
ODD_AT = (31, 255, LONGEST - 1)  # in each text, the position of the one odd token among equal ones
NORM_EPS = 1e-6  # makes a normed input shorter than sqrt(WIDTH), by a share of about NORM_EPS / 2


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
    random_BN = torch.randint(VOCABULARY, (2, LONGEST), generator=torch.Generator().manual_seed(1))
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
        f"The model has {LAYERS} layers with random weights; the queries and keys of each head are scaled so that its "
        f"weights alone bound delta by {DELTA}. There are 2 texts of random tokens, and {len(ODD_AT)} texts of equal "
        "tokens with an odd one. The first head of the first layer looks for the odd token and attains the bound on "
        "delta."
    )
    curves = [
        Curve(f"layer {layer}, random texts", some, of_BHN[len(ODD_AT) :].amax((0, 1))[some - 1])
        for layer, of_BHN in enumerate(largest_LBHN)
    ] + [
        Curve("the odd token's weight", [n + 1 for n in ODD_AT], odd, points=True),
        Curve("exp(delta) / n", some, (math.exp(DELTA) / some).clamp(max=1)),
        Curve("1 / n", some, 1 / some),
    ]
    return Finding(
        comparisons, {"softmax.thm_2_2": Panel("visible tokens n", "largest weight", curves, log="xy")}, remark
    )


@torch.no_grad()
def random_decoder(make_softmax: type[AttentionSoftmax] = Softmax) -> Decoder:
    """A decoder in float64. In head 0 of layer 0, tokens 0 and 1 have a logit c with themselves and -c with each other.

    The head uses only the pair that p-RoPE does not rotate, so that distances have no effect.
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
    for name in ("q_proj", "k_proj"):
        matrix = projections(decoder, 0, name)[0]
        matrix[:] = 0.0
        matrix[HEAD_DIM // 2 - 1, 0] = 1.0
    for layer, delta_H in enumerate(delta_of_weights(decoder)):
        factor_H11 = torch.from_numpy(np.sqrt(DELTA / delta_H))[:, None, None]
        for name in ("q_proj", "k_proj"):
            projections(decoder, layer, name).mul_(factor_H11)
    return decoder


def projections(decoder: Decoder, layer: int, name: str) -> Tensor:
    """The projection matrices of all heads, as a view of the parameter: [H, C, D]."""
    return decoder.get_parameter(f"layers.{layer}.self_attn.{name}.weight").view(HEADS, HEAD_DIM, WIDTH)


def delta_of_weights(decoder: Decoder) -> np.ndarray:
    """2 sigma_max(Q) sigma_max(K) D / sqrt(d) of each head, computed with numpy: [L, H]. All gains of norms are 1."""
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


RATIOS = (0.01, 0.1, 0.3, 0.6, 0.9, 1.1, 1.4, 2.5, 5.0)  # r
BOUNDS: dict[
    str, tuple[Callable[[float, Tensor], Tensor | float], float]
] = {  # of r and ln k*; the least share attained
    "partition function at r > 1": (lambda r, _: r / (r - 1), 0.85),
    "entropy at r > 1": (lambda r, _: math.log(r / (r - 1)) + r / (r - 1) ** 2, 0.62),
    "largest weight less the second at r < 1": (lambda r, _: r / (math.e * (1 - r)), 0.98),
    "the same by the contact index": (lambda r, ln_k: r * ln_k * (-ln_k * (1 - r)).exp(), 0.98),
}


def gap_counting() -> Finding:
    """A row is collapsed onto few keys above its gap counting number Lambda and dispersed below it, at any length.

    Lambda = max over k >= 2 of ln k / D_(k), reached at k*; D_(k) = largest - k-th largest logit; r = beta / Lambda

    r > 1: Z = sum exp(-beta D) <= r / (r - 1) and H <= ln(r / (r - 1)) + r / (r - 1)^2

    r < 1: p_1 - p_2 <= r ln k* / k*^(1 - r) <= r / (e (1 - r))

    arXiv:2605.12697, whose definition is known second-hand; the bounds are derived here, from exp(-beta D_(k)) <= k^-r,
    Z >= k*^(1 - r) and D_(2) <= D_(k*).
    """
    generator = torch.Generator().manual_seed(0)
    of_random: list[Tensor] = []
    for n in (2, 3, 30, 1000):
        normal_RN, uniform_RN = (
            draw(200, n, generator=generator, dtype=torch.float64) for draw in (torch.randn, torch.rand)
        )
        made = (normal_RN, 10 * uniform_RN, -uniform_RN.log(), normal_RN**3, (3 * normal_RN).round())
        of_random += [over_bounds(rows_RN.sort(-1).values) for rows_RN in made]
    probed, tokens = stories260k()
    mask_TT = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    of_model = [
        over_bounds(ordered_logits(call.scale * call.q_BHTC[0] @ call.k_BHTC[0].mT, mask_TT))
        for call in calls(probed, [(tokens, 0)])
    ]
    steps_N = -torch.arange(1, LENGTHS[-1] + 1, dtype=torch.float64).log()  # Lambda is 1, reached at each k
    attained = over_bounds(steps_N.flip(0)[None])
    short = over_bounds(lone_row(3, 1.0).sort(-1).values)  # Lambda is ln 3, reached at k = 3
    comparisons = []
    for place, (name, (_, least)) in enumerate(BOUNDS.items()):
        for rows, found in (("random rows", of_random), ("rows of stories260k", of_model)):
            share = float(torch.stack(found)[:, place].max())
            comparisons.append(at_most(f"{name}, over its bound, {rows}", share, 1 + ROUNDING))
        share = max(float(attained[place]), float(short[place]))
        comparisons.append(CheckedNumber(f"{name}, over its bound, made rows", share, least, 1 + ROUNDING))
    for n, lead in ((2, 0.1), (3, 1.0), (5000, 40.0)):
        ratios = gap_ratios(lone_row(n, lead).sort(-1).values)
        where = f"one key {lead:g} over {n - 1:,}"
        comparisons += [
            near(f"Lambda of {where}", 1 / float(ratios.amin()), math.log(n) / lead, ROUNDING),
            near(f"contact index of {where}", int(contact_index(ratios)), n, 0.0),
        ]
    return Finding(comparisons)


def over_bounds(ordered: Tensor) -> Tensor:
    """The largest share of each of BOUNDS in rows of ascending logits [..., K], all RATIOS: [4]; NaN if it has none."""
    ratios = gap_ratios(ordered)
    kept = (ratios.amin(-1) > 0) & ratios.amin(-1).isfinite()  # no tie at the top, two keys or more
    if not bool(kept.any()):
        return torch.full((len(BOUNDS),), torch.nan)
    lambda_R1, ln_k_R = 1 / ratios[kept].amin(-1, keepdim=True), contact_index(ratios[kept]).double().log()
    gaps_RK, shares = ordered[kept][:, -1:] - ordered[kept], torch.zeros(len(BOUNDS), dtype=torch.float64)
    for r in RATIOS:
        p_RK = (-r * lambda_R1 * gaps_RK).softmax(-1)
        lead_R = p_RK[:, -1] - p_RK[:, -2]
        measured = (1 / p_RK[:, -1], entropy_of_weights(p_RK), lead_R, lead_R)
        for place, (value_R, (bound, _)) in enumerate(zip(measured, BOUNDS.values(), strict=True)):
            if (r > 1) == (place < 2):
                shares[place] = torch.maximum(shares[place], (value_R / bound(r, ln_k_R)).max())
    return shares


STEP, KEYS = 1e-4, 64


def prop_3_2() -> Finding:
    """A larger inverse temperature always lowers the entropy of a row, unless all its logits are equal.

    dH / dbeta = -beta Var(e) <= 0, the variance under softmax(beta e), H in nats

    Velickovic et al. 2024, arXiv:2410.01104, Proposition 3.2 (the number is from memory); the formula is derived here.
    """
    logits_K, comparisons = random_vector(KEYS, seed=0), []
    for beta in (0.3, 1.0, 2.5):
        difference = (entropy_at(beta + STEP, logits_K) - entropy_at(beta - STEP, logits_K)) / (2 * STEP)
        direct = float(entropy_of_logits(beta * logits_K[None], torch.ones(1, KEYS, dtype=torch.bool)))
        p = softmax(beta * logits_K.numpy())
        variance = float(p @ logits_K.numpy() ** 2 - (p @ logits_K.numpy()) ** 2)
        comparisons += [
            # a central difference at STEP errs by STEP^2 / 6 of the third derivative, and by 1e-15 / STEP
            near(f"dH/dbeta at beta = {beta:g} by finite differences", difference, -beta * variance, 1e-6),
            near(f"entropy from logits less that from weights, beta = {beta:g}",
                 direct - entropy_at(beta, logits_K), 0.0, 1e-12),
        ]  # fmt: skip
    entropies = [entropy_at(beta, logits_K) for beta in np.linspace(0.05, 6, 120)]
    of_equal_logits = entropy_at(1.5, 0 * logits_K) - entropy_at(0.5, 0 * logits_K)
    return Finding([
        *comparisons,
        at_most("largest step of the entropy along beta from 0.05 to 6", float(np.diff(entropies).max()), 0.0),
        near("change of the entropy of equal logits from beta = 0.5 to 1.5", of_equal_logits, 0.0, 1e-12),
    ])  # fmt: skip


def entropy_at(beta: float, logits_K: Tensor) -> float:
    """The entropy of the row at this inverse temperature, in nats, computed with this program."""
    return float(entropy_of_weights(weights_at(1 / beta, logits_K[None])[0]))


FIGURE_4 = (-0.037, 0.481, -2.3, 4.917, -1.791)  # the paper's listing, highest power first
GATE = 0.5  # nats: the listing does not change rows of less entropy
POINTS = (0.4, 0.9, 1.0, 1.5, 2.0, 3.0, 4.0, 4.412, 5.0, 5.5, 5.9, 6.0)  # nats
OF_GRID = 0.0015  # nats: the tolerance for the step between entropies, and for rounding


def beta_by_listing(entropy: float) -> float:
    """The paper's figure 4, by numpy."""
    return max(float(np.polyval(FIGURE_4, entropy)), 1.0) if entropy > GATE else 1.0


def polynomial() -> Finding:
    """The published temperature sharpens only rows of 0.849 to 5.945 nats: a row of equal logits only up to 381 keys.

    beta(H) = max(-0.037 H^4 + 0.481 H^3 - 2.3 H^2 + 4.917 H - 1.791, 1) where H > 0.5, else 1, H in nats

    Velickovic et al. 2024, arXiv:2410.01104, figure 4; where it exceeds 1 is measured here.
    """
    entropies = torch.linspace(0, 7, 7001, dtype=torch.float64)
    longest = max((n for n in range(300, 460) if beta_of_even_row(n) > 1), default=0)
    beta = inverse_temperature(entropies)
    acting = entropies[beta > 1]
    ours = inverse_temperature(torch.tensor(POINTS, dtype=torch.float64)).tolist()
    comparisons = [
        *[
            as_printed(f"coefficient of H^{4 - place}", own, published, 0.0)
            for place, (own, published) in enumerate(zip(PUBLISHED, FIGURE_4, strict=True))
        ],
        *[near(f"beta at {h:g} nats", own, beta_by_listing(h), 1e-9) for h, own in zip(POINTS, ours, strict=True)],
        near("least entropy at which beta exceeds 1", float(acting[0]), 0.849, OF_GRID),
        near("largest entropy at which beta exceeds 1", float(acting[-1]), 5.945, OF_GRID),
        near("largest beta", float(beta.max()), 2.421, 0.0005),
        near("entropy of the largest beta", float(entropies[beta.argmax()]), 4.412, OF_GRID),
        at_most("the polynomial at the gate of 0.5 nats", float(np.polyval(PUBLISHED, GATE)), 1.0),
        near("most keys of an even row that is sharpened", longest, math.floor(math.exp(5.945)), 0),
        *[
            near(f"beta of an even row of {n} keys", beta_of_even_row(n), beta_by_listing(math.log(n)), 1e-9)
            for n in (4, 16, 100, 300, 400)
        ],
    ]
    curves = [
        Curve("this program", entropies, beta),
        Curve("figure 4 by numpy", POINTS, [beta_by_listing(h) for h in POINTS], points=True),
        Curve("the polynomial alone", entropies, np.polyval(FIGURE_4, entropies.numpy()).clip(0)),
    ]
    remark = "The gate at 0.5 nats never decides: the polynomial is below 1 there anyway."
    return Finding(
        comparisons, {"softmax.polynomial": Panel("entropy in nats", "inverse temperature beta", curves)}, remark
    )


ADAPTIVE = AdaptiveTemperature(  # the published one
    SHAPE,
    coefficients=PUBLISHED,
    min_entropy=GATE,
    min_beta=1.0,
    entropy_range=None,
    in_training=True,
    gradient_through_beta=False,
)


def beta_of_even_row(n: int) -> float:
    """The adaptive temperature's beta for a row of n equal logits, computed with this program."""
    return float(inverse_temperature(entropy_of_weights(weights(torch.zeros(1, n, dtype=torch.float64)))[0]))


CHANNELS, TILE = 16, 64
CAUSAL = 512  # tokens of a text whose every row is checked


def streaming_entropy() -> Finding:
    """The entropy of a row comes from one pass over tiles of its keys, with three numbers kept for a row; a second
    pass, ordinary attention with the logits times beta, gives the adaptive temperature.

    kept: m = max e, Z = sum exp(e - m), S = sum e exp(e - m); where m rises, Z and S are multiplied by
    exp(m_old - m); H = m + ln Z - S / Z

    Velickovic et al. 2024, arXiv:2410.01104, appendix. Its listing was not seen; this recurrence is derived here. The
    program keeps the log-sum-exp and the mean key instead: H = log-sum-exp - q . E[k].
    """
    comparisons: list[CheckedNumber] = []
    for spread in (0.1, 1.0, 5.0, 20.0):  # deviations of the logits
        heads = [drawn(1, n, spread) for n in (17, 300, 4096, 16_384)]
        rows = [row for q, k, _, _ in heads for row in logits_by_numpy(q, k, None)]
        right = [entropy(row) for row in rows]
        found = {
            "this program, one fused pass": [
                float(fused.entropy(q, k, scale=1.0, keys=keys)) for q, k, _, keys in heads
            ],
            "three numbers a row, by numpy": [entropy_in_tiles(row) for row in rows],
        }
        comparisons += [
            near(f"largest error in nats, 17 to 16,384 keys, logits of deviation {spread:g}: {name}",
                 float(np.abs(np.subtract(ours, right)).max()), 0.0, rounding(rows))
            for name, ours in found.items()
        ]  # fmt: skip
    for window, name in ((None, "causal"), (100, "a window of 100")):
        q, k, v, keys = drawn(CAUSAL, CAUSAL, 3.0, window)
        rows = logits_by_numpy(q, k, window)
        ours_N = fused.entropy(q, k, scale=1.0, keys=keys)[0, 0, :, 0].numpy()
        error = np.abs(ours_N - [entropy(row) for row in rows]).max()
        # rounding of beta times a logit; d beta / dH is 2.6 at the largest entropy where the polynomial exceeds 1
        of_weights = rounding(rows) * (1 + 2.6 * largest(rows))
        # each coordinate of the output is compared with the weights by numpy; the values are standard normal
        ours_NC = ADAPTIVE(q, k, v, scale=1.0, keys=keys, bias=None, rows={})[0, 0].numpy()
        values, worst = v[0, 0].numpy(), 0.0
        for end, row in enumerate(rows, start=1):
            p = softmax(beta_by_listing(entropy(row)) * row)
            worst = max(worst, float(np.abs(p @ values[end - len(p) : end] - ours_NC[end - 1]).max()))
        comparisons += [
            near(f"largest error in nats, every row of {CAUSAL} tokens, {name}", float(error), 0.0, rounding(rows)),
            near(f"largest error of the adaptive temperature's output by two passes, {name}",
                 worst, 0.0, 8 * of_weights),
        ]  # fmt: skip
    return Finding(comparisons)


def drawn(n_queries: int, n: int, spread: float, window: int | None = None) -> tuple[Tensor, Tensor, Tensor, Keys]:
    """Queries q [1, 1, n_queries, C] of the last tokens, keys k and values v [1, 1, n, C] of all tokens, and a `Keys`.

    q, k and v are normally distributed. `spread` is the standard deviation of q . k.
    """
    k, v, q = random_vector(3, 1, 1, n, CHANNELS, seed=n)
    pos = torch.arange(n)[None]
    keys = Keys(q_pos_BQ=pos[:, n - n_queries :], k_pos_BK=pos, window=window)
    return q[:, :, n - n_queries :] * spread / CHANNELS**0.5, k, v, keys


def logits_by_numpy(q: Tensor, k: Tensor, window: int | None) -> list[np.ndarray]:
    """The logits of every query with the keys that it sees, one array for each query, computed with numpy."""
    q_NC, k_NC = q[0, 0].numpy(), k[0, 0].numpy()
    ends = range(len(k_NC) - len(q_NC) + 1, len(k_NC) + 1)
    return [k_NC[max(0, end - (window or end)) : end] @ one for one, end in zip(q_NC, ends, strict=True)]


def entropy(logits: np.ndarray) -> float:
    """The entropy of the softmax of these logits, in nats, computed with scipy."""
    return float(entr(softmax(logits)).sum())


def entropy_in_tiles(logits: np.ndarray) -> float:
    """The entropy in nats, computed with the recurrence of `streaming_entropy`, TILE keys at a time."""
    m, z, s = -np.inf, 0.0, 0.0
    for start in range(0, len(logits), TILE):
        e = logits[start : start + TILE]
        risen = max(m, float(e.max()))
        p, shrink = np.exp(e - risen), np.exp(m - risen)
        m, z, s = risen, z * shrink + p.sum(), s * shrink + (e * p).sum()
    return float(m + np.log(z) - s / z)


def largest(rows: Iterable[np.ndarray]) -> float:
    """The largest absolute value among the logits in `rows`."""
    return max(float(np.abs(row).max()) for row in rows)


def rounding(rows: Sequence[np.ndarray]) -> float:
    """The largest rounding error that an entropy can have, in nats.

    It comes from the logits, which are sums of CHANNELS products, and from the logarithms.
    """
    return 4 * CHANNELS * 2.0**-52 * (largest(rows) + math.log(max(map(len, rows))))
