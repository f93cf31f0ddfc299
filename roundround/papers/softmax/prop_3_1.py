"""Proposition 3.1 of the softmax paper: sharp rows need large weights."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from roundround.attention.blocks import logits_of_rows
from roundround.attention.keys import Keys
from roundround.attention.row_measures import extreme_logits
from roundround.papers.claim import Claim, Comparison, Curve, Finding, Picture, Trained, at_least, at_most, near
from roundround.papers.constructions import random_vector
from roundround.papers.trained import ModelRows, rows_of_model

DRAWS, WIDTH, ITEMS = 500, 16, 32
ROUNDING = 1e-9  # relative, float64


def bound(q_DD: Tensor, k_DD: Tensor, y_D: Tensor, x_ND: Tensor) -> float:
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
        turn_DD, _ = torch.linalg.qr(random_vector(WIDTH**2, seed=2).view(WIDTH, WIDTH))
        equal = spread(one_DD, one_DD, y_D, both_ND) / bound(one_DD, one_DD, y_D, both_ND)
        turned = spread(3 * turn_DD, 0.5 * turn_DD, y_D, both_ND) / bound(3 * turn_DD, 0.5 * turn_DD, y_D, both_ND)
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
        return Finding(comparisons, Picture("bound on delta", "delta", curves, log="xy"))

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
        picture = Picture("2 |q| max |k|", "delta", curves)
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
        limits.append(bound(*made))
        ratios.append(spread(*made) / limits[-1])
    return ratios, np.array(limits)
