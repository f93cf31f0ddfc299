"""Every normaliser trains with every encoding, and wrong numbers for one cost a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import ROOT, Done, beside, option
from helpers_attention import covering
from omegaconf import OmegaConf

from roundround.config.options import load_option
from roundround.trained.models import build_decoder
from roundround.training.optim import AdamW

ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))
NORMALISERS = sorted(path.stem for path in (ROOT / "conf" / "softmax").glob("*.yaml"))
SMALL = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "n_key_heads": 1,
    "d_mlp": 24,
    "train_length": 12,
}
BY_ORDER = [name for name in NORMALISERS if beside(name) == "nope"]
every_normaliser = pytest.mark.parametrize("softmax", NORMALISERS)


# attention with each pair is compared in tests/softmax, gradients included
@covering(
    "softmax,pe",
    [name for name in NORMALISERS if name not in BY_ORDER],
    ENCODINGS,
    also=[(name, "nope") for name in BY_ORDER],
)
def test_two_steps_of_training_lower_the_loss(softmax: str, pe: str) -> None:
    torch.manual_seed(0)
    model = OmegaConf.merge(load_option("model", "tiny"), SMALL)
    decoder = build_decoder(model, option("pe", pe), load_option("softmax", softmax), n_vocab=20)  # type: ignore[arg-type]
    tokens_BT1 = torch.randint(20, (4, 13))
    adam = AdamW(lr=3e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.0).create(decoder)
    losses = []
    for step in range(3):
        loss = decoder(tokens_BT1[:, :-1], targets_BT=tokens_BT1[:, 1:], step=step).mean()
        losses.append(float(loss.detach()))
        adam.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in decoder.parameters())
        adam.step()
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.parametrize("pe", ["p_rope", "alibi", "t5_bias"])
@every_normaliser
def test_it_trains_in_mixed_precision_and_runs_in_half(softmax: str, pe: str) -> None:
    torch.manual_seed(0)
    model = OmegaConf.merge(load_option("model", "tiny"), SMALL)
    parts = option("pe", beside(softmax, pe)), load_option("softmax", softmax)
    decoder = build_decoder(model, *parts, n_vocab=20)  # type: ignore[arg-type]
    tokens_BT1 = torch.randint(20, (4, 13))
    whole = decoder(tokens_BT1[:, :-1], targets_BT=tokens_BT1[:, 1:]).mean()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = decoder(tokens_BT1[:, :-1], targets_BT=tokens_BT1[:, 1:]).mean()
    mixed.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in decoder.parameters())
    half = decoder.bfloat16().eval()(tokens_BT1[:, :-1])
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()
    assert float(mixed.detach()) == pytest.approx(float(whole.detach()), rel=0.02)


WITH_A_STATE_OR_LISTS = {
    "adaptive_temperature_trained",
    "alpha_entmax_learned",
    "as_entmax",
    "learned_temperature",
    "sink",
}


@pytest.mark.parametrize(
    "softmax", [pytest.param(n, marks=() if n in WITH_A_STATE_OR_LISTS else pytest.mark.slow) for n in NORMALISERS]
)
def test_the_command_trains_and_evaluates_it(
    softmax: str, train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    done = train(f"softmax={softmax}", f"pe={beside(softmax, 'p_rope')}", "trainer.max_steps=2")
    assert done.code == 0, done.err
    evaluated = roundround("eval", f"run={done.directory}", "logger=none", "length=16", "max_tokens=64")
    assert evaluated.code == 0, evaluated.err
    assert evaluated.manifest["choices"]["softmax"] == softmax


def test_adaptive_temperature_replaces_the_softmax_of_a_trained_run(
    train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    run = train("trainer.max_steps=20", "optim.lr=0.02").directory
    plain, adaptive = (
        roundround("eval", f"run={run}", "logger=none", "length=32", *args)
        for args in ([], ["softmax=adaptive_temperature"])
    )
    assert adaptive.code == 0, adaptive.err
    assert adaptive.value("perplexity", length=32) != plain.value("perplexity", length=32)
