"""Numbers of two results.json: which belong together, and the verdict on each."""

from __future__ import annotations

from typing import Any

import pytest

from roundround.analysis.repetition import compared

THEN: list[dict[str, Any]] = [
    {"metric": "perplexity", "run": "/then", "pe": "rope", "pe.p": 0.75, "length": 16, "step": 2, "value": 100.0},
    {"metric": "perplexity", "run": "/then", "pe": "rope", "pe.p": 0.75, "length": 32, "step": 4, "value": 200.0},
    {"metric": "label", "run": "/then", "head": 0, "value": "sink"},
    {"metric": "tokens_per_second", "run": "/then", "value": 1234.5},
]


def changed(**changes: Any) -> list[dict[str, Any]]:
    """The records again, of another run, with the value of the first or other fields of it changed."""
    first, *rest = ({**record, "run": "/now"} for record in THEN)
    return [{**first, **changes}, *rest]


def verdicts(now: list[dict[str, Any]], rtol: float = 1e-6) -> dict[tuple[Any, ...], str]:
    """The verdict on each number, by metric and length."""
    pairs = compared(THEN, now, {"rtol": 1.0}, rtol)
    return {(pair.metric, pair.where.get("length")): pair.verdict for pair in pairs}


def test_the_same_numbers_of_a_run_elsewhere_are_equal_and_timings_are_none() -> None:
    assert verdicts(changed()) == {
        ("perplexity", 16): "equal",
        ("perplexity, step", 16): "equal",
        ("perplexity", 32): "equal",
        ("perplexity, step", 32): "equal",
        ("label", None): "equal",
    }


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (100.00005, "close"),
        (100.0002, "different"),
        (99.9998, "different"),
        (-100.0, "different"),
        ("nan", "different"),
        (None, "missing"),
    ],
)
def test_a_number_is_close_up_to_the_tolerance(value: Any, verdict: str) -> None:
    assert verdicts(changed(value=value))["perplexity", 16] == verdict
    assert verdicts(changed(value=value))["perplexity", 32] == "equal"


def test_the_difference_is_relative_to_the_larger_number() -> None:
    (pair,) = [pair for pair in compared(THEN, changed(value=80.0), {}, 0.2) if pair.verdict == "close"]
    assert pair.difference == pytest.approx(0.2)
    (zero,) = compared([{"metric": "a", "value": 0.0}], [{"metric": "a", "value": 0}], {}, 0)
    assert (zero.verdict, zero.difference) == ("equal", 0)
    (tiny,) = compared([{"metric": "a", "value": 0.0}], [{"metric": "a", "value": 1e-300}], {}, 0.5)
    assert (tiny.verdict, tiny.difference) == ("different", 1)


def test_a_record_of_one_side_alone_is_missing() -> None:
    fewer, more = changed()[1:], [*changed(), {"metric": "new", "value": 1.0}]
    assert verdicts(fewer)["perplexity", 16] == "missing"
    assert verdicts(more)["new", None] == "missing"
    other_setting = verdicts(changed(**{"pe.p": 0.5}))
    assert other_setting["perplexity", 16] == "missing"


def test_records_that_nothing_tells_apart_are_taken_in_their_order() -> None:
    then = [{"metric": "a", "value": 1.0}, {"metric": "a", "value": 2.0}]
    assert [pair.verdict for pair in compared(then, then, {}, 0)] == ["equal", "equal"]
    assert [pair.verdict for pair in compared(then, then[::-1], {}, 0)] == ["different", "different"]
