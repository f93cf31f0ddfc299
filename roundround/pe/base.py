"""What a positional encoding is: a handful of no-op hooks that the decoder always calls.

Shapes: B batch, T tokens, H heads, C head channels, D model width.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from roundround.attention.bias import Bias
from roundround.attention.keys import AttentionShape


class PositionalEncoding(nn.Module):
    """Base of every positional encoding. Each hook does nothing unless a variant says otherwise.

    A variant is one final class: `__init__(self, shape, *, tunables)`. The decoder builds one instance for all layers,
    or one a layer where `per_layer` is set. `pos_BT` holds positions in tokens (int64; its batch axis may be 1).
    """

    per_layer: ClassVar[bool] = False

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape

    def positions(self, pos_BT: Tensor, step: int | None) -> Tensor:
        """Positions for this forward pass; called once, so all layers share them. `step` is None outside training."""
        return pos_BT

    def embed(self, x_BTD: Tensor, pos_BT: Tensor) -> Tensor:
        """Token embeddings with positions added; called once, before the first layer."""
        return x_BTD

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> Any:
        """Whatever `rotate` needs from the positions; called once a forward pass so that no layer computes it again.

        `dtype` is that of the activations: angles are float64 for float64 and float32 for everything narrower.
        """
        return None

    def rotate(self, x_BHTC: Tensor, prepared: Any) -> Tensor:
        """Queries or keys with their positions turned into them; called for q and for k of each layer."""
        return x_BHTC

    def bias(self) -> Bias | None:
        """What is added to the logits; called once a layer."""
        return None

    def longest(self) -> int | None:
        """The largest number of positions that the encoding knows, None where there is no limit."""
        return None

    def facts(self) -> dict[str, int]:
        """What a run should report about this instance, such as its number of rotated pairs."""
        return {}
