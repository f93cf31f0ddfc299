"""What a person should know before the first step: settings that are honoured and may still not be what was meant."""

from __future__ import annotations

from pathlib import Path

import torch

from roundround.model.decoder import Decoder
from roundround.softmax.base import AttentionSoftmax, softmax_over_visible
from roundround.softmax.softmax import Softmax
from roundround.training.schedules import Schedule


def about_warmup(schedule: Schedule, n_steps: int) -> str | None:
    """A line where the warm-up takes at least half of the run."""
    warmup = schedule.warmup_steps
    if 2 * warmup < n_steps:
        return None
    most = "the whole run" if warmup >= n_steps else f"{100 * warmup / n_steps:.0f}% of the run"
    return f"the learning rate warms up during {most}: schedule.warmup_steps={warmup}, trainer.max_steps={n_steps}"


def about_softmax(decoder: Decoder, name: str, twin: Path | None, *, as_softmax: bool) -> str | None:
    """A line where the normaliser `name` is the plain softmax in training, or where job `twin` has trained the same.

    as_softmax: what `trains_as_softmax` says of the decoder.
    """
    at_inference = as_softmax and not isinstance(decoder.layers[0].self_attn.softmax, Softmax)
    if twin is not None:
        same = f"the same training as job {twin.name} of this sweep"
        return f"softmax={name}: {same}; to eval, give softmax= instead" if at_inference else same
    if not at_inference:
        return None
    return f"softmax={name} acts at inference only: this training is that of softmax=softmax"


@torch.no_grad()
def trains_as_softmax(decoder: Decoder) -> bool:
    """Whether training this decoder is training it with the plain softmax: asked of rows of the training length."""
    normalisers = [module for module in decoder.modules() if isinstance(module, AttentionSoftmax)]
    return all(map(is_softmax_in_training, normalisers))


def is_softmax_in_training(softmax: AttentionSoftmax, n_rows: int = 16) -> bool:
    """Whether a normaliser without parameters gives the weights of the softmax, from even rows to sharp ones."""
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
