"""The registered attention and its mask equal each architecture's own, and layouts are read off what models do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers_hf import (
    ALTERNATING,
    ARCHITECTURES,
    HYBRIDS,
    INDEXER,
    LATENT,
    N_VOCAB,
    SIZES,
    WINDOW,
    Words,
    frequency_tables,
    some_tokens,
    tiny,
)
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    PreTrainedModel,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
)
from transformers.masking_utils import chunked_causal_mask_function

import roundround as rr
from roundround.hf import load as subject_module
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import INPUT, attention, configs_of, installed, mask
from roundround.probing.ablation import text_loss
from roundround.probing.dispersion import watched
from roundround.probing.layout import PAIRINGS, SHIFT, Layout, read_layout
from roundround.probing.probe import observe
from roundround.probing.probed_model import run, watching
from roundround.probing.rows import weights_of_layers
from roundround.report.probe_results import records, show
from roundround.softmax.sink import Sink
from roundround.softmax.soft_cap import SoftCap
from roundround.support.errors import UserError

NAMES = list(ARCHITECTURES)
HALF = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
T5GEMMA = {"encoder": {**HALF, "vocab_size": N_VOCAB}, "decoder": {**HALF, "vocab_size": N_VOCAB}}


@pytest.mark.parametrize("name", NAMES)
def test_the_registered_attention_equals_stock_eager(name: str) -> None:
    model, tokens = tiny(name), some_tokens(2, 24)
    stock = model(tokens, use_cache=False).logits
    with installed(model) as normalisers:
        ours = model(tokens, use_cache=False).logits
    assert len(normalisers) == 4
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4 * float(stock.abs().max()))
    torch.testing.assert_close(model(tokens, use_cache=False).logits, stock, rtol=0, atol=0)  # and all is as before


@pytest.mark.parametrize("name", NAMES)
def test_a_later_token_changes_nothing_before_it(name: str) -> None:
    model, tokens = tiny(name), some_tokens(1, 20)
    changed = tokens.clone()
    changed[:, 12:] = some_tokens(1, 8, seed=1)
    with installed(model):
        before, after = (model(x, use_cache=False).logits for x in (tokens, changed))
    torch.testing.assert_close(before[:, :12], after[:, :12], rtol=1e-5, atol=1e-5)
    assert (before[:, 12:] - after[:, 12:]).abs().max() > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_generation_with_its_cache_is_the_same(name: str) -> None:
    model, tokens = tiny(name), some_tokens(2, 7)
    stock = model.generate(tokens, max_new_tokens=12, do_sample=False)
    with installed(model):
        assert torch.equal(model.generate(tokens, max_new_tokens=12, do_sample=False), stock)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "llama4_text"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_padded_batch_generates_the_same(name: str, cache: str) -> None:
    model, tokens = tiny(name), some_tokens(2, 9)
    options = {"attention_mask": torch.tensor([[0, 0, 0, *[1] * 6], [1] * 9]), "max_new_tokens": 8, "do_sample": False}
    if cache == "static":
        options["cache_implementation"] = "static"
    options["disable_compile"] = True
    stock = model.generate(tokens, **options)
    with installed(model):
        assert torch.equal(model.generate(tokens, **options), stock)


def layouts_of(name: str, **changes: object) -> list[Layout]:
    model = tiny(name, **changes)
    with installed(model):
        subject = ProbedHuggingFaceModel(name, model, None)
        return observe(subject, [some_tokens(12).tolist()], rows=False, entropy=False).layouts


@pytest.mark.parametrize("name", NAMES)
def test_the_layout_is_read(name: str) -> None:
    layouts = layouts_of(name)
    pairing = "interleaved" if name in ("cohere", "deepseek_v2", "llama4_text") else "half-split"
    rotated_pairs = {
        "gemma4_text": [8, 4, 8, 4],
        "gpt_neox": [3] * 4,
        "smollm3": [8, 0, 8, 0],
        "deepseek_v2": [4] * 4,
        "deepseek_v3": [4] * 4,
        "llama4_text": [8, 8, 8, 0],
        "inkling_text": [0] * 4,
    }  # p-RoPE, partial, NoPE layers, latent attention
    default = [6] * 4 if name in ("olmo2", "phi3", "cohere") else [8] * 4
    assert [layout.n_rotated for layout in layouts] == rotated_pairs.get(name, default)
    assert {layout.pairing for layout in layouts if layout.n_rotated} <= {pairing}
    assert {layout.first for layout in layouts} == ({16} if name.startswith("deepseek") else {0})


@pytest.mark.parametrize("name", [*NAMES, "exaone4"])  # whose layers name a window that their masks do not have
def test_windows_are_those_of_the_masks(name: str) -> None:
    own = ARCHITECTURES.get(name, {"sliding_window": WINDOW, "layer_types": ALTERNATING})
    model = tiny(name, **own)
    with installed(model) as normalisers:
        probed = ProbedHuggingFaceModel(name, model, None)
        seen: list[int | None] = []
        with watching(normalisers, lambda _, qkv, call: seen.append(call["keys"].window or call["keys"].chunk)):
            run(probed, [(some_tokens(12).tolist(), 0)])
    assert probed.windows() == seen
    assert (WINDOW in seen) == (WINDOW in own.values())


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("n_rotary", [8, 16])
def test_a_layout_is_found_from_queries_alone(pairing: str, n_rotary: int) -> None:
    generator = torch.Generator().manual_seed(0)
    table = 100.0 ** (-torch.arange(n_rotary // 2) / (n_rotary // 2)).double()
    frequencies = torch.cat([table, torch.zeros(8 - len(table), dtype=torch.float64)])
    layout = Layout(frequencies, pairing, n_rotary)
    q = torch.randn(3, 16, 16, generator=generator)
    turned = torch.polar(torch.ones_like(frequencies), frequencies * SHIFT)
    pairs = torch.view_as_real(torch.view_as_complex(layout.split(q).contiguous()) * turned).float()
    shifted = torch.empty_like(q)
    shifted[..., layout.channels(0, 8)] = pairs.flatten(-2)
    other = 1e4 ** (-torch.arange(8) / 8)
    read = read_layout(q, shifted, [other, table])
    assert read is not None
    assert (read.pairing, read.n_rotary, read.n_rotated) == (pairing, n_rotary, len(table))
    assert read_layout(q, shifted.roll(1, -1), [other, table]) is None
    assert read_layout(q, q, [other, table]).n_rotated == 0


def test_the_models_own_softmax_is_kept() -> None:
    with installed(tiny("gemma2")) as caps, installed(tiny("gpt_oss")) as sinks:
        assert {type(x) for x in caps} == {SoftCap}
        assert {type(x) for x in sinks} == {Sink}


def test_the_decoder_inside_a_model_of_images_is_probed() -> None:
    text = {**SIZES, **ARCHITECTURES["gemma3_text"]}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
    }
    config = Gemma3Config(text_config=text, vision_config={**vision, "patch_size": 14}, mm_tokens_per_image=4)
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    tokens = some_tokens(1, 20)
    stock = model(tokens, use_cache=False).logits
    names = [c._attn_implementation for c in configs_of(model)]
    with installed(model) as normalisers:
        assert len(normalisers) == 4
        torch.testing.assert_close(model(tokens, use_cache=False).logits, stock, rtol=1e-4, atol=1e-4)
        subject = ProbedHuggingFaceModel("images", model, None)
        assert len(observe(subject, tokens.tolist(), rows=False, entropy=False).layouts) == 4
        nats = torch.nn.functional.cross_entropy(stock[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
        torch.testing.assert_close(subject.token_loss(tokens[:, :-1], tokens[:, 1:]), nats, rtol=1e-4, atol=1e-4)
    assert [c._attn_implementation for c in configs_of(model)] == names


@pytest.mark.parametrize("name", ["gemma2", "cohere", "gemma4_text", "llama"])
def test_losses_in_blocks_of_positions_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = tiny(name), some_tokens(2, 20)
    logits = model(tokens[:, :-1], use_cache=False).logits
    whole = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    with installed(model):
        subject = ProbedHuggingFaceModel(name, model, None)
        torch.testing.assert_close(subject.token_loss(tokens[:, :-1], tokens[:, 1:]), whole, rtol=1e-4, atol=1e-4)
        monkeypatch.setattr(subject_module, "LOGITS_AT_ONCE", N_VOCAB * 2 * 3)
        torch.testing.assert_close(subject.token_loss(tokens[:, :-1], tokens[:, 1:]), whole, rtol=1e-4, atol=1e-4)
    assert "forward" not in subject.decoder.__dict__


# -- what is refused


def following(name: str, original: int = 128) -> PreTrainedModel:
    """A model whose frequencies change with the length, beyond `original` tokens."""
    rope = {"rope_type": name, "rope_theta": 1e4, "factor": 4.0}
    if name == "dynamic":
        return tiny("llama", rope_parameters=rope, max_position_embeddings=original)
    rope |= {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    own = {"max_position_embeddings": 4 * original, "original_max_position_embeddings": original}
    return tiny("phi3", rope_parameters=rope, **own)


@pytest.mark.parametrize("name", ["longrope", "dynamic"])
def test_frequencies_that_follow_the_length_are_read_and_not_replaced(name: str) -> None:
    model = following(name)
    with installed(model):
        subject = ProbedHuggingFaceModel(name, model, None)
        for n in (12, 120):  # rows of the self-test begin SHIFT positions on, and are as long as the longest text
            model(some_tokens(1, 300))  # after which its frequencies are those of a longer text
            assert observe(subject, [some_tokens(n).tolist()], rows=False, entropy=False).layouts[0].n_rotated > 5
        with (
            pytest.raises(UserError, match="can be probed, but not replaced"),
            subject.with_frequencies(subject.tables()),
        ):
            pass


@pytest.mark.parametrize("name", ["longrope", "dynamic"])
def test_the_loss_of_a_text_depends_on_that_text_alone(name: str) -> None:
    lengths = (20, 34, 70, 48, 24)  # on both sides of 32
    texts = [some_tokens(n, seed=n) for n in lengths]
    model = following(name, 32)
    alone = []
    for text in texts:
        logits = following(name, 32)(text[None, :-1]).logits[0]  # of a model that has read nothing before
        alone.append(F.cross_entropy(logits, text[1:], reduction="none"))
    with installed(model):
        subject = ProbedHuggingFaceModel(name, model, None)
        for text, loss in zip(texts, alone, strict=True):
            torch.testing.assert_close(
                subject.token_loss(text[None, :-1], text[None, 1:])[0], loss, rtol=1e-4, atol=1e-4
            )
        together = text_loss(subject, [text.tolist() for text in texts], batch_tokens=10_000)
    assert float(together.sum_T.sum()) == pytest.approx(float(torch.cat(alone).sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("diffllama", {}, "calls its attention twice"),
        ("t5gemma", {}, "has an encoder"),
        ("inkling2_text", {**ARCHITECTURES["inkling_text"]}, "which has sinks that roundround does not know"),
        ("deepseek_v32", {**LATENT, **INDEXER, "index_topk": 12}, "an indexer that hides keys of texts longer than 12"),
    ],
)
def test_attention_of_another_kind_is_refused_in_one_line(name: str, changes: dict[str, object], message: str) -> None:
    if name == "t5gemma":
        model = T5GemmaForConditionalGeneration(T5GemmaConfig(vocab_size=N_VOCAB, **T5GEMMA)).eval()
    else:
        model = tiny(name, **changes)
    with pytest.raises(UserError, match=message), installed(model):
        observe(ProbedHuggingFaceModel(name, model, None), [some_tokens(12).tolist()], rows=False, entropy=False)
    assert not [m for m in model.modules() if hasattr(m, "roundround_softmax") or "roundround_input" in m.__dict__]


def test_layers_keep_their_numbers_where_others_have_no_attention(capsys: pytest.CaptureFixture[str]) -> None:
    types = ["conv", "conv", "full_attention", "conv", "full_attention", "full_attention"]
    model, text = tiny("lfm2", num_hidden_layers=6, layer_types=types, num_key_value_heads=2), some_tokens(30)
    stock = model(text[None], output_attentions=True, use_cache=False).attentions
    with installed(model) as normalisers:
        subject = ProbedHuggingFaceModel("hybrid", model, Words())
        assert [softmax.shape.layer for softmax in normalisers] == subject.layers == [2, 4, 5]
        seen = observe(subject, [text.tolist()], prompt=text.tolist())
        with watched(model, 30) as dispersion:
            subject.hidden(text[None], torch.arange(30)[None])
    arrays = seen.arrays()
    there = ~arrays["places"].isnan().any(-1).any(-1)
    assert there.tolist() == [False, False, True, False, True, True]
    assert {record["layer"] for record in records(seen) if record["metric"] != "kind_of_layer"} == {2, 4, 5}
    assert [bool(heads) for heads in seen.labels()] == there.tolist()
    assert list(seen.prompt.layers) == dispersion.layers == [2, 4, 5]
    for layer, alpha_BHQK in zip((2, 4, 5), (own for own in stock if own is not None), strict=True):
        torch.testing.assert_close(seen.prompt.layers[layer].weights, alpha_BHQK[0], rtol=1e-4, atol=1e-5)
    show(seen)
    shown = capsys.readouterr().err
    assert all(f" {layer} " in shown for layer in (2, 4, 5))
    assert {int(layer) for layer in re.findall(r"^ ?diffuse +(\d)\.\d", shown, re.MULTILINE)} <= {2, 4, 5}


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrids_attention_is_its_own_and_its_other_layers_are_listed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, text = tiny(name, **HYBRIDS[name]).double(), some_tokens(30)
    out = model(text[None], output_attentions=True, use_cache=False)
    with rr.patch(model, softmax="softmax"):
        patched = model(text[None], use_cache=False).logits
    torch.testing.assert_close(patched, out.logits, rtol=1e-5, atol=1e-5)  # eager rounds its weights to float32
    with installed(model) as normalisers:
        subject = ProbedHuggingFaceModel("hybrid", model, Words())
        [layer] = subject.layers
        [weights_HTT] = weights_of_layers(normalisers, lambda: subject.hidden(text[None], torch.arange(30)[None]))
        seen = observe(subject, [text.tolist()])
    stock_HTT = [own for own in out.attentions if own is not None and own.ndim == 4][-1][0]
    torch.testing.assert_close(weights_HTT, stock_HTT.double(), rtol=1e-6, atol=1e-6)
    entropy_H = torch.special.entr(weights_HTT).sum(-1).mean(-1)
    torch.testing.assert_close(seen.arrays()["entropy"][layer], entropy_H.float())
    assert layer == model.config.layer_types.index("full_attention")
    kind = model.config.layer_types[0]
    assert seen.others == {number: kind for number in range(4) if number != layer}
    kinds = [record["layer"] for record in records(seen) if record["metric"] == "kind_of_layer"]
    assert sorted([layer, *kinds]) == list(range(4))
    show(seen)
    assert f"no attention: layers {'0-2' if layer == 3 else '0-1, 3'} ({kind})" in capsys.readouterr().err


def test_a_mask_that_is_not_causal_is_refused() -> None:
    options = {"batch_size": 1, "q_length": 12, "kv_length": 12, "attention_mask": None}
    chunked = chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long))
    assert mask(mask_function=chunked, local_size=4, **options).chunk == 4
    for other in (None, 3, 5):
        with pytest.raises(UserError, match="neither causal nor a sliding window"):
            mask(mask_function=chunked, local_size=other, **options)
    with pytest.raises(UserError, match="neither causal"):
        mask(mask_function=lambda b, h, q, k: (q >= 0) & (k >= 0), **options)


def with_a_block(first: int, last: int) -> Callable[..., torch.Tensor]:
    """Causal, but for the tokens first..last, which see each other, as those of an image do."""
    return lambda b, h, q, k: (k <= q) | ((q >= first) & (q <= last) & (k >= first) & (k <= last))


@pytest.mark.parametrize(("n", "first", "last"), [(30, 4, 7), (30, 28, 29), (3000, 700, 703), (3000, 1998, 1999)])
def test_a_block_that_sees_ahead_is_refused_wherever_it_stands(n: int, first: int, last: int) -> None:
    options = {"batch_size": 2, "q_length": n, "kv_length": n, "attention_mask": None}
    with pytest.raises(UserError, match="neither causal"):
        mask(mask_function=with_a_block(first, last), **options)
    assert mask(mask_function=with_a_block(n, n), **options).n_keys == n


def test_a_long_mask_is_not_looked_at_whole() -> None:
    asked = []

    def causal(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        asked.append(torch.broadcast_shapes(q.shape, k.shape).numel())
        return k <= q

    mask(mask_function=causal, batch_size=1, q_length=2**16, kv_length=2**16)
    assert sum(asked) < 64 * 2**16


def test_what_a_model_does_with_its_mask_is_honoured_or_an_error() -> None:
    keys = mask(mask_function=with_a_block(9, 9), batch_size=1, q_length=8, kv_length=8)
    assert keys[:, :, -2:, :].n_queries == 2
    assert keys[:, :, :, :8].n_keys == 8
    uses = [
        lambda: keys[0], lambda: keys[:, :, :, :4], lambda: keys[:, 1], lambda: keys.dtype, lambda: keys.sum(),
        lambda: torch.zeros(8, 8) + keys, lambda: torch.zeros(8, 8).masked_fill(keys, 1.0),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises((UserError, AttributeError, TypeError)):
            use()
    model, tokens = tiny("doge"), some_tokens(1, 8)
    stock = model(tokens, use_cache=False).logits
    with rr.patch(model, softmax="softmax"), pytest.raises(AttributeError):
        model(tokens, use_cache=False)
    assert torch.equal(model(tokens, use_cache=False).logits, stock)


def test_an_indexer_that_chooses_every_key_changes_nothing() -> None:
    model, tokens = tiny("deepseek_v32", **LATENT, **INDEXER), some_tokens(2, 20)
    assert model.config.index_topk == 20
    stock = model(tokens, use_cache=False).logits
    with installed(model):
        ours = model(tokens, use_cache=False).logits
        with pytest.raises(UserError, match="an indexer that hides keys of texts longer than 20"):
            model(some_tokens(1, 21), use_cache=False)
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4 * float(stock.abs().max()))


def test_a_layer_that_never_calls_its_attention_is_refused() -> None:
    model = tiny("llama")
    layer = model.model.layers[1].self_attn
    layer.forward = lambda hidden_states, **others: (hidden_states, None)
    with (
        rr.patch(model, softmax="temperature", temperature=0.2),
        pytest.raises(UserError, match="does not call the attention"),
    ):
        model(some_tokens(1, 8), use_cache=False)


def test_a_call_without_our_mask_is_refused() -> None:
    model = tiny("llama")
    with installed(model):
        layer = model.model.layers[0].self_attn
        layer.__dict__[INPUT] = torch.zeros(1, 3, 48)
        q = torch.zeros(1, 4, 3, 16)
        with pytest.raises(UserError, match="makes its own attention mask"):
            attention(layer, q, q[:, :2], q[:, :2], None)
        with pytest.raises(UserError, match="makes its own attention mask"):
            model(some_tokens(1, 3), attention_mask=torch.zeros(1, 1, 3, 3), use_cache=False)


def test_a_leak_is_found_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    with installed(model):
        subject = ProbedHuggingFaceModel("leaky", model, None)
        hidden = subject.hidden

        def leaking(*args: Any) -> torch.Tensor:
            out = hidden(*args)
            return out + 0.05 * out.roll(-1, 1)

        monkeypatch.setattr(subject, "hidden", leaking)
        with pytest.raises(UserError, match="leaky is not causal"):
            observe(subject, [some_tokens(12).tolist()], rows=False, entropy=False)


def test_an_unknown_rotation_is_refused() -> None:
    model = tiny("lfm2", layer_types=["conv", "full_attention"] * 2, num_key_value_heads=2)
    with installed(model):
        subject = ProbedHuggingFaceModel("odd", model, None)
        wrong = [table * 1.5 for table in frequency_tables(model)]
        subject.tables = lambda: wrong
        with pytest.raises(UserError, match="layer 1 of odd rotates its channels in a way"):
            observe(subject, [some_tokens(12).tolist()], rows=False, entropy=False)
