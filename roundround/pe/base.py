"""What a positional encoding is: hooks that the decoder always calls, and that do nothing by default.

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
    """Base of every positional encoding. Each hook does nothing unless a variant overrides it.

    A variant is one final class: `__init__(self, shape, *, tunables)`. The decoder builds one instance for all layers,
    or one for each layer if `per_layer` is set; a variant that reads `shape.layer` must set `per_layer`. `pos_BT` holds
    positions in tokens (int64; its batch axis may be 1).

    A forward pass calls `positions`, `embed` and `prepare` once, then in each layer `prepare_layer`, `rotate_queries`,
    `rotate_keys`, `rotate_values`, `bias` and `rotate_outputs`. `prepared` is the result of `prepare` or
    `prepare_layer`. With a cache of earlier tokens, the hooks get only the new tokens, except `bias`, which gets all
    keys. In that case `prepare_part` is called instead of `prepare`, and `continue_layer` instead of `prepare_layer`.
    If positions are random, an evaluation takes the mean over the draws that `draws` lists.

    Embeddings keep their shape and dtype. So do queries and keys, except that a rotation may give both another number
    of channels; `AttentionShape.scale` stays that of the channels before. Texts of a batch do not see each other.
    Logits depend only on distances unless `embed` is overridden. A variant initialises its parameters in
    `reset_parameters`; a checkpoint saves nothing else of a variant.
    """

    per_layer: ClassVar[bool] = False

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape

    def positions(self, pos_BT: Tensor, step: int | None) -> Tensor:
        """The positions in this forward pass; called once, so all layers share them.

        `step` is the optimizer step in training, one of the `draws` in an evaluation, and None otherwise.
        """
        return pos_BT

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        """The draws of random positions in an evaluation of these tokens; [None] if positions are not random.

        `positions` gets each draw as `step`, and the evaluation takes the mean over the draws.
        """
        return [None]

    @property
    def draws_positions(self) -> bool:
        """Whether an evaluation takes the mean over several draws of positions."""
        return len(self.draws(torch.zeros(1, 1, dtype=torch.int64, device="cpu"))) > 1

    @property
    def reads_input(self) -> bool:
        """Whether `prepare_layer` does anything with a layer's input."""
        return type(self).prepare_layer is not PositionalEncoding.prepare_layer

    def embed(self, x_BTD: Tensor, pos_BT: Tensor) -> Tensor:
        """Token embeddings with positions added; called once, before the first layer."""
        return x_BTD

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> Any:
        """What the layers need from the positions; called once for all layers.

        `dtype` is the dtype of the activations: angles are float64 if it is float64, else float32.
        """
        return None

    def prepare_part(self, pos_BT: Tensor, dtype: torch.dtype, length: int | None) -> Any:
        """`prepare` for the new tokens of a text that is read in parts, with a cache.

        Encodings override this hook if they compute something from all positions, such as the text's length, that must
        be the same in each part. `length` is the number of tokens that the text will have; None if unknown.
        """
        return self.prepare(pos_BT, dtype)

    def prepare_layer(self, x_BTD: Tensor, prepared: Any, keys: Keys) -> Any:
        """What the hooks after this one need from a layer's normed input `x_BTD`, from which queries and keys are made.

        Encodings that depend on the content override this hook; the default returns `prepared`. `keys.valid_BK` is
        False at padding; its last T columns belong to the tokens of `x_BTD`.
        """
        return prepared

    def continue_layer(
        self, x_BTD: Tensor, prepared: Any, keys: Keys, carried: Tensor | None
    ) -> tuple[Any, Tensor | None]:
        """`prepare_layer` for a part of a text that is read with a cache, and the tensor to keep for the next part.

        `x_BTD` and `prepared` are about the new tokens, `keys` about all tokens so far. `carried`, [B, ...], is the
        tensor that this hook returned for the part before; None in the first part. The default keeps nothing. An
        encoding that overrides `prepare_layer` but not this hook supports no cache.
        """
        return self.prepare_layer(x_BTD, prepared, keys), None

    def rotate_queries(self, q_BHTC: Tensor, prepared: Any) -> Tensor:
        """Queries with their positions rotated into them; the result may have any strides."""
        return q_BHTC

    def rotate_keys(self, k_BGTC: Tensor, prepared: Any) -> Tensor:
        """Keys with their positions rotated into them; the result may have any strides."""
        return k_BGTC

    def rotate_values(self, v_BGTC: Tensor, prepared: Any) -> Tensor:
        """Values with their positions rotated into them; the result may have any strides."""
        return v_BGTC

    def rotate_outputs(self, out_BHTC: Tensor, prepared: Any) -> Tensor:
        """The outputs of attention at the queries' positions, the rotation of values taken back."""
        return out_BHTC

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> Bias | None:
        """What changes the logits of these queries and keys, both already rotated; None if nothing does.

        The last keys are those of the queries' tokens. A cache may have dropped the first tokens of the text.

        The result of `Bias.applied` must not depend on `keys.causal`. So one that sums over keys must itself leave out
        future keys, and also padding, where `keys.valid_BK` is False.
        """
        return None

    def longest(self) -> int | None:
        """The largest number of positions that the encoding supports; None if there is no limit."""
        return None

    def facts(self) -> dict[str, int]:
        """The numbers that a run reports about this instance, such as the number of rotated pairs."""
        return {}
