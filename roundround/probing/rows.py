"""What single rows of attention look like: where their weight goes, with every frequency and without a band of them.

At most ROWS query rows of each text are looked at, spread over it evenly; state is [layer, head, ...].
Shapes: B batch, T tokens, R sampled rows, K keys, H heads, G key heads, C head channels, P pairs, D distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from roundround.attention.kernels import repeated
from roundround.attention.keys import Keys
from roundround.attention.precision import at_least_float32
from roundround.attention.row_measures import entropy_of_weights, extreme_logits
from roundround.probing.layout import Layout
from roundround.softmax.base import AttentionSoftmax

ROWS = 256  # of a text
FIRST_ROW = 4  # earlier rows have too few keys for self, previous and first to be different things
FARTHEST = 32  # tokens: the longest fixed offset that a head is tested for
ELEMENTS = 2**21  # logits at once: 8 MiB of float32, of which a handful of copies are held
BANDS = ("none", "fastest", "fast", "slow", "slowest")  # quarters of the pairs, one of them taken away
PLACES = ("diagonal", "previous", "first", "offset", "semantic", "diffuse")


class RowStatistics:
    """Shares of attention by place, entropy, largest weight and logit spread of each head, and its logits by pair.

    A row's weight is divided into that on itself (`diagonal`), on the token before (`previous`), on the text's first
    token (`first`), on the one other distance from 2 to FARTHEST that takes most on average (`offset`), what the
    largest remaining weight has beyond that (`semantic`), and the rest (`diffuse`); a head is labelled by the largest.
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
        sampled = torch.linspace(0, n - 1, min(n, ROWS)).round().long()
        at_once = max(1, ELEMENTS // (q_HTC.shape[0] * n))
        for rows_R in torch.split(sampled, at_once):
            self.add_rows(layout, softmax, q_HTC, k_GTC, rows_R.to(q_HTC.device), scale, keys, rows)

    def add_rows(
        self,
        layout: Layout,
        softmax: AttentionSoftmax,
        q_HTC: Tensor,
        k_GTC: Tensor,
        rows_R: Tensor,
        scale: float,
        keys: Keys,
        rows: Mapping[str, Tensor],
    ) -> None:
        sums, n_keys = self.sums[softmax.shape.layer], k_GTC.shape[1]
        q_HRC = at_least_float32(q_HTC[:, rows_R]) * scale
        k_HKC = repeated(at_least_float32(k_GTC)[None], q_HTC[None])[0]
        visible_RK = keys.visible_to(rows_R, 0, n_keys)[0, 0]
        per_row = {name: value[:, :, rows_R] for name, value in rows.items()}
        per_row["n_visible"] = visible_RK.sum(-1)[None, None, :, None]
        logits_HRK = q_HRC @ k_HKC.mT
        late_R = (rows_R >= FIRST_ROW).to(logits_HRK.dtype)
        add_to(sums, "n_rows", late_R.sum())
        for number, band in enumerate(BANDS):
            without = logits_HRK
            if number:
                channels = layout.channels(*quarter(number - 1, layout.n_pairs)).to(q_HRC.device)
                without = logits_HRK - q_HRC[..., channels] @ k_HKC[..., channels].mT
            alpha_HRK = softmax.weights(without[None], visible_RK, per_row)[0]
            for name, value_HR in where_weight_goes(alpha_HRK, rows_R).items():
                add_to(
                    sums,
                    f"{name}, without {band}",
                    (value_HR * late_R[:, None] if value_HR.ndim == 3 else value_HR * late_R).sum(1),
                )
            if not number:
                add_to(sums, "n_all_rows", torch.tensor(float(len(rows_R))))
                for name, value_HR in extremes(alpha_HRK, logits_HRK, visible_RK).items():
                    add_to(sums, name, value_HR.sum(1))
        self.add_split(sums, layout, q_HRC, k_HKC, rows_R, keys.window)

    def add_split(
        self, sums: dict[str, Tensor], layout: Layout, q_HRC: Tensor, k_HKC: Tensor, rows_R: Tensor, window: int | None
    ) -> None:
        """What every pair adds to the logit, by distance: sums [H, P, D] and counts [D]."""
        total_HPD, n_D = [], []
        for distance in self.distances:
            in_reach = rows_R >= distance if window is None or distance < window else torch.zeros_like(rows_R).bool()
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
        """Share of each head's weight by place, in the order of PLACES: [H, 6] for every layer.

        `without` names the quarter of the pairs, one of BANDS, whose logits are taken away first.
        """
        return [self.places_of(sums, without) for sums in self.sums]

    def places_of(self, sums: dict[str, Tensor], without: str) -> Tensor:
        n = sums["n_rows"].clamp(min=1)
        mean = {name: sums[f"{name}, without {without}"] / n for name in ("self", "previous", "first", "other", "all")}
        by_offset_HD, own_HD = sums[f"apart, without {without}"] / n, sums["apart, without none"]
        offset_H = by_offset_HD.gather(-1, own_HD.argmax(-1, keepdim=True))[:, 0]  # the same one, band or no band
        semantic_H = (mean["other"] - offset_H).clamp(min=0)
        named = torch.stack([mean["self"], mean["previous"], mean["first"], offset_H, semantic_H], -1)
        return torch.cat([named, (mean["all"][:, None] - named.sum(-1, keepdim=True)).clamp(min=0)], -1)

    def offsets(self) -> list[Tensor]:
        """The distance in tokens, from 2 on, that takes most of each head's weight: [H] for every layer."""
        return [2 + sums["apart, without none"].argmax(-1) for sums in self.sums]


def distances_up_to(longest: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, ... below `longest` tokens."""
    grid = [0, 1, *sorted({2**i for i in range(1, 24)} | {3 * 2**i for i in range(23)})]
    return [distance for distance in grid if distance < longest]


def quarter(number: int, n_pairs: int) -> tuple[int, int]:
    """First and last pair (exclusive) of a quarter of the pairs, from the fastest."""
    return round(number * n_pairs / 4), round((number + 1) * n_pairs / 4)


def where_weight_goes(alpha_HRK: Tensor, rows_R: Tensor) -> dict[str, Tensor]:
    """Weight on places, [H, R], and by offset from 2 to FARTHEST, [H, R, offsets]; 0 where there is no such key."""

    def at(distance: int) -> Tensor:
        place_R = rows_R - distance
        found = alpha_HRK.gather(-1, place_R.clamp(min=0).expand(alpha_HRK.shape[0], -1)[..., None])[..., 0]
        return found * (place_R > 0)

    other = alpha_HRK.clone()
    other[..., 0] = 0
    for distance in (0, 1):
        place_R1 = (rows_R - distance).clamp(min=0)[:, None].expand(alpha_HRK.shape[0], -1, 1)
        other.scatter_(-1, place_R1, 0.0)
    return {
        "self": at(0),
        "previous": at(1),
        "first": alpha_HRK[..., 0],
        "other": other.amax(-1),
        "all": alpha_HRK.sum(-1),
        "apart": torch.stack([at(distance) for distance in range(2, FARTHEST + 1)], -1),
    }


def extremes(alpha_HRK: Tensor, logits_HRK: Tensor, visible_RK: Tensor) -> dict[str, Tensor]:
    """Entropy of the weights in nats (made to sum to one first), the largest, and the spread of the visible logits."""
    largest, smallest = extreme_logits(logits_HRK, visible_RK)
    return {
        "entropy": entropy_of_weights(alpha_HRK),
        "largest_weight": alpha_HRK.amax(-1),
        "logit_spread": largest - smallest,
        "ln_n": visible_RK.sum(-1).to(alpha_HRK.dtype).log().expand_as(largest),
    }


def add_to(sums: dict[str, Any], name: str, value: Tensor) -> None:
    value = value.cpu().double()
    sums[name] = sums[name] + value if name in sums else value
