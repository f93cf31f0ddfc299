"""What a positional encoding is: a handful of no-op hooks that the decoder always calls.

Shapes: B batch, T tokens, H heads, G key heads, C head channels, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from roundround.kernels.bias import Bias
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.variants import FinalVariants


class PositionalEncoding(FinalVariants, nn.Module):
    """Base of every positional encoding. Each hook does nothing unless a variant says otherwise.

    A variant is one final class: `__init__(self, shape, *, tunables)`. The decoder builds one instance for all layers,
    or one a layer where `per_layer` is set: one that reads `shape.layer` must set it. `pos_BT` holds positions in
    tokens (int64; its batch axis may be 1).

    An evaluation asks `draws` what its mean is over. A forward pass calls `positions`, `embed` and `prepare` once, then
    in each layer `prepare_layer`, `rotate_queries`, `rotate_keys` and `bias`. `prepared` is what `prepare`
    returned, or what `prepare_layer` made of it. With a cache of earlier tokens these hooks are given the new ones
    alone; `prepare_part` stands in for `prepare`, and `continued` comes before `bias`, which sees all keys.

    Hooks keep the shape and the dtype of what they are given. Texts of a batch do not see each other. Logits depend on
    distances alone unless `embed` is overridden. A module with parameters draws them in `reset_parameters`; nothing
    else is saved.
    """

    per_layer: ClassVar[bool] = False

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape

    def positions(self, pos_BT: Tensor, step: int | None) -> Tensor:
        """Positions for this forward pass; called once, so all layers share them.

        `step` is the optimizer step in training and None outside; or, in an evaluation, what `draws` gave.
        """
        return pos_BT

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        """The values of `step` over which an evaluation of these tokens takes its mean: of one draw each, or None."""
        return [None]

    @property
    def draws_positions(self) -> bool:
        """Whether an evaluation takes the mean of several draws."""
        return len(self.draws(torch.zeros(1, 1, dtype=torch.int64, device="cpu"))) > 1

    def embed(self, x_BTD: Tensor, pos_BT: Tensor) -> Tensor:
        """Token embeddings with positions added; called once, before the first layer."""
        return x_BTD

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> Any:
        """Whatever the layers need from the positions; called once, so that no layer computes it again.

        `dtype` is that of the activations: angles are float64 for float64 and float32 for everything narrower.
        """
        return None

    def prepare_part(self, pos_BT: Tensor, dtype: torch.dtype, length: int | None) -> Any:
        """`prepare` for the new tokens of a text that is read in parts, with a cache.

        For encodings that read more off all positions than where each token stands: what they take from there must be
        the same in each part. `length` is the number of tokens that the text will have, None where nobody knows it.
        """
        return self.prepare(pos_BT, dtype)

    def prepare_layer(self, x_BTD: Tensor, prepared: Any, keys: Keys) -> Any:
        """What the next three hooks need of one layer's input, the normed `x_BTD` from which queries and keys are made.

        For encodings that depend on the content; the default passes `prepared` on. Padding is in `keys.valid_BK`,
        whose last T keys these tokens are.
        """
        return prepared

    def rotate_queries(self, q_BHTC: Tensor, prepared: Any) -> Tensor:
        """Queries with their positions rotated into them; any strides are right."""
        return q_BHTC

    def rotate_keys(self, k_BGTC: Tensor, prepared: Any) -> Tensor:
        """Keys with their positions rotated into them; any strides are right."""
        return k_BGTC

    def continued(self, prepared: Any, carried: Tensor | None) -> tuple[Any, Tensor | None]:
        """With a cache: what `bias` needs of all tokens so far, and what the layer carries to the next part.

        `prepared` is of the new tokens; `carried`, [B, ...], is what the part before left, None in the first. The
        default carries nothing. An encoding that overrides `prepare_layer` and not this has no cache.
        """
        return prepared, None

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> Bias | None:
        """What is added to the logits of these queries and keys, which are rotated already.

        The queries are the last of the keys. A cache may have dropped the first tokens of the text.

        Its blocks are asked for with keys that are not causal too: a bias that sums over keys leaves out by itself
        those of the future, and those that `keys.valid_BK` marks as padding.
        """
        return None

    def longest(self) -> int | None:
        """The largest number of positions that the encoding has, None where there is no limit."""
        return None

    def facts(self) -> dict[str, int]:
        """What a run should report about this instance, such as its number of rotated pairs."""
        return {}
