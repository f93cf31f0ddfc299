"""The softmax scaled by the logarithm of the number of keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.softmax.base import checked_count
from roundround.softmax.row_scale import RowScale


@final
class LogN(RowScale):
    """Sharpens the rows that are longer than in training, by a factor that grows with the logarithm of their length.

    alpha_j = exp(beta e_j) / sum_l exp(beta e_l), beta = max(1, ln n / ln n_train), n the visible keys

    After Chiang and Cholak 2022, arXiv:2202.12172, section 5.3, who multiply by ln n. Division by ln n_train and the
    minimum of 1 are from Qwen's models. Rows of up to n_train keys do not change.

    `n_train`: null is the training length. `count`: with `visible`, n counts the visible keys; with `position`, n
    counts all tokens up to the query's own.
    """

    reads_entropy = False

    def __init__(self, shape: AttentionShape, *, n_train: int | None, count: str = "visible") -> None:
        super().__init__(shape)
        self.count = checked_count(count)
        self.n_train = shape.train_length if n_train is None else n_train
        if self.n_train < 2:
            raise ValueError(f"n_train={self.n_train} must be 2 or more")

    def beta(self, n_visible: Tensor, entropy: Callable[[], Tensor]) -> Tensor:
        return (n_visible.clamp(min=1).log() / math.log(self.n_train)).clamp(min=1.0)
