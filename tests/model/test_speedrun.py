"""The architecture of the speedrun recipe against its formulas written out, and where its weights begin.

Shapes: T tokens, D model width, H heads, C head channels, V vocabulary.
"""

from __future__ import annotations

import math

import pytest
import torch
from hydra import compose, initialize_config_dir
from rounding import rounding
from torch import Tensor

from roundround.config.options import conf_dir
from roundround.model.decoder import Decoder
from roundround.trained.models import decoder_of_config

V, T = 37, 9
SMALL = ["model.d_model=32", "model.n_layers=2", "model.n_heads=2", "model.n_key_heads=2", "model.head_dim=16"]


def decoder_of(*words: str) -> Decoder:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", ["experiment=recipe/speedrun", *SMALL, "model.d_mlp=128", *words])
    torch.manual_seed(0)
    return decoder_of_config(config, V).eval()


def rms(x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def written_out(w: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits [T, V] by the formulas, in float64."""
    frequencies = torch.cat([(1 / 1024) ** torch.linspace(0, 1, 4, dtype=torch.float64), torch.zeros(4).double()])
    x = rms(w["embed_tokens.weight"][tokens], w["embedding_norm.weight"])

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def rotated(x: Tensor) -> Tensor:
        angles = torch.arange(T)[:, None] * frequencies
        a, b = x[:, :8], x[:, 8:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    for layer in ("layers.0", "layers.1"):
        normed, heads = rms(x, w[f"{layer}.input_layernorm.weight"]), []
        for h in range(2):
            own = slice(16 * h, 16 * h + 16)
            q, k, v = (linear(f"{layer}.self_attn.{name}_proj", normed)[:, own] for name in "qkv")
            logits = 0.24 * rotated(rms(q)) @ rotated(rms(k)).T
            heads.append(logits.masked_fill(~torch.ones(T, T).tril().bool(), -torch.inf).softmax(-1) @ v)
        x = x + linear(f"{layer}.self_attn.o_proj", torch.cat(heads, -1))
        up = linear(f"{layer}.mlp.up_proj", rms(x, w[f"{layer}.post_attention_layernorm.weight"]))
        x = x + linear(f"{layer}.mlp.down_proj", up.clamp(min=0) ** 2)
    z = linear("lm_head", rms(x, w["norm.weight"]))
    return 15 * z / (z**2 + 225).sqrt()


def test_the_model_is_its_formulas() -> None:
    decoder = decoder_of()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape) + (parameter.mean() == 1))
        decoder.lm_head.weight *= 5  # type: ignore[union-attr, operator]
    tokens = torch.randint(V, (T,), generator=torch.Generator().manual_seed(1))
    expected = written_out({name: value.double() for name, value in decoder.state_dict().items()}, tokens)
    with torch.no_grad():
        found, losses = decoder(tokens[None])[0], decoder(tokens[None], targets_BT=tokens[None])[0]
    assert float(expected.abs().max()) > 10, "where the cap acts"
    # sums over 32, 128, 32 and 32 channels in each of two layers, of numbers of up to fifteen
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=rounding(2 * 256, 15.0))
    nats = torch.nn.functional.cross_entropy(expected, tokens, reduction="none")
    torch.testing.assert_close(losses.double(), nats, rtol=0, atol=2 * rounding(2 * 256, 15.0))


def test_what_writes_begins_at_zero_and_the_rest_at_its_scale() -> None:
    decoder = decoder_of()
    tokens = torch.randint(V, (2, T))
    with torch.no_grad():
        assert torch.equal(decoder(tokens), torch.zeros(2, T, V))
    for name, parameter in decoder.named_parameters():
        if name.endswith("bias") or name == "lm_head.weight" or "o_proj" in name or "down_proj" in name:
            assert not parameter.any(), name
        elif parameter.ndim == 2:
            std = 1.0 if name == "embed_tokens.weight" else math.sqrt(0.33 / parameter.shape[1])
            assert float(parameter.detach().std()) == pytest.approx(std, rel=4 / math.sqrt(2 * parameter.numel())), name


def test_a_cap_of_zero_is_refused() -> None:
    with pytest.raises(Exception, match=r"logit_cap=0\.0 must be above 0"):
        decoder_of("model.logit_cap=0.0")
