"""The attention weights of a whole text, every query and key of every head: what `rr.attention` returns.

Shapes: H heads, Q queries, K keys (both all tokens of the text).

Tested by tests/test_api.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundround.probing.probed_model import watching
from roundround.softmax.base import AttentionSoftmax


@dataclass(frozen=True, repr=False, eq=False)
class AttentionWeights:
    """Weights `[layer][head]` of one text, each [Q, K] on the CPU, at least float32.

    name: the model's. words: what each token reads as. tokens: their ids. layers: the weights of each layer with
    attention, [H, Q, K]. numbers: which layers of the model these are.
    """

    name: str
    words: list[str]
    tokens: list[int]
    layers: list[Tensor]
    numbers: list[int]

    def __getitem__(self, layer: int) -> Tensor:
        if layer >= 0 and layer not in self.numbers:
            raise IndexError(f"layer {layer} of {self.name} has no attention; these have: {self.numbers}")
        return self.layers[layer if layer < 0 else self.numbers.index(layer)]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.layers)

    def __repr__(self) -> str:
        heads = sorted({len(weights_HQK) for weights_HQK in self.layers})
        n_heads = f"{heads[0]}" if len(heads) == 1 else f"{heads[0]} to {heads[-1]}"
        return f"attention of {self.name}: {len(self)} layers, {n_heads} heads, {len(self.tokens)} tokens"


@torch.no_grad()
def weights_of_layers(normalisers: Sequence[AttentionSoftmax], forward: Callable[[], object]) -> list[Tensor]:
    """The weights of each layer in a forward pass over one text, [H, Q, K]; of several passes the first's."""
    found: dict[int, Tensor] = {}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        if softmax.shape.layer not in found:
            found[softmax.shape.layer] = softmax.all_weights(qkv[0], qkv[1], **options)[0].cpu()

    with watching(normalisers, take_in):
        forward()
    return [found[layer] for layer in sorted(found)]
