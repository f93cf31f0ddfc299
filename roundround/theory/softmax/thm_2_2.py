"""Theorem 2.2: every head of a Transformer over a vocabulary disperses."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor

from roundround.model.decoder import Decoder
from roundround.pe.rope import RoPE
from roundround.probing.probed_model import ProbedDecoder
from roundround.softmax.softmax import Softmax
from roundround.theory.claim import Claim, Curve, Finding, Picture, Trained, at_least, at_most
from roundround.theory.rows import ModelRows, rows_of_model, slope

VOCABULARY, LAYERS, HEADS, WIDTH = 16, 3, 4, 32
SPREAD = 0.15  # standard deviation of the weights: the spread of logits is then 8.6, above Gemma's mean of 5.8
THETA = 100.0  # every pair has turned often within the lengths, so that a head's set of logits is met early
SHORT, LONG = (16, 32, 64, 128), (512, 1024, 2048, 4096)  # prefix lengths 2^k
TEXTS, ROWS = 4, 8  # rows up to each length, averaged
NEAR_MINUS_1 = (-1.1, -0.75)  # see the remark


@final
class Thm22(Claim):
    """In a Transformer over a finite vocabulary every weight of every global head falls below any epsilon.

    alpha <= exp(delta / theta) / n < epsilon for n > exp(delta / theta) / epsilon, delta finite because the inputs of
    every layer stay in a compact set; so d log max alpha / d log n tends to -1

    Velickovic et al. 2024, arXiv:2410.01104, Theorem 2.2.
    """

    title: ClassVar[str] = "every head disperses"

    def check(self) -> Finding:
        generator = torch.Generator().manual_seed(1)
        texts = torch.randint(VOCABULARY, (TEXTS, LONG[-1]), generator=generator).tolist()
        probed = ProbedDecoder("random", random_decoder(), None, 0)  # type: ignore[arg-type]
        rows = list(rows_of_model(probed, texts, [m for n in (*SHORT, *LONG) for m in range(n - ROWS + 1, n + 1)]))
        weight_LHN = torch.stack(torch.split(largest_by_length(rows), ROWS, dim=-1), -2).log().mean(-1).exp()
        long_LH = slopes(LONG, weight_LHN[..., len(SHORT) :])
        short_LH = slopes(SHORT, weight_LHN[..., : len(SHORT)])
        comparisons = []
        for layer in range(LAYERS):
            comparisons += [
                at_least(
                    f"least slope of a head from n = 512 to 4,096, layer {layer}",
                    float(long_LH[layer].min()),
                    NEAR_MINUS_1[0],
                ),
                at_most(
                    f"largest slope of a head from n = 512 to 4,096, layer {layer}",
                    float(long_LH[layer].max()),
                    NEAR_MINUS_1[1],
                ),
            ]
        deltas = [float(row.spread_HR.max()) for row in rows]
        comparisons += [
            at_most("n times the largest weight over exp(delta), closest row", closest_to_bound(rows), 1.0),
            at_most("mean distance of a head's slope from -1 at 512 to 4,096, over that at 16 to 128",
                    float((long_LH + 1).abs().mean() / (short_LH + 1).abs().mean()), 0.6),
            at_least("largest delta: the heads are not flat to begin with", max(deltas), 5.0),
        ]  # fmt: skip
        curves = [
            Curve(f"layer {layer}, mean of {HEADS} heads", (*SHORT, *LONG), weight_LHN[layer].log().mean(0).exp())
            for layer in range(LAYERS)
        ]
        last = float(weight_LHN[0, :, -1].log().mean().exp())
        curves.append(Curve("slope -1", (*SHORT, *LONG), [last * LONG[-1] / n for n in (*SHORT, *LONG)]))
        return Finding(comparisons, Picture("visible tokens n", "largest weight", curves, log="xy"), REMARK)

    def check_model(self, trained: Trained) -> Finding | None:
        longest = min(trained.probed.longest, max(map(len, trained.texts)))
        lengths = [2**k for k in range(3, longest.bit_length()) if 2**k <= longest]
        texts = [text for text in trained.texts if len(text) >= lengths[-1]] if lengths else []
        if len(lengths) < 2 or not texts:
            return None
        rows = [row for row in rows_of_model(trained.probed, texts, lengths) if row.n_R.tolist() == lengths]
        if not rows:  # every head looks through a window
            return None
        weight_LHN = largest_by_length(rows)
        found = slopes(lengths, weight_LHN).flatten()
        spreads = torch.cat([row.spread_HR.flatten() for row in rows])
        comparisons = [
            at_most("n times the largest weight over exp(delta), closest row", closest_to_bound(rows), 1 + 1e-6),
            at_most("mean slope of all heads within the context", float(found.mean()), 0.0),
            at_least("least slope of a head within the context", float(found.min()), -1.5),
        ]
        curves = [
            Curve(f"layer {layer}, mean of its heads", lengths, of.log().mean(0).exp())
            for layer, of in zip(sorted({row.layer for row in rows}), weight_LHN, strict=True)
        ]
        reach = math.exp(min(float(spreads.max()), 700.0))
        remark = (
            f"Slopes of the {len(found)} heads without a window from n = {lengths[0]} to {lengths[-1]:,}: "
            f"{float(found.min()):.2f} to {float(found.max()):.2f}, median {float(found.median()):.2f}; "
            f"{int((found > -0.5).sum())} above -0.5, {int((found > 0).sum())} above 0. That is no contradiction: "
            f"with the largest delta seen, {float(spreads.max()):.1f}, the theorem promises weights below 0.1 from n "
            f"= {10 * reach:.1e} alone."
        )
        return Finding(comparisons, Picture("visible tokens n", "largest weight", curves[:12], log="xy"), remark)


REMARK = (
    f"Slopes are of the mean of log max alpha over {TEXTS} texts of i.i.d. tokens and {ROWS} rows. Normal logits of "
    "standard deviation s have the slope -1 + s / sqrt(2 ln n) until the largest of a finite set is met: -0.74 for s "
    "= 1 in the middle of 512 to 4,096, hence the upper end; 0.1 below -1 is left to the luck of the texts."
)


def random_decoder(make_softmax: type[Softmax] = Softmax) -> Decoder:
    """Of this project, with random weights that are large enough for sharp heads."""
    torch.manual_seed(0)
    decoder = Decoder(
        n_vocab=VOCABULARY, make_encoding=partial(RoPE, theta=THETA), make_softmax=make_softmax, d_model=WIDTH,
        n_layers=LAYERS, n_heads=HEADS, n_key_heads=HEADS, head_dim=None, d_mlp=2 * WIDTH, train_length=LONG[-1],
        tied_embeddings=True, geglu=False, scaled_embeddings=False, norm_eps=1e-6, initializer_range=SPREAD,
    )  # fmt: skip
    return decoder.requires_grad_(False)


def largest_by_length(rows: list[ModelRows]) -> Tensor:
    """Geometric mean over texts of the largest weight of each row: [layer, H, length]."""
    layers = sorted({row.layer for row in rows})
    by_layer = [torch.stack([row.largest_HR.log() for row in rows if row.layer == layer]) for layer in layers]
    return torch.stack(by_layer).mean(1).exp()


def slopes(lengths: tuple[int, ...] | list[int], weight_LHN: Tensor) -> Tensor:
    """Of log weight against log n, for every layer and head."""
    return torch.tensor([[slope(lengths, head) for head in layer] for layer in weight_LHN], dtype=torch.float64)


def closest_to_bound(rows: list[ModelRows]) -> float:
    """Largest n max alpha / exp(delta) of a row."""
    return max(float((row.largest_HR * row.n_R * (-row.spread_HR).exp()).max()) for row in rows)
