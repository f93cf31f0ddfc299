"""To which keys attention rows give their weight, with all frequencies and with one band of frequencies taken away.

A probe measures at most ROWS query rows of each text, spread evenly over the text, and all rows of a short prompt. It
keeps sums, [layer, head, ...]. While a model trains, at most BLOCKS * BLOCK_ROWS rows of one text are measured.
`entropy_by_length` asks the model for the largest number in lists of growing length, after Velickovic et al. 2024,
arXiv:2410.01104, figure 3. The paper does not print its prompt; ours is in `texts`.
Shapes: L layers, B batch, T tokens, Q queries, R sampled rows, K keys, H heads, G key heads, C head channels, P pairs,
D distances.

Tested by tests/probing/test_probe.py, tests/training/test_telemetry.py and tests/test_api.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from roundround.distributed.device import check_fits
from roundround.kernels.blocks import logits_of_rows, rows_between
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.row_measures import (
    entropy_of_weights,
    extreme_logits,
    gap_ratios,
    ordered_logits,
)
from roundround.kernels.sdpa import repeated
from roundround.model.decoder import Decoder
from roundround.probing.dispersion import OF_GAPS
from roundround.probing.layout import Layout, add_to, stacked
from roundround.probing.probed_model import ObservedModel, run, watching
from roundround.probing.texts import maximum_prompt
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError

PLACES = ("diagonal", "previous", "sink", "offset", "semantic", "local", "diffuse")
FIRST_ROW = 4  # earlier rows have too few keys: their own token, the one before and the first may coincide
FARTHEST = 32  # tokens: the longest fixed offset that a head is tested for
NEAR = 8  # tokens: the neighbourhood of `local`, which is the row's own token and the 7 before it
SINK_ROWS = 8  # a key can be a sink only if at least this many rows, and a quarter of all rows, could prefer it


def votes(alpha_HRK: Tensor, rows_R: Tensor, visible_RK: Tensor) -> tuple[Tensor, Tensor]:
    """The number of rows that prefer each key, [H, K], and the number of rows that could prefer it, [K].

    A row could prefer the visible keys at least two tokens before it, except the first key, which always counts as a
    sink. The row prefers the one of these keys with the largest weight. Rows before FIRST_ROW do not count.
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
    """True at the sinks, [H, K].

    Sinks are the first key, and each key that enough rows could prefer and more than half of these rows do prefer.
    """
    sink_HK = (votes_HK > seen_K / 2) & (seen_K >= max(SINK_ROWS, n_rows / 4))
    sink_HK[:, 0] = True
    return sink_HK


def where_weight_goes(alpha_HRK: Tensor, rows_R: Tensor, visible_RK: Tensor, sink_HK: Tensor) -> dict[str, Tensor]:
    """The parts of the weight of each row, [H, R] each; `apart` is [H, R, offsets].

    self: the weight on the row's own token, 0 if this token is a sink. previous: the weight on the token before the
    row's own, 0 if this is the first token. sink: the weight on all sinks except the token before the row's own. all:
    the sum of all weights of the row.

    The other four consider only keys that are no sinks and lie at least two tokens before the row. other: the largest
    weight on one key. other_near: the same weight if this key is less than NEAR tokens before the row, else 0. near:
    the weight on the keys less than NEAR tokens before the row, minus the weight that they would have if each had the
    mean weight of the farther keys. apart: the weight at each offset from 2 to FARTHEST, 0 if no key is there.
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
    """The weight at each of PLACES, [H, 7], from means over rows; the seven add up to the whole weight of a row.

    mean: the mean of each result of `where_weight_goes`, [H]. by_offset_HD: the mean of `apart`. place_H: for each
    head, the index of the offset that the place `offset` stands for; index 0 is an offset of 2 tokens.
    """
    offset_H = by_offset_HD.gather(-1, place_H[:, None])[:, 0]
    semantic_H = (mean["other"] - offset_H).clamp(min=0)
    offset_near_H = offset_H * (place_H + 2 < NEAR)
    counted_H = torch.maximum(mean["other_near"], offset_near_H)  # already in offset or semantic
    local_H = (mean["near"] - counted_H).clamp(min=0)
    named = torch.stack([mean["self"], mean["previous"], mean["sink"], offset_H, semantic_H, local_H], -1)
    return torch.cat([named, (mean["all"][:, None] - named.sum(-1, keepdim=True)).clamp(min=0)], -1)


def labels_of(
    mean: dict[str, Tensor], shares_H7: Tensor, neighbourhood_H: Tensor, place_H: Tensor
) -> list[tuple[str, float]]:
    """The label of each head, which is one of PLACES, and its score, which is the weight at that place.

    The place with the largest share names the head, with one exception. A head is `local` if its neighbourhood (see
    `RowStatistics.neighbourhoods`) has more weight than every place, and none of four parts has half of this weight:
    diagonal, previous, and the weight of offset and of semantic if their keys are less than NEAR tokens before the
    row. The score is then the weight of the neighbourhood. place_H: as in `shares_of`.
    """
    share_H = dict(zip(PLACES, shares_H7.unbind(-1), strict=True))
    offset_near_H = share_H["offset"] * (place_H + 2 < NEAR)
    semantic_near_H = torch.minimum(share_H["semantic"], (mean["other_near"] - offset_near_H).clamp(min=0))
    within_H = torch.stack([share_H["diagonal"], share_H["previous"], offset_near_H, semantic_near_H]).amax(0)
    found = []
    for shares_7, near, within in zip(shares_H7.tolist(), neighbourhood_H.tolist(), within_H.tolist(), strict=True):
        share = dict(zip(PLACES, shares_7, strict=True))
        label = "local" if near > max(shares_7) and within < near / 2 else max(share, key=lambda name: share[name])
        found.append((label, near if label == "local" else share[label]))
    return found


ROWS = 256  # sampled from each text, at most
ELEMENTS = 2**21  # logits computed at once: 8 MiB of float32; memory holds a handful of copies
MEANS = ("self", "previous", "sink", "other", "other_near", "near", "all")
BANDS = ("none", "fastest", "fast", "slow", "slowest")  # the quarter of the pairs that is taken away
Change = Callable[[Tensor, Tensor], Tensor]  # the logits [H, R, K] of the rows [R], as the encoding changes them


def unchanged(logits_HRK: Tensor, rows_R: Tensor) -> Tensor:
    """The logits as they are: the `Change` of an encoding that leaves them alone."""
    return logits_HRK


class RowStatistics:
    """For each head: shares of weight by place, measures of rows (`per_row`), and logits by channel pair.

    The weight of a row is divided among PLACES. diagonal: the row's own token. previous: the token before it. sink: the
    first token of the text, and any other token that most later rows prefer. offset: the one distance from 2 to
    FARTHEST with most weight on average. semantic: the largest weight on one key that is no sink and lies at least two
    tokens before the row, minus the weight of `offset`. local: `near` of `where_weight_goes`, minus the part of it that
    `offset` and `semantic` contain. diffuse: the rest. `labels_of` describes which place names a head.
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
        change: Change = unchanged,
    ) -> None:
        """Add the sampled rows of one text to the sums of a layer.

        place: the index of the layer in `sums`. rows: the row parameters of the text, [1, H, T, 1].
        """
        n = q_HTC.shape[1]
        sampled = torch.linspace(0, n - 1, min(n, ROWS)).round().long().to(q_HTC.device)
        k_HKC = repeated(at_least_float32(k_GTC)[None], q_HTC[None])[0]

        def weights(logits_HRK: Tensor, rows_R: Tensor, visible_RK: Tensor) -> Tensor:
            per_row = {name: value[:, :, rows_R] for name, value in rows.items()}
            per_row.setdefault("n_visible", visible_RK.sum(-1)[None, None, :, None])
            return softmax.weights(change(logits_HRK, rows_R)[None], visible_RK, per_row)[0]

        blocks, counted = [], []
        for rows_R in torch.split(sampled, max(1, ELEMENTS // (q_HTC.shape[0] * n))):
            q_HRC, visible_RK = at_least_float32(q_HTC[:, rows_R]) * scale, keys.visible_to(rows_R, 0, n)[0, 0]
            blocks.append((q_HRC, rows_R, visible_RK))
            alpha_HRK = weights(q_HRC @ k_HKC.mT, rows_R, visible_RK)
            counted.append(votes(alpha_HRK, rows_R, visible_RK))
        votes_HK, seen_K = (torch.stack(parts).sum(0) for parts in zip(*counted, strict=True))
        sink_HK = sinks(votes_HK, seen_K, len(sampled))
        for q_HRC, rows_R, visible_RK in blocks:  # computes logits and weights again, which are too large to keep
            own = partial(weights, rows_R=rows_R, visible_RK=visible_RK)
            args = (q_HRC, k_HKC, rows_R, visible_RK, keys.first_visible(rows_R), sink_HK)
            self.add_rows(self.sums[place], layout, own, change, *args)

    def add_rows(
        self,
        sums: dict[str, Tensor],
        layout: Layout,
        weights: Callable[[Tensor], Tensor],
        change: Change,
        q_HRC: Tensor,
        k_HKC: Tensor,
        rows_R: Tensor,
        visible_RK: Tensor,
        first_R: Tensor,
        sink_HK: Tensor,
    ) -> None:
        """Add some rows to the sums. q_HRC: scaled queries. k_HKC: all keys. weights: the weights for q . k."""
        product_HRK = q_HRC @ k_HKC.mT
        logits_HRK, late_R = change(product_HRK, rows_R), (rows_R >= FIRST_ROW).to(product_HRK.dtype)
        add_to(sums, "n_rows", late_R.sum())
        for number, band in enumerate(BANDS):
            without = product_HRK
            if number:
                first, last = (round(end * layout.n_pairs / 4) for end in (number - 1, number))  # the band's pairs
                channels = layout.channels(first, last).to(q_HRC.device)
                without = product_HRK - q_HRC[..., channels] @ k_HKC[..., channels].mT
            alpha_HRK = weights(without)
            for name, value_HR in where_weight_goes(alpha_HRK, rows_R, visible_RK, sink_HK).items():
                late = late_R[:, None] if value_HR.ndim == 3 else late_R
                add_to(sums, f"{name}, without {band}", (value_HR * late).sum(1))
            if not number:
                add_to(sums, "n_all_rows", torch.tensor(float(len(rows_R))))
                ordered_HRK, n_R = ordered_logits(logits_HRK, visible_RK), visible_RK.sum(-1)
                largest_HR, smallest_HR = extreme_logits(logits_HRK, visible_RK)
                ln_n_HR = n_R.to(alpha_HRK.dtype).log().expand_as(largest_HR)
                own_HR = gap_ratios(ordered_logits(alpha_HRK.log(), visible_RK)).amin(-1)  # with the row's temperature
                add_to(sums, "entropy", entropy_of_weights(alpha_HRK).sum(1))  # nats, of weights that sum to one
                add_to(sums, "largest_weight", alpha_HRK.amax(-1).sum(1))
                add_to(sums, "logit_spread", (largest_HR - smallest_HR).sum(1))  # of visible keys
                add_to(sums, "ln_n", ln_n_HR.sum(1))
                add_to(sums, "gap_counting", gap_ratios(ordered_HRK).amin(-1).where(n_R > 1, 0.0).sum(1))
                add_to(sums, "collapsed", ((own_HR > 1) & (n_R > 1)).sum(1))
                add_to(sums, "n_of_gaps", (n_R > 1).sum())
        if layout.is_mixed:
            channels = layout.rotated_channels.to(q_HRC.device)
            rotated_HRK = q_HRC[..., channels] @ k_HKC[..., channels].mT
            n_R1 = visible_RK.sum(-1, keepdim=True)
            both = [x.masked_fill(~visible_RK, 0.0) for x in (rotated_HRK, logits_HRK)]
            rotated_HRK, whole_HRK = ((x - x.sum(-1, keepdim=True) / n_R1) * visible_RK for x in both)
            for name, factor_HRK in (("covariance", rotated_HRK), ("variance", whole_HRK)):
                add_to(sums, name, (factor_HRK * whole_HRK / n_R1).sum((1, 2)))
        total_HPD, n_D = [], []
        for distance in self.distances:  # sums the contribution of each pair to the logit
            in_reach = rows_R - distance >= first_R
            product = q_HRC[:, in_reach] * k_HKC[:, rows_R[in_reach] - distance]
            total_HPD.append(layout.split(product).sum((1, 3)))
            n_D.append(in_reach.sum())
        add_to(sums, "logit_by_pair", torch.stack(total_HPD, -1))
        add_to(sums, "n_by_distance", torch.stack(n_D))

    def per_row(self, name: str) -> list[Tensor]:
        """Mean of a measure over all sampled rows that have it: [H] for every layer.

        name: `entropy`, `largest_weight`, `logit_spread`, `ln_n`, `gap_counting` or `collapsed`.
        """
        means = [sums[name] / sums["n_of_gaps" if name in OF_GAPS else "n_all_rows"] for sums in self.sums]
        return [1 / mean_H for mean_H in means] if name == "gap_counting" else means

    def split(self) -> list[Tensor]:
        """Mean contribution of every pair to the logit at each of `distances`: [H, P, D] for every layer.

        NaN at distances at which no row sees a key.
        """
        return [sums["logit_by_pair"] / sums["n_by_distance"] for sums in self.sums]

    def rotated_shares(self) -> list[Tensor]:
        """The share of the pairs that rotate in the variance of a row's logits over its visible keys: [H] a layer.

        It is Cov(r, e) / Var(e), where r is what these pairs add to the logit e. The shares of all parts add up to 1; a
        part that works against the others has a negative share. NaN for a layer whose pairs all rotate, or all rest.
        """
        none = [torch.full_like(sums["entropy"], torch.nan) for sums in self.sums]
        return [
            sums["covariance"] / sums["variance"] if "variance" in sums else nan
            for sums, nan in zip(self.sums, none, strict=True)
        ]

    def places(self, without: str = "none") -> list[Tensor]:
        """The share of each head's weight at each of PLACES: [H, 7] for every layer.

        without: one of BANDS, the quarter of the pairs whose contribution is first subtracted from the logits.
        """
        return [
            shares_of(self.means(sums, without), self.mean(sums, "apart", without), offset_place(sums))
            for sums in self.sums
        ]

    def neighbourhoods(self, without: str = "none") -> list[Tensor]:
        """Weight of each head on its neighbourhood: [H] for every layer.

        This is the weight on the row's own token and on the token before it, plus `near` of `where_weight_goes`.
        """
        means = (self.means(sums, without) for sums in self.sums)
        return [mean["self"] + mean["previous"] + mean["near"].clamp(min=0) for mean in means]

    def labels(self) -> list[list[tuple[str, float]]]:
        """The label and the score of every head, as `labels_of` describes them: [layer][head]."""
        return [
            labels_of(self.means(sums, "none"), shares_H7, near_H, offset_place(sums))
            for sums, shares_H7, near_H in zip(self.sums, self.places(), self.neighbourhoods(), strict=True)
        ]

    def share_at(self, label: str, without: str = "none") -> list[Tensor]:
        """The weight of every head at the place `label`, also of heads with other labels: [H] for every layer.

        For `local`, this is the weight of the whole neighbourhood, as in `labels`. without: as in `places`.
        """
        if label == "local":
            return self.neighbourhoods(without)
        return [shares_H7[:, PLACES.index(label)] for shares_H7 in self.places(without)]

    def means(self, sums: dict[str, Tensor], without: str) -> dict[str, Tensor]:
        return {name: self.mean(sums, name, without) for name in MEANS}

    def mean(self, sums: dict[str, Tensor], name: str, without: str) -> Tensor:
        return sums[f"{name}, without {without}"] / sums["n_rows"].clamp(min=1)

    def offsets(self) -> list[Tensor]:
        """The offset in tokens, from 2 to FARTHEST, with most of each head's weight: [H] for every layer."""
        return [2 + offset_place(sums) for sums in self.sums]


def offset_place(sums: dict[str, Tensor]) -> Tensor:
    """The index of the offset with most of each head's weight, [H]; index 0 is an offset of 2 tokens.

    No band is taken away.
    """
    return sums["apart, without none"].argmax(-1)


@torch.no_grad()
def places_of_heads(
    normalisers: Sequence[AttentionSoftmax], read: Callable[[Tensor], object], tokens_BT: Tensor
) -> Tensor:
    """The share of each head's weight at each of PLACES, [L, H, 7], over all rows of the texts.

    read: a function that puts `tokens_BT` through the model. This works with any encoding. `RowStatistics` needs RoPE,
    and also shows how the shares depend on frequencies.
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


# -- a prompt, token by token

LONGEST = 256  # tokens of a prompt at most, because every logit and weight is kept


@dataclass(frozen=True)
class LayerRecord:
    """What one layer does with a prompt.

    query_norms, key_norms: the norms of each channel pair, [H, T, P] and [G, T, P]. logits: the scaled logits,
    [H, T, T], NaN for a key that the row does not see. weights: the weights of attention, [H, T, T].
    """

    query_norms: Tensor
    key_norms: Tensor
    logits: Tensor
    weights: Tensor
    bound: Tensor  # |scale| |q_i| |k_j|, which no logit without bias exceeds (Cauchy-Schwarz), [H, T, T]


@dataclass(frozen=True)
class PromptRecord:
    """The tokens of a prompt as words, and the record of each layer by the layer's number."""

    words: list[str]
    layers: dict[int, LayerRecord]

    def alignment(self, layer: int, head: int) -> dict[str, list[float | None]]:
        """A head's logits of each token on itself and on the token before it, with the upper bounds of these logits.

        Barbero et al. 2024, arXiv:2410.06205, tables 3 to 5. diagonal: the logit of query t on key t. bound: the upper
        bound of `diagonal`, |scale| |q_t| |k_t|. previous: the logit of query t on key t - 1. bound_previous: the upper
        bound of `previous`. next: the logit of query t + 1 on key t. The paper leaves open whether its column for the
        previous token shows `previous` or `next`.
        """
        record = self.layers[layer]
        logits, bound = record.logits[head], record.bound[head]
        below, bound_below = logits.diagonal(-1).tolist(), bound.diagonal(-1).tolist()
        return {
            "bound": bound.diagonal().tolist(),
            "diagonal": logits.diagonal().tolist(),
            "previous": [None, *below],
            "bound_previous": [None, *bound_below],
            "next": [*below, None],
        }

    def arrays(self) -> dict[str, Tensor]:
        """The fields of `LayerRecord`, float32: query_norms [L, H, T, P]; key_norms [L, G, T, P]; logits, weights and
        bound [L, H, T, T].
        """
        names = ("query_norms", "key_norms", "logits", "weights", "bound")
        numbers, records = list(self.layers), self.layers.values()
        return {name: stacked([getattr(record, name) for record in records], numbers) for name in names}


def record_layer(
    softmax: AttentionSoftmax,
    layout: Layout,
    q_HTC: Tensor,
    k_GTC: Tensor,
    *,
    scale: float,
    keys: Keys,
    rows: Mapping[str, Tensor],
    change: Change = unchanged,
) -> LayerRecord:
    """What a layer does with the prompt; `rows` are the row parameters of the prompt, [1, H, T, 1]."""
    n = q_HTC.shape[1]
    q, k = at_least_float32(q_HTC)[None], at_least_float32(k_GTC)[None]
    logits, visible = logits_of_rows(q, k, scale, keys, None, 0, n)
    logits = change(logits[0], torch.arange(n))[None]
    weights = softmax.weights(logits, visible, rows_between(rows, visible, 0, n))
    lengths = q.norm(dim=-1)[..., None] * repeated(k, q).norm(dim=-1)[..., None, :] * abs(scale)
    found = (layout.norms(q), layout.norms(k), logits.masked_fill(~visible, torch.nan), weights, lengths)
    return LayerRecord(*(x[0].float().cpu() for x in found))


N_ELEMENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
N_LISTS = 4  # lists of each length; their entropies are averaged


@torch.no_grad()
def entropy_by_length(
    probed: ObservedModel, n_elements: Sequence[int] = N_ELEMENTS, n_lists: int = N_LISTS
) -> dict[int, list[Tensor]]:
    """For each number of listed elements, the entropy of the prompt's last row in nats: [H] for every layer.

    The entropy is the mean over `n_lists` lists. If a prompt is longer than the model's context, this number of
    elements and all larger ones are left out. Raises UserError if none is left.
    """
    found = {}
    for n in n_elements:
        prompts = [probed.tokens(maximum_prompt(n, seed)) for seed in range(n_lists)]
        if max(map(len, prompts)) > probed.longest:
            break
        rows = [last_row_entropy(probed, prompt) for prompt in prompts]
        found[n] = [torch.stack(layer).mean(0) for layer in zip(*rows, strict=True)]
    if not found:
        raise UserError(f"{probed.name} has a context of {probed.longest} tokens, too short for prompt=maximum")
    return found


def last_row(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> Tensor:
    """Weights [B, H, K] of the last query in a call that `watching` reports, over the K keys that the query sees."""
    keys = options["keys"]
    a, b = keys.n_queries - 1, keys.n_queries
    logits, visible = logits_of_rows(qkv[0], qkv[1], options["scale"], keys, options["bias"], a, b)
    return softmax.weights(logits, visible, rows_between(options["rows"], visible, a, b))[:, :, 0]


def last_row_entropy(probed: ObservedModel, tokens: Sequence[int]) -> list[Tensor]:
    """Entropy of each head's last row, [H] for every layer, in nats."""
    entropies: dict[int, Tensor] = {}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        entropies[softmax.shape.layer] = entropy_of_weights(last_row(softmax, qkv, options))[0].cpu().double()

    with watching(probed.normalisers, take_in):
        run(probed, [(tokens, None)])
    return [entropies[layer] for layer in sorted(entropies)]


# -- while a model trains

BLOCKS, BLOCK_ROWS = 8, 32  # blocks spread evenly over the text, and rows in each block


@torch.no_grad()
def attention_statistics(decoder: Decoder, tokens_1T: Tensor, *, step: Any) -> dict[str, float]:
    """Three numbers for each layer, each over all heads and at most BLOCKS * BLOCK_ROWS rows of a text.

    Each name ends with the number of the layer. largest_logit: the largest value of scale q . k plus bias on a visible
    key, before any temperature. attention_entropy: the mean entropy of the rows in nats; the weights of a row are first
    divided by their sum. first_token_share: the mean weight on the text's first token, over all rows except the first
    row; a row from which a window hides this token counts as 0. step: the optimizer step.
    """
    found: dict[str, float] = {}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        q_BHQC, k_BGKC, keys, rows = qkv[0], qkv[1], options["keys"], options["rows"]
        largest, entropies, shares = [], [], []
        for a, b in spread_blocks(keys.n_queries):
            logits, visible = logits_of_rows(q_BHQC, k_BGKC, options["scale"], keys, options["bias"], a, b)
            logits = at_least_float32(logits)
            alpha_BHQK = softmax.weights(logits, visible, rows_between(rows, visible, a, b))
            largest.append(extreme_logits(logits, visible)[0].amax())
            entropies.append(entropy_of_weights(alpha_BHQK).flatten())
            first = alpha_BHQK[..., 0] if keys.span(a, b)[0] == 0 else torch.zeros_like(alpha_BHQK[..., 0])
            shares.append(first[..., 1 if a == 0 else 0 :].flatten())
        numbers = {
            "largest_logit": torch.stack(largest).amax(),
            "attention_entropy": torch.cat(entropies).mean(),
            "first_token_share": torch.cat(shares).mean(),
        }
        found.update({f"{name}_layer_{softmax.shape.layer}": float(value) for name, value in numbers.items()})

    with watching([module for module in decoder.modules() if isinstance(module, AttentionSoftmax)], take_in):
        decoder.hidden(tokens_1T, step=step)
    return found


def spread_blocks(n: int) -> list[tuple[int, int]]:
    """The first row and the end of each block: BLOCKS blocks of BLOCK_ROWS rows, spread evenly over n rows.

    If n is not larger than BLOCKS * BLOCK_ROWS, all rows are one block.
    """
    if n <= BLOCKS * BLOCK_ROWS:
        return [(0, n)]
    return [(a := round(i * (n - BLOCK_ROWS) / (BLOCKS - 1)), a + BLOCK_ROWS) for i in range(BLOCKS)]


# -- every weight of a text


@dataclass(frozen=True, repr=False, eq=False)
class AttentionWeights:
    """Weights `[layer][head]` of one text, each [Q, K] on the CPU, at least float32.

    name: the name of the model. words: the text of each token. tokens: the ids of the tokens. layers: the weights of
    each layer with attention, [H, Q, K]. numbers: the index of each of these layers in the model.
    """

    name: str
    words: list[str]
    tokens: list[int]
    layers: list[Tensor]
    numbers: list[int]

    def __getitem__(self, layer: int) -> Tensor:
        if layer >= 0 and layer not in self.numbers:
            raise IndexError(f"layer {layer} of {self.name} has no attention; layers with attention: {self.numbers}")
        return self.layers[layer if layer < 0 else self.numbers.index(layer)]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.layers)

    def __repr__(self) -> str:
        n_heads = max(map(len, self.layers))
        return f"attention of {self.name}: {len(self)} layers, {n_heads} heads, {len(self.tokens)} tokens"


@torch.no_grad()
def weights_of_layers(normalisers: Sequence[AttentionSoftmax], forward: Callable[[], object]) -> list[Tensor]:
    """The weights of each layer in a forward pass over one text, [H, Q, K]; later passes are ignored.

    Raises UserError if they do not fit into memory.
    """
    found: dict[int, Tensor] = {}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        if softmax.shape.layer not in found:
            _, n_heads, n_tokens, _ = qkv[0].shape
            n_bytes = 4 * (len(normalisers) - len(found)) * n_heads * n_tokens**2
            check_fits(n_bytes, torch.device("cpu"), f"attention over {n_tokens:,} tokens", "give a shorter text")
            found[softmax.shape.layer] = softmax.all_weights(qkv[0], qkv[1], **options)[0].cpu()

    with watching(normalisers, take_in):
        forward()
    return [found[layer] for layer in sorted(found)]
