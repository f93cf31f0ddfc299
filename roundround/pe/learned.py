"""Learned positions, added to the token embeddings."""

from __future__ import annotations

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.keys import AttentionShape
from roundround.pe.base import PositionalEncoding


@final
class Learned(PositionalEncoding):
    """Adds to each token a vector learned for its position, so positions beyond the last one in training are unknown.

    x[t] += table[position of t]

    Gehring et al. 2017, arXiv:1705.03122, section 3.1; GPT-2 has such a table.

    `max_position`: the number of rows of the table; None means the training length. Raises ValueError for a sequence
    with more positions.
    """

    def __init__(self, shape: AttentionShape, *, max_position: int | None, init_std: float) -> None:
        super().__init__(shape)
        self.max_position = shape.train_length if max_position is None else max_position
        if self.max_position < shape.train_length:
            raise ValueError(
                f"max_position={max_position} must be null or at least the training length, {shape.train_length}"
            )
        if not 0 <= init_std < float("inf"):
            raise ValueError(f"init_std={init_std} must be a finite number, 0 or above")
        self.init_std = init_std
        self.table = nn.Parameter(torch.empty(self.max_position, shape.d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.init_std)

    def embed(self, x_BTD: Tensor, pos_BT: Tensor) -> Tensor:
        # the largest position is read only on the CPU: on a GPU the read would stall every step, and it would cut a
        # compiled graph in two. Elsewhere the number of tokens is checked, which misses only a cache that outgrows the
        # table, and the lookup kernel itself refuses this
        n_positions = pos_BT.shape[1]
        if pos_BT.device.type == "cpu" and pos_BT.numel() and not torch.compiler.is_compiling():
            n_positions = max(n_positions, int(pos_BT.max()) + 1)
        if n_positions > self.max_position:
            raise ValueError(
                f"{n_positions} positions exceed max_position={self.max_position}, the size of the learned table: "
                "shorten the input, or train with a larger max_position"
            )
        return x_BTD + F.embedding(pos_BT, self.table).to(x_BTD.dtype)

    def longest(self) -> int | None:
        return self.max_position
