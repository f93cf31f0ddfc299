"""`roundround train init=hf:DIR`: the checkpoint's model and weights, and what is refused of it."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import STORIES, Done, assert_refused, saved_weights
from helpers_export import some_tokens, trained, written
from rounding import rounding
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from roundround.config.options import load_option
from roundround.hf.checkpoint import read_checkpoint
from roundround.model.decoder import Decoder
from roundround.support.errors import UserError
from roundround.trained.models import build_decoder

logging.disable_progress_bar()

ON_BYTES = [
    "logger=none",
    "batch_size=4",
    "trainer.max_steps=4",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "validation_tokens=256",
    "checkpoint_every=2",
    "data=text",
]


@pytest.fixture
def begin(roundround: Callable[..., Done], corpus: Path) -> Callable[..., Done]:
    """A training run on the small text from the checkpoint in a folder."""
    return lambda folder, *args: roundround("train", *ON_BYTES, f"data.path={corpus}", f"init=hf:{folder}", *args)


@pytest.fixture
def checkpoint(here: Path) -> Path:
    """A stock folder with random weights."""
    return written(
        trained(load_option("pe", "p_rope", p=0.5, theta=5000.0), load_option("softmax", "softmax")), here / "first"
    )


def rebuilt(folder: Path) -> Decoder:
    start = read_checkpoint(f"hf:{folder}")
    from omegaconf import OmegaConf

    nodes = [OmegaConf.create(x) for x in (start.nodes.model, start.nodes.pe)]
    decoder = build_decoder(nodes[0], nodes[1], load_option("softmax", "softmax"), start.nodes.n_vocab)
    start.load_into(decoder)
    return decoder.eval()


@torch.no_grad()
def assert_same_loss(folder: Path, tokens_BT: torch.Tensor) -> None:
    theirs = LlamaForCausalLM.from_pretrained(folder)(input_ids=tokens_BT, labels=tokens_BT).loss
    ours = rebuilt(folder)(tokens_BT[:, :-1], targets_BT=tokens_BT[:, 1:]).mean()
    assert float(ours) == pytest.approx(float(theirs), abs=rounding(64, 10))


def altered(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


# -- what it computes


def test_a_published_checkpoint_has_the_loss_that_hugging_face_gives_it() -> None:
    text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    ids = Tokenizer.from_file(str(STORIES / "tokenizer.json")).encode(text).ids
    assert_same_loss(STORIES, torch.tensor([ids]))
    decoder, tokens_BT = rebuilt(STORIES), torch.tensor([ids])
    assert float(decoder(tokens_BT[:, :-1], targets_BT=tokens_BT[:, 1:]).mean().detach()) < 2.0  # it knows stories


def test_a_gemma_has_the_loss_that_hugging_face_gives_it(here: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 64}
    gemma = GemmaForCausalLM(GemmaConfig(**sizes, **heads, hidden_act="gelu")).eval()
    for name, weight in gemma.named_parameters():
        torch.nn.init.normal_(weight, std=0.3 if name.endswith("norm.weight") else 0.1)
    gemma.save_pretrained(here / "gemma")
    shutil.copy(STORIES / "tokenizer.json", here / "gemma")
    tokens_BT = torch.randint(512, (2, 20))
    with torch.no_grad():
        theirs = gemma(input_ids=tokens_BT, labels=tokens_BT).loss
        ours = rebuilt(here / "gemma")(tokens_BT[:, :-1], targets_BT=tokens_BT[:, 1:]).mean()
    assert float(ours) == pytest.approx(float(theirs), abs=rounding(64, 10))
    with pytest.raises(UserError, match="the decoder does not support use_bidirectional_attention=true"):
        read_checkpoint(f"hf:{altered(here / 'gemma', use_bidirectional_attention=True)}")


def test_training_starts_from_the_packaged_model_by_its_name(roundround: Callable[..., Done]) -> None:
    given = [
        "init=stories260k",
        "pe=p_rope",
        "data=stories",
        "data.held_out=0.2",
        "trainer.max_steps=1",
        "validation_tokens=512",
    ]
    done = roundround("train", *ON_BYTES[:-1], *given)
    assert done.code == 0, done.err
    assert done.manifest["choices"]["model"] == "stories260k"
    assert done.manifest["init"]["sha256"] == hashlib.sha256((STORIES / "model.safetensors").read_bytes()).hexdigest()
    assert done.value("perplexity", step=1) < 12  # a fresh model has about 512, the size of the vocabulary
    config = done.manifest["config"]  # which is not to say where the package lies today
    assert (config["init"], config["tokenizer"]["name"]) == ("stories260k", "package:stories260k")
    again = roundround("train", *ON_BYTES[:-1], *given, f"resume={done.directory}")
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_parameters": {"rope_type": "proportional", "rope_theta": 777.0, "partial_rotary_factor": 0.4}},
        {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True},
        {"num_key_value_heads": 1, "head_dim": 10, "rms_norm_eps": 0.01, "vocab_size": 300},
    ],
)
def test_a_llama_of_any_shape_has_the_loss_that_hugging_face_gives_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**({"vocab_size": 257, "initializer_range": 0.5, **sizes} | changes))
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert_same_loss(tmp_path, some_tokens())


def test_an_old_configuration_and_weights_in_shards_are_read(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=257, **sizes)).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    (tmp_path / "tokenizer.json").write_text("{}")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 5000.0, "rope_scaling": None}))
    assert read_checkpoint(f"hf:{tmp_path}").nodes.pe["theta"] == 5000.0
    assert_same_loss(tmp_path, some_tokens())


# -- the run that begins there


@pytest.mark.usefixtures("checked_here")
def test_a_run_begins_with_exactly_the_exported_weights(
    begin: Callable[..., Done], train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    first = train("pe=p_rope", "pe.p=0.5", "trainer.max_steps=3").directory
    assert roundround("export", f"run={first}", "to=model", "checkpoint=last").code == 0
    done = begin("model", "optim.lr=1e-30", "trainer.max_steps=1")
    assert done.code == 0, done.err
    assert f"starting from the weights of {Path('model').absolute()}" in done.err
    before = saved_weights(first)
    after = saved_weights(done.directory)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert done.manifest["choices"]["pe"] == "p_rope"
    assert done.manifest["config"]["pe"]["p"] == 0.5
    assert done.manifest["config"]["model"]["d_model"] == 16
    assert done.manifest["data"]["n_vocab"] == 257
    hashes = [json.loads((run / "run.json").read_text())["data"]["corpus_hash"] for run in (first, done.directory)]
    assert hashes[0] == hashes[1]


@pytest.mark.usefixtures("checked_here")
def test_the_run_is_rebuilt_without_the_folder(
    checkpoint: Path, begin: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    whole = begin(checkpoint).directory
    half = begin(checkpoint).directory
    last = half / "checkpoints" / "step-00000004"
    shutil.rmtree(last)
    (half / "checkpoints" / "best").unlink()
    shutil.rmtree(checkpoint)
    evaluated = roundround("eval", f"run={whole}", "length=24", "logger=none")
    assert evaluated.code == 0, evaluated.err
    nats = json.loads((whole / "results.json").read_text())
    assert math.isfinite(evaluated.value("perplexity", length=24))
    assert nats[0]["pe"] == "p_rope"
    resumed = roundround("train", f"resume={half}", "logger=none")
    assert resumed.code == 0, resumed.err
    a, b = (saved_weights(run) for run in (whole, half))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert roundround("export", f"run={whole}", "to=again").code == 0


def test_a_run_stopped_before_its_first_checkpoint_needs_the_same_folder_again(
    checkpoint: Path, begin: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    whole = begin(checkpoint).directory
    expected = saved_weights(whole)
    shutil.rmtree(whole / "checkpoints")
    resumed = roundround("train", f"resume={whole}", "logger=none")
    assert resumed.code == 0, resumed.err
    again = saved_weights(whole)
    assert all(torch.equal(expected[name], again[name]) for name in expected)
    shutil.rmtree(whole / "checkpoints")
    weights = load_file(checkpoint / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, checkpoint / "model.safetensors")
    refused = roundround("train", f"resume={whole}", "logger=none")
    assert refused.code == 2
    assert "is no longer the checkpoint that" in refused.err


def test_pe_and_softmax_are_replaced_and_theta_stays(checkpoint: Path, begin: Callable[..., Done]) -> None:
    done = begin(checkpoint, "pe=rope", "softmax=ssmax", "model.train_length=12")
    assert done.code == 0, done.err
    config = done.manifest["config"]
    assert config["pe"] == {"_target_": "roundround.pe.rope.RoPE", "theta": 5000.0, "learned_frequencies": False}
    assert config["softmax"]["_target_"].endswith("SSMax")
    assert config["model"]["train_length"] == 12
    assert done.manifest["choices"] | {"pe": "rope", "softmax": "ssmax", "model": "first"} == done.manifest["choices"]
    given = begin(checkpoint, "pe=rope", "pe.theta=300")
    assert given.manifest["config"]["pe"]["theta"] == 300.0
    other = begin(checkpoint, "pe=learned")
    assert other.code == 0, other.err


def test_embeddings_may_have_more_rows_than_there_are_tokens(
    tmp_path: Path, checkpoint: Path, begin: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    table = weights["model.embed_tokens.weight"]
    wide = weights | {"model.embed_tokens.weight": torch.cat([table, table[:7]])}
    save_file(wide, checkpoint / "model.safetensors")
    done = begin(altered(checkpoint, vocab_size=264))
    assert done.code == 0, done.err
    assert done.manifest["data"]["n_vocab"] == 264
    assert roundround("train", f"resume={done.directory}", "logger=none").code == 0
    assert roundround("eval", f"run={done.directory}", "length=24", "logger=none").code == 0


# -- what is refused


def refused(done: Done, said: str) -> None:
    assert_refused(done, said)
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert list(Path("outputs").glob("train/*/*")) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2"}, "model_type is gpt2, and the decoder can start only from llama, gemma, "),
        ({"attention_bias": True}, "weights are not the decoder's: layers.0.self_attn.k_proj.bias"),
        ({"mlp_bias": True}, "mlp_bias=true"),
        ({"hidden_act": "relu"}, "hidden_act is relu, and the decoder has silu and gelu_pytorch_tanh"),
        (
            {"rope_parameters": {"rope_type": "proportional", "factor": 2.0, "rope_theta": 1e4}},
            "the decoder has no RoPE with rope_type=proportional, factor=2.0",
        ),
        ({"num_hidden_layers": 3}, "layers.2.input_layernorm.weight"),
        ({"intermediate_size": 25}, "layers.0.mlp.down_proj.weight: [32, 24] in the files, [32, 25] by config.json"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"vocab_size": 10**9}, "[1000000000, 32] by config.json"),
    ],
)
def test_what_the_decoder_cannot_represent_costs_one_line(
    checkpoint: Path, begin: Callable[..., Done], changes: dict[str, Any], said: str
) -> None:
    refused(begin(altered(checkpoint, **changes)), said)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_weights_that_are_no_floating_point_numbers_are_refused(
    checkpoint: Path, begin: Callable[..., Done], dtype: str
) -> None:
    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.0.mlp.down_proj.weight"  # one of them is enough
    save_file(weights | {name: weights[name].to(getattr(torch, dtype))}, path, {"format": "pt"})
    refused(begin(checkpoint), f"{name} is stored as ")


def test_broken_and_pickled_files_cost_one_line(checkpoint: Path, begin: Callable[..., Done]) -> None:
    weights = checkpoint / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    refused(begin(checkpoint), f"{checkpoint}: ")
    weights.rename(checkpoint / "pytorch_model.bin")
    refused(begin(checkpoint), "has no model.safetensors; pickled weights are never read")
    (checkpoint / "config.json").unlink()
    refused(begin(checkpoint), "config.json of a Hugging Face checkpoint cannot be read")


def test_a_wrong_command_costs_one_line(
    checkpoint: Path, begin: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    refused(begin("nowhere"), "nowhere/config.json")
    message = "must be one of run:DIR, run:last, hf:DIR with a Llama-type checkpoint in it, or stories260k"
    refused(roundround("train", f"init={checkpoint}"), message)
    refused(roundround("train", "init=5"), f"init=5 {message}")
    sizes = begin(checkpoint, "model.d_model=8", "tokenizer=bytes")
    refused(sizes, "init= brings the model and the tokenizer; leave out model.d_model, tokenizer")
    refused(begin(checkpoint, "pe=prope"), "did you mean 'p_rope'")
