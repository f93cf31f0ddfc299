"""The decoder against Hugging Face's with the same weights, and what it promises by itself.

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, STORIES, option
from rounding import rounding
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from roundround.config.options import load_option
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder, n_parameters
from roundround.pe.nope import NoPE
from roundround.softmax.softmax import Softmax
from roundround.trained.models import build_decoder

ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))
TOKENS_BT = torch.randint(97, (2, 48), generator=torch.Generator().manual_seed(0))
SMALL = {
    "d_model": 64,
    "n_layers": 3,
    "n_heads": 4,
    "n_key_heads": 2,
    "d_mlp": 88,
    "train_length": 64,
    "tied_embeddings": False,
}

# the encodings that a stock Llama has too: (ours, its yaml's numbers, theirs)
LLAMAS = [
    pytest.param("nope", {"rope_type": "proportional", "partial_rotary_factor": 0.0}, id="nope"),
    pytest.param("rope", {"rope_type": "default", "rope_theta": 10000.0}, id="rope"),
    pytest.param("rope_500k", {"rope_type": "default", "rope_theta": 500000.0}, id="rope_500k"),
    pytest.param("p_rope", {"rope_type": "proportional", "partial_rotary_factor": 0.75}, id="p_rope"),
    pytest.param("p_rope_25", {"rope_type": "proportional", "partial_rotary_factor": 0.25}, id="p_rope_25"),
]


def decoder(pe: str = "rope", *, model: str = "tiny", n_vocab: int = 97, **sizes: Any) -> Decoder:
    """A small decoder with this encoding; `sizes` replace what its yaml says."""
    return build_decoder(
        load_option("model", model, **(SMALL | sizes)),
        option("pe", pe),
        load_option("softmax", "softmax"),
        n_vocab,
    )


def lively(model: Decoder) -> Decoder:
    """The decoder with weights large enough that each of its parts moves the logits, norms away from one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.normal_(1.0, 0.3, generator=generator)
            elif weight.dim() == 2:
                weight.normal_(0.0, 1.5 * weight.shape[1] ** -0.5, generator=generator)
    return model.eval()


def sizes_for_hugging_face(model: Decoder, *, n_key_heads: int) -> dict[str, Any]:
    attention, mlp = model.layers[0].self_attn, model.layers[0].mlp
    return {
        "vocab_size": model.embed_tokens.num_embeddings,
        "hidden_size": model.embed_tokens.embedding_dim,
        "intermediate_size": mlp.gate_proj.out_features,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": attention.shape.n_heads,
        "num_key_value_heads": n_key_heads,
        "head_dim": attention.shape.head_dim,
        "rms_norm_eps": model.norm.eps,
        "tie_word_embeddings": model.lm_head is None,
    }


def llama_with_weights_of(model: Decoder, rope_parameters: dict[str, Any], n_key_heads: int = 2) -> LlamaForCausalLM:
    parameters = {"rope_theta": 10000.0} | rope_parameters
    config = LlamaConfig(**sizes_for_hugging_face(model, n_key_heads=n_key_heads), rope_parameters=parameters)
    config._attn_implementation = "eager"
    return given_weights(LlamaForCausalLM(config), model, model.state_dict())


def gemma_with_weights_of(model: Decoder) -> GemmaForCausalLM:
    """Gemma multiplies by 1 + w where we, like everybody else, multiply by w."""
    config = GemmaConfig(**sizes_for_hugging_face(model, n_key_heads=1), hidden_act="gelu_pytorch_tanh")
    config._attn_implementation = "eager"
    weights = {name: w - 1 if name.endswith("norm.weight") else w for name, w in model.state_dict().items()}
    return given_weights(GemmaForCausalLM(config), model, weights)


def given_weights(theirs: PreTrainedModel, model: Decoder, weights: dict[str, Tensor]) -> Any:
    renamed = {name if name == "lm_head.weight" else f"model.{name}": weight for name, weight in weights.items()}
    theirs.to(model.norm.weight.dtype)
    missing, unexpected = theirs.load_state_dict(renamed, strict=False)
    assert unexpected == []
    assert missing == (["lm_head.weight"] if model.lm_head is None else [])
    return theirs.eval()


class ExactNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (offset + w) in float64, for Hugging Face's that goes through float32."""

    def __init__(self, weight: Tensor, eps: float, offset: float) -> None:
        super().__init__()
        self.weight, self.eps, self.offset = weight, eps, offset

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * (self.offset + self.weight)


class ExactAngles(nn.Module):
    """Cosines and sines of position * theta^(-2k / head_dim), k < n_kept, and of 0 for the other pairs, in float64."""

    def __init__(self, head_dim: int, theta: float, n_kept: int) -> None:
        super().__init__()
        frequencies = [theta ** (-2 * k / head_dim) if k < n_kept else 0.0 for k in range(head_dim // 2)]
        self.frequencies = torch.tensor(frequencies * 2, dtype=torch.float64)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * self.frequencies
        return angles.cos(), angles.sin()


def made_exact(theirs: Any, *, theta: float, p: float, offset: float = 0.0) -> Any:
    """Hugging Face's model in float64 throughout: its norms, angles and eager softmax are float32 by their code."""
    theirs.config._attn_implementation = "sdpa"
    for module in list(theirs.modules()):
        for name, child in list(module.named_children()):
            if name.endswith("norm"):
                setattr(module, name, ExactNorm(child.weight, theirs.config.rms_norm_eps, offset))
    head_dim = theirs.config.head_dim
    theirs.model.rotary_emb = ExactAngles(head_dim, theta, int(p * head_dim / 2))
    return theirs


def logits_of(model: Any, tokens_BT: Tensor = TOKENS_BT) -> Tensor:
    with torch.no_grad():
        out = model(tokens_BT)
    return out if isinstance(model, Decoder) else out.logits


def assert_equal_to_rounding(ours_BTV: Tensor, theirs_BTV: Tensor) -> None:
    """Equal but for float32 rounding, with logits that are far from zero and not all alike."""
    assert ours_BTV.dtype == theirs_BTV.dtype == torch.float32
    assert theirs_BTV.std() > 0.5
    assert (ours_BTV - theirs_BTV).abs().max() < rounding(5 * 172, float(theirs_BTV.abs().max()))  # five layers


# -- Hugging Face's models with the same weights


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("n_key_heads", [4, 2, 1])
@pytest.mark.parametrize(("pe", "rope_parameters"), LLAMAS)
def test_logits_are_llamas(pe: str, rope_parameters: dict[str, Any], n_key_heads: int, tied: bool) -> None:
    model = lively(decoder(pe, n_key_heads=n_key_heads, tied_embeddings=tied))
    theirs = llama_with_weights_of(model, rope_parameters, n_key_heads)
    assert_equal_to_rounding(logits_of(model), logits_of(theirs))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_without_mlps_logits_are_those_of_a_llama_whose_mlps_write_nothing(tied: bool) -> None:
    model = lively(decoder("rope", d_mlp=0, tied_embeddings=tied))
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 8, "num_hidden_layers": 3, "head_dim": 16}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5)
    config.tie_word_embeddings, config._attn_implementation = tied, "eager"
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    theirs = LlamaForCausalLM(config)
    weights = {k if k == "lm_head.weight" else f"model.{k}": weight for k, weight in model.state_dict().items()}
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert unexpected == []
    assert {name.split(".")[3] for name in missing if name != "lm_head.weight"} == {"mlp", "post_attention_layernorm"}
    with torch.no_grad():
        for layer in theirs.model.layers:
            layer.mlp.down_proj.weight.zero_()
    assert_equal_to_rounding(logits_of(model), logits_of(theirs.eval()))


@pytest.mark.parametrize(
    ("pe", "theta", "p"),
    [
        ("nope", 1e4, 0.0),
        ("rope", 1e4, 1.0),
        ("rope_500k", 5e5, 1.0),
        ("p_rope", 1e4, 0.75),
        ("p_rope_25", 1e4, 0.25),
    ],
)
def test_float64_logits_are_llamas_to_ten_digits(pe: str, theta: float, p: float) -> None:
    model = lively(decoder(pe)).double()
    theirs = made_exact(llama_with_weights_of(model, {"rope_type": "default"}), theta=theta, p=p)
    assert (logits_of(model) - logits_of(theirs)).abs().max() < 1e-10


def test_float64_logits_of_the_gemma_flavour_are_gemmas_to_ten_digits() -> None:
    model = lively(
        decoder(model="gemma_2b_scratch", d_model=96, n_key_heads=1, head_dim=32, tied_embeddings=True)
    ).double()
    theirs = made_exact(gemma_with_weights_of(model), theta=1e4, p=1.0, offset=1.0)
    theirs.model.embed_tokens.embed_scale = torch.tensor(96**0.5, dtype=torch.float64)
    assert (logits_of(model) - logits_of(theirs)).abs().max() < 1e-10


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_weights_have_the_names_and_shapes_that_hugging_face_saves(tied: bool, tmp_path: Path) -> None:
    model = decoder(tied_embeddings=tied)
    llama_with_weights_of(model, {"rope_type": "default"}).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        theirs = {name.removeprefix("model."): file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    assert {name: list(weight.shape) for name, weight in model.state_dict().items()} == theirs


# -- sizes


@pytest.mark.parametrize(
    ("name", "n_vocab", "fewest", "most"),
    [
        ("tiny", 4_096, 1.0e6, 1.5e6),
        ("small", 4_096, 9e6, 12e6),
        ("base", 50_257, 0.99 * 124e6, 1.01 * 124e6),
    ],
)
def test_models_are_as_large_as_their_yaml_says(name: str, n_vocab: int, fewest: float, most: float) -> None:
    with torch.device("meta"):
        model = build_decoder(
            load_option("model", name), load_option("pe", "p_rope"), load_option("softmax", "softmax"), n_vocab
        )
    assert fewest <= n_parameters(model) <= most


# -- gradients


@pytest.mark.parametrize("step", [None, 3], ids=["evaluating", "training"])
@pytest.mark.parametrize("pe", ENCODINGS)
def test_loss_at_a_token_has_no_derivative_with_respect_to_later_tokens(pe: str, step: int | None) -> None:
    model, seen = lively(decoder(pe)), []

    def begin_the_graph_here(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        seen.append(out.detach().requires_grad_())
        return seen[-1]

    model.embed_tokens.register_forward_hook(begin_the_graph_here)
    tokens_BT1 = TOKENS_BT[:, :8]
    logits_BTV = model(tokens_BT1[:, :-1], step=step)
    for t in range(7):
        nats = F.cross_entropy(logits_BTV[:, t], tokens_BT1[:, t + 1], reduction="sum")
        (grad_BTD,) = torch.autograd.grad(nats, seen[0], retain_graph=True)
        assert torch.count_nonzero(grad_BTD[:, t + 1 :]) == 0
        assert grad_BTD[:, : t + 1].any(-1).all(), "every token up to t matters"


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("pe", ENCODINGS)
def test_gradients_reach_every_parameter(pe: str, tied: bool) -> None:
    model = decoder(pe, tied_embeddings=tied)
    F.cross_entropy(model(TOKENS_BT[:, :-1], step=0).flatten(0, 1), TOKENS_BT[:, 1:].flatten()).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.count_nonzero() > 0, name


# -- encodings inside a model


@pytest.mark.parametrize("pe", ENCODINGS)
def test_an_encoding_is_shared_by_the_layers_or_built_for_each(pe: str) -> None:
    model = decoder(pe)
    layers = [encoding.shape.layer for encoding in model.encodings]
    assert layers == ([0, 1, 2] if model.encoding.per_layer else [0])
    assert [layer.self_attn.softmax.shape.layer for layer in model.layers] == [0, 1, 2]


def test_what_differs_by_layer_is_reported_of_all_layers() -> None:
    model = decoder("rope")
    assert model.facts() == {"rotated_pairs": 8, "pairs": 8, "slowest_wavelength": 19869}
    still = decoder("nope").encoding
    model.encodings = nn.ModuleList([model.encoding, model.encoding, still])
    assert model.facts() == {
        "rotated_pairs": "0 to 8 by layer",
        "pairs": "0 to 8 by layer",
        "slowest_wavelength": "0 to 19,869 by layer",
    }


def changed_layers(model: Decoder, parameter: nn.Parameter) -> list[bool]:
    """Of which layers the attention's output moves, given the same input, when this parameter does."""
    x_BTD = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(2))
    outputs: list[list[Tensor]] = []
    for _ in range(2):
        heard: list[Tensor] = []
        hooks = [
            layer.self_attn.register_forward_hook(lambda _m, _a, out, heard=heard: heard.append(out))
            for layer in model.layers
        ]
        ahead = [layer.register_forward_pre_hook(lambda _m, args: (x_BTD, *args[1:])) for layer in model.layers]
        logits_of(model, TOKENS_BT[:1, :9])
        for hook in [*hooks, *ahead]:
            hook.remove()
        outputs.append(heard)
        with torch.no_grad():
            parameter += torch.linspace(-2, 2, parameter.numel()).view_as(parameter)
    return [not torch.equal(before, after) for before, after in zip(*outputs, strict=True)]


def test_a_shared_encoding_acts_on_every_layer() -> None:
    model = lively(decoder("t5_bias"))
    assert changed_layers(model, model.encodings[0].table) == [True, True, True]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_an_encoding_of_a_layer_acts_on_that_layer_alone(layer: int) -> None:
    model = lively(decoder("kerple"))
    assert changed_layers(model, model.encodings[layer].log_r1) == [i == layer for i in range(3)]


def test_the_step_of_training_reaches_the_encoding() -> None:
    model = lively(decoder("rope_random"))
    with torch.no_grad():
        evaluated, first, again, second = (model(TOKENS_BT, step=step) for step in (None, 1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, evaluated)


def layer_weights(pe: str, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {name: w for name, w in decoder(pe).state_dict().items() if not name.startswith("encodings.")}


@pytest.mark.parametrize("pe", ENCODINGS)
def test_the_same_seed_gives_the_same_layer_weights_whatever_the_encoding(pe: str) -> None:
    ours, plain = layer_weights(pe, 7), layer_weights("nope", 7)
    assert ours.keys() == plain.keys()
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_matrices_that_write_to_the_residual_stream_start_smaller_by_the_square_root_of_twice_the_layers() -> None:
    torch.manual_seed(0)
    model = decoder("nope", d_model=256, n_layers=8, d_mlp=512, initializer_range=0.1)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            assert float(weight.detach().std()) == pytest.approx(0.1 / 4 if writes else 0.1, rel=0.03), name


# -- a model that another library trained


def stories() -> Decoder:
    config = json.loads((STORIES / "config.json").read_text())
    model = decoder(
        "rope",
        n_vocab=config["vocab_size"],
        d_model=config["hidden_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_key_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        d_mlp=config["intermediate_size"],
        train_length=config["max_position_embeddings"],
        tied_embeddings=config["tie_word_embeddings"],
        norm_eps=config["rms_norm_eps"],
    )
    weights = load_file(STORIES / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): weight for name, weight in weights.items()})
    return model.eval()


def test_a_llama_from_disk_tells_the_story_it_tells_in_hugging_face() -> None:
    model, tokens = stories(), [1]  # the token that begins a document
    for _ in range(200):
        tokens.append(int(logits_of(model, torch.tensor([tokens]))[0, -1].argmax()))
    text = Tokenizer.from_file(str(STORIES / "tokenizer.json")).decode(tokens)
    assert text == (ROOT / "tests" / "golden" / "stories260k_greedy_200_tokens.txt").read_text()


# -- what it refuses


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_key_heads": 3}, "n_heads=4 must be a multiple of n_key_heads=3"),
        ({"d_model": 66}, "d_model=66 must be a multiple of n_heads=4"),
    ],
)
def test_sizes_that_do_not_fit_are_a_value_error_that_names_them(sizes: dict[str, int], message: str) -> None:
    usual: dict[str, Any] = {**SMALL, "n_vocab": 97, "head_dim": None, "geglu": False, "scaled_embeddings": False}
    with pytest.raises(ValueError, match=message):
        Decoder(
            **(usual | sizes),
            norm_eps=1e-5,
            initializer_range=0.02,
            kinds=[LayerKind(make_encoding=NoPE, make_softmax=Softmax)],
        )
