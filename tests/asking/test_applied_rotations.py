"""`roundround check`: what each layer of a model really computes, named by what it does and not by its config."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Done, assert_refused, option, tunables
from helpers_hf import FAMILIES, HYBRIDS, INDEXER, LATENT, saved_llama, tiny
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama

from roundround.asking.applied_rotations import AS_DECLARED, LayerReport, check_pretrained, named, unread_keys
from roundround.config.build import build
from roundround.kernels.keys import AttentionShape
from roundround.pe.base import PositionalEncoding
from roundround.probing.conformance import DIFFERS
from roundround.probing.rotations import Readings, Turning, scheme_of
from roundround.verbs.check.run import ROWS, row

FACTORS = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
WIDE = {"head_dim": 64, "max_position_embeddings": 1024}
SCALED: dict[str, tuple[str, dict[str, Any]]] = {  # rope_type -> the scheme applied, and the config
    "default": ("rope, base 20,000", {"rope_theta": 2e4}),
    "linear": ("linear, base 10,000, factor 3", {"rope_theta": 1e4, "factor": 3.0}),
    "dynamic": ("ntk_dynamic, base 10,000, factor 2", {"rope_theta": 1e4, "factor": 2.0}),
    "yarn": ("yarn, base 10,000, factor 4", FACTORS),
    "llama3": ("llama3, base 10,000, factor 4", FACTORS | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "longrope": (
        "longrope, base 10,000, factor 4",
        FACTORS | {"short_factor": [1.0] * 32, "long_factor": [1 + i / 8 for i in range(32)]},
    ),
    "proportional": ("p_rope, base 10,000", {"rope_theta": 1e4, "partial_rotary_factor": 0.25}),
}


def told(reports: list[LayerReport]) -> list[str]:
    return [difference for report in reports for difference in report.differences()]


@pytest.mark.parametrize("kind", SCALED)
def test_each_scaling_is_named_with_its_numbers(kind: str) -> None:
    words, rope = SCALED[kind]
    model = tiny("llama", **WIDE, num_hidden_layers=2, rope_parameters={"rope_type": kind, **rope})
    reports = check_pretrained(model)
    assert [named(report.scheme) for report in reports] == [words] * 2
    assert told(reports) == []
    # and without any hint of the config's
    free = [Readings(**{**vars(r.readings), "bases": ()}) for r in reports]
    assert [named(scheme_of(readings)) for readings in free] == [words] * 2
    config = model.config
    factor = 1.0 if kind == "default" else ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=8)[1]
    assert reports[0].seen.factor == pytest.approx(factor, rel=1e-5)
    assert {r.turning.pairing for r in reports} == {"half-split"}


def test_kinds_of_layers_differ_by_base_window_and_norm() -> None:
    reports = check_pretrained(tiny("gemma3_text"))
    assert [named(r.scheme) for r in reports] == ["rope, base 10,000", "rope, base 1,000,000"] * 2
    assert [r.window for r in reports] == [5, None] * 2
    assert {r.seen.norm for r in reports} == {"Gemma3RMSNorm"}
    assert told(reports) == []


def test_layers_without_position_partial_rotation_and_chunks_are_seen() -> None:
    smol = check_pretrained(tiny("smollm3"))
    assert [r.scheme.name for r in smol] == ["rope", "none"] * 2
    neox = check_pretrained(tiny("gpt_neox"))
    assert {(named(r.scheme), r.turning.n_rotated, r.turning.n_pairs) for r in neox} == {
        ("partial_rope, base 10,000", 3, 6)
    }
    four = check_pretrained(tiny("llama4_text", head_dim=16, attention_chunk_size=8, num_local_experts=2))
    assert [(r.chunk, r.window, r.turning.pairing) for r in four] == [(8, None, "interleaved")] * 3 + [(None,) * 3]
    assert [r.seen.norm_after for r in four] == [True] * 3 + [False]
    assert told([*smol, *neox, *four]) == []


def changed(model: PreTrainedModel, **config: Any) -> PreTrainedModel:
    for name, value in config.items():
        setattr(model.config, name, value)
    return model


@pytest.mark.parametrize(("name", "pairing"), [("deepseek_v2", "interleaved"), ("deepseek_v3", "interleaved")])
def test_latent_attention_rotates_its_last_channels_alone(name: str, pairing: str) -> None:
    for report in check_pretrained(tiny(name)):
        cells = dict(zip(ROWS, row(report), strict=True))
        assert (cells["rotation"], cells["pairs"]) == ("rope, base 10,000", "4 of 12, channels 16 to 23")
        assert (cells["pairing"], cells["attention factor"]) == (pairing, "1")
        assert report.verdict == AS_DECLARED
    wrong = tiny(name)
    wrong.config.rope_parameters = {**wrong.config.rope_parameters, "rope_theta": 20_000.0}
    assert {report.verdict for report in check_pretrained(wrong)} == {DIFFERS}


def test_the_yarn_of_latent_attention_counts_its_rotated_channels_alone() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    model = tiny("deepseek_v3", qk_rope_head_dim=24, rope_parameters={**rope, "mscale": 1.0, "mscale_all_dim": 0.5})
    for report in check_pretrained(model):
        assert (report.verdict, report.scheme.name, report.turning.n_rotated) == (AS_DECLARED, "yarn", 12)
        assert report.seen.factor == pytest.approx(float(model.model.rotary_emb.attention_scaling), rel=1e-4)
        assert report.seen.factor > 1.05


def test_a_scale_of_all_channels_is_no_attention_factor() -> None:
    sizes = {"num_layers": 1, "head_dim": 8, "ffn_hidden_size": 32, "expert_ffn_hidden_size": 16, "moe_topk": 2}
    model = tiny(
        "longcat_flash", **{**LATENT, **sizes, "zero_expert_num": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
    )
    assert model.model.layers[0].self_attn[0].mla_scale_q_lora == pytest.approx(2**0.5)
    assert {(one.verdict, round(one.seen.factor, 4)) for one in check_pretrained(model)} == {(AS_DECLARED, 1.0)}


def test_a_window_and_a_bias_without_rotation_are_seen() -> None:
    model = tiny("inkling_text")
    reports = check_pretrained(model)
    assert [report.window for report in reports] == [5, None, 5, None]
    assert {row(report)[0] for report in reports} == {"none; bias on logits"}
    assert not told(reports)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("kimi_linear", "no attention: layers 0-2 (linear_attention)"),
        ("deepseek_v32", "an indexer chooses at most 20 keys for each query; its choice is not checked"),
    ],
)
def test_what_is_not_checked_is_said_in_a_line(
    roundround: Callable[..., Done], here: Path, name: str, line: str
) -> None:
    changes = HYBRIDS.get(name) or {**LATENT, **INDEXER}
    done = roundround("check", "model=hf", f"model.path={saved_llama(here / 'folder', name=name, **changes)}")
    assert done.err.count(line) == 1
    metrics = [record["metric"] for record in done.results]
    assert metrics.count("kind_of_layer") == 3 * (name in HYBRIDS)
    assert metrics.count("keys_of_indexer") == (name not in HYBRIDS)


def test_a_config_that_says_something_else_is_told() -> None:
    model = changed(tiny("llama"), rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert told(check_pretrained(model)) == ["rotates as rope, base 10,000, declared: rope, base 500,000"] * 4
    model = changed(tiny("llama"), rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    assert set(told(check_pretrained(model))) == {
        "rotates as rope, base 10,000, declared: linear, base 10,000, factor 2"
    }
    model = changed(tiny("mistral"), sliding_window=7)  # read anew in each pass: applied too
    assert {r.window for r in check_pretrained(model)} == {7}
    model = tiny("smollm3")
    model.config.no_rope_layers = [0, 1, 0, 1]  # as many copies have it: reversed
    assert (
        told(check_pretrained(model))
        == [
            "rotates as rope, base 2,000,000, declared: none",
            "rotates as none, declared: rope, base 2,000,000",
        ]
        * 2
    )


def test_a_scaling_that_is_dropped_is_told() -> None:
    model = tiny("llama", **WIDE, rope_parameters={"rope_type": "yarn", **FACTORS})
    model.model.rotary_emb.attention_scaling = 1.0
    assert set(told(check_pretrained(model))) == {"attention factor 1, declared: 1.139"}
    model = tiny("llama", **WIDE, rope_parameters={"rope_type": "yarn", **FACTORS})
    model.model.rotary_emb.inv_freq[-1] *= 4
    assert len(told(check_pretrained(model))) == 4


def cast(model: PreTrainedModel, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """As a checkpoint is loaded: the tables of frequencies stay float32."""
    tables = {name: table.clone() for name, table in model.named_buffers() if "inv_freq" in name}
    model.to(dtype)
    for name, table in tables.items():
        module, _, last = name.rpartition(".")
        setattr(model.get_submodule(module), last, table)
    return model


@pytest.mark.parametrize("family", ["cohere", "glm4", "ernie4_5"])
def test_interleaved_pairs_are_as_declared_in_half_precision(family: str) -> None:
    assert told(check_pretrained(cast(tiny(family)))) == []


def interleaved(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **options: Any) -> Any:
    """Llama's rotation with the wrong pairs."""
    half = cos.shape[-1] // 2
    cos, sin = (x[..., :half].repeat_interleave(2, -1)[:, None] for x in (cos, sin))

    def turned(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "pairs": (interleaved, "pairs channels interleaved, declared: half-split"),
    "direction": (
        lambda q, k, cos, sin, **options: OWN(q, k, cos, -sin),
        "rotates clockwise",
    ),
    "queries alone": (
        lambda q, k, cos, sin, **options: (OWN(q, k, cos, sin)[0], k),
        "no known scheme (keys rotate differently from queries), declared: rope, base 10,000",
    ),
    "no rotation": (lambda q, k, cos, sin, **options: (q, k), "rotates as none, declared: rope, base 10,000"),
    "a shear": (
        lambda q, k, cos, sin, **options: (q * cos[:, None], k * cos[:, None]),
        "no known scheme (pairs change their length with the position), declared: rope, base 10,000",
    ),
}
OWN = modeling_llama.apply_rotary_pos_emb


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rotation_in_the_code_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, message = WRONG[name]
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", wrong)
    assert message in told(check_pretrained(tiny("llama")))


def turning(frequencies_P: torch.Tensor, farthest: int = 2**18) -> Turning:
    n = len(frequencies_P)
    return Turning(
        pairing="half-split", frequencies_P=frequencies_P.double(), n_pairs=n,
        channels_P2=torch.arange(2 * n).view(2, n).T,
        farthest=farthest, noise=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["clipped_rope", "p_rope", "p_rope_reversed", "rope_ladder", "rope_500k", "linear"])
def test_this_projects_own_ladders_are_named(name: str) -> None:
    shape = AttentionShape(n_heads=1, n_key_heads=1, head_dim=64, d_model=64, layer=0, train_length=2048)
    encoding = build(option("pe", name), PositionalEncoding, shape)  # type: ignore[type-abstract]
    seen = turning(encoding.frequencies(torch.float64))
    scheme = scheme_of(Readings(within=seen, beyond=seen, far=seen, trained=2048))
    assert scheme.name == {"rope_ladder": "rope", "rope_500k": "rope"}.get(name, name)
    if "theta" in tunables("pe", name):
        assert scheme.base == pytest.approx(encoding.theta, rel=1e-3)


def test_the_packaged_model_does_what_it_says(roundround: Callable[..., Done]) -> None:
    done = roundround("check", "model=stories260k")
    assert done.code == 0, done.err
    assert "all layers do what config.json declares" in done.err
    assert [r["layer"] for r in done.results] == [0, 1, 2, 3, 4]
    first = done.results[0]
    assert (first["scheme"], first["base"], first["pairing"], first["rotated_pairs"]) == ("rope", 1e4, "half-split", 4)
    assert first["slowest_wavelength"] == pytest.approx(2 * math.pi * 1000, rel=1e-4)


def test_differences_are_told_and_the_exit_code_is_1(roundround: Callable[..., Done], here: Path) -> None:
    folder = saved_llama(here / "little", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    path = folder / "config.json"
    path.write_text(
        path.read_text().replace('"num_attention_heads": 4', '"num_attention_heads": 4, "use_qk_norm": true')
    )
    done = roundround("check", "model=hf", f"model.path={folder}")
    assert done.code == 1, done.err
    assert "layers 0-3: queries are not normalised, declared: normalised" in done.err
    assert "4 of 4 layers differ from config.json" in done.err.splitlines()[-1]
    assert {(r["value"], r["verdict"]) for r in done.results} == {(1, "differs")}
    assert done.manifest["status"] == "done"


def test_what_is_not_compared_has_a_value_and_an_exit_code_of_its_own(
    roundround: Callable[..., Done], here: Path
) -> None:
    rope = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "factor": 2.0}
    folder = saved_llama(here / "little", head_dim=16, rope_parameters=rope)
    done = roundround("check", "model=hf", f"model.path={folder}")
    assert done.code == 3, done.err
    assert "layers 0-3: not compared: the config says rope_type proportional" in done.err
    assert "all as" not in done.err
    assert {(r["value"], r["verdict"]) for r in done.results} == {(None, "not compared")}
    for verb in ("show", "runs"):
        assert roundround(verb, str(done.directory)).code == 0


UNREAD: list[dict[str, Any]] = [
    {"rope_theta": 5e5},  # beside the one in rope_parameters
    {"position_embedding_type": "alibi"},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "factor": 4.0}},
]


@pytest.mark.parametrize("keys", UNREAD, ids=str)
def test_keys_about_positions_that_nothing_reads_are_listed(keys: dict[str, Any]) -> None:
    said = tiny("llama").config.to_dict() | keys
    model = AutoModelForCausalLM.from_config(LlamaConfig.from_dict(copy.deepcopy(said)))
    [(name, value)] = keys.items()
    assert unread_keys(said, model) == [f"{name}.{[*value][-1]}" if isinstance(value, dict) else name]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_as_transformers_writes_it_has_no_unread_keys(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    model.config.save_pretrained(tmp_path)
    assert unread_keys(json.loads((tmp_path / "config.json").read_text()), model) == []


def test_a_runs_kinds_of_layers_are_checked(train: Callable[..., Done], roundround: Callable[..., Done]) -> None:
    words = ["pattern=gemma4", "model.n_layers=6", "pattern.local.window=5", "model.d_model=32"]
    first = train(*words, "trainer.max_steps=1")
    assert first.code == 0, first.err
    done = roundround("check", "run=last")
    assert done.code == 0, done.err
    assert "all layers do what run.json declares" in done.err
    kinds = [(r["scheme"], r["base"], r["window"], r["rotated_pairs"], r["pairs"]) for r in done.results]
    assert kinds == [("rope", 1e4, 5, 8, 8)] * 5 + [("p_rope", 1e6, None, 2, 8)]
    assert {r["query_norm"] for r in done.results} == {"RMSQueryKeyNorm"}
    assert {r["logit_scale"] for r in done.results} == {1.0}


@pytest.mark.parametrize(
    ("pe", "applied", "words", "code"),
    [
        ("alibi", ("none", None, None), "bias on logits", 0),
        ("learned", ("no known scheme", None, None), "the input of a layer depends on the position", 3),
        ("yarn pe.factor=4", ("yarn", 1e4, 4.0), "all layers do what run.json declares", 0),
        ("ntk_dynamic pe.factor=2", ("ntk_dynamic", 1e4, 2.0), "all layers do what run.json declares", 0),
        ("xpos", ("no known scheme", None, None), "XPos does more than single tokens show", 3),
    ],
)
def test_any_encoding_of_a_run_is_looked_at(
    train: Callable[..., Done],
    roundround: Callable[..., Done],
    pe: str,
    applied: tuple[Any, ...],
    words: str,
    code: int,
) -> None:
    first = train(*f"pe={pe}".split(), "trainer.max_steps=1", "model.n_layers=1", "model.d_model=32")
    assert first.code == 0, first.err
    done = roundround("check", "run=last")
    assert done.code == code, done.err
    [layer] = done.results
    assert (layer["scheme"], layer["base"], layer["factor"]) == applied
    assert words in done.err


# -- vectors of conformance


@pytest.mark.parametrize(
    "pe",
    [
        "yarn pe.factor=4",
        "alibi",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("ntk_dynamic pe.factor=2", "p_rope", "xpos", "nope")),
    ],
)
def test_vectors_agree_with_themselves_and_with_no_other_encoding(
    roundround: Callable[..., Done], here: Path, pe: str
) -> None:
    words = f"pe={pe}".split()
    done = roundround("check", *words, "to=mine.safetensors", "head_dim=16")
    assert done.code == 0, done.err
    assert roundround("check", *words, "against=mine.safetensors").code == 0
    other = roundround("check", "pe=rope", "pe.theta=11000", "against=mine.safetensors")
    assert other.code == 1, other.err
    assert "differ by more than rounding" in other.err
    assert_refused_here(roundround("check", *words, "to=mine.safetensors"), "mine.safetensors exists already")


def assert_refused_here(done: Done, message: str) -> None:
    assert done.code == 2, done
    assert message in done.err.splitlines()[-1]


def test_vectors_are_transformers_own(roundround: Callable[..., Done], here: Path) -> None:
    rope = {"rope_type": "yarn", **FACTORS}
    model = tiny("llama", head_dim=32, max_position_embeddings=1024, rope_parameters=rope)
    words = ["pe=yarn", "pe.factor=4", "train_length=256", "head_dim=32", "positions=[0,1,5,300,900]"]
    assert roundround("check", *words, "to=ours.safetensors").code == 0
    ours = load_file("ours.safetensors")
    pos = ours["positions"][None]
    cos, sin = model.model.rotary_emb(torch.zeros(1, 1), pos)
    q, k = modeling_llama.apply_rotary_pos_emb(ours["q"][None], ours["k"][None], cos, sin)
    logits = (q @ k.repeat_interleave(2, 1).mT / math.sqrt(32)).tril()
    theirs = {
        **{name: ours[name] for name in ("positions", "q", "k")},
        **{"inv_freq": model.model.rotary_emb.inv_freq, "cos": cos[0, :, :16], "sin": sin[0, :, :16]},
        **{"q_rotated": q[0], "k_rotated": k[0], "logits": logits[0]},
    }
    save_file({name: value.contiguous() for name, value in theirs.items()}, "theirs.safetensors")
    done = roundround("check", "pe=yarn", "pe.factor=4", "train_length=256", "against=theirs.safetensors")
    assert done.code == 0, done.err
    with safe_open("ours.safetensors", "pt") as opened:
        about = opened.metadata()
    assert (about["pe"], about["pairing"], about["train_length"]) == ("yarn", "half-split", "256")
    assert float(about["attention_factor"]) == pytest.approx(0.1 * math.log(4) + 1)


def test_zeros_at_far_positions_never_agree(roundround: Callable[..., Done], here: Path) -> None:
    """At 1,048,576 the fastest pair is not known at all; what slow pairs give can be told farther out."""
    assert roundround("check", "pe=rope", "to=ours.safetensors", "positions=[0,1,1048576]").code == 0
    ours = load_file("ours.safetensors")
    done = roundround("check", "pe=rope", "against=ours.safetensors")
    assert done.code == 3, done.err
    assert all((r["verdict"] == "hidden by rounding") == bool(r["hidden_by_rounding"]) for r in done.results)
    ours["q_rotated"][:, -1, 28:32] = 0  # pairs 28 to 31 turn slowly
    save_file({name: ours[name] for name in ("positions", "q", "k", "q_rotated")}, "slow.safetensors")
    done = roundround("check", "pe=rope", "against=slow.safetensors")
    assert (done.code, done.results[0]["verdict"]) == (1, "differs")


REFUSED = [
    ("", "check got nothing; give one of run=last, model=stories260k"),
    ("run=last model=stories260k", "check got run= model="),
    ("pe=yarn pe.factor=4", "check got pe="),
    ("pe=yarn to=x.safetensors", "factor has no value; give factor="),
    ("model=stories260k head_dim=8", "head_dim= has no effect here"),
    ("pe=fox to=x.safetensors", "depends on more than queries, keys and positions"),
    ("pe=rope against=nowhere.safetensors", "cannot be read"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[words for words, _ in REFUSED])
def test_a_wrong_check_costs_one_line(roundround: Callable[..., Done], words: str, message: str) -> None:
    assert_refused(roundround("check", *words.split()), message)


def test_a_file_of_another_form_costs_one_line(roundround: Callable[..., Done], here: Path) -> None:
    save_file({"q": torch.zeros(1, 2, 4)}, "q.safetensors")
    assert_refused(roundround("check", "pe=rope", "against=q.safetensors"), "must contain positions, q, k and one of")
    given = {"positions": torch.tensor([0, 1]), "q": torch.zeros(1, 2, 4), "k": torch.zeros(1, 2, 4)}
    save_file({**given, "cos": torch.zeros(2, 3)}, "c.safetensors")
    assert_refused(
        roundround("check", "pe=rope", "against=c.safetensors"), "cos has the shape [2, 3], and pe=rope gives [2, 2]"
    )
    assert_refused(
        roundround("check", "pe=alibi", "against=c.safetensors"), "cos has the shape [2, 3], and pe=alibi gives none"
    )
