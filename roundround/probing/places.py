"""Where the weight of a row of attention goes, and what a head is called by that.

Shapes: R sampled rows, K keys, H heads.

Tested by tests/probing/test_probe.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


def neighbourhood(mean: dict[str, Tensor]) -> Tensor:
    """Weight on the token itself and the one before, and what others within NEAR have beyond an even spread: [H]."""
    return mean["self"] + mean["previous"] + mean["near"].clamp(min=0)


def largest_within(mean: dict[str, Tensor], shares_H7: Tensor, place_H: Tensor) -> Tensor:
    """The most that any place has of the neighbourhood, [H]: of `offset` and `semantic` only what lies in it.

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
