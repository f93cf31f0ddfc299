"""Patterns of layers: which layer is of which kind, what each kind computes, and what wrong ones cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Done, assert_refused, saved_weights, typed
from helpers_patterns import config_of, decoder_of
from transformers import (
    AfmoeConfig,
    Cohere2Config,
    DeepseekV4Config,
    Exaone4Config,
    FlintConfig,
    GraniteSWAConfig,
    InklingTextConfig,
    KimiLinearConfig,
    MiMoV2FlashConfig,
    MuseGlimmerTextConfig,
    OlmoHybridConfig,
    PreTrainedConfig,
)

from roundround.command_line.pages import options
from roundround.model.block import order_of_layers
from roundround.model.decoder import Decoder
from roundround.trained.patterns import kinds_by_name, layer_lines
from roundround.trained.start import same_part

PATTERNS = {  # as `roundround list pattern` draws them
    "afmoe": "LLLG ...",
    "beam": "LLLLLG ...",
    "cohere2": "LLLG ...",
    "deepseek_v4": "LL" + 41 * "G" + " ...",
    "exaone4": "LLLG ...",
    "flint": "GGLLLG" + 10 * "LLLG" + "LLG ... G",
    "gemma3": "LLLLLG ...",
    "gemma4": "LLLLLG ... G",
    "gpt_oss": "LG ...",
    "granite_swa": "GLLL ...",
    "hybrid": "LLLA ...",
    "inkling": "LLLLLG ...",
    "kimi_linear": "LLLG ... G",
    "lfm3": "GL ...",
    "llama4": "LLLG ...",
    "local_global": "LLLG ... G",
    "mimo_v2": "GLLLLG" + 7 * "LLLLLG" + " ...",
    "muse": "LLLG ...",
    "olmo3": "LLLG ... G",
    "olmo_hybrid": "LLLG ...",
    "qwen3_next": "LLLA ...",
    "rnope_swa": "LLLG ...",
    "sandwich": "GLLL ... G",
    "speedrun": "L ...",
    "speedrun_small": "L ...",
    "smollm3": "RRRN ...",  # RoPE, RoPE, RoPE, no position
}


def logits(decoder: Decoder, tokens_BT: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return decoder.unembed(decoder.hidden(tokens_BT, **options))


TOKENS = torch.randint(29, (2, 24), generator=torch.Generator().manual_seed(1))


def test_list_draws_each_pattern_as_a_row_of_letters() -> None:
    rows = {entry.name: entry.numbers for entry in options("pattern", None)}
    assert {name: row for name, row in rows.items() if name not in ("uniform", "kind/layer")} == PATTERNS


def test_the_order_repeats_and_the_last_layer_may_be_fixed() -> None:
    kinds = dict.fromkeys("ab")
    assert order_of_layers(kinds, ["a", "a", "b"], 7, last=None, whole=False) == list("aabaaba")
    assert order_of_layers(kinds, ["a", "a", "b"], 7, last="b", whole=False) == list("aabaabb")
    for wrong, message in (
        ({"order": ["a", "c"]}, r"order= and last= contain \['c'\]; they must contain only these kinds: a, b"),
        ({"order": []}, "order= and last= contain no kind"),
        (
            {"order": ["a", "a", "b"], "whole": True},
            "order= has 3 layers, and n_layers=7 must be a multiple of this number",
        ),
        ({"order": ["a"]}, "none of the n_layers=7 layers is of the kind b"),
        ({"order": ["a"] * 9 + ["b"]}, "none of the n_layers=7 layers is of the kind b"),
    ):
        with pytest.raises(ValueError, match=message):
            order_of_layers(kinds, **({"last": None, "whole": False, "n_layers": 7} | wrong))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_builds_and_learns(pattern: str) -> None:
    decoder = decoder_of(f"pattern={pattern}", n_layers=8)
    assert len(decoder.kinds) == 8
    loss = decoder(TOKENS, targets_BT=TOKENS).mean()
    loss.backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())
    assert len(layer_lines(decoder)) == len({kind.name for kind in decoder.kinds})


KIMI = {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27]}  # of Kimi-Linear-48B-A3B, counted from 1
KIMI["kda_layers"] = [layer for layer in range(1, 28) if layer not in KIMI["full_attn_layers"]]
FLASH = [0, 0, *[4, 128] * 20, 4]  # tokens in a compressed key of DeepSeek-V4-Flash; 0: windows alone
RELEASED: dict[str, PreTrainedConfig] = {
    "afmoe": AfmoeConfig(sliding_window=2048),  # of Trinity Nano
    "cohere2": Cohere2Config(),
    "deepseek_v4": DeepseekV4Config(compress_ratios=FLASH),
    "exaone4": Exaone4Config(),
    "flint": FlintConfig(),
    "granite_swa": GraniteSWAConfig(),
    "inkling": InklingTextConfig(),
    "kimi_linear": KimiLinearConfig(linear_attn_config=KIMI),
    "mimo_v2": MiMoV2FlashConfig(),
    "muse": MuseGlimmerTextConfig(),
    "olmo_hybrid": OlmoHybridConfig(),
}


@pytest.mark.parametrize("name", RELEASED)
def test_the_order_is_that_of_the_released_model(name: str) -> None:
    config, pattern = RELEASED[name], config_of(f"pattern={name}").pattern
    letters = {"hybrid": "G", "full_attention": "G", "compressed_sparse_attention": "G"}
    theirs = [letters.get(kind, "G" if kind.startswith("heavily") else "L") for kind in config.layer_types]
    kinds = kinds_by_name(pattern)
    ours = order_of_layers(kinds, pattern.order, len(theirs), last=pattern.last, whole=pattern.whole)
    assert [kind[0].upper() for kind in ours] == theirs
    assert {kinds[kind].window for kind in ours} - {None} == {getattr(config, "sliding_window", None)} - {None}


@pytest.mark.parametrize("n_layers", [4, 6, 7, 12])
@pytest.mark.parametrize("name", ["flint", "mimo_v2", "granite_swa"])
def test_a_smaller_model_has_the_order_of_such_a_release(name: str, n_layers: int) -> None:
    theirs = type(RELEASED[name])(num_hidden_layers=n_layers).layer_types
    pattern = config_of(f"pattern={name}").pattern
    ours = order_of_layers(kinds_by_name(pattern), pattern.order, n_layers, last=pattern.last, whole=False)
    assert [{"local": "sliding_attention", "global": "full_attention"}[kind] for kind in ours] == theirs


def test_factors_of_logits_are_those_of_the_released_heads() -> None:
    muse, inkling = RELEASED["muse"], RELEASED["inkling"]
    expected = {
        "muse": muse.qk_scale_factor / math.sqrt(muse.head_dim),
        "granite_swa": 0.0078125,  # attention_multiplier of Granite Swash 2B
        "inkling": 1 / inkling.head_dim,
    }
    for name, factor in expected.items():
        kinds = kinds_by_name(config_of(f"pattern={name}").pattern)
        assert [kind.logit_scale for kind in kinds.values()] == pytest.approx([factor, factor], rel=1e-3)


def test_a_window_hides_what_lies_further_back() -> None:
    wide = decoder_of("pattern=rnope_swa", "pattern.local.window=24", n_layers=4)
    narrow = decoder_of("pattern=rnope_swa", "pattern.local.window=4", n_layers=4)
    assert torch.equal(logits(wide, TOKENS)[:, :4], logits(narrow, TOKENS)[:, :4])
    assert not torch.allclose(logits(wide, TOKENS)[:, 8:], logits(narrow, TOKENS)[:, 8:])
    only = decoder_of("pattern=rnope_swa", "pattern.local.window=4", "pattern.global.window=4", n_layers=4)
    changed = TOKENS.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 29
    before, after = logits(only, TOKENS), logits(only, changed)
    assert torch.equal(before[:, 13:], after[:, 13:])  # four layers see 4 * 3 tokens back
    assert not torch.equal(before[:, 12], after[:, 12])


def test_chunks_do_not_see_each_other() -> None:
    chunked = decoder_of("pattern=llama4", "pattern.local.chunk=6", "pattern.order=[local]", "~pattern.global")
    changed = TOKENS.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 29
    before, after = logits(chunked, TOKENS), logits(chunked, changed)
    assert torch.equal(before[:, 6:], after[:, 6:])
    assert not torch.equal(before[:, 5], after[:, 5])


@pytest.mark.parametrize("pattern", ["gemma3", "llama4", "beam", "gpt_oss"])
def test_documents_apart_are_documents_alone_under_windows_too(pattern: str) -> None:
    short = "pattern.local.chunk=5" if pattern == "llama4" else "pattern.local.window=5"
    decoder = decoder_of(f"pattern={pattern}", short)
    ends = torch.zeros(2, 24, dtype=torch.bool)
    ends[0, 9] = ends[1, 3] = ends[1, 15] = True
    together = logits(decoder, TOKENS, ends_BT=ends)
    for row, first, last in ((0, 0, 10), (0, 10, 24), (1, 0, 4), (1, 4, 16), (1, 16, 24)):
        alone = logits(decoder, TOKENS[row : row + 1, first:last])[0]
        torch.testing.assert_close(together[row, first:last], alone, atol=2e-5, rtol=1e-4)


def test_a_kinds_base_and_sizes_are_its_own() -> None:
    decoder = decoder_of("pattern=gemma4", "pattern.global.head_dim=16")
    local, glob = decoder.all_encodings
    assert (local.theta, glob.theta) == (10_000.0, 1_000_000.0)
    assert [layer.self_attn.shape.head_dim for layer in decoder.layers] == [8, 8, 8, 8, 8, 16]
    assert {layer.self_attn.shape.scale for layer in decoder.layers} == {1.0}
    assert layer_lines(decoder)[1].startswith("global: layer 5: PRoPE (rotated pairs 2, pairs 8, ")


BARE = ["qk_norm@pattern.local.qk_norm=none", "qk_norm@pattern.global.qk_norm=none"]
BARE += ["pattern.local.logit_scale=null", "pattern.global.logit_scale=null"]


@pytest.mark.parametrize(
    ("words", "bases"),
    [
        ([], (10_000.0, 1_000_000.0)),
        (["pattern.global.theta=500"], (10_000.0, 500.0)),
        (["pattern.global.theta=null"], (10_000.0, 10_000.0)),
        (["pe.theta=500"], (10_000.0, 500.0)),
        (["pattern.local.pe=null"], (10_000.0, 1_000_000.0)),
        (["pattern.local.pe=null", "pattern.local.theta=null"], (10_000.0, 1_000_000.0)),
        (["pattern.local.theta=500"], (500.0, 1_000_000.0)),
        (["pattern.local.pe.theta=500"], (500.0, 1_000_000.0)),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_kind_that_leaves_pe_open_rotates_by_its_own_base(words: list[str], bases: tuple[float, float]) -> None:
    words = ["pattern=local_global", "pe=rope", *words]
    config = config_of(*words)
    assert tuple(encoding.theta for encoding in decoder_of(*words, n_layers=4).all_encodings) == bases
    recorded = [config.pattern[kind].theta for kind in ("local", "global")]
    assert all(theta in (None, base) for theta, base in zip(recorded, bases, strict=True))  # run.json names no other


WRONG = [
    ("pattern=local_global pe.theta=500 pattern.global.theta=300", "pattern.global.theta=300, but its encoding has"),
    (
        "pattern=gemma4 pattern.order=[local,globl]",
        "order= and last= contain ['globl']; they must contain only these kinds: local, global",
    ),
    ("pattern=gemma3", "none of the n_layers=4 layers is of the kind global; order= has 6 layers"),
    ("pattern=gemma4 pe=nope", "pe= is read by no layer: every kind of layer in pattern=gemma4 sets this part"),
    ("pattern=gemma4 pattern.local.pe=rope", "pe=rope is the name of an option; give pe@pattern.local.pe=rope"),
    ("pattern=gemma4 pattern.local=3", "pattern.local must give a kind of layer by its parts"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_pattern_costs_one_line(roundround: Callable[..., Done], words: str, message: str) -> None:
    assert_refused(roundround("train", *words.split()), message)


def test_a_run_with_a_pattern_is_trained_and_evaluated(train: Callable[..., Done]) -> None:
    first = train("pattern=smollm3", "qk_norm=rms", "model.n_layers=4", "trainer.max_steps=2")
    assert first.code == 0, first.err
    assert "nope: layer 3: NoPE, Softmax, RMSQueryKeyNorm" in first.err
    assert (first.manifest["config"]["pe"], first.manifest["choices"]["pattern"]) == (None, "smollm3")
    assert first.manifest["config"]["pattern"]["rope"]["pe"]["theta"] == 5e6
    measured = typed("eval", f"run={first.directory}", "length=8,16", "logger=none")
    assert measured.code == 0, measured.err


def test_parts_of_a_runs_kinds_are_replaced_at_inference(
    train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    first = train("pattern=rnope_swa", "model.n_layers=4", "pattern.local.window=4", "trainer.max_steps=2")
    assert first.code == 0, first.err

    def loss(*words: str) -> tuple[float, Done]:
        done = roundround("eval", "run=last", "length=32", "logger=none", *words)
        assert done.code == 0, done.err
        return done.manifest["headline"]["perplexity_32"], done

    own, _ = loss()
    same, _ = loss("pattern.local.window=4")
    wider, done = loss("pattern.local.window=32")
    assert own == same != wider
    assert "local: layers 0-2: RoPE" in done.err
    assert {r["pattern.local.window"] for r in done.results} == {32}
    turned, done = loss("pe@pattern.global.pe=rope", "pattern.local.pe.theta=100")
    assert turned not in (own, wider)
    assert {r["pe@pattern.global.pe"] for r in done.results} == {"rope"}
    assert done.manifest["config"]["pattern"]["global"]["pe"]["theta"] == 10_000.0
    assert done.manifest["config"]["pattern"]["local"]["pe"]["theta"] == 100
    cold, _ = loss("softmax@pattern.global.softmax=temperature", "pattern.global.softmax.temperature=0.5")
    assert cold not in (own, wider, turned)
    whole, _ = loss("pattern=smollm3", "pattern.rope.window=4", "pattern.rope.theta=10000")
    assert whole == pytest.approx(own, rel=1e-6)
    for words, message in UNREPLACED:
        assert_refused_beside(roundround("eval", "run=last", "length=32", "logger=none", *words.split()), message)


def test_an_encoding_that_replaces_the_runs_rotates_by_the_base_of_its_kind(
    train: Callable[..., Done], roundround: Callable[..., Done], fast: list[str]
) -> None:
    first = train("pattern=local_global", "pe=rope", "model.n_layers=4", "trainer.max_steps=1")
    assert first.manifest["config"]["pe"]["theta"] is None
    losses = []
    for words in (["pe=rope"], ["pe=rope", "pe.theta=1e6"], ["pe=rope", "pe.theta=1e4"]):
        done = roundround("eval", "run=last", "length=32", "logger=none", *words)
        assert done.code == 0, done.err
        losses.append(done.manifest["headline"]["perplexity_32"])
    assert losses[0] == losses[1] != losses[2]
    checked = roundround("check", "run=last")
    assert "base 1,000,000" in checked.err, checked
    same = [word for word in fast if not word.startswith(("model.", "tokenizer"))]
    continued = roundround("train", *same, "init=run:last", "pe=p_rope", "trainer.max_steps=1")
    assert "PRoPE (rotated pairs 3, pairs 4, slowest wavelength 6,283)" in continued.err  # 2 pi 1,000,000^(2/4)


def test_rope_is_dropped_from_the_kinds_of_a_run(
    train: Callable[..., Done], roundround: Callable[..., Done], fast: list[str]
) -> None:
    first = train("pattern=rnope_swa", "model.n_layers=4", "pattern.local.window=4", "trainer.max_steps=1")
    same = [word for word in fast if not word.startswith(("model.", "tokenizer"))]
    begin = ["train", *same, "init=run:last", "trainer.max_steps=1"]
    assert_refused_beside(roundround(*begin, "pe=nope"), "pe= is read by no layer")
    assert_refused_beside(roundround(*begin, "pattern=gemma4"), "leave out pattern")
    assert_refused_beside(roundround(*begin, "pattern.local.head_dim=4"), "is fixed by the training of the run")
    dropped = roundround(*begin, "pe@pattern.local.pe=nope", "pattern.local.window=8")
    assert dropped.code == 0, dropped.err
    own, pattern = first.manifest["config"]["pattern"], dropped.manifest["config"]["pattern"]
    local = {**own["local"], "pe": {"_target_": "roundround.pe.nope.NoPE"}, "window": 8}
    assert pattern == {**own, "local": local}
    assert "local: layers 0-2: NoPE" in dropped.err
    resumed = roundround("train", f"resume={dropped.directory}", "logger=none")
    assert resumed.code == 0, resumed.err


def test_what_variants_learned_goes_to_the_same_layer_and_the_same_class() -> None:
    """Encodings are numbered by kind: where one kind has another, the numbers of the rest are others."""
    pattern = ["pattern=local_global", "pattern.order=[global,local]", "pattern.local.window=4", "pattern.last=null"]
    pattern += ["pe=kerple", "pe@pattern.local.pe=kerple"]
    before, after, sharp, other = (
        decoder_of(*pattern, *more, n_layers=4) for more in ([], ["pe=nope"], ["softmax=sink"], ["softmax=input_sink"])
    )
    layers = {n: after.encoding_of_layer[n] for n in (1, 3)}
    for layer, number in layers.items():
        names = [name for name in after.state_dict() if name.startswith(f"encodings.{number}.")]
        assert names
        for name in names:
            own = name.partition(".")[2].partition(".")[2]
            assert same_part(name, after, before) == f"encodings.{before.encoding_of_layer[layer]}.{own}"
    own_logits = [name for name in sharp.state_dict() if ".softmax." in name]
    assert own_logits
    assert {same_part(name, sharp, other) for name in own_logits} == {None}


UNREPLACED = [  # by what an evaluation of a run with a pattern is asked for
    (
        "pe=yarn pe.factor=4",
        "pe= is read by no layer: every kind of layer in the run's pattern sets this part itself; give pe@",
    ),
    ("pattern.local.windw=3", "pattern.local.windw is no part of a kind of layer; only pe, softmax, window,"),
    ("pattern.local.window=0", "local: window=0 must be at least 1"),
    ("pattern.local.head_dim=4", "pattern.local.head_dim is fixed by the training of the run"),
    ("pattern.order=[local]", "pattern.order: the run has no such kind of layer"),
    ("pattern.local.pe=nope", "pattern.local.pe=nope is the name of an option; give pe@pattern.local.pe=nope"),
    ("qk_norm@pattern.local.qk_norm=rms", "pattern.local.qk_norm is fixed by the training of the run"),
    ("pe@pattern.global.pe=kerple", "pe has parameters that the checkpoint lacks"),
    ("pattern=beam pattern.order=[local,local,local,global]", "qk_norm has parameters that the"),
]


def assert_refused_beside(done: Done, message: str) -> None:
    """One line and exit code 2, where other runs lie in outputs."""
    assert (done.code, done.out) == (2, ""), done
    assert message in done.err.splitlines()[-1]


def test_a_run_without_a_pattern_has_no_kinds_to_replace(
    train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    train("trainer.max_steps=1")
    refused = roundround("eval", "run=last", "length=32", "logger=none", "pattern.local.window=3")
    assert_refused_beside(refused, "the run has no pattern, because all its layers are alike; give pe= and softmax=")
    refused = roundround("eval", "model=stories260k", "logger=none", "pattern.local.window=3")
    assert_refused_beside(refused, "pattern= is for a run")


def test_rope_is_dropped_from_a_run_of_ones_own(
    roundround: Callable[..., Done], train: Callable[..., Done], fast: list[str]
) -> None:
    first = train("trainer.max_steps=2")
    same = [word for word in fast if not word.startswith(("model.", "tokenizer"))]
    dropped = roundround("train", *same, "init=run:last", "pe=nope", "trainer.max_steps=1")
    assert dropped.code == 0, dropped.err
    config = dropped.manifest["config"]
    assert config["init"] == f"run:{first.directory}"
    assert config["model"] == first.manifest["config"]["model"]
    assert config["pe"]["_target_"].endswith("NoPE")
    assert dropped.manifest["init"]["folder"] == str(first.directory)
    before, after = saved_weights(first.directory, "best"), saved_weights(dropped.directory)
    assert before.keys() == after.keys()
    assert all(float((before[name] - after[name]).abs().max()) < 0.01 for name in before)  # one step away
