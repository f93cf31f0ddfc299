"""What single rows of attention look like: where their weight goes, with every frequency and without a band of them.

At most ROWS query rows of each text are looked at, spread over it evenly; state is [layer, head, ...].
Shapes: B batch, T tokens, R sampled rows, K keys, H heads, G key heads, C head channels, P pairs, D distances.

Tested by tests/probing/test_probe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows, rows_between
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.row_measures import entropy_of_weights, extreme_logits
from roundround.kernels.sdpa import repeated
from roundround.probing.layout import Layout, add_to
from roundround.probing.probed_model import watching
from roundround.softmax.base import AttentionSoftmax

PLACES = ("diagonal", "previous", "sink", "offset", "semantic", "local", "diffuse")
FIRST_ROW = 4  # earlier rows have too few keys for self, previous and first to be different things
FARTHEST = 32  # tokens: the longest fixed offset that a head is tested for
NEAR = 8  # tokens, the row's own and those before it: the neighbourhood of `local`
SINK_ROWS = 8  # rows that must see a key, and a quarter of all of them, before it can be called a sink


def votes(alpha_HRK: Tensor, rows_R: Tensor, visible_RK: Tensor) -> tuple[Tensor, Tensor]:
    """How many rows prefer each key to all others at least two tokens back, and how many could: [H, K] and [K].

    The first key is left out: it is a sink anyhow.
    """
    distance_RK = rows_R[:, None] - torch.arange(alpha_HRK.shape[-1], device=rows_R.device)
    may_RK = visible_RK & (distance_RK >= 2) & (rows_R >= FIRST_ROW)[:, None]
    may_RK[:, 0] = False
    other_HRK = alpha_HRK.masked_fill(~may_RK, 0.0)
    best = other_HRK.max(-1)
    votes_HK = torch.zeros(alpha_HRK.shape[0], alpha_HRK.shape[-1], device=rows_R.device)
    votes_HK.scatter_add_(-1, best.indices, (best.values > 0).to(votes_HK.dtype))
    return votes_HK, may_RK.sum(0)


def sinks(votes_HK: Tensor, seen_K: Tensor, n_rows: int) -> Tensor:
    """Which keys are sinks, [H, K]: the first, and each that more than half of the rows behind it prefer."""
    sink_HK = (votes_HK > seen_K / 2) & (seen_K >= max(SINK_ROWS, n_rows / 4))
    sink_HK[:, 0] = True
    return sink_HK


def where_weight_goes(alpha_HRK: Tensor, rows_R: Tensor, visible_RK: Tensor, sink_HK: Tensor) -> dict[str, Tensor]:
    """Weight on places, [H, R], and by offset from 2 to FARTHEST, [H, R, offsets]; 0 where there is no such key.

    self, previous: these two tokens, if they are not the first. sink: the first token, and other sinks from two tokens
    on. other: the largest weight on any other key; other_near: the same where that key is within NEAR, else 0. near:
    what the keys within NEAR have beyond what they would have if the rest were spread evenly. all: the whole row.
    """
    n_heads, _, n_keys = alpha_HRK.shape
    distance_RK = rows_R[:, None] - torch.arange(n_keys, device=rows_R.device)
    sunk_HRK = sink_HK[:, None] & ((distance_RK >= 2) | (distance_RK == rows_R[:, None]))
    free_HRK = alpha_HRK.masked_fill(sunk_HRK, 0.0)

    def at(distance: int) -> Tensor:
        place_R = rows_R - distance
        found = free_HRK.gather(-1, place_R.clamp(min=0).expand(n_heads, -1)[..., None])[..., 0]
        return found * (place_R > 0)

    other_HRK = free_HRK.masked_fill(distance_RK < 2, 0.0)
    near_RK = (distance_RK >= 2) & (distance_RK < NEAR)
    largest = other_HRK.max(-1)
    is_near_HR = rows_R - largest.indices < NEAR
    n_near_HR = (near_RK & visible_RK & ~sunk_HRK).sum(-1)
    n_far_HR = ((distance_RK >= NEAR) & visible_RK & ~sunk_HRK).sum(-1)
    near_HR = other_HRK.masked_fill(~near_RK, 0.0).sum(-1)
    evenly_HR = n_near_HR * (other_HRK.sum(-1) - near_HR) / n_far_HR.clamp(min=1)
    return {
        "self": at(0),
        "previous": at(1),
        "sink": (alpha_HRK * sunk_HRK).sum(-1),
        "other": largest.values,
        "other_near": largest.values * is_near_HR,
        "near": (near_HR - evenly_HR) * (n_far_HR > 0),
        "all": alpha_HRK.sum(-1),
        "apart": torch.stack([at(distance) for distance in range(2, FARTHEST + 1)], -1),
    }


def shares_of(mean: dict[str, Tensor], by_offset_HD: Tensor, place_H: Tensor) -> Tensor:
    """Means over rows as shares by PLACES, [H, 7], which add up to the row's weight.

    place_H: which of the offsets, from 2 on, counts as the head's.
    """
    offset_H = by_offset_HD.gather(-1, place_H[:, None])[:, 0]
    semantic_H = (mean["other"] - offset_H).clamp(min=0)
    offset_near_H = offset_H * (place_H + 2 < NEAR)
    counted_H = torch.maximum(mean["other_near"], offset_near_H)  # of the neighbourhood, as offset or semantic
    local_H = (mean["near"] - counted_H).clamp(min=0)
    named = torch.stack([mean["self"], mean["previous"], mean["sink"], offset_H, semantic_H, local_H], -1)
    return torch.cat([named, (mean["all"][:, None] - named.sum(-1, keepdim=True)).clamp(min=0)], -1)


def largest_within(mean: dict[str, Tensor], shares_H7: Tensor, place_H: Tensor) -> Tensor:
    """The largest share of the neighbourhood that any place has, [H]; `offset` and `semantic` count what lies in it.

    place_H: as in `shares_of`.
    """
    share = dict(zip(PLACES, shares_H7.unbind(-1), strict=True))
    offset_near_H = share["offset"] * (place_H + 2 < NEAR)
    semantic_near_H = torch.minimum(share["semantic"], (mean["other_near"] - offset_near_H).clamp(min=0))
    return torch.stack([share["diagonal"], share["previous"], offset_near_H, semantic_near_H]).amax(0)


def labels_of(shares_H7: Tensor, neighbourhood_H: Tensor, within_H: Tensor) -> list[tuple[str, float]]:
    """The label of each head and its score, the weight at that place; of `local` the whole neighbourhood's.

    The largest share names the head; but it is `local` where its neighbourhood has more than any other place and none
    of the places in it, of which `within_H` is the largest, has half of that.
    """
    found = []
    for shares_7, near, within in zip(shares_H7.tolist(), neighbourhood_H.tolist(), within_H.tolist(), strict=True):
        share = dict(zip(PLACES, shares_7, strict=True))
        label = "local" if near > max(shares_7) and within < near / 2 else max(share, key=lambda name: share[name])
        found.append((label, near if label == "local" else share[label]))
    return found


ROWS = 256  # of a text
ELEMENTS = 2**21  # logits at once: 8 MiB of float32; a handful of copies are held
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
        """The logits of every key, visible or not: [H, R, K]."""
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
        grid = [0, 1, *sorted({2**i for i in range(1, 24)} | {3 * 2**i for i in range(23)})]
        self.distances = [distance for distance in grid if distance < longest]  # 0, 1, 2, 3, 4, 6, 8, 12, 16, ...
        self.sums: list[dict[str, Tensor]] = [{} for _ in range(n_layers)]

    def add(
        self,
        place: int,
        layout: Layout,
        softmax: AttentionSoftmax,
        q_HTC: Tensor,
        k_GTC: Tensor,
        *,
        scale: float,
        keys: Keys,
        rows: Mapping[str, Tensor],
    ) -> None:
        """Take in one text of one call of attention, in the layer at this place among the layers.

        rows: its row parameters, [1, H, T, 1].
        """
        n = q_HTC.shape[1]
        sampled = torch.linspace(0, n - 1, min(n, ROWS)).round().long().to(q_HTC.device)
        blocks = torch.split(sampled, max(1, ELEMENTS // (q_HTC.shape[0] * n)))
        k_HKC = repeated(at_least_float32(k_GTC)[None], q_HTC[None])[0]
        sampled_rows = [SampledRows(softmax, q_HTC, k_HKC, rows_R, scale, keys, rows) for rows_R in blocks]
        counted = [votes(block.weights(block.logits()), block.rows_R, block.visible_RK) for block in sampled_rows]
        votes_HK, seen_K = (torch.stack(parts).sum(0) for parts in zip(*counted, strict=True))
        sink_HK = sinks(votes_HK, seen_K, len(sampled))
        for block in sampled_rows:
            self.add_rows(place, layout, block, sink_HK, keys)

    def add_rows(self, place: int, layout: Layout, block: SampledRows, sink_HK: Tensor, keys: Keys) -> None:
        sums, rows_R = self.sums[place], block.rows_R
        q_HRC, k_HKC, visible_RK = block.queries(), block.k_HKC, block.visible_RK
        logits_HRK = block.logits()
        late_R = (rows_R >= FIRST_ROW).to(logits_HRK.dtype)
        add_to(sums, "n_rows", late_R.sum())
        for number, band in enumerate(BANDS):
            without = logits_HRK
            if number:
                first, last = (round(end * layout.n_pairs / 4) for end in (number - 1, number))  # the band's pairs
                channels = layout.channels(first, last).to(q_HRC.device)
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
        """Weight of each head on a token and the few before it: [H] for every layer.

        That is on the token itself and the one before, and what others within NEAR have beyond an even spread.
        """
        means = (self.means(sums, without) for sums in self.sums)
        return [mean["self"] + mean["previous"] + mean["near"].clamp(min=0) for mean in means]

    def labels(self) -> list[list[tuple[str, float]]]:
        """The label of every head, one of PLACES, and the weight behind it: [layer][head]."""
        return [
            labels_of(shares_H7, near_H, largest_within(self.means(sums, "none"), shares_H7, offset_place(sums)))
            for sums, shares_H7, near_H in zip(self.sums, self.places(), self.neighbourhoods(), strict=True)
        ]

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


def extremes(alpha_HRK: Tensor, logits_HRK: Tensor, visible_RK: Tensor) -> dict[str, Tensor]:
    """Entropy of the weights in nats (made to sum to one first), the largest, and the spread of the visible logits."""
    largest, smallest = extreme_logits(logits_HRK, visible_RK)
    return {
        "entropy": entropy_of_weights(alpha_HRK),
        "largest_weight": alpha_HRK.amax(-1),
        "logit_spread": largest - smallest,
        "ln_n": visible_RK.sum(-1).to(alpha_HRK.dtype).log().expand_as(largest),
    }


@torch.no_grad()
def places_of_heads(
    normalisers: Sequence[AttentionSoftmax], read: Callable[[Tensor], object], tokens_BT: Tensor
) -> Tensor:
    """Shares of each head's weight by PLACES, [L, H, 7], whatever the encoding: of all rows while `read` reads texts.

    `RowStatistics` knows the same of RoPE, and which frequencies make it.
    """
    sums: dict[int, dict[str, Tensor]] = {softmax.shape.layer: {} for softmax in normalisers}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        keys, n = options["keys"], qkv[0].shape[2]
        q, k = (at_least_float32(x) for x in qkv[:2])
        logits, visible = logits_of_rows(q, k, options["scale"], keys, options["bias"], 0, n)
        weights = softmax.weights(logits, visible, rows_between(options["rows"], visible, 0, n))
        rows_R = torch.arange(n, device=weights.device)
        for alpha_HRK, visible_RK in zip(weights, visible[:, 0].expand(len(weights), -1, -1), strict=True):
            sink_HK = sinks(*votes(alpha_HRK, rows_R, visible_RK), n)
            for name, value in where_weight_goes(alpha_HRK, rows_R, visible_RK, sink_HK).items():
                add_to(sums[softmax.shape.layer], name, value[:, FIRST_ROW:].mean(1) / len(weights))

    with watching(normalisers, take_in):
        read(tokens_BT)
    return torch.stack([shares_of(mean, mean["apart"], mean["apart"].argmax(-1)) for mean in sums.values()])
