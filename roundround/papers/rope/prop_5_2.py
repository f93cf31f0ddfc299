"""Proposition 5.2: without positions a head cannot tell a repeated token from itself."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.attention.blocks import logits_of_rows
from roundround.attention.keys import AttentionShape, Keys
from roundround.model.attention import Attention
from roundround.papers.claim import Claim, Curve, Finding, Picture, at_least, at_most
from roundround.papers.constructions import THETA, shape
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.rope import RoPE
from roundround.softmax.softmax import Softmax

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
        picture = Picture(
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
        attention = Attention(single_head(), Softmax(single_head())).double()
        for matrix in attention.parameters():
            torch.nn.init.normal_(matrix, std=spread * WIDTH**-0.5, generator=generator)
        rows.append(last_row(attention, x_B3D, encoding, keys))
    return torch.cat([logits for logits, _ in rows]), torch.cat([alpha for _, alpha in rows])


def single_head() -> AttentionShape:
    return shape(WIDTH)


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
