"""From a config node to an object: every mistake is one line that names the key, and nothing is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from roundround.config.build import build, maker
from roundround.support.errors import UserError


class Family:
    """What a node is asked to name."""


class Wave(Family):
    """A class as variants are: tunables keyword-only, what is known only later positional or given by name."""

    def __init__(
        self,
        shape: str = "flat",
        *,
        frequency: float,
        lengths: list[int],
        n_pairs: int = 4,
        title: str | None = None,
        scaled: bool = False,
        limit: float | None = None,
        steps: Sequence[float] = (),
        make: Callable[..., str] | None = None,
    ) -> None:
        if frequency < 0:
            raise ValueError(f"frequency={frequency} must be 0 or above")
        self.shape, self.frequency, self.lengths, self.n_pairs = shape, frequency, lengths, n_pairs
        self.title, self.scaled, self.limit, self.steps, self.make = title, scaled, limit, steps, make


class Loose(Family):
    """A class whose annotations say nothing that a config can check."""

    def __init__(self, *, points: Any, table: Wave | None, rest=None) -> None:  # type: ignore[no-untyped-def]
        self.points, self.table, self.rest = points, table, rest


class Stranger:
    """No member of the family."""


def function() -> None:
    """No class."""


@dataclass(kw_only=True)
class Device(Family):
    """A library's class, as far as `build` can see: its annotations are wider or narrower than what it takes."""

    devices: int = 1


Device.__module__ = "lightning.pretended"


class OwnDevice(Device):
    """The same constructor in a class of one's own."""


def node(name: str = "Wave", *, root: dict[str, Any] | None = None, **values: Any) -> DictConfig:
    """The node `wave` of a config, naming a class of this module."""
    usual = {"frequency": 0.5, "lengths": [3]} if name == "Wave" else {}
    return OmegaConf.create({**(root or {}), "wave": {"_target_": f"{__name__}.{name}", **usual, **values}}).wave


def refused(config: DictConfig, *args: Any, **runtime: Any) -> str:
    """The one line that building it costs."""
    with pytest.raises(UserError) as caught:
        build(config, Family, *args, **runtime)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# -- what is built


def test_the_object_is_of_the_class_that_the_node_names_with_its_values() -> None:
    wave = build(node(n_pairs=7, title="tide", scaled=True, limit=2.5), Family)
    assert type(wave) is Wave
    assert vars(wave) == {
        "shape": "flat",
        "frequency": 0.5,
        "lengths": [3],
        "n_pairs": 7,
        "title": "tide",
        "scaled": True,
        "limit": 2.5,
        "steps": (),
        "make": None,
    }


def test_what_is_known_only_now_comes_from_the_caller() -> None:
    wave = build(node(), Wave, "round", make=lambda: "by the caller")
    assert wave.shape == "round"
    assert wave.make() == "by the caller"


def test_a_maker_builds_anew_at_each_call_with_what_it_is_given() -> None:
    make = maker(node(), Wave)
    first, second = make("first"), make("second")
    assert (first.shape, second.shape) == ("first", "second")
    assert first.lengths is not second.lengths


# -- types


@pytest.mark.parametrize(
    ("key", "given", "meant"),
    [
        ("frequency", 1, 1.0),
        ("frequency", "1e-5", 1e-5),
        ("n_pairs", "7", 7),
        ("title", 5, "5"),
        ("scaled", "yes", True),
        ("limit", None, None),
        ("lengths", [1, 2], [1, 2]),
        ("lengths", ["1", 2], [1, 2]),
        ("lengths", 512, [512]),
        ("lengths", "512", [512]),
        ("steps", [1, "2"], [1.0, 2.0]),
        ("steps", 5, [5.0]),
        ("scaled", 1, True),
    ],
)
def test_a_value_becomes_what_the_annotation_says(key: str, given: Any, meant: Any) -> None:
    value = getattr(build(node(**{key: given}), Wave), key)
    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("frequency", "fast"),
        ("frequency", True),
        ("frequency", {"low": 1.0}),
        ("n_pairs", 1.5),
        ("n_pairs", True),
        ("scaled", "perhaps"),
        ("title", ["a"]),
        ("lengths", ["a"]),
        ("lengths", "1,2"),
        ("lengths", {"a": 1}),
        ("steps", "abc"),
    ],
)
def test_a_wrong_type_is_one_line_that_names_the_key(key: str, given: Any) -> None:
    assert refused(node(**{key: given})).startswith(f"wave.{key}: ")


def test_values_without_a_checkable_annotation_arrive_as_plain_python() -> None:
    loose = build(node("Loose", points=[[1, 2], {"a": "b"}], table={"frequency": "fast"}, rest="x"), Loose)
    assert (loose.points, loose.table, loose.rest) == ([[1, 2], {"a": "b"}], {"frequency": "fast"}, "x")
    assert (type(loose.points), type(loose.points[1]), type(loose.table)) == (list, dict, dict)


def test_a_librarys_annotations_are_not_trusted() -> None:
    assert build(node("Device", devices="auto"), Device).devices == "auto"
    assert "did you mean 'devices'" in refused(node("Device", device=1))
    assert "could not be converted" in refused(node("OwnDevice", devices="auto"))


def test_an_interpolation_is_resolved() -> None:
    assert build(node(root={"speed": 2}, frequency="${speed}"), Wave).frequency == 2.0
    assert build(node(frequency="${.n_pairs}", n_pairs=3), Wave).frequency == 3.0


# -- what is refused


@pytest.mark.parametrize(("typo", "meant"), [("frequencies", "frequency"), ("lenghts", "lengths")])
def test_a_typo_names_the_nearest_parameter_and_all_of_them(typo: str, meant: str) -> None:
    message = refused(node(**{typo: 1}))
    assert message.startswith(f"wave has no parameter '{typo}'; did you mean '{meant}'?")
    assert "(choices: frequency, lengths, limit, make, n_pairs, scaled, steps, title)" in message


def test_what_the_caller_supplies_is_no_parameter_of_the_yaml() -> None:
    message = refused(node(make="something"), make=lambda: "by the caller")
    assert "wave has no parameter 'make'" in message
    assert "make" not in message.partition("choices")[2]


@pytest.mark.parametrize("key", ["frequency", "lengths"])
def test_a_missing_value_says_what_to_type(key: str) -> None:
    found = node()
    del found[key]
    assert refused(found) == f"wave.{key} has no value; give wave.{key}=..."


def test_the_constructors_value_error_becomes_one_line() -> None:
    assert refused(node(frequency=-1)) == "wave: frequency=-1.0 must be 0 or above"


def test_a_class_of_another_family_is_refused() -> None:
    assert refused(node("Stranger")) == f"wave._target_={__name__}.Stranger is not a Family"


@pytest.mark.parametrize("target", [None, 5])
def test_a_node_without_a_target_says_what_it_should_name(target: Any) -> None:
    assert refused(node(_target_=target)) == "wave has no _target_; give one that names a subclass of Family"


@pytest.mark.parametrize("target", ["no.such.module", f"{__name__}.function", "Wave"])
def test_a_target_that_is_no_class_is_named(target: str) -> None:
    assert refused(node(_target_=target)).startswith(f"wave._target_={target} cannot be imported: ")


# -- defaults and annotations as people write them


class Untyped(Family):
    def __init__(self, *, lr=0.1, betas=(0.9, 0.95)):
        self.lr, self.betas = lr, betas


@dataclass(kw_only=True)
class Forward(Family):
    lr: float
    like: "NotImported" = None  # type: ignore  # noqa: F821, UP037


@dataclass(kw_only=True)
class Lists(Family):
    lengths: list[float]
    n: int = 4
    maybe: list[int] | None = None


def made(name: str, root: dict[str, Any] | None = None, **values: Any) -> Any:
    return build(OmegaConf.create({**(root or {}), "x": {"_target_": f"test_build.{name}", **values}}).x, Family)


def test_a_default_that_is_a_tuple_stays() -> None:
    assert made("Untyped").betas == (0.9, 0.95)


def test_an_annotation_that_cannot_be_resolved() -> None:
    assert made("Forward", lr=1).lr == 1.0


def test_interpolation_inside_a_list() -> None:
    assert made("Lists", root={"a": 0.5}, lengths=["${a}", 1]).lengths == [0.5, 1.0]
