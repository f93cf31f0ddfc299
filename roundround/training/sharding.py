"""The decoder that is trained: whole in every process, or FSDP2, where each holds a share of every layer's parameters.

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

from roundround.config.verbs.train import TrainConfig
from roundround.loading.models import decoder_of_config, planned
from roundround.loading.start import Start
from roundround.model.block import Block
from roundround.model.decoder import Decoder
from roundround.runs.checkpoints import Checkpoint

MakeDecoder = Callable[[Callable[[Block], object]], Decoder]  # given what is done with each layer once it is made
MakeShare = Callable[[DeviceMesh], Decoder]  # of one process, once the processes have met


def decoder_of(
    config: TrainConfig, n_vocab: int, start: Start, past: Checkpoint | None, *, sharded: bool
) -> tuple[Decoder, MakeShare | None]:
    """The decoder with its weights; where parameters are shared out, a plan of it, and what makes a process's share."""

    def make(shard_layer: Callable[[Block], object] | None = None) -> Decoder:
        decoder = decoder_of_config(config, n_vocab, shard_layer=shard_layer)
        decoder.activation_checkpointing = config.activation_checkpointing
        if str(config.trainer.precision).startswith("64"):  # before it is given weights; Lightning does it after that
            decoder.double()
        return decoder

    def share(mesh: DeviceMesh) -> Decoder:
        decoder = sharded_decoder(make, mesh, seed=config.seed, compiled=config.compile)
        start.load_into(decoder, past)
        return decoder

    if sharded:
        return planned(make), share
    torch.manual_seed(config.seed)
    decoder = make()
    start.load_into(decoder, past)
    return decoder, None


class FullyShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy with all processes in one mesh: batches and parameters are shared out among the same."""

    def __init__(self) -> None:
        super().__init__(data_parallel_size="auto", tensor_parallel_size=1)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes  # Lightning's "auto" is the number of nodes
        super().setup_environment()


def sharded_decoder(make: MakeDecoder, mesh: DeviceMesh, *, seed: int, compiled: bool) -> Decoder:
    """The decoder with this process's share of its parameters: no process ever holds more than one whole layer.

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
