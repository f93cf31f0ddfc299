"""The family of scaled RoPE: a model reads further than it was trained, at slower frequencies.

Equal to the last bit, in float32, to Hugging Face's `ROPE_INIT_FUNCTIONS`. Shapes: B batch, T tokens, P pairs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roundround.attention.keys import AttentionShape
from roundround.attention.precision import wide_dtype
from roundround.pe.rotary import RotaryEncoding, ladder, rotation


class ScaledRoPE(RotaryEncoding):
    """Base of scaled RoPE. A variant defines `frequencies`, or, where they follow the text's length, `frequencies_at`.

    `factor` is how many times as far the model is to read; null is `length` / `original_length`. `original_length` null
    is the context length that the model was trained on. Raises ValueError where neither factor nor length is given.
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
            raise ValueError("factor has no value; give factor=, how many times as far to read, or length=, in tokens")
        self.factor = length / self.original_length if factor is None and length is not None else float(factor or 0)
        if not 1 <= self.factor < math.inf:
            raise ValueError(
                f"factor={self.factor:g} must be a finite number, 1 or above; it is length / original_length"
            )

    def ladder(self, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """RoPE's own frequencies."""
        return ladder(self.shape.head_dim // 2, self.shape.head_dim, self.theta, dtype, device)


class FollowsLength(ScaledRoPE):
    """Base of those whose frequencies follow the length of the text that a forward pass reads."""

    def frequencies_at(self, length: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """Frequency of each pair in a text of so many tokens, [P]."""
        raise NotImplementedError

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Those of texts up to the original length."""
        return self.frequencies_at(self.original_length, dtype, device)

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        length = int(pos_BT.max()) + 1 if pos_BT.numel() and not pos_BT.is_meta else self.original_length
        return self.rotation_at(length, pos_BT, dtype)

    def prepare_part(self, pos_BT: Tensor, dtype: torch.dtype, length: int | None) -> tuple[Tensor, Tensor]:
        """At the frequencies of the whole text. ValueError where it outgrows them: the keys so far have rotated."""
        length = length or self.original_length
        n_tokens = int(pos_BT.max()) + 1 if pos_BT.numel() and not pos_BT.is_meta else length
        if n_tokens > max(length, self.original_length):
            raise ValueError(
                f"the frequencies of {type(self).__name__} follow the text's length, and {n_tokens} tokens exceed "
                f"{max(length, self.original_length)}, for which the cached keys have rotated: give the cache the "
                "whole length, or read without a cache"
            )
        return self.rotation_at(length, pos_BT, dtype)

    def rotation_at(self, length: int, pos_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What `prepare` gives in a text of so many tokens."""
        return rotation(pos_BT, self.frequencies_at(length, wide_dtype(dtype), pos_BT.device), self.attention_factor)
