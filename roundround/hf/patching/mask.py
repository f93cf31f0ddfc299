"""The mask that goes with this project's attention inside a Hugging Face model: who sees whom, without a tensor of it.

Without one of its own, a registered attention function would be called without any mask and lose causality in silence.
Shapes: B batch, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from roundround.attention.keys import Keys
from roundround.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ModelKeys(Keys):
    """Keys in the place of a mask tensor, with the few things that models do to a mask on its way.

    Some cut it down to the rows of its last queries; generation with a static cache makes it ahead and hands it in.
    """

    ndim: ClassVar[int] = 4

    def contiguous(self) -> ModelKeys:
        return self

    def __getitem__(self, index: tuple[slice, ...]) -> ModelKeys:
        return replace(self, q_pos_BQ=self.q_pos_BQ[:, index[2]])


def mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor],
    attention_mask: Tensor | ModelKeys | None = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **others: Any,
) -> ModelKeys:
    """Who sees whom, as this project says it; UserError for a mask that is not causal, windowed and padded alone.

    The mask goes through the model untouched, until `attention` takes it.
    """
    if isinstance(attention_mask, ModelKeys):
        return attention_mask
    offset = int(q_offset) - kv_offset
    n_keys = min(kv_length, offset + q_length)
    valid_BK = None
    if attention_mask is not None:
        valid_BK = attention_mask[:, kv_offset : kv_offset + n_keys].bool()
        if bool(valid_BK.all()):
            valid_BK = None
    keys = ModelKeys(
        q_pos_BQ=torch.arange(n_keys - q_length, n_keys, device=device)[None],
        k_pos_BK=torch.arange(n_keys, device=device)[None],
        valid_BK=valid_BK,
        window=None if local_size is None or local_size >= n_keys else local_size,
    )
    if not agrees(keys, mask_function, int(q_offset), kv_offset, batch_size):
        raise UserError(
            "the model's attention mask is neither causal nor a sliding window; roundround cannot honour it"
        )
    return keys


def agrees(keys: Keys, mask_function: Callable[..., Tensor], q_offset: int, kv_offset: int, batch_size: int) -> bool:
    """Whether the model's own mask says the same about the first, some middle and the last rows, padding aside."""
    device, n = keys.k_pos_BK.device, keys.n_queries
    unpadded = Keys(q_pos_BQ=keys.q_pos_BQ, k_pos_BK=keys.k_pos_BK, window=keys.window)
    batch_B111 = torch.arange(batch_size, device=device)[:, None, None, None]
    head_1111 = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device)
    for row in sorted({0, n // 3, n // 2, n - 1}):
        first, last = unpadded.span(row, row + 1)
        seen_K = torch.zeros(keys.n_keys, dtype=torch.bool, device=device)
        seen_K[first:last] = unpadded.visible(row, row + 1)[0, 0, 0]
        rows = torch.full_like(head_1111, row + q_offset)
        theirs = mask_function(batch_B111, head_1111, rows, keys.k_pos_BK[0] + kv_offset)
        if not bool((theirs == seen_K).all()):
            return False
    return True
