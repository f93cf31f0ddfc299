"""The relative bias of T5."""

from __future__ import annotations

import math
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.bias import Bias, ScoreMod, at_each, relative_positions
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.pe.base import PositionalEncoding


def bucket(distance: Tensor, n_buckets: int, max_distance: int) -> Tensor:
    """Bucket of each distance (tokens, int64, 0 or above): first one bucket for each distance, then wider buckets.

    The last bucket has no upper end. The float32 operations and their order are those of Hugging Face's T5 with
    `bidirectional=False`, so that the buckets have the same edges.
    """
    n_exact = n_buckets // 2
    octaves = torch.log(distance.clamp(min=n_exact).float() / n_exact) / math.log(max_distance / n_exact)
    wide = n_exact + (octaves * (n_buckets - n_exact)).long()
    return torch.where(distance < n_exact, distance, wide.clamp(max=n_buckets - 1))


class BucketBias(Bias):
    """A bias from a table with one row for each bucket of distances; future keys count as distance 0."""

    of_distance = True

    def __init__(self, table_NH: Tensor, max_distance: int) -> None:
        self.table_NH = table_NH
        self.max_distance = max_distance

    def by_distance(self, distances_N: Tensor) -> Tensor:
        return F.embedding(self.bucket_of(distances_N), self.table_NH).mT

    def block(self, keys: Keys, a: int, b: int) -> Tensor:
        bucket_BQK = self.bucket_of(relative_positions(keys, a, b)[:, 0])
        return F.embedding(bucket_BQK, self.table_NH).permute(0, 3, 1, 2)

    def bucket_of(self, relative: Tensor) -> Tensor:
        return bucket(relative.neg().clamp(min=0), self.table_NH.shape[0], self.max_distance)

    def score_mod(self, keys: Keys) -> ScoreMod:
        distance_D = torch.arange(self.max_distance + 1, device=self.table_NH.device)  # larger ones share a bucket
        bias_DH = self.table_NH[bucket(distance_D, self.table_NH.shape[0], self.max_distance)]
        q_pos, k_pos = at_each(keys.q_pos_BQ[:, None]), at_each(keys.k_pos_BK[:, None])
        return lambda s, b, h, i, j: s + bias_DH[(q_pos(b, h, i) - k_pos(b, h, j)).clamp(0, self.max_distance), h]


@final
class T5Bias(PositionalEncoding):
    """Adds a number learned for each head and each bucket of distances, with wider buckets for larger distances.

    b(i, j) = table[bucket(max(i - j, 0)), h]

    Raffel et al. 2019, arXiv:1910.10683, section 2.1.

    In the first half, each bucket holds one distance; in the second half, buckets grow geometrically up to
    `max_distance`, and all larger distances share the last bucket. All layers share one table, as in T5. This is the
    unidirectional form of T5: future keys, which a causal mask hides, share the bucket of distance 0.
    """

    def __init__(self, shape: AttentionShape, *, num_buckets: int, max_distance: int) -> None:
        super().__init__(shape)
        if num_buckets < 2:
            raise ValueError(f"num_buckets={num_buckets} must be 2 or more")
        if max_distance <= num_buckets // 2:
            raise ValueError(
                f"max_distance={max_distance} must exceed {num_buckets // 2}: the first half of the buckets "
                f"(num_buckets={num_buckets}) hold one distance each"
            )
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(num_buckets, shape.n_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.shape.d_model**-0.5)  # as T5 does

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> Bias:
        return BucketBias(at_least_float32(self.table), self.max_distance)
