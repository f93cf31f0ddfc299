"""The encodings that Hugging Face has too, against their code."""

from __future__ import annotations

import pytest
import torch
from helpers_pe import attention_shape, bias_of, build, keys_at, layer_bias, noise, positions, rotated, rotated_keys
from rounding import rounding
from transformers import GPTNeoXConfig, LlamaConfig, T5Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.llama import modeling_llama as llama
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from roundround.pe.scaled import FollowsLength
from roundround.pe.t5_bias import bucket


def llama_config(head_dim: int, **rope_parameters: object) -> LlamaConfig:
    parameters = {"rope_theta": 10000.0} | rope_parameters
    return LlamaConfig(hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, rope_parameters=parameters)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("head_dim", [8, 64, 96, 128, 256, 512])
def test_p_rope_frequencies_are_the_proportional_ones_to_the_last_bit(head_dim: int, p: float) -> None:
    config = llama_config(head_dim, rope_type="proportional", partial_rotary_factor=p)
    theirs, scaling = ROPE_INIT_FUNCTIONS["proportional"](config, device=torch.device("cpu"))
    assert scaling == 1.0
    assert torch.equal(build("p_rope", attention_shape(head_dim=head_dim), p=p).frequencies(), theirs)


SCALED = {  # ours -> the parameters of Hugging Face's
    "linear": {"rope_type": "linear"},
    "ntk_dynamic": {"rope_type": "dynamic"},
    "yarn": {"rope_type": "yarn"},
    "llama3": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"rope_type": "longrope"},
}
OF_PAIRS = ("short_factor", "long_factor")
VARIATIONS = {  # of one scheme, beside those of the grid
    "yarn": [
        {},
        {"truncate": False},
        {"beta_fast": 16.0, "beta_slow": 2.0},
        {"attention_factor": 1.3},
        {"mscale": 1.0, "mscale_all_dim": 0.7},
    ],
}


@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0, 32.0])
@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_frequencies_and_their_factor_are_hugging_faces_to_the_last_bit(
    name: str, head_dim: int, theta: float, factor: float
) -> None:
    shape, kind = attention_shape(head_dim=head_dim, train_length=512), SCALED[name]
    for more in VARIATIONS.get(name, [{}]):
        if name == "longrope":
            generator = torch.Generator().manual_seed(head_dim)
            more = {key: (1 + 9 * torch.rand(head_dim // 2, generator=generator)).tolist() for key in OF_PAIRS}
        numbers = more | {"factor": factor}
        config = llama_config(
            head_dim, **(kind | numbers | {"rope_theta": theta, "original_max_position_embeddings": 512})
        )
        config.max_position_embeddings = 512  # what the dynamic scheme begins from
        ours = build(name, shape, theta=theta, **numbers)
        for length in (100, 512, 513, 2048):
            theirs, scaling = ROPE_INIT_FUNCTIONS[kind["rope_type"]](config, torch.device("cpu"), seq_len=length)
            follows = isinstance(ours, FollowsLength)
            found = ours.frequencies_at(length, torch.float32, "cpu") if follows else ours.frequencies()
            assert torch.equal(found, theirs), (length, more)
            assert ours.attention_factor == scaling


@pytest.mark.parametrize("name", SCALED)
def test_a_factor_that_is_left_out_follows_from_the_lengths(name: str) -> None:
    shape = attention_shape(train_length=128)
    given, from_lengths = build(name, shape, factor=4.0), build(name, shape, factor=None, length=512)
    assert torch.equal(given.frequencies(), from_lengths.frequencies())
    assert from_lengths.attention_factor == given.attention_factor
    with pytest.raises(ValueError, match=r"factor has no value; give factor=.* or length="):
        build(name, shape, factor=None)
    with pytest.raises(ValueError, match=r"factor=0.5 must be a finite number, 1 or above"):
        build(name, shape, factor=None, length=64)


@pytest.mark.parametrize("name", SCALED)
def test_a_scaled_rotation_is_llamas_beyond_the_trained_length_too(name: str) -> None:
    parameters = SCALED[name] | {"factor": 4.0, "original_max_position_embeddings": 160}
    if name == "longrope":
        parameters |= {"short_factor": [1.0] * 32, "long_factor": [4.0] * 32}
    config = llama_config(64, **parameters)
    config.max_position_embeddings = 160
    q, pos_1T = noise(2, 4, 30, 64).float(), positions(30, 400)
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, pos_1T)
    theirs, _ = llama.apply_rotary_pos_emb(q, q, cos, sin)
    ours = rotated(build(name, attention_shape(head_dim=64)), q, pos_1T)
    torch.testing.assert_close(ours, theirs, atol=rounding(2, 2 * float(q.abs().max())), rtol=0)


@pytest.mark.parametrize(
    ("name", "overrides", "parameters"),
    [
        ("rope", {}, {"rope_type": "default"}),
        ("rope_500k", {}, {"rope_type": "default", "rope_theta": 500000.0}),
        ("p_rope", {"p": 0.4}, {"rope_type": "proportional", "partial_rotary_factor": 0.4}),
    ],
)
def test_rotation_is_llamas(name: str, overrides: dict[str, float], parameters: dict[str, object]) -> None:
    q, k, pos_1T = noise(2, 4, 30, 64).float(), noise(2, 4, 30, 64, seed=1).float(), positions(30, 4000)
    cos, sin = llama.LlamaRotaryEmbedding(llama_config(64, **parameters))(q, pos_1T)
    theirs = llama.apply_rotary_pos_emb(q, k, cos, sin)
    encoding = build(name, attention_shape(head_dim=64), **overrides)
    ours = rotated(encoding, q, pos_1T), rotated_keys(encoding, k, pos_1T)
    torch.testing.assert_close(ours, tuple(theirs), atol=rounding(2, float(q.abs().max())), rtol=0)


@pytest.mark.parametrize("p", [0.25, 0.75])
def test_partial_rotation_is_gpt_neoxs(p: float) -> None:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": p}
    config = GPTNeoXConfig(hidden_size=256, num_attention_heads=4, rope_parameters=parameters)
    q, k, pos_1T = noise(2, 4, 30, 64).float(), noise(2, 4, 30, 64, seed=1).float(), positions(30, 4000)
    theirs = neox.apply_rotary_pos_emb(q, k, *neox.GPTNeoXRotaryEmbedding(config)(q, pos_1T))
    encoding = build("partial_rope", attention_shape(head_dim=64), p=p)
    ours = rotated(encoding, q, pos_1T), rotated_keys(encoding, k, pos_1T)
    torch.testing.assert_close(ours, tuple(theirs), atol=rounding(2, float(q.abs().max())), rtol=0)


@pytest.mark.parametrize("d_model", [6, 64])
def test_sinusoidal_vectors_are_distilberts(d_model: int) -> None:
    theirs = torch.empty(50, d_model)
    create_sinusoidal_embeddings(50, d_model, theirs)
    encoding = build("sinusoidal", attention_shape(d_model=d_model))
    ours = encoding.embed(torch.zeros(1, 50, d_model), positions(50))[0]
    torch.testing.assert_close(ours, theirs, atol=rounding(size=50), rtol=0)  # of angles up to 50


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 64), (2, 3), (33, 1000), (64, 40)])
def test_t5_buckets_are_theirs(n_buckets: int, max_distance: int) -> None:
    distance = torch.arange(3000)
    theirs = T5Attention._relative_position_bucket(-distance, False, n_buckets, max_distance)
    assert torch.equal(bucket(distance, n_buckets, max_distance), theirs)


def test_t5_bias_is_theirs() -> None:
    config = T5Config(d_model=64, num_heads=4, d_kv=16, is_decoder=True)
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    encoding = build("t5_bias")
    with torch.no_grad():
        encoding.table.copy_(attention.relative_attention_bias.weight)
        theirs = attention.compute_bias(200, 200)
    assert torch.equal(bias_of(encoding, 200), theirs[0])


@pytest.mark.parametrize("n_heads", [1, 2, 3, 5, 8, 12, 16, 20, 25])
def test_alibi_is_blooms_and_mpts(n_heads: int) -> None:
    encoding = build("alibi", attention_shape(n_heads=n_heads, n_key_heads=n_heads))
    keys = keys_at(positions(40), n_queries=1)
    last_row = layer_bias(encoding, keys, torch.zeros(1, 40, 64)).block(keys, 0, 1)[0]
    mpt = build_mpt_alibi_tensor(n_heads, 40)
    bloom = build_alibi_tensor(torch.ones(1, 40), n_heads, torch.float32)  # up to a constant a row
    torch.testing.assert_close(last_row, mpt)
    torch.testing.assert_close(last_row - last_row[..., :1], bloom)
