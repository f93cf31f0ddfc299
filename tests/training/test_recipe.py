"""The recipe against numbers worked out by hand: rates, what decays, and clipped steps from the papers' formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Done, named, saved_weights
from rounding import rounding
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup, get_wsd_schedule

from roundround.config.options import load_option
from roundround.trained.models import build_decoder
from roundround.training.module import LanguageModel
from roundround.training.optim import OptimizerFactory, Schedule

# -- the learning rate, as shares of the peak; 650 steps, of which 50 warm up


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        # a quarter, a half and three quarters of half a cosine from 1 to 0.1: 0.1 + 0.9 * (2 + sqrt(2)) / 4, ...
        ("cosine", {0: 1 / 51, 24: 25 / 51, 49: 50 / 51, 50: 1, 200: 0.868198, 350: 0.55, 500: 0.231802, 650: 0.1}),
        # the last fifth of 600 steps, 120 of them, goes down in a line from 1 to 0
        ("wsd", {0: 1 / 51, 24: 25 / 51, 49: 50 / 51, 50: 1, 530: 1, 542: 0.9, 590: 0.5, 638: 0.1, 650: 0}),
    ],
)
def test_a_schedule_has_these_values(name: str, shares: dict[int, float]) -> None:
    schedule = named("schedule", name, Schedule)()
    assert {step: schedule.factor(step, 650) for step in shares} == pytest.approx(shares, abs=1e-6)


@pytest.mark.parametrize(
    ("schedule", "make", "options"),
    [
        (
            named("schedule", "cosine", Schedule, warmup_steps=8, final_fraction=0.0),
            get_cosine_schedule_with_warmup,
            {},
        ),
        (
            named("schedule", "wsd", Schedule, warmup_steps=8, decay_fraction=0.25, final_fraction=0.3),
            get_wsd_schedule,
            {"num_decay_steps": 16, "decay_type": "linear", "min_lr_ratio": 0.3},
        ),
    ],
    ids=["cosine", "wsd"],
)
def test_after_the_warm_up_a_schedule_is_that_of_transformers(
    schedule: Callable[..., Schedule], make: Callable[..., Any], options: dict[str, Any]
) -> None:
    ours = [schedule().factor(step, 72) for step in range(72)]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer, num_warmup_steps=8, num_training_steps=72, **options)
    rates = []
    for _ in range(72):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert ours[8:] == pytest.approx(rates[8:], abs=1e-12)


# -- what decays

DECAYS = """embed_tokens.weight lm_head.weight
self_attn.q_proj.weight self_attn.k_proj.weight self_attn.v_proj.weight self_attn.o_proj.weight
mlp.gate_proj.weight mlp.up_proj.weight mlp.down_proj.weight
self_attn.softmax.beta.weight self_attn.softmax.gamma.weight encodings.0.gate_weight"""
DOES_NOT = """input_layernorm.weight post_attention_layernorm.weight norm.weight
self_attn.softmax.beta.bias self_attn.softmax.gamma.bias encodings.0.gate_bias"""


@pytest.mark.parametrize("optim", ["adamw", "adam_l2"])
def test_matrices_decay_and_gains_and_biases_do_not(optim: str) -> None:
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "tied_embeddings": False}
    parts = load_option("pe", "fox"), load_option("softmax", "as_entmax")
    decoder = build_decoder(load_option("model", "tiny", **sizes), *parts, 64)
    names = {id(p): name.removeprefix("layers.0.") for name, p in decoder.named_parameters()}
    groups = named("optim", optim, OptimizerFactory, weight_decay=0.1)().create(decoder).param_groups
    decay = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    assert {name for name, value in decay.items() if value == 0.1} == set(DECAYS.split())
    assert {name for name, value in decay.items() if value == 0} == set(DOES_NOT.split())


# -- three steps of the defaults, from the gradients on


class Steps:
    """What the optimizer got: the weights before the first step, and the gradients of each before they are clipped."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.gradients: list[dict[str, Tensor]] = []


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    found, clip = Steps(), LanguageModel.configure_gradient_clipping

    def noted(self: LanguageModel, *args: Any, **options: Any) -> None:
        parameters = dict(self.decoder.named_parameters())
        if not found.weights:
            found.weights = {name: p.detach().double() for name, p in parameters.items()}
        found.gradients.append({name: p.grad.double() for name, p in parameters.items()})
        clip(self, *args, **options)

    monkeypatch.setattr(LanguageModel, "configure_gradient_clipping", noted)
    return found


def clipped(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pascanu et al. 2013, arXiv:1211.5063, algorithm 1, with the norm 1."""
    norm = sum(float((g**2).sum()) for g in gradients.values()) ** 0.5
    assert norm > 1.5, "nothing would be clipped"
    return {name: g / norm for name, g in gradients.items()}


def adamw_by_hand(steps: Steps) -> dict[str, Tensor]:
    """Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, with the rates of the first three steps."""
    weights, m, v = dict(steps.weights), dict.fromkeys(steps.weights, 0.0), dict.fromkeys(steps.weights, 0.0)
    for t, gradients in enumerate(map(clipped, steps.gradients), start=1):
        rate = 3e-3 * t / 51
        for name, g in gradients.items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.95 * v[name] + 0.05 * g**2
            step = m[name] / (1 - 0.9**t) / ((v[name] / (1 - 0.95**t)) ** 0.5 + 1e-8)
            weights[name] = weights[name] - rate * (step + (0.0 if "norm" in name else 0.1) * weights[name])
    return weights


def adam_l2_by_hand(steps: Steps) -> dict[str, Tensor]:
    """Kingma and Ba 2015, arXiv:1412.6980, algorithm 1, on the loss plus 0.05 times the squares of the matrices."""
    weights, m, v = dict(steps.weights), dict.fromkeys(steps.weights, 0.0), dict.fromkeys(steps.weights, 0.0)
    for t, gradients in enumerate(map(clipped, steps.gradients), start=1):
        for name, gradient in gradients.items():
            g = gradient if "norm" in name else gradient + 0.1 * weights[name]
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g**2
            step = m[name] / (1 - 0.9**t) / ((v[name] / (1 - 0.999**t)) ** 0.5 + 1e-8)
            weights[name] = weights[name] - 1e-3 * t / 51 * step
    return weights


@pytest.mark.parametrize(
    ("optim", "by_hand"),
    [(["optim=adamw"], adamw_by_hand), (["optim=adam_l2", "optim.weight_decay=0.1"], adam_l2_by_hand)],
    ids=["adamw", "adam_l2"],
)
def test_three_steps_are_those_of_the_paper(
    train: Callable[..., Done], steps: Steps, optim: list[str], by_hand: Callable[[Steps], dict[str, Tensor]]
) -> None:
    done = train("trainer.max_steps=3", "model.initializer_range=0.2", *optim)
    assert done.code == 0, done.err
    assert len(steps.gradients) == 3
    trained = saved_weights(done.directory)
    for name, expected in by_hand(steps).items():
        moved = trained[name].double() - steps.weights[name]
        allowed = rounding(3, float(expected.abs().max()))  # three times a weight is rounded
        torch.testing.assert_close(moved, expected - steps.weights[name], rtol=1e-3, atol=allowed, msg=name)


def test_gradients_are_those_of_the_mean_loss_of_the_batch(train: Callable[..., Done], steps: Steps) -> None:
    assert train("trainer.max_steps=1").code == 0
    whole = steps.gradients.pop()
    assert train("trainer.max_steps=1", "trainer.accumulate_grad_batches=4").code == 0
    for name, gradient in steps.gradients[0].items():
        allowed = rounding(4 * 32, float(whole[name].abs().max()))  # a sum over the tokens of the batch
        torch.testing.assert_close(gradient, whole[name], rtol=0, atol=allowed)
