"""A model that stays on disk is probed as one in memory; a run is loaded with its tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Done
from helpers_hf import some_tokens, tiny
from rounding import rounding
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

import roundround as rr
from roundround.distributed import device
from roundround.hf.load import Pretrained, ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.probing.probe import Probe, observe
from roundround.support.errors import UserError


def saved(name: str, folder: Path, **changes: Any) -> Path:
    tiny(name, **changes).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, []))).save_pretrained(folder)
    return folder


def source(folder: Path, *, offload: bool) -> Pretrained:
    options = {"revision": None, "dtype": "auto", "trust_remote_code": False, "pickled": False}
    return Pretrained(path=str(folder), offload=offload, **options)


TEXTS = [some_tokens(n).tolist() for n in (30, 12)]


def probed(folder: Path, *, offload: bool) -> tuple[Probe, int]:
    """The probe, and how often the first layer's weights were read."""
    opened = source(folder, offload=offload)
    model, _ = opened.load(torch.device("cpu"))
    reads: list[object] = []
    with installed(model):
        subject = ProbedHuggingFaceModel("tiny", model, None)
        subject.words = lambda tokens: [str(token) for token in tokens]
        model.base_model.layers[0].register_forward_pre_hook(lambda module, args: reads.append(args))
        assert all(p.device.type == ("meta" if offload else "cpu") for p in model.base_model.layers.parameters())
        return observe(subject, TEXTS, prompt=TEXTS[1]), len(reads)


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "gpt_oss"))]
)
def test_offloaded_weights_give_the_same_in_one_pass(name: str, tmp_path: Path) -> None:
    folder = saved(name, tmp_path / "model")
    there, reads = probed(folder, offload=True)
    here, _ = probed(folder, offload=False)
    assert reads == 1
    for key, value in here.arrays().items():
        torch.testing.assert_close(there.arrays()[key], value, rtol=0, atol=0, equal_nan=True)


def test_old_tables_beside_the_weights_are_left_out_and_other_weights_are_not(tmp_path: Path) -> None:
    weights = saved("llama", tmp_path) / "model.safetensors"
    tables = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(4)}
    save_file(load_file(weights) | tables, weights, {"format": "pt"})
    assert source(tmp_path, offload=False).load(torch.device("cpu"))
    save_file(load_file(weights) | {"value_head.weight": torch.ones(3)}, weights, {"format": "pt"})
    with pytest.raises(
        UserError, match=r"has weights that LlamaForCausalLM does not have: value_head.weight; .*rr.probe"
    ):
        source(tmp_path, offload=False).load(torch.device("cpu"))


def test_masks_that_old_files_keep_are_left_out_and_a_bias_of_that_name_is_not(tmp_path: Path) -> None:
    sizes = {"num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]]}
    weights = saved("gpt_neo", tmp_path, num_hidden_layers=1, **sizes) / "model.safetensors"
    attention = "transformer.h.0.attn.attention"
    masks = {f"{attention}.bias": torch.ones(1, 1, 8, 8).bool(), f"{attention}.masked_bias": torch.tensor(-1e9)}
    tensors = load_file(weights)
    save_file(tensors | masks, weights, {"format": "pt"})
    assert source(tmp_path, offload=False).load(torch.device("cpu"))
    save_file(tensors | {f"{attention}.bias": torch.ones(48)}, weights, {"format": "pt"})
    with pytest.raises(UserError, match=r"has weights that GPTNeoForCausalLM does not have: .*attention.bias;"):
        source(tmp_path, offload=False).load(torch.device("cpu"))


def test_a_model_larger_than_the_memory_is_refused_unless_it_stays_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved("llama", tmp_path)
    monkeypatch.setattr(device, "memory", lambda device: 100_000)
    with pytest.raises(UserError, match=r"needs at least 0.0 GiB and cpu has 0.0; give model.offload=true"):
        source(folder, offload=False).load(torch.device("cpu"))
    assert source(folder, offload=True).load(torch.device("cpu"))
    with pytest.raises(UserError, match="runs on the CPU, not on meta"):
        source(folder, offload=True).load(torch.device("meta"))


def test_a_run_is_loaded_with_its_tokenizer(train: Callable[..., Done], roundround: Callable[..., Done]) -> None:
    done = train("pe=rope")
    model, tokenizer = rr.load(done.directory)
    assert tokenizer.decode(tokenizer.encode("The fox sang.")) == "The fox sang."
    ids = torch.tensor([tokenizer.encode("The fox sang.")])
    assert model(ids).shape == (1, ids.shape[1], tokenizer.size)
    seen = rr.probe(model, tokenizer, ["The fox number 7 ran home.", "The crow sang and sang."])
    assert len(seen.labels()) == len(model.layers)
    with pytest.raises(UserError, match=r"model, tokenizer = rr.load"):
        rr.probe(model, tokenizer.tokenizer, ["The fox ran."])
    with pytest.raises(UserError, match="does not exist"):
        rr.load("nowhere")
    assert torch.equal(rr.load("last").model(ids), model(ids))


def test_the_loss_over_a_large_vocabulary_is_that_of_float64() -> None:
    n_vocab = 150_000
    model = tiny("llama", vocab_size=n_vocab)
    tokens_BT = torch.arange(1, 13).view(2, 6) * 11_000
    with installed(model):
        losses = ProbedHuggingFaceModel("tiny", model, None).token_loss(tokens_BT[:, :-1], tokens_BT[:, 1:])
    with torch.no_grad():
        logits = model(tokens_BT[:, :-1]).logits.double()
    exact = logits.logsumexp(-1) - logits.gather(-1, tokens_BT[:, 1:, None])[..., 0]
    allowed = rounding(n_vocab) + rounding(size=float(exact.max()))  # of the logarithm of a sum, and of the loss itself
    torch.testing.assert_close(losses.double(), exact, rtol=0, atol=allowed)
