"""The family of scaled RoPE: with slower frequencies, a model reads longer texts than in training.

In float32 the frequencies are equal to those of Hugging Face's `ROPE_INIT_FUNCTIONS` to the last bit.

Shapes: B batch, T tokens, P pairs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import wide_dtype
from roundround.pe.rotary import RotaryEncoding, ladder, rotation


class ScaledRoPE(RotaryEncoding):
    """Base of scaled RoPE. A variant defines `frequencies`, or `frequencies_at` if they follow the text's length.

    `factor`: the new context length as a multiple of `original_length`; null is `length` / `original_length`.
    `length`: the new context length in tokens. `original_length`: the context length before scaling, in tokens; null is
    the training context length. Raises ValueError if neither `factor` nor `length` is given.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        theta: float | None,
        factor: float | None,
        length: int | None,
        original_length: int | None,
    ) -> None:
        super().__init__(shape, theta=theta)
        self.original_length = shape.train_length if original_length is None else original_length
        if self.original_length < 1:
            raise ValueError(f"original_length={self.original_length} must be at least 1")
        if factor is None and length is None:
            raise ValueError("factor has no value; give factor= (new length / original length) or length= (in tokens)")
        self.factor = length / self.original_length if factor is None and length is not None else float(factor or 0)
        if not 1 <= self.factor < math.inf:
            raise ValueError(
                f"factor={self.factor:g} must be a finite number, 1 or above; it is length / original_length"
            )

    def ladder(self, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """RoPE's own frequencies."""
        return ladder(self.shape.head_dim // 2, self.shape.head_dim, self.theta, dtype, device)


class FollowsLength(ScaledRoPE):
    """Base of encodings whose frequencies depend on the length of the text that a forward pass reads."""

    def frequencies_at(self, length: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Frequency of each pair in a text of `length` tokens, [P]."""
        raise NotImplementedError

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """The frequencies for texts up to the original length."""
        return self.frequencies_at(self.original_length, dtype, device)

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The `rotation` of each text, or of each document in a window, at the frequencies for its own length.

        If every row is a single token, all rows count as one text. A compiled model also counts all tokens as one text,
        because it trains within the original length, for which the frequencies do not change.
        """
        if not pos_BT.numel() or pos_BT.is_meta:
            return self.rotation_at(self.original_length, pos_BT, dtype)
        if pos_BT.shape[1] == 1 or torch.compiler.is_compiling():
            return self.rotation_at(int(pos_BT.max()) + 1, pos_BT, dtype)
        lengths, which_BT = lengths_of(pos_BT).clamp(min=self.original_length).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        if len(lengths) == 1:
            return self.rotation_at(int(lengths[0]), pos_BT, dtype)
        wide = wide_dtype(dtype)
        table = torch.stack([self.frequencies_at(int(length), wide, pos_BT.device) for length in lengths])
        return rotation(pos_BT, table[which_BT], self.attention_factor)

    def prepare_part(self, pos_BT: Tensor, dtype: torch.dtype, length: int | None) -> tuple[Tensor, Tensor]:
        """The `rotation` of the new tokens, at the frequencies for a text of `length` tokens.

        Raises ValueError if the text is longer than both `length` and the original length, because the cached keys were
        rotated at the frequencies of `length`.
        """
        length = length or self.original_length
        n_tokens = int(pos_BT.max()) + 1 if pos_BT.numel() and not pos_BT.is_meta else length
        if n_tokens > max(length, self.original_length):
            raise ValueError(
                f"the frequencies of {type(self).__name__} depend on the text's length: this text has {n_tokens} "
                f"tokens, but the cached keys are rotated for {max(length, self.original_length)}; give the cache the "
                "whole length, or read without a cache"
            )
        return self.rotation_at(length, pos_BT, dtype)

    def rotation_at(self, length: int, pos_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The result of `prepare` for a text of `length` tokens."""
        return rotation(pos_BT, self.frequencies_at(length, wide_dtype(dtype), pos_BT.device), self.attention_factor)


def lengths_of(pos_BT: Tensor) -> Tensor:
    """The length of each token's text, [B, T]: a text ends at a token if the next position is not larger."""
    ends_BT = torch.cat([pos_BT[:, 1:] <= pos_BT[:, :-1], torch.ones_like(pos_BT[:, :1], dtype=torch.bool)], 1)
    place_T = torch.arange(pos_BT.shape[1], device=pos_BT.device).expand_as(pos_BT)
    next_end_BT = place_T.masked_fill(~ends_BT, pos_BT.shape[1]).flip(1).cummin(1).values.flip(1)
    return pos_BT.gather(1, next_end_BT) + 1
