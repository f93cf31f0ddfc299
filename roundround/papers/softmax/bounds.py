"""Lemma 2.1 and Proposition 3.1: bounded logits disperse, and what bounds them.

Tested by tests/papers/test_claims.py and tests/papers/test_softmax_claims.py.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from roundround.attention.blocks import logits_of_rows
from roundround.attention.keys import Keys
from roundround.attention.row_measures import entropy_bound, entropy_of_weights, extreme_logits, largest_weight_bound
from roundround.papers.claim import (
    Claim,
    Comparison,
    Finding,
    Trained,
    at_least,
    at_most,
    near,
)
from roundround.papers.constructions import FEWEST, ModelRows, random_vector, rows_of_model, weights_at
from roundround.support.panels import Curve, Panel

TEMPERATURES, LENGTHS, HALF_RANGE = (1.0, 0.5, 0.1), (10, 100, 1000, 10_000, 100_000), 3.0
ROUNDING = 1e-9  # relative, of float64 sums over 100,000 keys


def weight_bounds(n: float, spread: float, temperature: float) -> tuple[float, float]:
    """The lemma's: (least, largest) weight."""
    return math.exp(-spread / temperature) / n, math.exp(spread / temperature) / n


def attainable(n: int, spread: float, temperature: float) -> float:
    """The largest weight that any row can have: one logit at the top, all others at the bottom."""
    return 1 / (1 + (n - 1) * math.exp(-spread / temperature))


@final
class Lemma21(Claim):
    """Where logits lie between fixed bounds, every weight is of the order of 1/n, at any fixed temperature.

    exp(-delta / theta) / n <= alpha_k <= exp(delta / theta) / n, delta = max e - min e

    attained: max alpha = exp(delta / theta) / (exp(delta / theta) + n - 1), one logit at the top and the rest at the
    bottom

    Velickovic et al. 2024, arXiv:2410.01104, Lemma 2.1; the attained maximum is derived here.
    """

    title: ClassVar[str] = "bounded logits disperse"

    def check(self) -> Finding:
        comparisons: list[Comparison] = []
        curves = []
        for theta in TEMPERATURES:
            found = np.array([ratios(n, theta) for n in LENGTHS])
            comparisons += [
                at_least(
                    f"least weight over its bound, closest of n = 10 to 100,000, theta = {theta:g}",
                    found[:, 0].min(),
                    1,
                ),
                at_most(
                    f"largest weight over its bound, closest of n = 10 to 100,000, theta = {theta:g}",
                    found[:, 1].max(),
                    1,
                ),
                near(
                    f"attained maximum over its formula, farthest, theta = {theta:g}",
                    found[np.abs(found[:, 2] - 1).argmax(), 2],
                    1,
                    ROUNDING,
                ),
            ]
            curves.append(Curve(f"largest weight of random rows, theta = {theta:g}", LENGTHS, found[:, 3]))
        expected = math.exp(HALF_RANGE) * HALF_RANGE / math.sinh(HALF_RANGE)  # 1 / mean of exp(e - max e)
        comparisons += [
            near(
                "n times the largest weight at theta = 1, n = 100,000",
                LENGTHS[-1] * ratios(LENGTHS[-1], 1.0)[3],
                expected,
                0.11,
            ),
            *of_this_program(),
        ]
        spread = 2 * HALF_RANGE
        curves += [
            Curve("bound, theta = 1", LENGTHS, [min(1, weight_bounds(n, spread, 1.0)[1]) for n in LENGTHS]),
            Curve("1 / n", LENGTHS, [1 / n for n in LENGTHS]),
            Curve("attained, theta = 1", LENGTHS, [attainable(n, spread, 1.0) for n in LENGTHS], points=True),
        ]
        remark = "The tolerance of n times the largest weight is four standard errors of a mean over 100,000 keys."
        return Finding(comparisons, Panel("keys n", "largest weight", curves, log="xy"), remark)

    def check_model(self, trained: Trained) -> Finding:
        least, most, sharp, shares, lengths = math.inf, 0.0, 0.0, [], []
        for rows in rows_of_model(trained.probed, trained.texts):
            seen = rows.many_R
            n_R, spread_HR, largest_HR = rows.n_R[seen], rows.spread_HR[:, seen], rows.largest_HR[:, seen]
            smallest_HR = rows.alpha_HRK.masked_fill(~rows.visible_RK, torch.inf).amin(-1)
            least = min(least, float((smallest_HR[:, seen] * n_R * spread_HR.exp()).min()))
            most = max(most, float((largest_HR * n_R * (-spread_HR).exp()).max()))
            sharp = max(sharp, float((largest_HR * (1 + (n_R - 1) * (-spread_HR).exp())).max()))
            shares.append(largest_HR.log().mean(0).exp())
            lengths.append(n_R)
        comparisons = [
            at_least(f"least weight over its bound, the closest row of {FEWEST} keys or more", least, 1 - ROUNDING),
            at_most("largest weight over its bound, the closest row", most, 1 + ROUNDING),
            at_most("largest weight over the attainable maximum, the closest row", sharp, 1 + ROUNDING),
        ]
        n_all, even = torch.cat(lengths), sorted(set(torch.cat(lengths).tolist()))
        points = Curve("each row, geometric mean over heads", n_all[::8], torch.cat(shares)[::8], points=True)
        line = Curve("1 / n", even, [1 / n for n in even])
        remark = "delta is that of each row, after the normaliser's own temperature: the bounds hold for any numbers."
        picture = Panel("visible keys n", "largest weight", [points, line], "xy")
        return Finding(comparisons, picture, remark, can_fail=False)


def ratios(n: int, theta: float) -> tuple[float, float, float, float]:
    """Of a random row: its least and largest weight over their bounds; then the weight of one key at the top of a row
    whose other keys are at the bottom over its formula; and the random row's largest weight."""
    uniform_N = torch.rand(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    logits_N = (2 * uniform_N - 1) * HALF_RANGE
    spread = float(logits_N.max() - logits_N.min())
    alpha_N = weights_at(theta, logits_N[None])[0]
    low, high = weight_bounds(n, spread, theta)
    alone_N = torch.zeros(n, dtype=torch.float64)
    alone_N[0] = spread
    best = float(weights_at(theta, alone_N[None])[0, 0]) / attainable(n, spread, theta)
    return float(alpha_N.min()) / low, float(alpha_N.max()) / high, best, float(alpha_N.max())


def of_this_program() -> list[Comparison]:
    """The bounds that its tables print, against the formula and a row with one logit delta above the others."""
    comparisons = []
    for n, delta in ((1000, 3.0), (10, 0.5), (100, 40.0)):
        spread, ln_n = torch.tensor(delta, dtype=torch.float64), math.log(n)
        least, most = float(entropy_bound(ln_n, spread)), float(largest_weight_bound(ln_n, spread))
        row_1N = torch.zeros(1, n, dtype=torch.float64)
        row_1N[0, 0] = delta
        alpha_1N = weights_at(1.0, row_1N)
        where = f"delta = {delta:g}, n = {n:,}"
        comparisons += [
            near(f"this program's bound on the entropy, {where}", least, max(0.0, ln_n - delta), 1e-12),
            near(f"its bound on the largest weight, {where}", most, min(1.0, weight_bounds(n, delta, 1.0)[1]), 1e-12),
            at_least(
                f"entropy of a row less the bound on it, {where}", float(entropy_of_weights(alpha_1N)) - least, 0.0
            ),
            at_most(f"largest weight of the row over the bound, {where}", float(alpha_1N.max()) / most, 1 + ROUNDING),
        ]
    return comparisons


DRAWS, WIDTH, ITEMS = 500, 16, 32


def spread_bound(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
    """2 sigma_max(Q) sigma_max(K) |y| max |x_i|, by numpy."""
    largest = [float(np.linalg.svd(weight.numpy(), compute_uv=False)[0]) for weight in (q_DD, k_DD)]
    norms = np.linalg.norm(x_ND.numpy(), axis=1)
    return 2 * largest[0] * largest[1] * float(np.linalg.norm(y_D.numpy())) * float(norms.max())


def spread(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
    """delta of the logits (Q y) . (K x_i), by this program's attention."""
    q, k = (q_DD @ y_D)[None, None, None], (x_ND @ k_DD.T)[None, None]
    keys = Keys(q_pos_BQ=torch.tensor([[len(x_ND) - 1]]), k_pos_BK=torch.arange(len(x_ND))[None])
    largest, smallest = extreme_logits(*logits_of_rows(q, k, 1.0, keys, None, 0, 1))
    return float(largest - smallest)


@final
class Prop31(Claim):
    """How far the logits of a row can lie apart is bounded by the singular values of Q and K and the items' norms.

    delta = max e - min e <= 2 sigma_max(Q) sigma_max(K) |y| max_i |x_i|, e_i = (Q y) . (K x_i); equal for Q = K = 1 and
    items y and -y

    Velickovic et al. 2024, arXiv:2410.01104, Proposition 3.1.
    """

    title: ClassVar[str] = "sharp rows need large weights"

    def check(self) -> Finding:
        ratios, scales = random_ratios()
        y_D, one_DD = random_vector(WIDTH, seed=1), torch.eye(WIDTH, dtype=torch.float64)
        both_ND = torch.stack([y_D, -y_D])
        turn_DD, _ = torch.linalg.qr(random_vector(WIDTH, WIDTH, seed=2))
        equal = spread(one_DD, one_DD, y_D, both_ND) / spread_bound(one_DD, one_DD, y_D, both_ND)
        turned = spread(3 * turn_DD, 0.5 * turn_DD, y_D, both_ND) / spread_bound(
            3 * turn_DD, 0.5 * turn_DD, y_D, both_ND
        )
        growth = spread(2 * one_DD, 3 * one_DD, y_D, both_ND) / spread(one_DD, one_DD, y_D, both_ND)
        comparisons = [
            at_most(f"delta over its bound, closest of {DRAWS:,} random draws", max(ratios), 1.0),
            at_least("the same, that the bound is within a factor of 10 of a random draw", max(ratios), 0.1),
            near("delta over its bound for Q = K = 1 and items y, -y", equal, 1.0, ROUNDING),
            near("delta over its bound for Q = 3 U, K = U / 2, U a rotation", turned, 1.0, ROUNDING),
            near("growth of delta when Q doubles and K triples", growth, 6.0, ROUNDING),
        ]
        curves = [
            Curve("random draws", scales[::5], (np.array(ratios) * scales)[::5], points=True),
            Curve("bound", [min(scales), max(scales)], [min(scales), max(scales)]),
        ]
        return Finding(comparisons, Panel("bound on delta", "delta", curves, log="xy"))

    def check_model(self, trained: Trained) -> Finding:
        deltas, limits = [], []
        for rows in rows_of_model(trained.probed, trained.texts):
            seen_HRK = rows.visible_RK * rows.k_HKC.norm(dim=-1)[:, None]
            limits.append((2 * rows.q_HRC.norm(dim=-1) * seen_HRK.amax(-1)).flatten())
            deltas.append(product_spread(rows).flatten())
        delta, limit = torch.cat(deltas), torch.cat(limits)
        closest = float((delta / limit).nan_to_num().max())
        comparisons = [at_most("delta over 2 |q| max |k|, the closest row", closest, 1 + 1e-6)]
        curves = [
            Curve(
                "rows of the model",
                limit[:: max(1, len(limit) // 400)],
                delta[:: max(1, len(delta) // 400)],
                points=True,
            ),
            Curve("bound", [float(limit.min()), float(limit.max())], [float(limit.min()), float(limit.max())]),
        ]
        remark = (
            f"delta from {float(delta.min()):.2f} to {float(delta.max()):.2f}, mean {float(delta.mean()):.2f}, "
            f"standard deviation {float(delta.std()):.2f}, before any temperature of the normaliser. No model can be "
            "outside these bounds."
        )
        picture = Panel("2 |q| max |k|", "delta", curves)
        return Finding(comparisons + by_weights(trained), picture, remark, can_fail=False)


def product_spread(rows: ModelRows) -> Tensor:
    """delta of queries times keys alone, without biases or temperatures: [H, R]."""
    largest, smallest = extreme_logits(rows.q_HRC @ rows.k_HKC.mT, rows.visible_RK)
    return largest - smallest


def by_weights(trained: Trained) -> list[Comparison]:
    """The statement as printed, by layer: delta over the bound from singular values and the inputs' norms.

    For models whose logits are (Q y) . (K x) and a rotation: no biases, no norms of queries and keys.
    """
    probed, named = trained.probed, dict(trained.probed.model.named_modules())
    queries = [name for name in named if name.endswith("q_proj")]
    plain = all(isinstance(named[name], nn.Linear) and named[name].bias is None for name in queries)
    if not plain or len(queries) != len(probed.normalisers) or any(name.endswith("q_norm") for name in named):
        return []
    norms = dict.fromkeys(queries, 0.0)

    def take_in(name: str, inputs: tuple[Tensor, ...]) -> None:
        norms[name] = max(norms[name], float(inputs[0].double().norm(dim=-1).max()))

    hooks = [
        named[name].register_forward_pre_hook(lambda _, inputs, name=name: take_in(name, inputs)) for name in queries
    ]
    deltas, scales = [0.0] * len(queries), [0.0] * len(queries)
    for rows in rows_of_model(probed, trained.texts):
        deltas[rows.layer] = max(deltas[rows.layer], float(product_spread(rows).max()))
        scales[rows.layer] = rows.scale
    for hook in hooks:
        hook.remove()
    ratios = []
    for layer, name in enumerate(queries):
        sigma_q, sigma_k = (
            largest_singular_value(named[name.removesuffix("q_proj") + which], probed.normalisers[layer].shape.head_dim)
            for which in ("q_proj", "k_proj")
        )
        ratios.append(deltas[layer] / (2 * sigma_q * sigma_k * norms[name] ** 2 * scales[layer]))
    return [at_most("delta over the bound from singular values of Q and K, the closest layer", max(ratios), 1.0)]


def largest_singular_value(projection: nn.Module, head_dim: int) -> float:
    """Of the matrices of all its heads."""
    assert isinstance(projection, nn.Linear)
    heads = projection.weight.detach().double().cpu().view(-1, head_dim, projection.in_features)
    return float(torch.linalg.matrix_norm(heads, 2).max())


def random_ratios() -> tuple[list[float], np.ndarray]:
    """delta over its bound, and the bound, of random matrices and items of many scales."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ratios, limits = [], []
    for draw in range(DRAWS):
        scale = 10 ** (draw / DRAWS * 2 - 1)
        made = (scale * normal(WIDTH, WIDTH), normal(WIDTH, WIDTH), normal(WIDTH), normal(ITEMS, WIDTH))
        limits.append(spread_bound(*made))
        ratios.append(spread(*made) / limits[-1])
    return ratios, np.array(limits)
