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
from roundround.support.errors import UserError

AT_RANDOM = 8  # keys of every query in the sample of a long mask
ALL_PAIRS = 2**18  # of query and key, up to which a mask is compared whole; longer ones by a few hundred keys a query


class MaskNotKnown(UserError, AttributeError):
    """What a model does with its mask that `ModelKeys` cannot do. An AttributeError too, so that `hasattr` works."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the model does more with its attention mask ({what}) than roundround knows; "
            "its attention cannot be replaced"
        )


@dataclass(frozen=True, kw_only=True)
class ModelKeys(Keys):
    """Keys in the place of a mask tensor, with the few things that models do to a mask on its way.

    Some cut it down to the rows of its last queries; generation with a static cache makes it ahead and hands it in.
    n_given: keys for which the model made it, those behind the last one that is seen included.
    """

    ndim: ClassVar[int] = 4
    n_given: int

    def contiguous(self) -> ModelKeys:
        return self

    def __getitem__(self, index: Any) -> ModelKeys:
        whole = slice(None)
        of_keys = index[3] if isinstance(index, tuple) and len(index) == 4 else None
        if not isinstance(of_keys, slice) or index[:2] != (whole, whole) or not isinstance(index[2], slice):
            raise MaskNotKnown("an index")
        if range(self.n_keys)[of_keys] != range(self.n_keys):
            raise MaskNotKnown("fewer keys")
        return replace(self, q_pos_BQ=self.q_pos_BQ[:, index[2]])

    def __getattr__(self, name: str) -> Any:
        raise MaskNotKnown(f".{name}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise MaskNotKnown(f"torch's {getattr(function, '__name__', function)}")


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
        n_given=kv_length,
    )
    if not agrees(keys, mask_function, int(q_offset), kv_offset, batch_size):
        raise UserError(
            "the model's attention mask is neither causal nor a sliding window; roundround cannot honour it"
        )
    return keys


def agrees(keys: Keys, mask_function: Callable[..., Tensor], q_offset: int, kv_offset: int, batch_size: int) -> bool:
    """Whether the model's own mask says the same of every query and key, padding aside; of long texts by a sample.

    The sample has the pairs at distances 0, 1, 2, 4, 8, ... to either side and at the edge of the window, of every
    query, all keys of four queries, and AT_RANDOM keys of every query. So what differs next to the diagonal or the
    window is found, and a piece elsewhere if it is large: one of R queries and K of N keys passes with a probability of
    about exp(-AT_RANDOM R K / N). Smaller pieces far from the diagonal may pass.
    """
    row_Q = torch.arange(keys.n_queries, device=keys.k_pos_BK.device)
    column_K = torch.arange(keys.n_keys, device=row_Q.device)
    if batch_size * len(row_Q) * len(column_K) <= ALL_PAIRS:
        rows, columns = row_Q[:, None], column_K[None]
    else:
        rows, columns = some_pairs(keys)
    distance = rows + keys.n_keys - keys.n_queries - columns
    seen = (distance >= 0) & (distance < (keys.window or keys.n_keys))
    batch_B111 = torch.arange(batch_size, device=row_Q.device)[:, None, None, None]
    theirs = mask_function(
        batch_B111, torch.zeros_like(batch_B111[:1]), rows[None, None] + q_offset, columns[None, None] + kv_offset
    )
    return bool((theirs == seen).all())


def some_pairs(keys: Keys) -> tuple[Tensor, Tensor]:
    """Rows and columns of the sample of `agrees`, [1, N] each; N grows with Q log K."""
    row_Q = torch.arange(keys.n_queries, device=keys.k_pos_BK.device)
    last = keys.n_keys - keys.n_queries
    steps = [2**i for i in range(keys.n_keys.bit_length())]
    window = [] if keys.window is None else [keys.window - 1, keys.window]
    distance_D = torch.tensor(sorted({0, *steps, *(-n for n in steps), *window}), device=row_Q.device)
    column_DQ = row_Q + last - distance_D[:, None]
    there_DQ = (column_DQ >= 0) & (column_DQ < keys.n_keys)
    whole_R = row_Q[[0, len(row_Q) // 3, len(row_Q) // 2, -1]]
    seeded = torch.Generator().manual_seed(0)
    anywhere = torch.randint(keys.n_keys, (AT_RANDOM * len(row_Q),), generator=seeded).to(row_Q.device)
    every_key = torch.arange(keys.n_keys, device=row_Q.device)
    rows = [row_Q.expand_as(column_DQ)[there_DQ], whole_R.repeat_interleave(keys.n_keys), row_Q.repeat(AT_RANDOM)]
    columns = [column_DQ[there_DQ], every_key.repeat(len(whole_R)), anywhere]
    return torch.cat(rows)[None], torch.cat(columns)[None]
