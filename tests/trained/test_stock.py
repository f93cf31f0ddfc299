"""Which class of transformers a decoder is exported as, that it computes the same there, and what no class has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Done
from helpers_export import LENGTH, loaded, some_tokens, trained, written
from helpers_patterns import config_of

from roundround.config.options import load_option
from roundround.trained.export.folder import ModelToExport
from roundround.trained.export.stock import NoStockClass, fitting_config, stock_config
from roundround.trained.models import build_decoder
from roundround.trained.patterns import parts_of

SIZES: dict[str, Any] = {
    "norm_eps": 1e-6, "n_layers": 6, "d_model": 32, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": LENGTH,
    "initializer_range": 0.3,
}  # fmt: skip
GEMMA: dict[str, Any] = {"norms": "both", "geglu": True, "scaled_embeddings": True, "head_dim": 12}
LOCAL = "pattern.local.window=5"  # shorter than the text
MODELS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "gemma3": ("Gemma3ForCausalLM", ["pattern=gemma3", LOCAL], GEMMA),
    "gemma3 with its own scale": (
        "Gemma3ForCausalLM",
        ["pattern=gemma3", LOCAL, "pattern.local.logit_scale=0.25", "pattern.global.logit_scale=0.25"],
        GEMMA,
    ),
    "gemma3 without windows": ("Gemma3ForCausalLM", ["qk_norm=rms"], GEMMA),
    "olmo3 without windows": ("Olmo3ForCausalLM", ["qk_norm=rms_across"], {"norms": "after"}),
    "qwen3": ("Qwen3ForCausalLM", ["qk_norm=rms"], {"head_dim": 12, "attention_bias": True}),
    "qwen3 with windows and p-RoPE": (
        "Qwen3ForCausalLM",
        ["pattern=sandwich", LOCAL, "qk_norm=rms", *(f"pe@pattern.{kind}.pe=p_rope" for kind in ("local", "global"))],
        {"tied_embeddings": False},
    ),
    "smollm3": ("SmolLM3ForCausalLM", ["pattern=smollm3"], {}),
    "olmo3": ("Olmo3ForCausalLM", ["pattern=olmo3", LOCAL, "pattern.global.theta=1e6"], {"norms": "after"}),
    "llama": ("LlamaForCausalLM", ["pe=p_rope"], {"scaled_embeddings": True, "attention_bias": True}),
}


def exported(words: list[str], sizes: dict[str, Any]) -> ModelToExport:
    """A decoder with random weights and norms away from one, as what a run would export."""
    torch.manual_seed(0)
    model = load_option("model", "tiny", **(SIZES | sizes))
    decoder = build_decoder(model, n_vocab=257, **parts_of(config_of(*words))).eval()
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter += 0.3 * torch.randn(parameter.shape)
    plain = trained(load_option("pe", "rope"), load_option("softmax", "softmax"))
    return replace(plain, decoder=decoder, sizes={**plain.sizes, **SIZES, **sizes})


@pytest.fixture(scope="module")
def models() -> dict[str, ModelToExport]:
    return {name: exported(words, sizes) for name, (_, words, sizes) in MODELS.items()}


@pytest.fixture(scope="module")
def answers(models: dict[str, ModelToExport], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a process without roundround makes of the folder of each."""
    root = tmp_path_factory.mktemp("stock")
    folders = {name: written(model, root / name.replace(" ", "_")) for name, model in models.items()}
    found = loaded(list(folders.values()), root)
    return {name: found[folder] for name, folder in folders.items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_class_of_transformers_computes_the_same(
    name: str, models: dict[str, ModelToExport], answers: dict[str, dict[str, Any]]
) -> None:
    assert answers[name]["class"] == MODELS[name][0]
    assert answers[name]["module"].startswith("transformers.models.")
    with torch.no_grad():
        ours = models[name].decoder(some_tokens())
    assert float(ours.std()) > 0.1
    largest = float(ours.abs().max())
    torch.testing.assert_close(answers[name]["logits"], ours, rtol=0, atol=2e-5 * largest)


@pytest.mark.parametrize(
    ("words", "sizes", "reason"),
    [
        (["softmax=sink"], {}, "no class has Sink in its attention"),
        (["pattern=llama4"], {}, "no class has chunks"),
        (["pattern=rnope_swa", LOCAL], {}, "SmolLM3ForCausalLM has no windows"),
        (["pattern=gemma3", LOCAL], {**GEMMA, "scaled_embeddings": False}, "has no embeddings that are not scaled"),
        (["pattern=gemma3", LOCAL], {}, "Qwen3ForCausalLM has no rotation that differs by layer"),
        (["qk_norm=rms", "qk_norm.eps=1e-3"], {}, "with model.norm_eps"),
        (["pe=alibi"], {}, "no class has ALiBi"),
        ([], {"mlp": "relu_squared"}, "MLPs without gates"),
        (["pattern=smollm3"], {"head_dim": 16}, "no heads that are not of d_model / n_heads channels"),
    ],
)
def test_what_no_class_has_is_named(words: list[str], sizes: dict[str, Any], reason: str) -> None:
    model = exported(words, sizes)
    assert stock_config(model.decoder, model.sizes) is None
    with pytest.raises(NoStockClass, match=reason):
        fitting_config(model.decoder, model.sizes)


@pytest.mark.usefixtures("checked_here")
def test_a_stock_class_that_was_asked_for_is_there_or_costs_one_line(
    train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    run = train("softmax=sink", "trainer.max_steps=2").directory
    done = roundround("export", f"run={run}", "to=folder", "stock=true")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("roundround export: no class has Sink in its attention")
    assert not Path("folder").exists()
    plain = train("trainer.max_steps=2").directory
    done = roundround("export", f"run={plain}", "to=folder", "stock=true")
    assert done.code == 0, done.err
    assert "a stock LlamaForCausalLM" in done.err
