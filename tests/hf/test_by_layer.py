"""An encoding that differs by layer inside Hugging Face models: each layer rotates as it says, or one line says no."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, final

import pytest
import torch
from conftest import STORIES
from helpers_hf import FAMILIES, some_tokens, tiny
from transformers import AutoModelForCausalLM, PreTrainedModel

import roundround as rr
from roundround.hf.checkpoint import read_checkpoint
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import attention_layers, installed
from roundround.kernels.keys import AttentionShape
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.pe.nope import NoPE
from roundround.pe.rope import RoPE
from roundround.pe.rotary import RotaryEncoding, ladder
from roundround.probing.probe import observe
from roundround.probing.probed_model import ProbedDecoder
from roundround.softmax.softmax import Softmax
from roundround.support.errors import UserError


@final
class EveryOther(RotaryEncoding):
    """RoPE, and nothing in every second layer."""

    per_layer: ClassVar[bool] = True

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> torch.Tensor:
        head_dim = self.shape.head_dim
        return (self.shape.layer % 2 == 0) * ladder(head_dim // 2, head_dim, self.theta, dtype, device)


def every_other(shape: AttentionShape) -> PositionalEncoding:
    return RoPE(shape, theta=None) if shape.layer % 2 == 0 else NoPE(shape)


def odd_layers(shape: AttentionShape) -> PositionalEncoding:
    return RoPE(shape, theta=None) if shape.layer % 2 else NoPE(shape)


def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(some_tokens(2, 24), use_cache=False).logits


@contextmanager
def standing_still(layers: list[Any]) -> Iterator[None]:
    """These layers are given the cosines and sines of position 0."""

    def still(layer: Any, args: Any, options: dict[str, Any]) -> Any:
        given = options["position_embeddings"]
        if given is None:
            return args, options
        if isinstance(given, torch.Tensor):  # complex numbers
            return args, {**options, "position_embeddings": torch.ones_like(given)}
        cos, _ = given
        factor = cos[:1, :1].amax()  # YaRN's
        return args, {**options, "position_embeddings": (torch.ones_like(cos) * factor, torch.zeros_like(cos))}

    hooks = [layer.register_forward_pre_hook(still, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore:the encoding's frequencies:UserWarning")
def test_each_layer_rotates_as_the_encoding_says_of_it(name: str) -> None:
    model = tiny(name)
    own = logits(model)
    with (
        rr.patch(model, pe="rope"),
        standing_still([layer for layer in attention_layers(model) if layer.layer_idx % 2]),
    ):
        expected = logits(model)
    with rr.patch(model, pe=every_other):
        found = logits(model)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(own.abs().max()))
    with rr.patch(model, pe="rope"):
        differ = float((logits(model) - found).abs().max()) > 1e-3 * float(own.abs().max())
    assert differ or name in ("smollm3", "minimax"), "whose odd layers never rotate, or have no attention"
    assert torch.equal(logits(model), own)


def test_a_run_and_its_export_are_the_same_with_an_encoding_that_differs_by_layer() -> None:
    model, checkpoint = AutoModelForCausalLM.from_pretrained(STORIES).eval(), read_checkpoint("stories260k")
    sizes = {name: value for name, value in checkpoint.nodes.model.items() if name not in ("_target_", "kind")}
    tokens = torch.arange(3, 63)[None]
    found = []
    for kind in (EveryOther, RoPE):
        decoder = Decoder(
            **sizes,
            n_vocab=checkpoint.nodes.n_vocab,
            kinds=[LayerKind(make_encoding=lambda shape, kind=kind: kind(shape, theta=None), make_softmax=Softmax)],
        ).eval()
        checkpoint.load_into(decoder)
        with torch.no_grad(), rr.patch(model, pe=lambda shape, kind=kind: kind(shape, theta=None)):
            found.append(model(tokens).logits)
            torch.testing.assert_close(decoder(tokens), found[-1], rtol=1e-4, atol=1e-4)
    assert (found[0] - found[1]).abs().max() > 0.1


def test_a_cache_changes_nothing() -> None:
    for name in ("llama", "gemma3_text"):
        model, tokens = tiny(name), some_tokens(1, 6)
        with rr.patch(model, pe=every_other):
            options = {"max_new_tokens": 12, "do_sample": False}
            with_cache = model.generate(tokens, **options)
            assert torch.equal(with_cache, model.generate(tokens, use_cache=False, **options))


def test_a_decoders_layers_are_probed_with_frequencies_of_their_own() -> None:
    decoder = Decoder(
        d_model=32, n_layers=2, n_heads=2, n_key_heads=1, head_dim=16, d_mlp=32, train_length=32, n_vocab=97,
        tied_embeddings=True, geglu=False, scaled_embeddings=False, norm_eps=1e-6, initializer_range=0.2,
        kinds=[LayerKind(make_encoding=lambda shape: EveryOther(shape, theta=None), make_softmax=Softmax)],
    ).eval()  # fmt: skip
    probed, tokens = ProbedDecoder("patterned", decoder, None, 0), some_tokens(1, 24)
    own = decoder(tokens)
    assert [bool(table.any()) for table in probed.tables()] == [True, False]
    with probed.with_frequencies(probed.tables()):
        torch.testing.assert_close(decoder(tokens), own)


def test_a_layer_that_the_model_does_not_rotate_rotates_if_the_encoding_says_so() -> None:
    inverted = tiny("smollm3", no_rope_layers=[0, 1, 0, 1])
    with rr.patch(tiny("smollm3"), pe=odd_layers) as patched:
        torch.testing.assert_close(logits(patched), logits(inverted), rtol=1e-4, atol=1e-4)
    with rr.patch(tiny("smollm3"), pe="rope") as patched:  # what frequencies describe is left to the model
        torch.testing.assert_close(logits(patched), logits(tiny("smollm3")), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "cohere"])
def test_a_probe_sees_frequencies_that_differ_by_layer(name: str) -> None:
    model = tiny(name)
    with rr.patch(model, pe="rope"):
        expected = observe(ProbedHuggingFaceModel(name, model, None), [some_tokens(40).tolist()])
    with rr.patch(model, pe=every_other):
        probed = ProbedHuggingFaceModel(name, model, None)
        found = observe(probed, [some_tokens(40).tolist()])
        stands_still = torch.zeros_like(probed.tables()[-1])
        with probed.with_frequencies([*probed.tables()[:-2], stands_still, stands_still]):
            still = logits(model)
    with rr.patch(model, pe="nope"):
        torch.testing.assert_close(still, logits(model), rtol=1e-4, atol=1e-4)
    assert [layout.n_rotated > 0 for layout in found.layouts] == [True, False, True, False]
    assert torch.allclose(found.layouts[0].frequencies_P, expected.layouts[0].frequencies_P, rtol=1e-6)
    norms = [probe.norms.mean("query", "norm")[0] for probe in (found, expected)]
    torch.testing.assert_close(norms[0], norms[1], rtol=1e-4, atol=1e-4)


def test_a_probe_reads_each_text_at_its_own_length_if_the_encoding_follows_it() -> None:
    model, texts = tiny("llama"), [some_tokens(n, seed=n).tolist() for n in (300, 400)]
    with rr.patch(model, pe="ntk_dynamic", factor=4.0):
        found = [
            observe(ProbedHuggingFaceModel("tiny", model, None), texts, batch_tokens=at_once).entropies
            for at_once in (2048, 400)
        ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


# -- refused


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nanochat", "layer 0 of NanoChatForCausalLM rotates its channels in a way that roundround does not know"),
        ("phimoe", "PhimoeForCausalLM does not rotate at the frequencies"),
        ("gpt2", "has no RoPE"),
    ],
)
@pytest.mark.filterwarnings("ignore:the encoding's frequencies:UserWarning")
def test_a_model_whose_rotation_cannot_be_replaced_is_refused_in_one_line(name: str, message: str) -> None:
    model = tiny(name)
    own = logits(model)
    with pytest.raises(UserError, match=message) as error:
        rr.patch(model, pe=odd_layers)
    assert "\n" not in str(error.value)
    assert torch.equal(logits(model), own)
    with installed(model):
        pass  # and nothing is left in it
