"""The LightningModule, and the decoder that it trains: whole in every process, or sharded.

The module has one loss, one optimizer and one schedule. It counts optimizer steps from the start of the run. Decoders
are sharded with FSDP2 (`fully_shard` of torch.distributed.fsdp): each process holds a share of every parameter.

Tested by tests/training/test_train.py, test_half_precision.py and test_sharding.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lightning
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from roundround.kernels.torch_internals import compile_in_place, uncompiled
from roundround.model.block import Block
from roundround.model.decoder import Decoder, is_sharded
from roundround.records.checkpoints import Checkpoint, load_into
from roundround.records.run import Run
from roundround.softmax.base import AttentionSoftmax, softmax_over_visible
from roundround.softmax.softmax import Softmax
from roundround.trained.models import planned
from roundround.trained.start import MakeDecoder, Weights
from roundround.training.material import Material
from roundround.training.optim import OptimizerFactory, Schedule

MakeShare = Callable[[DeviceMesh], Decoder]  # makes this process's share, once all processes are connected


def decoder_of(
    make: MakeDecoder, weights: Weights, past: Checkpoint | None, *, seed: int, compiled: bool, sharded: bool
) -> tuple[Decoder, MakeShare | None]:
    """Returns (the decoder with its weights, None).

    If `sharded`, returns (the decoder on the meta device, the function that makes this process's share of the decoder).
    past: the checkpoint of a resumed run; its weights are loaded instead of `weights`.
    """

    def share(mesh: DeviceMesh) -> Decoder:
        decoder = sharded_decoder(make, mesh, seed=seed, compiled=compiled)
        if past is None:
            weights.load_into(decoder)
        else:
            from roundround.records.sharded_checkpoints import load_shards_into  # it takes a second to import

            load_shards_into(decoder, past)
        return decoder

    if sharded:
        return planned(make), share
    torch.manual_seed(seed)
    decoder = make()
    if past is None:
        weights.load_into(decoder)
    else:
        load_into(decoder, past.weights, past.folder)
    return decoder, None


def sharded_decoder(make: MakeDecoder, mesh: DeviceMesh, *, seed: int, compiled: bool) -> Decoder:
    """The decoder with this process's share of its parameters. No process ever holds more than one whole layer.

    Layers are made and initialised one after the other, so all weights are bit-equal to the weights without sharding.
    The embeddings, the last norm and the parameters of encodings form one more FSDP unit. This unit stays gathered
    until the end of the backward pass, because input and output both use the embeddings.
    """

    def shard_layer(layer: Block) -> None:
        if compiled:
            compile_in_place(layer)
        fully_shard(layer, mesh=mesh)

    torch.manual_seed(seed)
    decoder = make(shard_layer=shard_layer)
    fully_shard(decoder, mesh=mesh)
    return decoder


@contextmanager
def gathered(decoder: Decoder) -> Iterator[None]:
    """Inside the block, parameters outside layers are gathered, so `hidden` and `unembed` can be called directly."""
    module: nn.Module = decoder
    if not isinstance(module, FSDPModule):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


class LanguageModel(lightning.LightningModule):
    """A decoder, with the loss, the optimizer and the schedule of its training.

    first_step: the step from which a resumed run continues, otherwise 0. n_steps: the last step of the run. share: the
    function that makes this process's share of the decoder; None if parameters are not sharded. If they are, `decoder`
    is on the meta device until all processes are connected.
    """

    def __init__(
        self,
        decoder: Decoder,
        material: Material,
        *,
        optimizer: OptimizerFactory,
        schedule: Schedule,
        first_step: int,
        n_steps: int,
        share: MakeShare | None = None,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.share = share
        self.material = material
        self.optimizer = optimizer
        self.schedule = schedule
        self.first_step = first_step
        self.n_steps = n_steps
        self.grad_norm = torch.zeros(())  # in the last update, before clipping
        self.rate = 0.0  # the learning rate of the last update

    @property
    def step(self) -> int:
        """The number of optimizer steps since the start of the run, including steps before a resume."""
        return self.first_step + int(self.trainer.global_step)

    def configure_model(self) -> None:
        if self.share is not None:
            assert self.device_mesh is not None, "the strategy that shards has made one"
            self.decoder = self.share(self.device_mesh["data_parallel"])

    def on_fit_start(self) -> None:
        """Run the decoder once before it is compiled, because it cannot try its kernels during compilation."""
        with uncompiled(self.decoder) as is_compiled, self.trainer.precision_plugin.forward_context():
            if is_compiled and self.device.type == "cuda":
                n_tokens = min(256, self.decoder.longest() or 256)
                tokens_1T = torch.zeros(1, n_tokens, dtype=torch.int64, device=self.device)
                self.decoder(tokens_1T, targets_BT=tokens_1T, step=0)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """The loss of a micro-batch, twice: Lightning divides "loss", and the callback needs the undivided value."""
        loss = self.material.loss(self.decoder, batch, self.step)
        return {"loss": loss, "micro_loss": loss.detach()}

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = self.optimizer.create(self.decoder)
        rate = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.schedule.factor(self.first_step + step, self.n_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as Lightning does, and record the gradient norm and the learning rate of the coming update.

        In 16-mixed a fused optimizer unscales the gradients only after clipping, so this method unscales them first.
        """
        scaler = loss_scaler(self.trainer)
        if scaler is not None and optimizer.defaults.get("fused"):
            scaler.unscale_(optimizer)
        self.rate = float(optimizer.param_groups[0]["lr"])
        self.grad_norm = clip(self.decoder, gradient_clip_val, by_value=gradient_clip_algorithm == "value")


def clip(module: nn.Module, limit: float | None, *, by_value: bool) -> Tensor:
    """Clip the gradients. Returns their total norm before clipping.

    limit: the largest total norm that is allowed, or, if `by_value`, the largest absolute value allowed in a gradient;
    None clips nothing. In a sharded module each process clips its own rows, and uses the norm of all rows.
    """
    parameters = [p for p in module.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if is_sharded(norm):  # each process holds the squares of its share
        norm = norm.full_tensor()  # type: ignore[attr-defined]
    if limit is None:
        return norm
    if by_value:
        torch.nn.utils.clip_grad_value_(parameters, limit)
    else:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


def loss_scaler(trainer: lightning.Trainer) -> torch.amp.GradScaler | None:
    """The loss scaler of `16-mixed`, which skips steps whose gradients overflow; None in other precisions."""
    plugin = trainer.precision_plugin
    return plugin.scaler if isinstance(plugin, MixedPrecision) else None


# -- whether the normaliser differs from the softmax in training


def about_softmax(run: Run, decoder: Decoder) -> list[str]:
    """Record in the manifest whether the decoder's normalisers equal the softmax in training.

    Returns a line for the user if they do, although the normaliser is not `Softmax`; otherwise an empty list.
    """
    as_softmax = trains_as_softmax(decoder)
    run.note(trains_as_softmax=as_softmax)
    if not as_softmax or all(isinstance(softmax, Softmax) for softmax in decoder.normalisers[:1]):
        return []
    return [
        f"softmax={run.manifest['choices'].get('softmax')} acts only at inference; the model is trained as with "
        "softmax=softmax"
    ]


@torch.no_grad()
def trains_as_softmax(decoder: Decoder) -> bool:
    """Whether every normaliser of this decoder equals the plain softmax in training."""
    return all(is_softmax_in_training(part) for part in decoder.modules() if isinstance(part, AttentionSoftmax))


def is_softmax_in_training(softmax: AttentionSoftmax, n_rows: int = 16) -> bool:
    """Whether a normaliser has no parameters and gives the same weights as the softmax in training.

    The normaliser is tried on random rows of logits. In some rows the logits are nearly equal; in others they differ
    strongly.
    """
    narrows = softmax.window is not None and softmax.window < softmax.shape.train_length
    if narrows or any(True for _ in softmax.parameters()):
        return False
    shape, generator = softmax.shape, torch.Generator().manual_seed(0)
    n_visible_Q = torch.linspace(1, shape.train_length, n_rows).long()
    visible_B1QK = (torch.arange(shape.train_length) < n_visible_Q[:, None])[None, None]
    logits_BHQK = torch.randn(1, shape.n_heads, n_rows, shape.train_length, dtype=torch.float64, generator=generator)
    logits_BHQK *= torch.linspace(0.1, 10, n_rows)[:, None].roll(5, 0)
    x_BTD = torch.randn(1, n_rows, shape.d_model, generator=generator)
    rows = {**softmax.row_parameters(x_BTD), "n_visible": n_visible_Q[None, None, :, None]}
    weights_BHQK = softmax.train().weights(logits_BHQK, visible_B1QK, rows)
    return torch.allclose(weights_BHQK, softmax_over_visible(logits_BHQK, visible_B1QK), rtol=1e-9, atol=0)
