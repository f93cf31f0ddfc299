"""Normalisers and frequencies inside a loaded model, through the Python interface: exact, reversible, or refused."""

from __future__ import annotations

import math
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from conftest import ROOT, STORIES, beside
from helpers_hf import FAMILIES, N_VOCAB, frequency_tables, some_tokens, tiny
from rounding import rounding
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import roundround as rr
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.model.block import LayerKind
from roundround.model.decoder import Decoder
from roundround.pe.nope import NoPE
from roundround.pe.rotary import RotaryEncoding, ladder, rotation
from roundround.probing.probed_model import ProbedDecoder
from roundround.softmax.softmax import Softmax
from roundround.support.errors import UserError

# transformers has cosines in float32 in a model in float64 too: their last places move its sharp attention, and with it
# the logits, by a hundred times as much
OF_COSINES = 100 * rounding()


def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(some_tokens(2, 40), use_cache=False).logits


def eager_with(model: PreTrainedModel, weights_of: object) -> torch.Tensor:
    """The model's logits with its own eager attention, whose softmax is replaced by `weights_of(logits, visible)`."""
    from transformers.models.llama import modeling_llama

    def forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **others):  # type: ignore[no-untyped-def]
        k, v = (modeling_llama.repeat_kv(x, module.num_key_value_groups) for x in (key, value))
        e = query @ k.mT * scaling
        alpha = weights_of(e, attention_mask == 0)
        return (alpha @ v).transpose(1, 2).contiguous(), alpha

    own = modeling_llama.eager_attention_forward
    modeling_llama.eager_attention_forward = forward
    try:
        return logits(model)
    finally:
        modeling_llama.eager_attention_forward = own


def published(e: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """arXiv:2410.01104, algorithm 1, as its listing has it."""
    p = e.masked_fill(~visible, -torch.inf).softmax(-1)
    entropy = torch.special.entr(p).sum(-1, keepdim=True)
    beta = 0.0
    for coefficient in (-0.037, 0.481, -2.3, 4.917, -1.791):
        beta = beta * entropy + coefficient
    beta = torch.where(entropy > 0.5, beta.clamp(min=1.0), 1.0)
    return (beta * e).masked_fill(~visible, -torch.inf).softmax(-1)


@pytest.mark.parametrize(
    ("softmax", "numbers", "formula"),
    [
        (
            "temperature",
            {"temperature": 0.4},
            lambda e, visible: (2.5 * e).masked_fill(~visible, -torch.inf).softmax(-1),
        ),
        ("adaptive_temperature", {}, published),
    ],
)
def test_a_patched_model_computes_the_formula(softmax: str, numbers: dict[str, float], formula: object) -> None:
    model = tiny("llama").double()  # its attention is sharp, so that the rounding of float32 is multiplied
    expected = eager_with(model, formula)
    stock = logits(model)
    with rr.patch(model, softmax=softmax, **numbers) as patched:
        torch.testing.assert_close(logits(patched), expected)
    assert torch.equal(logits(model), stock)
    assert (stock - expected).abs().max() > 0.01


@pytest.mark.parametrize(
    "softmax",
    ["adaptive_temperature", "ssmax", "entmax15", "top_k", "sink", "log_n", "as_entmax", "stieltjes", "stick_breaking"],
)
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_neox"])
def test_a_cache_changes_nothing(softmax: str, name: str) -> None:
    model, tokens = tiny(name), some_tokens(1, 6)
    with rr.patch(model, softmax=softmax, pe=None if beside(softmax) == "rope" else "nope"):
        options = {"max_new_tokens": 12, "do_sample": False}
        with_cache = model.generate(tokens, **options)
        assert torch.equal(with_cache, model.generate(tokens, use_cache=False, **options))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("softmax", "numbers"),
    [("llama4", {"length": 4, "strength": 0.5}), ("log_n", {"count": "position"}), ("log_n", {"count": "visible"})],
)
@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_keys_that_a_cache_of_windows_has_dropped_are_counted(
    name: str, softmax: str, numbers: dict[str, object], padded: bool
) -> None:
    model, tokens_BT = tiny(name, sliding_window=5).double(), some_tokens(2, 24)
    mask_BT = torch.ones_like(tokens_BT)
    if padded:
        mask_BT[0, :3] = 0
    pos_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
    with rr.patch(model, softmax=softmax, **numbers) as patched, torch.no_grad():
        whole = patched(tokens_BT, attention_mask=mask_BT, position_ids=pos_BT, use_cache=False).logits
        cache, parts = None, []
        for end in (10, *range(11, 25)):
            done = 0 if cache is None else end - 1
            out = patched(
                tokens_BT[:, done:end],
                attention_mask=mask_BT[:, :end],
                position_ids=pos_BT[:, done:end],
                past_key_values=cache,
                use_cache=True,
            )
            cache, parts = out.past_key_values, [*parts, out.logits]
    apart = (torch.cat(parts, 1) - whole).abs() * mask_BT[..., None]
    assert float(apart.max()) < 1e-8


def test_p_rope_is_its_frequencies() -> None:
    rope = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    model, proportional = tiny("llama").double(), tiny("llama", rope_parameters=rope).double()
    own = [table.clone() for table in frequency_tables(model)]
    with rr.patch(model, pe="p_rope", p=0.5):
        torch.testing.assert_close(logits(model), logits(proportional), rtol=0, atol=OF_COSINES)
    assert all(torch.equal(a, b) for a, b in zip(own, frequency_tables(model), strict=True))
    with rr.patch(model, pe="nope", softmax="softmax"):
        assert not frequency_tables(model)[0].any()


def test_each_kind_of_layer_keeps_its_own_base() -> None:
    model = tiny("gemma3_text")
    of_all, local = (table.clone() for table in frequency_tables(model))
    assert not torch.equal(of_all, local)
    with rr.patch(model, pe="p_rope", p=0.5):
        expected = [torch.cat([table[:4], torch.zeros(4)]) for table in (of_all, local)]
        assert all(torch.equal(*pair) for pair in zip(frequency_tables(model), expected, strict=True))
    with pytest.warns(UserWarning, match="the encoding's frequencies"), rr.patch(model, pe="rope", theta=1e4):
        assert all(torch.equal(table, local) for table in frequency_tables(model))


@pytest.mark.parametrize("name", [*FAMILIES, "gpt2"])
def test_the_weights_that_are_asked_for_are_the_normalisers(name: str) -> None:
    model, tokens = tiny(name), some_tokens(2, 12)
    stock = model(tokens, use_cache=False, output_attentions=True).attentions
    with installed(model):
        own = model(tokens, use_cache=False, output_attentions=True).attentions
        assert model(tokens, use_cache=False).attentions is None
    assert [alpha.shape for alpha in own] == [(2, 4, 12, 12)] * len(stock)
    if name not in ("granite_swa", "gpt_oss"):  # which count their sinks in
        # weights are at most 1; logits of up to 30 are rounded by 30 eps, and by as much again in each layer before
        bound = 4 * 30 * 12 * torch.finfo(torch.float32).eps
        assert max(float((a - b).abs().max()) for a, b in zip(own, stock, strict=True)) < bound


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}


def test_yarns_attention_factor_goes_with_its_frequencies() -> None:
    models = (tiny("llama", rope_parameters=rope).double() for rope in (YARN, {**YARN, "rope_type": "default"}))
    model, stock = models
    own = logits(model)
    with pytest.warns(UserWarning, match="the encoding's frequencies"), rr.patch(model, pe="rope"):
        torch.testing.assert_close(logits(model), logits(stock), rtol=0, atol=OF_COSINES)
    assert torch.equal(logits(model), own)


def test_frequencies_set_to_zero_leave_the_attention_factor() -> None:
    models = (tiny("llama", rope_parameters=rope).double() for rope in (YARN, {**YARN, "rope_type": "default"}))
    model, still = models
    factor = 0.1 * math.log(4) + 1  # Hugging Face's for a context four times as long
    for layer in still.model.layers:
        layer.self_attn.q_proj.weight *= factor**2  # queries and keys are both multiplied
    with installed(model):
        probed = ProbedHuggingFaceModel("yarn", model, None)
        with probed.with_frequencies([0 * table for table in probed.tables()]), rr.patch(still, pe="nope"):
            torch.testing.assert_close(logits(model), logits(still), rtol=0, atol=OF_COSINES)
        own = logits(model)
    torch.testing.assert_close(own, logits(model), rtol=0, atol=OF_COSINES)


@pytest.mark.parametrize("theta", [{}, {"theta": 1e6}], ids=["another base", "its own base"])
def test_a_model_that_computes_its_frequencies_itself_is_refused(theta: dict[str, float]) -> None:
    model = tiny("phimoe")
    stock = logits(model)
    with pytest.raises(UserError, match="PhimoeForCausalLM does not rotate at the frequencies"):
        rr.patch(model, pe="p_rope", **theta)
    assert torch.equal(logits(model), stock)


@pytest.mark.parametrize(("name", "refused"), [("phimoe", True), ("llama", False)])
def test_frequencies_whose_slowest_quarter_alone_changes_are_followed_or_refused(name: str, refused: bool) -> None:
    model = tiny(name)
    with installed(model):
        probed = ProbedHuggingFaceModel(name, model, None)
        tables = probed.tables()
        for table in tables:
            table[-(len(table) // 4) :] = 0
        says = pytest.raises(UserError, match="does not rotate at the frequencies") if refused else nullcontext()
        with says, probed.with_frequencies(tables):
            assert not refused


class OwnRoPE(RotaryEncoding):
    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> torch.Tensor:
        return ladder(8, 16, self.theta, dtype, device)


class ScaledRoPE(OwnRoPE):
    """RoPE with an attention factor that its frequencies do not tell."""

    def prepare(self, pos_BT: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = super().prepare(pos_BT, dtype)
        return 1.2 * cos, 1.2 * sin


class DynamicRoPE(OwnRoPE):
    """RoPE whose base grows with texts longer than the training context."""

    def prepare(self, pos_BT: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        longer = max(1.0, float(pos_BT.max()) / self.shape.train_length)
        return rotation(pos_BT, ladder(8, 16, self.theta * longer, dtype, "cpu"))


@pytest.mark.parametrize("kind", [ScaledRoPE, DynamicRoPE])
def test_an_encoding_of_ones_own_that_does_more_than_rotate_has_no_known_frequencies(kind: type[OwnRoPE]) -> None:
    with rr.patch(tiny("llama"), pe=lambda shape: kind(shape, theta=1e4)) as patched:
        assert not frequency_tables(patched)[0].any()
    decoder = Decoder(
        d_model=32, n_layers=1, n_heads=2, n_key_heads=1, head_dim=16, d_mlp=32, train_length=32, n_vocab=N_VOCAB,
        tied_embeddings=True, geglu=False, scaled_embeddings=False, norm_eps=1e-6, initializer_range=0.02,
        kinds=[LayerKind(make_encoding=lambda shape: kind(shape, theta=1e4), make_softmax=Softmax)],
    )  # fmt: skip
    probed = ProbedDecoder("own", decoder, None, 0)
    assert not any(map(torch.any, probed.tables()))
    assert probed.follows_length  # a text of another length in the batch could change it


BESIDE_ROTATION = [
    *("alibi", "cope", "fire", "fox", "kerple", "nape", "nope", "pope", "rope_values"),
    *("scale_invariant", "selective_rope", "t5_bias", "xpos", "p_rope"),
]


@pytest.mark.filterwarnings("ignore::roundround.softmax.base.RunsInBlocks")
@pytest.mark.parametrize("pe", BESIDE_ROTATION)
def test_an_encoding_does_what_it_does_in_a_decoder_with_these_weights(pe: str) -> None:
    model = tiny("llama").double()
    decoder = Decoder(
        d_model=48, n_layers=4, n_heads=4, n_key_heads=2, head_dim=16, d_mlp=64, train_length=256, n_vocab=N_VOCAB,
        tied_embeddings=False, geglu=False, scaled_embeddings=False, norm_eps=model.config.rms_norm_eps,
        initializer_range=0.02, kinds=4 * [LayerKind(make_encoding=NoPE, make_softmax=Softmax)],
    ).double()  # fmt: skip
    decoder.load_state_dict({name.removeprefix("model."): value for name, value in model.state_dict().items()})
    close = {"rtol": 0, "atol": 1e-4}  # the model's norms round to float32, also in float64
    with rr.patch(model, pe="nope"):
        without = logits(model)
        torch.testing.assert_close(decoder(some_tokens(2, 40)), without, **close)
    with rr.patch(decoder, pe=pe):
        encodings = decoder.encodings.double()
        for parameter in encodings.parameters():  # some start where they change nothing
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        expected = decoder(some_tokens(2, 40)).detach()
        of_layers = [encodings[number] for number in decoder.encoding_of_layer]
    with rr.patch(model, pe=pe):
        for layer, encoding in zip(model.model.layers, of_layers, strict=True):
            layer.self_attn.roundround_encoding.double().load_state_dict(encoding.state_dict())
        torch.testing.assert_close(logits(model).detach(), expected, **close)
    assert pe == "nope" or (expected - without).abs().max() > 0.01


def test_alibi_in_a_loaded_model_is_its_formula() -> None:
    """Press et al. 2022, arXiv:2108.12409, section 3: with four heads the slopes are 1/4, 1/16, 1/64 and 1/256."""

    def formula(e: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        distance = torch.arange(40) - torch.arange(40)[:, None]
        slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256], dtype=e.dtype)[:, None, None]
        return (e + slopes * distance).masked_fill(~visible, -torch.inf).softmax(-1)

    model = tiny("llama").double()
    with rr.patch(model, pe="nope"):
        rotated_nowhere = {name: value.clone() for name, value in model.named_buffers()}
    expected = tiny("llama").double()
    for name, value in expected.named_buffers():
        value.copy_(rotated_nowhere[name])
    with rr.patch(model, pe="alibi"):
        torch.testing.assert_close(logits(model), eager_with(expected, formula))


@pytest.mark.filterwarnings("ignore::roundround.softmax.base.RunsInBlocks")
@pytest.mark.parametrize(
    ("name", "pe"),
    [
        *product(["llama", "gemma3_text"], sorted({*BESIDE_ROTATION} - {"fox", "selective_rope"})),
        *product(["gpt_neox", "cohere", "deepseek_v3"], ["alibi", "pope", "xpos"]),  # which rotate other pairs
    ],
)
def test_a_cache_and_padding_change_nothing_of_an_encoding(name: str, pe: str) -> None:
    model, tokens = tiny(name).double(), some_tokens(2, 24)
    padded_BT = torch.ones_like(tokens)
    padded_BT[0, :7] = 0
    pos_BT = (padded_BT.cumsum(-1) - 1).clamp(min=0)
    numbers = {"init_threshold": 2.0} if pe == "fire" else {}  # FIRE then depends on how far the text has come
    with rr.patch(model, pe=pe, **numbers):
        alone = model(tokens[:1, 7:], use_cache=False).logits[0]
        beside_padding = model(tokens, attention_mask=padded_BT, position_ids=pos_BT, use_cache=False).logits[0, 7:]
        torch.testing.assert_close(beside_padding, alone)
        options = {"max_new_tokens": 12, "do_sample": False}
        with_cache = model.generate(tokens, attention_mask=padded_BT, **options)
        assert torch.equal(with_cache, model.generate(tokens, attention_mask=padded_BT, use_cache=False, **options))


@pytest.mark.parametrize("pe", ["p_rope", "xpos", "alibi"])
def test_the_positions_that_a_model_is_given_reach_the_encoding(pe: str) -> None:
    model, tokens, pos_1T = tiny("llama").double(), some_tokens(2, 24), 3 * torch.arange(24)[None]
    with rr.patch(model, pe=pe):
        usual = model(tokens, use_cache=False).logits
        alone = {"attention_mask": torch.ones_like(tokens), "use_cache": False}  # or gaps would begin another text
        moved = model(tokens, position_ids=pos_1T // 3 + 50, **alone).logits
        apart = model(tokens, position_ids=pos_1T, **alone).logits
    torch.testing.assert_close(moved, usual, rtol=0, atol=OF_COSINES)
    assert (apart - usual).abs().max() > 0.1


def test_an_encoding_that_follows_the_length_takes_no_cache_beyond_the_trained_context() -> None:
    model, tokens = tiny("llama"), some_tokens(1, 300)
    with rr.patch(model, pe="ntk_dynamic", factor=4.0):
        within = model(tokens[:, :200], use_cache=True).past_key_values
        with pytest.raises(ValueError, match=r"DynamicNTK follows the length of the text, so .* no cache"):
            model(tokens[:, 200:], past_key_values=within)


@pytest.mark.parametrize("name", ["cohere", "gpt_neox", "deepseek_v3"])
def test_an_encoding_that_reads_the_input_acts_on_any_pairs(name: str) -> None:
    model, tokens = tiny(name).double(), some_tokens(1, 24)
    with rr.patch(model, pe="selective_rope"):
        whole = model(tokens, use_cache=False).logits
        torch.testing.assert_close(model(tokens[:, :9], use_cache=False).logits, whole[:, :9])


def test_each_layer_keeps_the_base_of_its_kind_also_where_layers_share_keys() -> None:
    model = tiny("gemma4_text")
    with rr.patch(model, pe="xpos"):
        bases = [layer.self_attn.roundround_encoding.theta for layer in model.model.layers]
    assert bases == [1e4, 1e6, 1e4, 1e6]


def test_a_patch_draws_no_random_number_and_needs_no_evaluation_mode() -> None:
    model = tiny("gpt_neox", hidden_dropout=0.1).train()
    torch.manual_seed(0)
    expected = torch.rand(3)
    for pe in ("rope", "alibi", "cope"):
        torch.manual_seed(0)
        rr.patch(model, pe=pe).remove()
        assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in model.modules())


def test_a_model_whose_encoding_takes_no_cache_writes_nothing_and_says_why() -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(STORIES).eval(), AutoTokenizer.from_pretrained(STORIES)
    with rr.patch(model, pe="fox"), pytest.raises(UserError, match="cannot write with this encoding"):
        rr.generate(model, tokenizer, "Once upon", length=3)
    with rr.patch(model, pe="alibi"):
        assert rr.generate(model, tokenizer, "Once upon", length=3)


def test_an_encoding_that_reads_the_layers_input_takes_no_cache() -> None:
    model = tiny("llama")
    with rr.patch(model, pe="fox"):
        model.generate(some_tokens(1, 6), max_new_tokens=2, use_cache=False)
        with pytest.raises(ValueError, match=r"FoX reads the input of a layer, so .* no cache"):
            model.generate(some_tokens(1, 6), max_new_tokens=2)


@pytest.mark.parametrize("parts", [{"softmax": "ssmax"}, {"pe": "t5_bias"}])
@pytest.mark.filterwarnings("ignore::roundround.softmax.base.RunsInBlocks")
def test_learned_parameters_join_the_model(parts: dict[str, str]) -> None:
    model = tiny("llama")
    before = set(dict(model.named_parameters()))
    patch = rr.patch(model, **parts)
    added = [p for name, p in model.named_parameters() if name not in before]
    assert len(added) == 4
    model(some_tokens(1, 8), labels=some_tokens(1, 8)).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in added)
    patch.remove()
    assert set(dict(model.named_parameters())) == before


@pytest.mark.parametrize("softmax", sorted(path.stem for path in (ROOT / "conf" / "softmax").glob("*.yaml")))
def test_every_normaliser_runs_in_a_model_in_half_precision(softmax: str) -> None:
    model = tiny("llama").to(torch.bfloat16)
    with rr.patch(model, softmax=softmax, pe=None if beside(softmax) == "rope" else "nope"):
        assert bool(logits(model).isfinite().all())


# -- refused


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gemma2", {"softmax": "entmax15"}, "has a SoftCap at 2 in its softmax; Entmax15 drops it"),
        ("gpt_oss", {"softmax": "adaptive_temperature"}, "has a Sink in its softmax; AdaptiveTemperature drops it"),
        ("gpt_oss", {"softmax": "sink", "init_logit": 2.0}, "softmax=sink keeps the sinks that this model has learned"),
        (
            "llama",
            {"softmax": "stick_breaking"},
            "StickBreaking takes positions from the order of the keys; give pe=nope",
        ),
        ("llama", {"softmax": "stick_breaking", "pe": "p_rope"}, "takes positions from the order of the keys"),
        ("gpt2", {"softmax": "stick_breaking"}, "takes positions from the order of the keys"),
        ("llama", {"softmax": "stick_breaking", "pe": "alibi"}, "takes positions from the order of the keys"),
        (
            "llama",
            {"pe": "rope_random"},
            "RoPERandom cannot be put into LlamaForCausalLM: it draws positions or changes",
        ),
        ("llama", {"pe": "learned"}, "Learned cannot be put into LlamaForCausalLM: it draws positions or changes"),
        ("llama", {"pe": "partial_rope"}, "it groups the channels into other pairs"),
        ("gpt_neox", {"pe": "rope_values"}, "rotates values, and GPTNeoXForCausalLM rotates a part of each head"),
        ("gpt2", {"pe": "alibi"}, "GPT2LMHeadModel has no RoPE whose frequencies could be replaced"),
        ("llama", {"pe": rr.encoding("alibi", n_heads=4, head_dim=16)}, "AttentionShape that makes a PositionalEnc"),
        ("llama", {"pe": lambda _: rr.normaliser("softmax")}, "makes a PositionalEncoding, not a Normaliser"),
        ("llama", {"pe": lambda _: rr.encoding("alibi", n_heads=2, head_dim=16)}, "made for another n_heads than 4"),
        ("llama", {"pe": lambda _: rr.encoding("xpos", n_heads=4, n_key_heads=2, head_dim=8)}, "another head_dim"),
        ("llama", {"softmax": "adaptve"}, "did you mean 'adaptive_temperature'"),
        ("llama", {"pe": "prope"}, "did you mean 'p_rope'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(name: str, options: dict[str, object], message: str) -> None:
    model = tiny(name)
    stock = logits(model)
    with pytest.raises(UserError) as error:
        rr.patch(model, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert torch.equal(logits(model), stock)  # and the model is as it was


def test_only_hugging_face_models_are_patched() -> None:
    with pytest.raises(UserError, match="not a Linear"):
        rr.patch(torch.nn.Linear(2, 2), softmax="ssmax")
    with pytest.raises(UserError, match="not a Linear"):
        rr.probe(torch.nn.Linear(2, 2), None, ["a text"])


# -- a trained model


def test_greedy_text_through_the_plain_softmax_is_the_models_own() -> None:
    model = AutoModelForCausalLM.from_pretrained(STORIES).eval()
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    golden = (ROOT / "tests" / "golden" / "stories260k_greedy_200_tokens.txt").read_text()
    options = {"max_new_tokens": 200, "do_sample": False}
    with rr.patch(model, softmax="softmax"):
        text = tokenizer.decode(model.generate(torch.tensor([[1]]), **options)[0], skip_special_tokens=True)
    assert text.strip() == golden.strip()
    with rr.patch(model, softmax="adaptive_temperature"):
        other = tokenizer.decode(model.generate(torch.tensor([[1]]), **options)[0], skip_special_tokens=True)
    assert other.startswith("Once upon a time")
    assert other.strip() != golden.strip()


def test_keys_that_the_mask_does_not_know_are_refused() -> None:
    small = {"head_dim": 16, "num_key_value_heads": 1, "q_lora_rank": 16, "o_groups": 2, "o_lora_rank": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    index = {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "sliding_window": 8}
    model = tiny("deepseek_v4", **small, **experts, **index)
    with installed(model), pytest.raises(UserError, match="keys that its mask does not know"):
        model(some_tokens(1, 40))
