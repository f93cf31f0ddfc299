"""Which class of transformers a decoder is exported as, that it computes the same there, and what no class has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Done
from helpers_export import LENGTH, loaded, some_tokens, trained, written
from helpers_patterns import config_of
from transformers import Qwen3NextForCausalLM

from roundround.config.options import load_option
from roundround.trained.export.folder import ModelToExport
from roundround.trained.export.stock import NoStockClass, fitting_config, stock_config, stock_weights
from roundround.trained.models import build_decoder
from roundround.trained.patterns import parts_of

SIZES: dict[str, Any] = {
    "norm_eps": 1e-6, "n_layers": 6, "d_model": 32, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": LENGTH,
    "initializer_range": 0.3,
}  # fmt: skip
GEMMA: dict[str, Any] = {"norms": "both", "geglu": True, "scaled_embeddings": True, "head_dim": 12}
LOCAL = "pattern.local.window=5"  # shorter than the text
NEXT = "pattern=qwen3_next"
# key heads and channels differ between kinds and between keys and values; a share that 46 channels round down
OTHER_NEXT = [
    NEXT, "pattern.order=[attention,linear]", "pattern.linear.head_dim=6", "pattern.attention.n_key_heads=1",
    "pattern.linear.attention.value_dim=10", "pattern.linear.attention.width=3", "pattern.attention.pe.p=0.6",
]  # fmt: skip
LATENT = ["attention=latent", "attention.rotated=8"]
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
    "qwen3_next": ("Qwen3NextForCausalLM", [NEXT], {"scaled_embeddings": True}),
    "qwen3_next with other sizes": ("Qwen3NextForCausalLM", OTHER_NEXT, {"head_dim": 46}),
    "qwen3_next without linear layers": (
        "Qwen3NextForCausalLM",
        ["pe=rope", "qk_norm=rms", "gate=channel", "gate.bias=true"],
        {"geglu": True, "attention_bias": True, "tied_embeddings": False},
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", [*LATENT, "pe=p_rope"], {"norm_eps": 1e-5, "scaled_embeddings": True}),
    "deepseek_v3 with latents of queries": (
        "DeepseekV3ForCausalLM",
        [*LATENT, "pe=rope", "attention.query_rank=20"],
        {"attention_bias": True, "head_dim": 12},
    ),
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
        (["mix=canon"], {}, "no class has ShortConvolution"),
        (["pe=rope_values"], {}, "no class has RoPEValues"),
        (["attention=gated_deltanet"], {}, "no class has GatedDeltaNet in all layers"),
        (["attention=diff"], {}, "no class has DifferentialAttention"),
        (["gate=head"], {}, "no class has InputGate with these arguments behind its Attention"),
        ([*LATENT, "gate=channel"], {}, "no class has InputGate with these arguments behind its LatentAttention"),
        ([NEXT], {"norm_eps": 1e-5}, "with model.norm_eps"),
        (
            [NEXT, "pattern.linear.attention.norm_eps=1e-5"],
            {},
            "Qwen3NextForCausalLM has no GatedDeltaNet with another",
        ),
        ([NEXT], {"geglu": True}, "Qwen3NextForCausalLM has no GeGLU beside GatedDeltaNet"),
        ([NEXT, "gate@pattern.attention.gate=none"], {}, "Qwen3NextForCausalLM has no attention without gate=channel"),
        (["gate=channel"], {}, "Qwen3NextForCausalLM has no attention without qk_norm=rms"),
        ([NEXT, "pattern.attention.window=5"], {}, "Qwen3NextForCausalLM has no windows"),
        ([NEXT, "pattern.attention.gate.bias=true"], {}, "has no gates and projections of which only one has biases"),
        ([NEXT], {"norms": "both"}, "Qwen3NextForCausalLM has no model.norms=both"),
        ([*LATENT, "attention.norm_eps=1e-5"], {}, "DeepseekV3ForCausalLM has no latents normalised with a norm_eps"),
        ([*LATENT, "pe=partial_rope_25"], {}, "no class has PartialRoPE"),
        (["pattern=local_global", LOCAL, *LATENT], {}, "DeepseekV3ForCausalLM has no windows"),
    ],
)
def test_what_no_class_has_is_named(words: list[str], sizes: dict[str, Any], reason: str) -> None:
    model = exported(words, sizes)
    assert stock_config(model.decoder, model.sizes) is None
    with pytest.raises(NoStockClass, match=reason):
        fitting_config(model.decoder, model.sizes)


def test_the_layers_of_a_qwen3_next_are_listed(models: dict[str, ModelToExport]) -> None:
    linear, full = "linear_attention", "full_attention"
    orders = {
        "qwen3_next": [linear, linear, linear, full, linear, linear],
        "qwen3_next with other sizes": [full, linear] * 3,
        "qwen3_next without linear layers": [full] * 6,
    }
    for name, order in orders.items():
        assert fitting_config(models[name].decoder, models[name].sizes).layer_types == order


def test_gradients_of_a_qwen3_next_are_those_of_transformers() -> None:
    model = exported(OTHER_NEXT, {"head_dim": 12, "n_layers": 2, "initializer_range": 0.1})  # attention, then linear
    config, decoder, tokens_BT = fitting_config(model.decoder, model.sizes), model.decoder, some_tokens()
    theirs = Qwen3NextForCausalLM(config)
    theirs.load_state_dict(stock_weights(decoder, config), strict=False)  # the output matrix is tied
    for logits_BTV in (decoder(tokens_BT), theirs(tokens_BT).logits):
        F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), tokens_BT[:, 1:].flatten()).backward()
    ours = {name: parameter.grad for name, parameter in decoder.named_parameters()}
    found = {name.removeprefix("model."): parameter.grad for name, parameter in theirs.named_parameters()}
    full, linear, own = "layers.0.self_attn.", "layers.1.linear_attn.", "layers.1.self_attn."
    # the rows of each head's queries, then those of its gate
    queries, gates = found.pop(f"{full}q_proj.weight").view(4, 2, 12, 32).unbind(1)
    found |= {f"{full}q_proj.weight": queries.flatten(0, 1), f"{full}gate.proj.weight": gates.flatten(0, 1)}
    # their own function takes the joined matrices of a linear layer apart
    joined = [found.pop(f"{linear}{name}.weight").T[None] for name in ("in_proj_qkvz", "in_proj_ba")]
    apart = theirs.model.layers[1].linear_attn.fix_query_key_value_ordering(*joined)
    for name, gradient_1DHC in zip("qkvgba", apart, strict=True):
        found[f"{own}{name}_proj.weight"] = gradient_1DHC[0].flatten(1).T
    same = {f"{full}{part}.weight": f"{full}qk_norm.{part}.weight" for part in ("q_norm", "k_norm")}
    same |= {f"{linear}{name}": f"{own}{name}" for name in ("A_log", "dt_bias")}
    same |= {f"{linear}conv1d.weight": f"{own}conv", f"{linear}norm.weight": f"{own}o_norm.weight"}
    same |= {f"{linear}out_proj.weight": f"{own}o_proj.weight"}
    found = {same.get(name, name): gradient for name, gradient in found.items()}
    assert found.keys() == ours.keys()
    for name, gradient in ours.items():
        assert gradient is not None
        largest = float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=2e-5 * largest, msg=f"{name}, {largest}")


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
