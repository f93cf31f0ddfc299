"""Table 1: what NoPE, RoPE and p-RoPE can do, each by its own ladder; Proposition 5.2: NoPE has no positions.

Tested by tests/papers/test_claims.py and tests/papers/test_rope_claims.py.
"""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows
from roundround.kernels.keys import Keys
from roundround.model.attention import Attention
from roundround.papers.claim import (
    CheckedNumber,
    Claim,
    Finding,
    at_least,
    at_most,
)
from roundround.papers.constructions import HEAD_DIM, THETA, causal_weights, on_pair, shape, weights
from roundround.papers.rope.thm_5_3 import equal_norms
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.p_rope import PRoPE
from roundround.pe.rope import RoPE
from roundround.softmax.softmax import Softmax
from roundround.support.panels import Curve, Panel

WIDTH, TEXTS, SPREADS = 64, 300, (0.1, 1.0, 3.0)  # of the head; draws of two tokens; deviations of the weights
ROUNDING = 1e-12


@final
class Prop52(Claim):
    """A single head without positional encoding can attend neither to the token itself nor to the one before it.

    On [bos, x, x]: a_33 = a_32, so alpha_33 = alpha_32 = 1 / (exp(a_31 - a_33) + 2) < 1/2

    Barbero et al. 2024, arXiv:2410.06205, Proposition 5.2.
    """

    title: ClassVar[str] = "one NoPE head has no positions"

    def check(self) -> Finding:
        logits_B3, alpha_B3 = last_rows(NoPE(shape(WIDTH)))
        _, with_rope_B3 = last_rows(RoPE(shape(WIDTH), theta=THETA))
        formula_B = 1 / ((logits_B3[:, 0] - logits_B3[:, 2]).exp() + 2)
        difference = float((alpha_B3[:, 2] - alpha_B3[:, 1]).abs().max())
        x = torch.linspace(-8, 8, 161, dtype=torch.float64)
        seen = slice(None, None, 9)
        picture = Panel(
            "logit of the first token minus that of the last",
            "weight of the last token on itself",
            [
                Curve("NoPE", (logits_B3[:, 0] - logits_B3[:, 2])[seen].clamp(-8, 8), alpha_B3[seen, 2], points=True),
                Curve("1 / (exp(x) + 2)", x, 1 / (x.exp() + 2)),
                Curve("one half", x, torch.full_like(x, 0.5)),
            ],
        )
        return Finding(
            [
                at_most("largest difference of the weights on the two copies", difference, ROUNDING),
                at_most("largest weight on the token itself", float(alpha_B3[:, 2].max()), 0.5 + ROUNDING),
                at_most("largest weight on the token before", float(alpha_B3[:, 1].max()), 0.5 + ROUNDING),
                at_most("largest error of the formula", float((alpha_B3[:, 2] - formula_B).abs().max()), ROUNDING),
                at_least("the same draws with RoPE: largest weight on one copy", float(with_rope_B3[:, 1:].max()), 0.9),
            ],
            picture,
        )


def last_rows(encoding: PositionalEncoding) -> tuple[Tensor, Tensor]:
    """Logits and weights [B, 3] of the last token of [bos, x, x], of random tokens and random weights of every size.

    They are those of this program's attention, seen where it calls its softmax.
    """
    generator = torch.Generator().manual_seed(0)
    tokens_B2D = torch.randn(TEXTS, 2, WIDTH, generator=generator, dtype=torch.float64)
    x_B3D, pos = tokens_B2D[:, [0, 1, 1]], torch.arange(3)[None]
    keys = Keys(q_pos_BQ=pos, k_pos_BK=pos)
    rows = []
    for spread in SPREADS:
        attention = Attention(shape(WIDTH), Softmax(shape(WIDTH))).double()
        for matrix in attention.parameters():
            torch.nn.init.normal_(matrix, std=spread * WIDTH**-0.5, generator=generator)
        rows.append(last_row(attention, x_B3D, encoding, keys))
    return torch.cat([logits for logits, _ in rows]), torch.cat([alpha for _, alpha in rows])


@torch.no_grad()
def last_row(attention: Attention, x_B3D: Tensor, encoding: PositionalEncoding, keys: Keys) -> tuple[Tensor, Tensor]:
    """Logits and weights of the last token of each text, [B, 3]."""
    seen: list[tuple[Tensor, Tensor]] = []
    with attention.softmax.register_forward_pre_hook(lambda _, qkv: seen.append(qkv[:2])):
        attention(x_B3D, encoding, encoding.prepare(keys.q_pos_BQ, x_B3D.dtype), keys)
    ((q, k),) = seen
    logits, visible = logits_of_rows(q, k, attention.shape.scale, keys, None, 0, 3)
    alpha = attention.softmax.weights(logits, visible, {"n_visible": visible.sum(-1, keepdim=True)})
    return logits[:, 0, 2], alpha[:, 0, 2]


ROWS = 1024  # tokens of which every row is asked
NORM = 40.0  # |psi|^2 on the 8 fastest pairs: 20 suffice RoPE for a weight of 0.99
TOKENS = 65_536  # more than a turn of the slowest pair of the ladder, 58,470
EVERY = 16  # tokens: the slowest pair turns 0.002 radians meanwhile
TARGET, OTHER = 64.0, 8.0  # q . k in the slowest pair, before any rotation


def encodings() -> dict[str, tuple[PositionalEncoding, bool, bool]]:
    """Name: (encoding, has patterns of position, has patterns of meaning), as the table says."""
    return {
        "NoPE": (NoPE(shape()), False, True),
        "RoPE": (RoPE(shape(), theta=THETA), True, False),
        "0.75-RoPE": (PRoPE(shape(), p=0.75, theta=THETA), True, True),
        "0.25-RoPE": (PRoPE(shape(), p=0.25, theta=THETA), True, True),
    }


@final
class Table1(Claim):
    """NoPE has no patterns of position, RoPE none of meaning that last, p-RoPE has both.

    position: a weight above 0.99 on the token itself, or the one before, in every row; q = psi on the 8 fastest pairs

    meaning: a target keeps a weight above 1/2 wherever it and another key stand; q and k on the slowest pair

    Barbero et al. 2024, arXiv:2410.06205, table 1, definition 5.1 and theorem 6.1, for single heads.
    """

    title: ClassVar[str] = "p-RoPE has both halves of table 1"

    def check(self) -> Finding:
        comparisons, curves = [], []
        for name, (encoding, positional, semantic) in encodings().items():
            for place, where in enumerate(("itself", "the token before")):
                what = f"{name}: least weight of {ROWS:,} rows on {where}"
                comparisons.append(judged(what, least_weight(encoding, place), 0.99 if positional else 0.5, positional))
            at_N = weight_by_distance(encoding)
            what = f"{name}: least weight of a target within {TOKENS:,} tokens, another key at its best place"
            comparisons.append(judged(what, float(at_N.min()), 0.99 if semantic else 0.5, semantic))
            curves.append(Curve(name, torch.arange(0, TOKENS, EVERY)[::16], at_N[::16]))
        remark = (
            "Each cell is one head. That no head of NoPE has positions is Proposition 5.2, and that no pair of RoPE "
            "keeps its target is Theorem 6.1. What p-RoPE keeps at any distance is the order of two keys; among n keys "
            "the weight still falls as 1/n, by Lemma 2.1 of arXiv:2410.01104."
        )
        return Finding(comparisons, Panel("distance of the target in tokens", "its weight", curves), remark)


def judged(what: str, ours: float, bound: float, yes: bool) -> CheckedNumber:
    return at_least(what, ours, bound) if yes else at_most(what, ours, bound)


def least_weight(encoding: PositionalEncoding, place: int) -> float:
    """On the token `place` before, over the rows that have one; the key is the query as it stands there."""
    psi, pos = NORM**0.5 * equal_norms(range(8)), torch.arange(ROWS)
    key = encoded(encoding, psi[None], torch.tensor([place]))[0]
    alpha_NN = causal_weights(
        encoded(encoding, psi.expand(ROWS, -1), pos), encoded(encoding, key.expand(ROWS, -1), pos)
    )
    return float(alpha_NN.diagonal(-place)[1:].min())


def weight_by_distance(encoding: PositionalEncoding) -> Tensor:
    """Of a target at every 16th distance up to TOKENS, beside one other key where that one's logit is largest: [N]."""
    x, pos = on_pair(1.0, 0.0, HEAD_DIM // 2 - 1), -torch.arange(0, TOKENS, EVERY)
    cosine_N = encoded(encoding, x.expand(len(pos), -1), pos) @ x
    other_N = torch.full_like(cosine_N, OTHER * float(cosine_N.max()))
    return weights(torch.stack([TARGET * cosine_N, other_N], -1))[:, 0]


def encoded(encoding: PositionalEncoding, x_NC: Tensor, pos_N: Tensor) -> Tensor:
    """Queries or keys as this program's encoding turns them at these positions: [N, C]."""
    prepared = encoding.prepare(pos_N[None], x_NC.dtype)
    queries, keys = (turn(x_NC[None, None], prepared)[0, 0] for turn in (encoding.rotate_queries, encoding.rotate_keys))
    assert torch.equal(queries, keys), "these encodings turn both alike"
    return queries
