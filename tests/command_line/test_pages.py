"""The pages of help and of `roundround list`: what stands in them, how wide they are, how soon they come."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, assert_refused, option, typed, variants
from helpers_attention import attention_shape

from roundround.command_line.pages import (
    group_names,
    groups_of,
    keys_of,
    offered,
    options,
)
from roundround.config.build import build
from roundround.config.options import config_name, options_of
from roundround.config.verb import Verb
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.verbs import VERBS, verb_named

OF_HYDRA = [verb for verb in VERBS if verb.config is not None]
OF_KEYS = [group for group in group_names() if group not in ("bench", "experiment")]  # which set keys of others


pytestmark = pytest.mark.usefixtures("here")


def name_of(verb: Verb) -> str:
    return verb.name


def pages() -> Iterator[list[str]]:
    yield from ([], ["--help"], ["list"])
    yield from ([verb.name, "--help"] for verb in VERBS)
    yield from (["list", group, name] for group in group_names() for name in options_of(group))


# -- what is imported


def printed_without_importing(forbidden: set[str], *args: str) -> str:
    """What a command prints, in a process that has imported none of these libraries at its end."""
    code = f"import sys; from roundround.cli import run; assert run({list(args)}) == 0\n"
    code += f"assert not {forbidden} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("forbidden", "args", "part"),
    [
        ({"hydra"}, ["--help"], "generate"),
        ({"hydra"}, ["train", "--help"], "p_rope_reversed"),
        ({"hydra"}, ["list", "pe"], "rotates:"),
        ({"hydra"}, ["list", "pe", "rope"], "arXiv:2104.09864"),
        (set(), ["train", "--cfg", "job"], "_target_: roundround.pe.rope.RoPE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_pages_wait_for_no_slow_library(forbidden: set[str], args: list[str], part: str) -> None:
    slow = {"torch", "lightning", "transformers", "numpy"} if forbidden else {"torch", "lightning", "transformers"}
    assert part in printed_without_importing(forbidden | slow, *args)


# -- how they look


@pytest.mark.parametrize("columns", [80, pytest.param(60, marks=pytest.mark.slow)])
def test_a_page_fits_its_terminal_and_breaks_no_word(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for args in pages():
        done = typed(*args)
        assert done.code == 0, done.err
        too_wide = [line for line in done.out.splitlines() if len(line) > columns and " " in line.strip()]
        uncut = r" {2,6}\S[^=]*="  # a default, a line of a shell
        assert [line for line in too_wide if not re.match(uncut, line)] == [], args


def test_through_a_pipe_each_option_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    *lines, last = typed("list", "pe").out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(options_of("pe"))
    assert any("Su et al. 2021, arXiv:2104.09864" in line and "theta=" in line for line in lines)
    assert "roundround list pe NAME" in last


# -- verbs


@pytest.mark.parametrize("verb", OF_HYDRA, ids=name_of)
def test_every_key_of_a_verb_has_a_sentence(verb: Verb) -> None:
    keys = keys_of("", config_name(verb.name), "", None, verb=True)
    assert [key.name for key in keys.values() if not key.comment] == []
    assert verb.keys <= {name.partition(".")[0] for name in [*keys, *groups_of(verb)]} | {"normalisers"}


@pytest.mark.parametrize("group", OF_KEYS)
def test_every_key_of_every_option_has_a_sentence(group: str) -> None:
    keys = [key for name in options_of(group) for key in keys_of(group, name, group, None).values()]
    assert [key.name for key in keys if not key.comment] == []


@pytest.mark.parametrize("verb", OF_HYDRA, ids=name_of)
def test_help_of_a_verb_lists_its_own_groups_and_no_other(verb: Verb) -> None:
    page = typed(verb.name, "--help").out
    listed = re.findall(r"^  ([\w]+)=\S+  .*\n      ", page.partition("Keys and")[0], re.MULTILINE)
    assert {*listed} == {group for group in groups_of(verb) if "@" not in group}
    assert all(re.search(rf"^  {key}[.=]", page, re.MULTILINE) for key in verb.keys - {"normalisers"} - {*listed})


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["pe=rope", "--help"], ["--help", "-m", "--cfg", "job"]])
def test_a_key_stands_with_its_default_and_its_sentence(args: list[str]) -> None:
    page = typed("train", *args).out
    assert re.search(r"^  seed=0 +seed of the weights", page, re.MULTILINE)
    assert re.search(r"^  pe.theta=null +base of the frequencies", page, re.MULTILINE)


def test_the_option_that_is_typed_shows_its_keys() -> None:
    assert "  pe.p=0.75" in typed("train", "pe=p_rope", "--help").out
    assert "  pe." not in typed("train", "pe=nope", "-h").out
    assert_refused(typed("train", "pe=prope", "--help"), "roundround train: no pe=prope; did you mean 'p_rope'?")


def test_variants_of_ones_own_are_listed(here: Path) -> None:
    Path("mine/pe").mkdir(parents=True)
    Path("mine/pe/mine.yaml").write_text("_target_: roundround.pe.rope.RoPE\ntheta: 7.0  # the base\n")
    page = typed("train", "--help", "--config-dir", "mine", "pe=mine").out
    assert re.search(r"^  pe.theta=7.0 +the base$", page, re.MULTILINE)
    assert "mine, nape" in " ".join(page.split())


@pytest.mark.parametrize("verb", OF_HYDRA, ids=name_of)
def test_what_is_rewritten_to_a_key_is_said(verb: Verb) -> None:
    page = typed(verb.name, "--help").out
    for name in verb.flags:
        assert f"  {name} " in page
    for key in filter(None, [verb.words, verb.filters]):
        assert f"the same as {key}=[" in page


def test_a_verb_that_reads_runs_lists_the_keys_that_it_takes(here: Path) -> None:
    for verb in (verb for verb in VERBS if verb.config is None):
        page = typed(verb.name, "--help").out
        for key, (default, sentence) in verb.reads.items():
            assert f"  {key}={default}  " in page
            assert sentence.split()[0] in page


# -- what a verb refuses


@pytest.mark.parametrize(
    ("verb", "group", "taken", "refused"),
    [
        ("train", "model", {"tiny", "base"}, {"hf", "gemma-7b", "stories260k"}),
        ("train", "data", {"pydoc", "copy", "needle"}, {"blimp", "zorro"}),
        ("train", "logger", {"none", "csv"}, {"several"}),
        ("train", "pattern", {"uniform", "gemma3"}, {"kind/layer"}),
        ("train", "experiment", {"rope/table2"}, {"max-retrieval/quick"}),
        ("max-retrieval", "experiment", {"max-retrieval/quick"}, {"rope/table2"}),
        ("prepare", "data", {"pydoc", "mixture"}, {"copy", "blimp", "prepared"}),
        ("prepare", "tokenizer", {"bpe"}, {"prepared"}),
        ("max-retrieval", "optim", {"adamw"}, {"muon", "muon_speedrun"}),
        ("eval", "data", {"pydoc", "copy", "blimp", "prepared"}, set()),
        ("eval", "model", {"gemma-7b"}, {"tiny"}),
        ("probe", "data", {"stories"}, {"copy", "zorro"}),
    ],
)
def test_options_that_a_verb_refuses_are_not_offered(verb: str, group: str, taken: set[str], refused: set[str]) -> None:
    found = {*offered(verb_named(verb), group, None)}
    assert taken <= found
    assert not found & refused


# -- `roundround list`


@pytest.mark.parametrize("group", group_names())
def test_every_option_of_every_group_states_its_idea(group: str) -> None:
    for entry in options(group, None):
        assert entry.idea, f"{group}={entry.name} has no idea in docstring or comment"
        if group in ("pe", "softmax"):
            assert "arXiv:" in entry.paper, entry


@pytest.mark.parametrize("path", sorted((ROOT / "conf").rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_first_line_of_every_yaml_is_the_command_that_uses_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    first = lines[1] if lines[0].startswith("# @package") else lines[0]
    assert first.startswith("# roundround ") or path.name == "run.yaml", first


def test_an_option_has_its_idea_formula_paper_keys_and_command() -> None:
    page = typed("list", "pe", "p_rope").out
    assert page.startswith("pe=p_rope\n\n  RoPE without its slowest frequencies")
    for part in (
        "g_k = theta^(-2k / head_dim) for k < int(p * head_dim // 2)",
        "Barbero et al. 2024, arXiv:2410.06205, section 6.1",
        "rotates 24 of 32 pairs of a head of 64 channels; the slowest of them turns once in 4,712 tokens",
        "  pe.p=0.75      share of the pairs that rotate",
    ):
        assert part in " ".join(page.split()) or part in page, part
    assert page.endswith("Command\n  roundround train pe=p_rope\n")


def test_a_pattern_shows_its_layers_its_parts_and_its_keys() -> None:
    page = typed("list", "pattern", "gemma4").out
    assert "layers: LLLLLG ... G" in page
    assert "  pe@pattern.global.pe=p_rope_25\n" in page
    assert re.search(r"^  pattern.local.window=512 +tokens that a query", page, re.MULTILINE)


def test_an_experiment_shows_what_it_sets_and_sweeps() -> None:
    page = typed("list", "experiment", "rope/table2").out
    assert "\nSweep\n  seed=1,2,3,4,5\n" in page
    assert "  trainer.max_steps=250" in page
    assert "\n\n  Expected: NoPE clearly worst" in page


@pytest.mark.parametrize("group", group_names())
def test_a_wrong_name_is_answered_with_the_nearest(group: str) -> None:
    name = next(name for name in sorted(options_of(group)) if len(name) > 2)
    assert_refused(typed("list", group, f"{name}x"), f"roundround list: no {group}={name}x; did you mean '{name}'?")


@pytest.mark.parametrize("name", sorted(variants("pe")))
def test_the_yaml_of_a_rotary_encoding_says_what_it_rotates(name: str) -> None:
    """The line "# rotates: PAIRS of 32, SLOWEST WAVELENGTH", which `roundround list pe` reads."""
    shape = attention_shape(n_heads=1, n_key_heads=1, head_dim=64, d_model=64, train_length=2048)
    encoding = build(option("pe", name), PositionalEncoding, shape)
    expected = []
    if isinstance(encoding, RotaryEncoding):
        facts = encoding.facts()
        slowest = f", {facts['slowest_wavelength']:,}" if facts["rotated_pairs"] else ""
        expected = [f"# rotates: {facts['rotated_pairs']} of {facts['pairs']}{slowest}"]
    assert [line for line in variants("pe")[name].read_text().splitlines() if line.startswith("# rotates")] == expected
