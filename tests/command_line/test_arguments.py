"""What people type arrives at Hydra as they meant it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done, assert_refused
from hydra.core.override_parser.overrides_parser import OverridesParser

from roundround.command_line.arguments import (
    add_below,
    expand_aliases,
    expand_words,
    quote_odd,
    read_command_line,
    read_commas,
    split_flags,
)
from roundround.command_line.launch import without_escapes
from roundround.command_line.pages import completions
from roundround.config.options import options_of
from roundround.support.errors import UserError
from roundround.verbs import verb_named


@pytest.mark.parametrize(
    "args",
    [
        ["pe=rope", "-m", "seed=1,2"],
        ["-m", "pe=rope", "seed=1,2"],
        ["pe=rope", "seed=1,2", "--multirun"],
    ],
)
def test_flags_may_stand_anywhere(args: list[str]) -> None:
    assert split_flags(args, verb_named("train")) == (["pe=rope", "seed=1,2"], ["--multirun"])


@pytest.mark.parametrize("args", [["--cfg", "job", "a=1"], ["a=1", "-c", "job"], ["--cfg=job", "a=1"]])
def test_a_flag_keeps_its_value(args: list[str]) -> None:
    assert split_flags(args, verb_named("train")) == (["a=1"], ["--cfg", "job"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mutlirun"], "did you mean '--multirun'"),
        (["--pe", "rope"], "write pe=rope"),
    ],
)
def test_a_wrong_flag_is_named(args: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_flags(args, verb_named("train"))


@pytest.mark.parametrize(
    "value",
    [
        "~/text.txt",
        "a=b.txt",
        "my file (1).txt",
        "caf\u00e9.txt",
        "it's.txt",
        r"\n\n(?=Once upon a time|One day,)",
        r"a{2,3}[,;]",
    ],
)
def test_odd_strings_arrive_as_typed(value: str) -> None:
    assert OverridesParser.create().parse_override(quote_odd(f"data.path={value}")).value() == value


@pytest.mark.parametrize(
    "override", ["a=1", "a=true", "a=[1,2]", "a={b:1}", "a='q'", "a=null", "a=1.5", "~pe", "+a.b=2", "a="]
)
def test_what_hydra_can_read_is_left_alone(override: str) -> None:
    assert quote_odd(override) == override


def test_commas_make_a_list_where_the_yaml_has_one() -> None:
    assert read_commas(["length=128,256"], "eval", None) == ["length=[128,256]"]
    assert read_commas(["optim.betas=0.8,0.9", "seed=1"], "train", None) == ["optim.betas=[0.8,0.9]", "seed=1"]
    assert read_commas(["length=128,256", "length=512"], "eval", None) == ["length=[128,256]", "length=512"]


@pytest.mark.parametrize("given", ["optim.betas=0.8,0.9,pe=rope", "[optim.betas=0.8,0.9,pe=rope]"])
def test_a_value_of_a_baseline_may_have_commas(given: str) -> None:
    assert read_command_line([f"baseline={given}"], verb_named("compare"))[0] == [
        "baseline=['optim.betas=0.8,0.9','pe=rope']"
    ]


def test_commas_make_a_sweep_everywhere_else() -> None:
    overrides = ["pe=rope,nope", "seed=1,2", "optim.betas=[0.8,0.9]"]
    assert read_commas(overrides, "train", None) == overrides


def test_a_list_is_found_inside_a_group_chosen_beside_it() -> None:
    overrides = ["data=text", "data.path=a.txt,b.txt", "pe=rope,nope"]
    assert read_commas(overrides, "train", None) == ["data=text", "data.path=[a.txt,b.txt]", "pe=rope,nope"]


def test_what_is_given_of_a_swept_group_belongs_to_its_jobs() -> None:
    overrides = ["data=copy,sort", "data.validation_examples=32", "data.train_lengths=2,6", "seed=1,2", "batch_size=4"]
    assert read_commas(overrides, "train", None, jobs=True) == [
        "data=copy,sort",
        "data.validation_examples=choice(32)",
        "data.train_lengths=choice([2,6])",
        "seed=1,2",
        "batch_size=4",
    ]
    assert read_commas(overrides, "train", None)[1] == "data.validation_examples=32"


@pytest.mark.parametrize(
    ("word", "typed"),
    [
        (r"init=run\:/a/b", "init='run:/a/b'"),
        (r"data.path=my\ data", "data.path='my data'"),
        ("data.split_regex='a\\s+b'", "data.split_regex='a\\s+b'"),
        ("pe=rope", "pe=rope"),
    ],
)
def test_a_word_of_a_job_can_be_typed(word: str, typed: str) -> None:
    """Hydra escapes a space and a colon in the words of a sweep's jobs."""
    assert without_escapes(word) == typed


def test_a_sweep_over_tasks_takes_what_all_of_them_have(roundround: Callable[..., Done]) -> None:
    small = ["model.n_layers=1", "model.d_model=8", "model.n_heads=2", "model.n_key_heads=2", "trainer.max_steps=1"]
    done = roundround("train", "-m", "data=copy,sort", "data.validation_examples=32", "logger=none", *small)
    assert done.code == 0, done.err
    manifests = [json.loads(path.read_text()) for path in Path("outputs").glob("train/*/*-sweep/*/run.json")]
    assert [manifest["config"]["data"]["validation_examples"] for manifest in manifests] == [32, 32]
    assert all("data.validation_examples=32" in manifest["overrides"] for manifest in manifests)


@pytest.mark.parametrize("flags", [["--cfg", "all"], ["--cfg", "job", "--resolve"], ["--info", "config"], ["--help"]])
def test_reading_a_config_writes_nothing(roundround: Callable[..., Done], here: Path, flags: list[str]) -> None:
    assert roundround("train", *flags).code == 0
    assert list(here.iterdir()) == []


@pytest.fixture
def mine(here: Path) -> Path:
    """A user's own conf folder: an encoding, an experiment in a folder, and a config with a list."""
    for name, text in {
        "pe/slow_rope.yaml": "_target_: roundround.pe.rope.RoPE\ntheta: 7.0\n",
        "experiment/rope/big.yaml": "# @package _global_\nseed: 5\n",
        "own.yaml": "defaults:\n  - train\n  - _self_\nsizes: [1, 2]\n",
    }.items():
        (here / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "mine" / name).write_text(text)
    return here / "mine"


def test_commas_make_a_list_beside_a_conf_folder_of_ones_own(mine: Path) -> None:
    overrides, _, _ = read_command_line(["--config-dir", "mine", "length=128,256", "pe=slow_rope"], verb_named("eval"))
    assert overrides == ["length=[128,256]", "pe=slow_rope"]
    overrides, _, _ = read_command_line(
        ["--config-dir", "mine", "--config-name", "own", "sizes=3,4", "seed=1,2"], verb_named("train")
    )
    assert overrides == ["sizes=[3,4]", "seed=1,2"]


@pytest.mark.parametrize("args", [["train", "pe=rope"], ["list", "pe"]])
def test_a_yaml_that_hydra_would_ignore_is_refused(
    mine: Path, roundround: Callable[..., Done], args: list[str]
) -> None:
    (mine / "pe" / "rope.yaml").write_text("_target_: roundround.pe.rope.RoPE\ntheta: 7.0\n")
    assert_refused(roundround(*args, "--config-dir", "mine"), "mine/pe/rope.yaml would be ignored", "rename yours")


def test_aliases_are_plain_overrides() -> None:
    assert expand_aliases(["preset=a,b"], "max-retrieval") == ["experiment=max-retrieval/a,max-retrieval/b"]
    assert expand_aliases(["text=a.txt", "preset=quick", "seed=1"], "train") == [
        "data=text",
        "data.path=a.txt",
        "experiment=train/quick",
        "seed=1",
    ]


def test_keys_below_a_runs_own_group_are_added() -> None:
    given = ["pattern.local.window=3", "pe@pattern.local.pe=nope", "+pattern.a=1", "pe=rope", "patterns.x=1"]
    added = ["++pattern.local.window=3", "+pe@pattern.local.pe=nope", "+pattern.a=1", "pe=rope", "patterns.x=1"]
    assert add_below(given, ("pattern",)) == added
    assert add_below(given, ()) == given
    whole = ["pattern=gemma4", *given]
    assert add_below(whole, ("pattern",)) == whole


@pytest.mark.parametrize(
    ("verb", "typed", "read"),
    [
        ("generate", "prompt=It rained, and", "prompt='It rained, and'"),
        ("generate", "prompt=1e3", "prompt='1e3'"),
        ("generate", "prompt= two blanks  ", "prompt=' two blanks  '"),
        ("eval", "outputs=2026_01", "outputs='2026_01'"),
        ("eval", "outputs=outputs/2026", "outputs=outputs/2026"),
    ],
)
def test_a_text_stays_as_it_was_typed(verb: str, typed: str, read: str) -> None:
    assert read_command_line([typed], verb_named(verb))[0] == [read]


def test_groups_at_a_place_are_swept_beside_lists() -> None:
    words = ["-m", "softmax@normalisers.ssmax=ssmax,ssmax_bias", "test_sizes=16,32"]
    found = read_command_line(words, verb_named("max-retrieval"))[0]
    assert "softmax@normalisers.ssmax=ssmax,ssmax_bias" in found
    read_command_line(["-m", "pe='rope',p_rope"], verb_named("train"))


def test_a_list_of_a_variant_is_one_value_of_a_sweep_of_bench() -> None:
    found = read_command_line(["-m", "pe=p_rope,rope", "pattern.order=[local,global]"], verb_named("bench"))[0]
    assert found == [
        "where=choice(['pe=p_rope','pattern.order=[local,global]'],['pe=rope','pattern.order=[local,global]'])"
    ]


@pytest.mark.parametrize(
    ("verb", "words", "incomplete", "expected"),
    [
        ("train", ["text=a text.txt"], "qk", [f"qk_norm={name}" for name in sorted(options_of("qk_norm"))]),
        ("train", ["seed=1"], "s", ["softmax=", "schedule="]),
        ("train", [], "pe=ladder/llama", ["pe=ladder/llama_2", "pe=ladder/llama_3"]),
        ("train", ["pe", "="], "p_rope_50", ["p_rope_50"]),
        ("runs", [], "pe=r", []),
    ],
)
def test_groups_and_options_are_completed(verb: str, words: list[str], incomplete: str, expected: list[str]) -> None:
    assert completions(verb_named(verb), words, incomplete) == expected


def test_the_names_of_temp_join_the_softmax() -> None:
    verb = verb_named("max-retrieval")
    assert split_flags(["--temp", "adaptive,log_n"], verb) == (["evaluate=[softmax,adaptive_temperature,log_n]"], [])
    with pytest.raises(UserError, match="did you mean '--temp'"):
        split_flags(["--tmp", "adaptive"], verb)


@pytest.mark.parametrize(
    ("verb", "typed", "meant"),
    [
        ("theory", ["rope.thm_6_1", "model=hf", "softmax.a"], ["model=hf", "claim=[rope.thm_6_1,softmax.a]"]),
        ("theory", ["claim=rope.thm_6_1"], ["claim=rope.thm_6_1"]),
        ("probe", ["last"], ["last"]),
        ("compare", ["there", "pe=rope"], ["paths=['there']", "where=['pe=rope']"]),
    ],
)
def test_words_without_a_key(verb: str, typed: list[str], meant: list[str]) -> None:
    assert expand_words(typed, verb_named(verb), jobs=False) == meant


def test_a_value_with_a_space_that_was_not_quoted_is_shown_in_quotes() -> None:
    with pytest.raises(UserError, match=r"'fox' has no value; write run=fox, or in quotes 'prompt=The fox'$"):
        read_command_line(["prompt=The", "fox"], verb_named("generate"))
