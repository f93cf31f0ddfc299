"""FSDP2: every process holds a share of each layer's parameters and gathers a layer when its turn comes.

`fully_shard` of torch.distributed.fsdp does it; here is where it is applied, and Lightning's strategy for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from roundround.model.block import Block
from roundround.model.decoder import Decoder

MakeDecoder = Callable[[Callable[[Block], object]], Decoder]  # given what is done with each layer once it is made


class FullyShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy with all processes in one mesh: batches and parameters are shared out among the same."""

    def __init__(self) -> None:
        super().__init__(data_parallel_size="auto", tensor_parallel_size=1)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes  # Lightning's "auto" is the number of nodes
        super().setup_environment()


def sharded_decoder(make: MakeDecoder, mesh: DeviceMesh, *, seed: int, compiled: bool) -> Decoder:
    """The decoder of one process, of which this one keeps its share: no process holds more than a layer whole.

    Layers are made and drawn one after the other as one process does, so all weights are the same to the last bit. The
    embeddings, the last norm and what encodings learn are one more unit, which stays gathered until the backward pass
    has ended: the embeddings are needed at both ends.
    """

    def shard_layer(layer: Block) -> None:
        if compiled:
            layer.compile()
        fully_shard(layer, mesh=mesh)

    torch.manual_seed(seed)
    decoder = make(shard_layer)
    fully_shard(decoder, mesh=mesh)
    return decoder


@contextmanager
def gathered(decoder: Decoder) -> Iterator[None]:
    """Inside, what lies outside of the layers is whole: `hidden` and `unembed` may be called beside the decoder."""
    module: nn.Module = decoder
    if not isinstance(module, FSDPModule):
        yield
        return
    module.unshard()
    yield
    module.reshard()
