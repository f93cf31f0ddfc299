"""Norms of the 2-D chunks of queries, keys and values, in a stream.

State is [layer, head, pair], whatever the number of tokens. A rotation does not change a norm, so it does not matter
that queries and keys are seen after RoPE.
Shapes: L layers, B batch, T tokens, H heads, G key heads, C head channels, P pairs.

Tested by tests/probing/test_probe.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from roundround.probing.layout import PAIRINGS, Layout

KINDS = ("query", "key", "value")


class PairNorms:
    """Mean norm and mean square of every chunk, over all tokens and over all but the first of each text.

    Barbero et al. 2024, arXiv:2410.06205, section 4 (figures 3, 4, 10, 11, 13, 19).
    """

    def __init__(self, n_layers: int) -> None:
        self.sums: list[dict[tuple[str, str, str], Tensor]] = [{} for _ in range(n_layers)]  # kind, measure, which
        self.layouts: list[Layout | None] = [None] * n_layers
        self.n_tokens = {"all": 0, "first": 0}

    def count(self, n_texts: int, n_tokens: int) -> None:
        """Count the tokens of a batch, once for all layers."""
        self.n_tokens["all"] += n_tokens
        self.n_tokens["first"] += n_texts

    def add(
        self, layer: int, layout: Layout, q_BHTC: Tensor, k_BGTC: Tensor, v_BGTC: Tensor, valid_BT: Tensor | None
    ) -> None:
        """Take in one call of attention; `valid_BT` is False where a row is filled up, None where none is."""
        self.layouts[layer] = layout
        for kind, x in zip(KINDS, (q_BHTC, k_BGTC, v_BGTC), strict=True):
            other_size = x.shape[-1] != 2 * layout.n_pairs  # values may have other sizes than queries and keys
            own = Layout(torch.zeros(x.shape[-1] // 2), PAIRINGS[0], x.shape[-1]) if other_size else layout
            norm_BHTP = own.norms(x)
            if valid_BT is not None:
                norm_BHTP = norm_BHTP.masked_fill(~valid_BT[:, None, :, None], 0.0)
            square_BHTP = norm_BHTP.square()
            for measure, value in (("norm", norm_BHTP), ("square", square_BHTP)):
                add_to(self.sums[layer], (kind, measure, "all"), value.sum((0, 2)))
                add_to(self.sums[layer], (kind, measure, "first"), value[:, :, 0].sum(0))

    def mean(self, kind: str, measure: str, *, first_token: bool = True) -> list[Tensor]:
        """Mean over tokens of `norm` or `square` of `query`, `key` or `value`: [H, P] or [G, P] for every layer.

        Without `first_token` the first of each text, where beginning-of-sequence tokens stand, is left out.
        """
        n = self.n_tokens["all"] - (0 if first_token else self.n_tokens["first"])
        return [
            (sums[kind, measure, "all"] - (0 if first_token else sums[kind, measure, "first"])) / n
            for sums in self.sums
        ]

    def share_of_slowest(self, kind: str, fraction: float = 0.25, *, first_token: bool = True) -> Tensor:
        """Share of the squared norm that lies in the slowest pairs, over all heads: [L]; uniform is `fraction`."""
        shares = []
        for square_HP in self.mean(kind, "square", first_token=first_token):
            square_P = square_HP.sum(0)
            n_slow = round(fraction * len(square_P))
            shares.append(square_P[len(square_P) - n_slow :].sum() / square_P.sum())
        return torch.stack(shares)


def add_to(sums: dict[Any, Tensor], key: object, value: Tensor) -> None:
    """Add to one of the sums, which begins with the first value; float64 on the CPU."""
    value = value.cpu().double()
    sums[key] = sums[key] + value if key in sums else value


def stacked(layers: Sequence[Tensor]) -> Tensor:
    """Layers as one float32 array, the smaller ones filled up with NaN."""
    size = [max(sizes) for sizes in zip(*(layer.shape for layer in layers), strict=True)]
    out = torch.full((len(layers), *size), torch.nan)
    for place, layer in zip(out, layers, strict=True):
        place[tuple(slice(n) for n in layer.shape)] = layer
    return out
