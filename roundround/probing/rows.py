"""What single rows of attention look like: where their weight goes, with every frequency and without a band of them.

At most ROWS query rows of each text are looked at, spread over it evenly; state is [layer, head, ...].
Shapes: B batch, T tokens, R sampled rows, K keys, H heads, G key heads, C head channels, P pairs, D distances.

Tested by tests/probing/test_probe.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from roundround.attention.kernels import repeated
from roundround.attention.keys import Keys
from roundround.attention.precision import at_least_float32
from roundround.attention.row_measures import entropy_of_weights, extreme_logits
from roundround.probing.layout import Layout
from roundround.probing.norms import add_to
from roundround.probing.places import (
    FIRST_ROW,
    PLACES,
    labels_of,
    largest_within,
    neighbourhood,
    shares_of,
    sinks,
    votes,
    where_weight_goes,
)
from roundround.softmax.base import AttentionSoftmax

ROWS = 256  # of a text
ELEMENTS = 2**21  # logits at once: 8 MiB of float32, of which a handful of copies are held
MEANS = ("self", "previous", "sink", "other", "other_near", "near", "all")
BANDS = ("none", "fastest", "fast", "slow", "slowest")  # quarters of the pairs, one of them taken away


class SampledRows:
    """Some rows of one text in one call of attention, from which logits and weights are made as they are needed."""

    def __init__(
        self,
        softmax: AttentionSoftmax,
        q_HTC: Tensor,
        k_HKC: Tensor,
        rows_R: Tensor,
        scale: float,
        keys: Keys,
        rows: Mapping[str, Tensor],
    ) -> None:
        self.softmax, self.rows_R, self.scale, self.q_HTC, self.k_HKC = softmax, rows_R, scale, q_HTC, k_HKC
        self.visible_RK = keys.visible_to(rows_R, 0, k_HKC.shape[1])[0, 0]
        self.per_row = {name: value[:, :, rows_R] for name, value in rows.items()}
        self.per_row.setdefault("n_visible", self.visible_RK.sum(-1)[None, None, :, None])

    def queries(self) -> Tensor:
        """Queries times the scale, [H, R, C]."""
        return at_least_float32(self.q_HTC[:, self.rows_R]) * self.scale

    def logits(self) -> Tensor:
        """Of every key, visible or not: [H, R, K]."""
        return self.queries() @ self.k_HKC.mT

    def weights(self, logits_HRK: Tensor) -> Tensor:
        return self.softmax.weights(logits_HRK[None], self.visible_RK, self.per_row)[0]


class RowStatistics:
    """Shares of attention by place, entropy, largest weight and logit spread of each head, and its logits by pair.

    A row's weight is divided into that on itself (`diagonal`), on the token before (`previous`), on the text's first
    token and on any other that most later rows prefer (`sink`), on the one other distance from 2 to FARTHEST that takes
    most on average (`offset`), what the largest remaining weight has beyond that (`semantic`), what the NEAR tokens
    have beyond all these and an even spread (`local`), and the rest (`diffuse`). `labels` says which names a head.
    """

    def __init__(self, n_layers: int, longest: int) -> None:
        self.distances = distances_up_to(longest)
        self.sums: list[dict[str, Tensor]] = [{} for _ in range(n_layers)]

    def add(
        self,
        layout: Layout,
        softmax: AttentionSoftmax,
        q_HTC: Tensor,
        k_GTC: Tensor,
        *,
        scale: float,
        keys: Keys,
        rows: Mapping[str, Tensor],
    ) -> None:
        """Take in one text of one call of attention; `rows` are its row parameters, [1, H, T, 1]."""
        n = q_HTC.shape[1]
        sampled = torch.linspace(0, n - 1, min(n, ROWS)).round().long().to(q_HTC.device)
        blocks = torch.split(sampled, max(1, ELEMENTS // (q_HTC.shape[0] * n)))
        k_HKC = repeated(at_least_float32(k_GTC)[None], q_HTC[None])[0]
        sampled_rows = [SampledRows(softmax, q_HTC, k_HKC, rows_R, scale, keys, rows) for rows_R in blocks]
        counted = [votes(block.weights(block.logits()), block.rows_R, block.visible_RK) for block in sampled_rows]
        votes_HK, seen_K = (torch.stack(parts).sum(0) for parts in zip(*counted, strict=True))
        sink_HK = sinks(votes_HK, seen_K, len(sampled))
        for block in sampled_rows:
            self.add_rows(layout, block, sink_HK, keys)

    def add_rows(self, layout: Layout, block: SampledRows, sink_HK: Tensor, keys: Keys) -> None:
        sums, rows_R = self.sums[block.softmax.shape.layer], block.rows_R
        q_HRC, k_HKC, visible_RK = block.queries(), block.k_HKC, block.visible_RK
        logits_HRK = block.logits()
        late_R = (rows_R >= FIRST_ROW).to(logits_HRK.dtype)
        add_to(sums, "n_rows", late_R.sum())
        for number, band in enumerate(BANDS):
            without = logits_HRK
            if number:
                channels = layout.channels(*quarter(number - 1, layout.n_pairs)).to(q_HRC.device)
                without = logits_HRK - q_HRC[..., channels] @ k_HKC[..., channels].mT
            alpha_HRK = block.weights(without)
            for name, value_HR in where_weight_goes(alpha_HRK, rows_R, visible_RK, sink_HK).items():
                add_to(
                    sums,
                    f"{name}, without {band}",
                    (value_HR * late_R[:, None] if value_HR.ndim == 3 else value_HR * late_R).sum(1),
                )
            if not number:
                add_to(sums, "n_all_rows", torch.tensor(float(len(rows_R))))
                for name, value_HR in extremes(alpha_HRK, logits_HRK, visible_RK).items():
                    add_to(sums, name, value_HR.sum(1))
        self.add_split(sums, layout, q_HRC, k_HKC, rows_R, keys)

    def add_split(
        self, sums: dict[str, Tensor], layout: Layout, q_HRC: Tensor, k_HKC: Tensor, rows_R: Tensor, keys: Keys
    ) -> None:
        """What every pair adds to the logit, by distance: sums [H, P, D] and counts [D]."""
        total_HPD, n_D, first_R = [], [], keys.first_visible(rows_R)
        for distance in self.distances:
            in_reach = rows_R - distance >= first_R
            product = q_HRC[:, in_reach] * k_HKC[:, rows_R[in_reach] - distance]
            total_HPD.append(layout.split(product).sum((1, 3)))
            n_D.append(in_reach.sum())
        add_to(sums, "logit_by_pair", torch.stack(total_HPD, -1))
        add_to(sums, "n_by_distance", torch.stack(n_D))

    def per_row(self, name: str) -> list[Tensor]:
        """Mean over all sampled rows of `entropy`, `largest_weight`, `logit_spread` or `ln_n`: [H] for every layer."""
        return [sums[name] / sums["n_all_rows"] for sums in self.sums]

    def split(self) -> list[Tensor]:
        """Mean contribution of every pair to the logit at each of `distances`: [H, P, D] for every layer.

        NaN at distances that no row has.
        """
        return [sums["logit_by_pair"] / sums["n_by_distance"] for sums in self.sums]

    def places(self, without: str = "none") -> list[Tensor]:
        """Share of each head's weight by place, in the order of PLACES: [H, 7] for every layer.

        `without` names the quarter of the pairs, one of BANDS, whose logits are taken away first.
        """
        return [
            shares_of(self.means(sums, without), self.mean(sums, "apart", without), offset_place(sums))
            for sums in self.sums
        ]

    def neighbourhoods(self, without: str = "none") -> list[Tensor]:
        """Weight of each head on a token and the few before it: [H] for every layer."""
        return [neighbourhood(self.means(sums, without)) for sums in self.sums]

    def labels(self) -> list[list[tuple[str, float]]]:
        """The label of every head, one of PLACES, and the weight behind it: [layer][head]."""
        within = [
            largest_within(self.means(sums, "none"), shares_H7, offset_place(sums))
            for sums, shares_H7 in zip(self.sums, self.places(), strict=True)
        ]
        return [labels_of(*layer) for layer in zip(self.places(), self.neighbourhoods(), within, strict=True)]

    def share_at(self, label: str, without: str = "none") -> list[Tensor]:
        """The weight that `labels` gives as the score of this label: [H] for every layer."""
        if label == "local":
            return self.neighbourhoods(without)
        return [shares_H7[:, PLACES.index(label)] for shares_H7 in self.places(without)]

    def means(self, sums: dict[str, Tensor], without: str) -> dict[str, Tensor]:
        return {name: self.mean(sums, name, without) for name in MEANS}

    def mean(self, sums: dict[str, Tensor], name: str, without: str) -> Tensor:
        return sums[f"{name}, without {without}"] / sums["n_rows"].clamp(min=1)

    def offsets(self) -> list[Tensor]:
        """The distance in tokens, from 2 on, that takes most of each head's weight: [H] for every layer."""
        return [2 + offset_place(sums) for sums in self.sums]


def offset_place(sums: dict[str, Tensor]) -> Tensor:
    """Which of the offsets, from 2 on, takes most of each head's weight, [H]: the same, band or no band."""
    return sums["apart, without none"].argmax(-1)


def distances_up_to(longest: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, ... below `longest` tokens."""
    grid = [0, 1, *sorted({2**i for i in range(1, 24)} | {3 * 2**i for i in range(23)})]
    return [distance for distance in grid if distance < longest]


def quarter(number: int, n_pairs: int) -> tuple[int, int]:
    """First and last pair (exclusive) of a quarter of the pairs, from the fastest."""
    return round(number * n_pairs / 4), round((number + 1) * n_pairs / 4)


def extremes(alpha_HRK: Tensor, logits_HRK: Tensor, visible_RK: Tensor) -> dict[str, Tensor]:
    """Entropy of the weights in nats (made to sum to one first), the largest, and the spread of the visible logits."""
    largest, smallest = extreme_logits(logits_HRK, visible_RK)
    return {
        "entropy": entropy_of_weights(alpha_HRK),
        "largest_weight": alpha_HRK.amax(-1),
        "logit_spread": largest - smallest,
        "ln_n": visible_RK.sum(-1).to(alpha_HRK.dtype).log().expand_as(largest),
    }
