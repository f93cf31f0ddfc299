"""Theorem 2.2: every head of a Transformer over a vocabulary disperses.

Tested by tests/papers/test_claims.py and tests/papers/test_softmax_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows, query_blocks, rows_between
from roundround.kernels.row_measures import extreme_logits
from roundround.model.decoder import Decoder
from roundround.model.kinds import LayerKind
from roundround.papers.claim import (
    Claim,
    Finding,
    at_most,
    near,
)
from roundround.pe.p_rope import PRoPE
from roundround.probing.probed_model import watching
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax
from roundround.support.panels import Curve, Panel

VOCABULARY, LAYERS, HEADS, WIDTH, HEAD_DIM = 16, 3, 4, 32, 8
LONGEST, DELTA = 1024, 6.2  # exp(6.2) / 1024 = 0.481: below one half
ODD_AT = (31, 255, LONGEST - 1)  # place of the one odd token among equal ones, a text each
RANDOM_TEXTS = 2
NORM_EPS = 1e-6  # makes a normed input shorter than sqrt(WIDTH), by half of this as a share


@final
class Thm22(Claim):
    """In a Transformer over a finite vocabulary every weight of every global head falls below any epsilon.

    alpha <= exp(delta) / n < epsilon for n > exp(delta) / epsilon, with one delta for all texts and all n, because the
    inputs of every layer stay in a compact set: here |x| <= sqrt(D) by the norm before attention, so delta = 2
    sigma_max(Q) sigma_max(K) D / sqrt(d)

    Velickovic et al. 2024, arXiv:2410.01104, Theorem 2.2, with Proposition 3.1 for delta.
    """

    title: ClassVar[str] = "every head disperses"

    def check(self) -> Finding:
        decoder, texts_BN = random_decoder(), texts()
        largest_LBHN, spread_L = rows_of_decoder(decoder, texts_BN)
        delta_LH = torch.from_numpy(delta_of_weights(decoder))
        n_N = torch.arange(1, LONGEST + 1)
        share_LBHN = largest_LBHN * n_N * (-delta_LH)[:, None, :, None].exp()
        comparisons = [
            *[
                at_most(f"n times the largest weight over exp(delta), any row of any text, layer {layer}", share, 1.0)
                for layer, share in enumerate(share_LBHN.flatten(1).amax(1).tolist())
            ],
            at_most("largest spread of a row's logits over the delta of the weights", max(spread_L) / DELTA, 1.0),
            at_most("exp(delta) / n at n = 1,024, any head", float(delta_LH.exp().max()) / LONGEST, 0.5),
            at_most("largest weight of a row of 1,024 keys, any head and text", float(largest_LBHN[..., -1].max()),
                    0.5),
            *[
                near(f"weight of the odd token among {n:,} over exp(delta) / (exp(delta) + n - 1)",
                     float(largest_LBHN[0, text, 0, n]) * (1 + n * math.exp(-DELTA)), 1.0, 2 * NORM_EPS * DELTA)
                for text, n in enumerate(ODD_AT)
            ],
        ]  # fmt: skip
        some = torch.unique(torch.logspace(0, math.log2(LONGEST), 60, base=2).long())
        remark = (
            f"Of {LAYERS} layers with random weights, the queries and keys of each head scaled so that its weights "
            f"alone bound delta by {DELTA}. Texts: {RANDOM_TEXTS} of random tokens, and {len(ODD_AT)} of equal tokens "
            "with an odd one. The first head of the first layer looks for the odd token and attains the bound on delta."
        )
        odd = [float(largest_LBHN[0, text, 0, n]) for text, n in enumerate(ODD_AT)]
        curves = [
            Curve(f"layer {layer}, random texts", some, of_BHN[len(ODD_AT) :].amax((0, 1))[some - 1])
            for layer, of_BHN in enumerate(largest_LBHN)
        ] + [
            Curve("the odd token's weight", [n + 1 for n in ODD_AT], odd, points=True),
            Curve("exp(delta) / n", some, (math.exp(DELTA) / some).clamp(max=1)),
            Curve("1 / n", some, 1 / some),
        ]
        return Finding(comparisons, Panel("visible tokens n", "largest weight", curves, log="xy"), remark)


def texts() -> Tensor:
    """Token 1 once among tokens 0, and random tokens: [B, N]."""
    odd_BN = torch.zeros(len(ODD_AT), LONGEST, dtype=torch.long)
    odd_BN[torch.arange(len(ODD_AT)), torch.tensor(ODD_AT)] = 1
    generator = torch.Generator().manual_seed(1)
    return torch.cat([odd_BN, torch.randint(VOCABULARY, (RANDOM_TEXTS, LONGEST), generator=generator)])


@torch.no_grad()
def random_decoder(make_softmax: type[AttentionSoftmax] = Softmax) -> Decoder:
    """Of this project, float64. Head 0 of layer 0 multiplies what token 0 has in common with the query by -1 for 1.

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
