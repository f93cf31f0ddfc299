"""`optim=muon`: its steps against loops from the formulas, what each optimizer takes, resumes, and what is refused."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Done, metrics_of, named, saved_weights
from rounding import rounding
from torch import Tensor

from roundround.config.options import load_option
from roundround.model.decoder import Decoder
from roundround.trained.models import build_decoder
from roundround.training.optim import Muon, OptimizerFactory

SIZES: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "train_length": 8}
LR, DECAY, MU = 0.05, 0.2, 0.9


def decoder_of(**sizes: Any) -> Decoder:
    torch.manual_seed(0)
    model = load_option("model", "tiny", **{**SIZES, "tied_embeddings": False}, **sizes)
    parts = (load_option("pe", "learned"), load_option("softmax", "ssmax"))
    return build_decoder(model, *parts, 11, qk_norm=load_option("qk_norm", "rms"))


def muon(**numbers: Any) -> OptimizerFactory:
    return named("optim", "muon", OptimizerFactory, **{"lr": LR, "weight_decay": DECAY, "momentum": MU, **numbers})()


def gradients(decoder: Decoder, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator) for name, p in decoder.named_parameters()}


def steps(decoder: Decoder, optimizer: torch.optim.Optimizer, n: int) -> list[dict[str, Tensor]]:
    """The weights after each of n steps with gradients that the seed draws."""
    found = []
    for seed in range(n):
        for name, gradient in gradients(decoder, seed).items():
            decoder.get_parameter(name).grad = gradient
        optimizer.step()
        found.append({name: p.detach().clone() for name, p in decoder.named_parameters()})
    return found


@pytest.mark.parametrize("nesterov", [True, False])
def test_matrices_take_the_steps_of_a_loop(nesterov: bool) -> None:
    decoder, name = decoder_of(), "layers.1.mlp.up_proj.weight"
    before = decoder.get_parameter(name).detach().clone().double()
    found = steps(decoder, muon(nesterov=nesterov).create(decoder), 3)
    momentum, w = torch.zeros_like(before), before
    for seed in range(3):
        g = gradients(decoder, seed)[name].double()
        momentum = MU * momentum + (1 - MU) * g
        direction = (1 - MU) * g + MU * momentum if nesterov else momentum
        size = LR * 0.2 * math.sqrt(24)  # of 24 x 16 numbers
        # five steps of X <- a X + b (X X^T) X + c (X X^T)^2 X, from a matrix of Frobenius norm 1
        x = direction / direction.norm()
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x - 4.775 * gram @ x + 2.0315 * gram @ gram @ x
        w = (1 - LR * DECAY) * w - size * x
    # bfloat16 in each of fifteen products of entries of about 1/4, in three steps
    torch.testing.assert_close(found[2][name].double(), w, rtol=0, atol=3 * size * rounding(15, 0.25, torch.bfloat16))


def test_the_rest_takes_the_steps_of_adamw_written_out() -> None:
    decoder = decoder_of()
    rates = {"embed_tokens.weight": 0.3, "lm_head.weight": 0.01, "norm.weight": 0.02, "encodings.0.table": LR}
    before = {name: decoder.get_parameter(name).detach().clone().double() for name in rates}
    own = muon(embedding_lr=0.3, head_lr=0.01, vector_lr=0.02, adamw_weight_decay=0.3)
    found = steps(decoder, own.create(decoder), 3)
    for name, rate in rates.items():
        w, m, v = before[name], 0.0, 0.0
        for t in range(1, 4):
            g = gradients(decoder, t - 1)[name].double()
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
            decayed = w if name == "norm.weight" else w * (1 - rate * 0.3)
            w = decayed - rate * (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
        torch.testing.assert_close(found[2][name].double(), w, rtol=0, atol=3 * rounding(10, 1.0))


def test_muon_takes_the_matrices_of_the_layers_and_nothing_else() -> None:
    decoder = decoder_of(attention_bias=True)
    factory = muon()
    assert isinstance(factory, Muon)
    found = factory.sorted_parameters(decoder)
    names = {parameter: name for name, parameter in decoder.named_parameters()}
    by_kind = {kind: [names[parameter] for parameter in parameters] for kind, parameters in found.items()}
    projections = [f"self_attn.{p}_proj.weight" for p in "qkvo"] + [
        f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")
    ]
    assert by_kind["matrices"] == [f"layers.{layer}.{name}" for layer in (0, 1) for name in projections]
    assert (by_kind["embeddings"], by_kind["head"]) == (["embed_tokens.weight"], ["lm_head.weight"])
    assert by_kind["of_variants"] == ["encodings.0.table"]
    assert {"layers.0.self_attn.q_proj.bias", "layers.0.self_attn.qk_norm.q_norm.weight", "norm.weight"} <= set(
        by_kind["vectors"]
    )
    assert sum(map(len, by_kind.values())) == len(names)


def test_a_schedule_moves_the_rates_of_both() -> None:
    decoder = decoder_of()
    optimizer = muon(embedding_lr=0.3).create(decoder)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    before = [group["lr"] for group in optimizer.param_groups]
    assert set(before) == {LR, 0.3}
    state = optimizer.state_dict()
    again = muon(embedding_lr=0.3).create(decoder)
    again.load_state_dict(state)
    steps(decoder, again, 1)
    steps(decoder, optimizer, 1)
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [rate / 2 for rate in before]
    one, two = decoder_of(), decoder_of()
    whole, half = muon().create(one), muon().create(two)
    for group in half.param_groups:
        group["lr"] /= 2
    moved = [steps(d, o, 1)[0] for d, o in ((one, whole), (two, half))]
    start = dict(decoder_of().named_parameters())
    for name, parameter in start.items():
        torch.testing.assert_close(
            moved[0][name] - parameter, 2 * (moved[1][name] - parameter), rtol=0, atol=4 * rounding(4, 1.0)
        )


def test_a_run_learns_and_resumes_bit_for_bit(train: Callable[..., Done], roundround: Callable[..., Done]) -> None:
    words = ["optim=muon", "optim.lr=0.01", "model.tied_embeddings=false", "optim.head_lr=0.004", "validate_every=6"]
    words += ["trainer.max_steps=6", "checkpoint_every=3", "schedule.warmup_steps=0"]
    whole, stopped = train(*words).directory, train(*words).directory
    shutil.rmtree(stopped / "checkpoints" / "step-00000006")
    done = roundround("train", f"resume={stopped}", "logger=none")
    assert (done.code, "resuming after step 3" in done.err) == (0, True), done.err
    a, b = saved_weights(stopped), saved_weights(whole)
    assert all(torch.equal(a[name], b[name]) for name in b)
    losses = [row["loss"] for row in metrics_of(whole) if "loss" in row]
    assert losses[-1] < losses[0] - 0.1
