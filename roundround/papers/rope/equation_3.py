"""Equation 3: which way round RoPE turns, and which channels it turns together."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.papers.claim import Claim, Curve, Finding, Picture, Trained, at_most
from roundround.papers.constructions import HEAD_DIM, THETA, frequencies, ladder_by_formula, random_vector, rotated
from roundround.papers.trained import before_rotation, calls, layouts, stories260k
from roundround.probing.layout import Layout
from roundround.probing.probe import run

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


def of_one_query(ours_TT: Tensor, formula_TT: Tensor, i: int) -> Picture:
    """The logits of one query with every key."""
    distance = torch.arange(len(ours_TT)) - i
    few = slice(None, None, max(1, len(ours_TT) // 32))
    return Picture(
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
