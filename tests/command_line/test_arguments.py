"""What people type arrives at Hydra as they meant it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Done
from hydra.core.override_parser.overrides_parser import OverridesParser

from roundround.command_line.arguments import bracket_lists, expand_aliases, quote_odd, split_flags
from roundround.errors import UserError


def value_of(override: str) -> object:
    return OverridesParser.create().parse_override(override).value()


@pytest.mark.parametrize(
    "args",
    [
        ["pe=rope", "-m", "seed=1,2"],
        ["-m", "pe=rope", "seed=1,2"],
        ["pe=rope", "seed=1,2", "--multirun"],
    ],
)
def test_flags_may_stand_anywhere(args: list[str]) -> None:
    assert split_flags(args) == (["pe=rope", "seed=1,2"], ["--multirun"])


@pytest.mark.parametrize("args", [["--cfg", "job", "a=1"], ["a=1", "-c", "job"], ["--cfg=job", "a=1"]])
def test_a_flag_keeps_its_value(args: list[str]) -> None:
    assert split_flags(args) == (["a=1"], ["--cfg", "job"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mutlirun"], "did you mean '--multirun'"),
        (["--cfg"], "--cfg needs a value"),
        (["--cfg", "jobb"], "did you mean 'job'"),
    ],
)
def test_a_wrong_flag_is_named(args: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split_flags(args)


@pytest.mark.parametrize(
    "value",
    [
        "~/text.txt",
        "a=b.txt",
        "my file (1).txt",
        "caf\u00e9.txt",
        "it's.txt",
        "C:\\texts\\",
        r"\n\n(?=Once upon a time|One day,)",
        r"\n\s*\n",
        r"a{2,3}[,;]",
        "plain.txt",
        "two words.txt",
        "tab\tin.txt",
        "a$b.txt",
        "100%",
        "#1.txt",
        r"don\'t",
    ],
)
def test_odd_strings_arrive_as_typed(value: str) -> None:
    assert value_of(quote_odd(f"data.path={value}")) == value


@pytest.mark.parametrize(
    "override", ["a=1", "a=true", "a=[1,2]", "a={b:1}", "a='q'", "a=null", "a=1.5", "~pe", "+a.b=2", "a="]
)
def test_what_hydra_can_read_is_left_alone(override: str) -> None:
    assert quote_odd(override) == override


@pytest.mark.parametrize("override", ["nonsense", "data.path=[1", "a='b"])
def test_what_nobody_can_read_is_one_error(override: str) -> None:
    with pytest.raises(UserError) as raised:
        quote_odd(override)
    assert "\n" not in str(raised.value)
    assert override in str(raised.value)


def test_commas_make_a_list_where_the_yaml_has_one() -> None:
    assert bracket_lists(["length=128,256"], "eval", None) == ["length=[128,256]"]
    assert bracket_lists(["optim.betas=0.8,0.9", "seed=1"], "train", None) == ["optim.betas=[0.8,0.9]", "seed=1"]
    assert bracket_lists(["length=128,256", "length=512"], "eval", None) == ["length=[128,256]", "length=512"]


def test_commas_make_a_sweep_everywhere_else() -> None:
    overrides = ["pe=rope,nope", "seed=1,2", "length=[1,2]"]
    assert bracket_lists(overrides, "train", None) == overrides


def test_a_list_is_found_inside_a_group_chosen_beside_it() -> None:
    overrides = ["data=text", "data.path=a.txt,b.txt", "pe=rope,nope"]
    assert bracket_lists(overrides, "train", None) == ["data=text", "data.path=[a.txt,b.txt]", "pe=rope,nope"]


def test_aliases_are_plain_overrides() -> None:
    assert expand_aliases(["text=a.txt", "preset=quick", "seed=1"], "train") == [
        "data=text",
        "data.path=a.txt",
        "experiment=train/quick",
        "seed=1",
    ]


def test_a_flag_that_is_nearly_temp_is_told(roundround: Callable[..., Done]) -> None:
    assert "did you mean '--temp'" in roundround("maxkey", "--tmp", "adaptive").err
    assert "did you mean 'adaptive_temperature'" in roundround("maxkey", "--temp", "adaptve").err


def test_a_group_that_a_verb_lacks_is_told(roundround: Callable[..., Done]) -> None:
    done = roundround("maxkey", "model=tiny")
    assert (done.code, "takes no model=..." in done.err) == (2, True)
