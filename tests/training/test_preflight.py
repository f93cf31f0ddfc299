"""What `train` says before the first step: a line for settings that may not be what was meant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import ROOT, Done, assert_refused, beside
from torch import Tensor

from roundround.config.options import load_option
from roundround.pe.cope import ContextualBias
from roundround.trained.models import build_decoder
from roundround.training.module import trains_as_softmax

NORMALISERS = [path.stem for path in (ROOT / "conf" / "softmax").glob("*.yaml")]
# the last four act beyond the training context
PLAIN_IN_TRAINING = {"softmax", "adaptive_temperature", "log_n", "llama4", "ministral3", "inkling"}


def acts_in_training(name: str, **numbers: object) -> bool:
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "train_length": 256}
    parts = load_option("pe", beside(name)), load_option("softmax", name, **numbers)
    return not trains_as_softmax(build_decoder(load_option("model", "tiny", **sizes), *parts, 8))


def test_some_normalisers_train_as_the_plain_softmax() -> None:
    assert {name for name in NORMALISERS if not acts_in_training(name)} == PLAIN_IN_TRAINING


def test_a_window_acts_in_training_where_texts_are_longer() -> None:
    nodes = [load_option("pe", "rope"), load_option("softmax", "softmax")]
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "train_length": 32}
    decoder = build_decoder(load_option("model", "tiny", **sizes), *nodes, 8)
    for window, as_softmax in ((None, True), (32, True), (31, False)):
        decoder.layers[0].self_attn.softmax.window = window
        assert trains_as_softmax(decoder) is as_softmax


def test_a_run_says_it_in_a_line_each(train: Callable[..., Done]) -> None:
    done = train("softmax=adaptive_temperature", "model.train_length=256", "validate_every=4")
    assert "softmax=adaptive_temperature acts only at inference" in done.err
    assert "documents have" in done.err
    assert done.manifest["trains_as_softmax"] is True
    quiet = train("softmax=sigmoid", "schedule.warmup_steps=1")
    assert not any(word in quiet.err for word in ("acts only at inference", "documents have"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("attention=gated_deltanet softmax=sink", "softmax= is read by no layer: GatedDeltaNet uses none"),
        ("attention=gated_deltanet pe=rope", "pe= is read by no layer: GatedDeltaNet uses none"),
        ("attention=latent qk_norm=rms", "qk_norm= is read by no layer: LatentAttention uses none"),
        ("attention=latent model.n_key_heads=1", "model.n_key_heads is read by no layer"),
        (
            "pattern=qwen3_next pattern.linear.window=8 model.n_layers=4",
            "pattern.linear.window: GatedDeltaNet uses no window",
        ),
        ("attention=gated_deltanet model.attention_bias=true", "the projections of GatedDeltaNet have no biases"),
        ("attention=gated_deltanet attention.width=0", "width=0 must be at least 2"),
        ("attention=gated_deltanet attention.value_dim=0", "value_dim=0 at least 1"),
        ("attention=gated_deltanet attention_stats_every=1", "no layer of this model has any"),
        ("mix=key_offset model.head_dim=2", "head_dim=2 must be a multiple of 4"),
        ("mix=canon mix.width=1", "width=1 must be at least 2"),
        ("pe=pope qk_norm=rms_after", "channels, but qk_norm= after the rotation takes 8"),
        ("softmax=diff_v1 model.n_key_heads=1", "n_key_heads=1 must be even"),
        ("softmax=diff attention=latent", "leave out other words on attention and softmax"),
        ("softmax.of=entmax15", "softmax=diff softmax.of=NAME means attention=diff softmax=NAME"),
        ("softmax=ssmax softmax=diff", "leave out other words on attention and softmax"),
        ("attention=diff_v1 model.n_key_heads=2 attention.std=-1", "std=-1 must be a finite number above 0"),
        (
            "attention=diff_v1 model.n_key_heads=2 attention.norm_eps=-1",
            "norm_eps=-1 must be a finite number above 0",
        ),
    ],
)
def test_what_no_layer_can_use_is_refused_by_name(train: Callable[..., Done], words: str, message: str) -> None:
    assert_refused(train(*words.split()), message)


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits[..., :-1],
        lambda logits: logits * torch.nan,
        lambda logits: logits.bfloat16(),
        lambda logits: logits - logits.mean(-1, keepdim=True),
        lambda logits: logits - logits.nan_to_num().mean(-1, keepdim=True),
        lambda logits: logits.mul_(0.5) + logits[0, 0, 0, 0] * logits.shape[2],
        lambda logits: None,
        lambda logits: int("one"),
    ],
    ids=["shape", "not a number", "precision", "hidden keys", "hidden numbers", "other rows", "nothing", "an error"],
)
def test_a_change_of_logits_that_breaks_its_rules_is_refused_before_the_first_step(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]
) -> None:
    monkeypatch.setattr(ContextualBias, "applied", lambda self, logits, *where: change(logits))
    assert_refused(train("pe=cope"), "what ContextualPosition does to logits")


def test_latent_attention_takes_as_many_key_heads_as_heads(train: Callable[..., Done]) -> None:
    assert train("attention=latent", "model.n_heads=2", "model.n_key_heads=2").code == 0
