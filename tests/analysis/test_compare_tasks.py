"""Runs that learn a task compared: right answers against the length, and what makes them incomparable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers_compare import write_results, write_train
from helpers_runs import write_run

from roundround.analysis.comparison import compare, place_of
from roundround.report import comparison as report
from roundround.report.drawing.figures import SCREEN
from roundround.support.panels import Curve

TRAIN_LENGTHS, LENGTHS = [1, 20], (20, 40)


def task_run(directory: Path, pe: str, seed: int, exact: float, **more: Any) -> Path:
    """A finished training on a task."""
    where = {"split": "validation", "examples": 64, "step": 10}
    records = [
        {"metric": "exact_match", **where, "value": exact},
        {"metric": "nats_per_token", **where, "value": 1 - exact},
        {"metric": "plateau", "value": 5.0 if exact else "inf"},
    ]
    data = {
        "corpus_hash": "copy",
        "training_tokens": 0,
        "train_lengths": TRAIN_LENGTHS,
        "train_examples": None,
        "validation_examples": 64,
    }
    write_train(directory, pe, seed, data=data, records=records, **more)
    manifest = json.loads((directory / "run.json").read_text())
    manifest["config"]["tokenizer"] = None
    (directory / "run.json").write_text(json.dumps(manifest))
    return directory


def evaluation(directory: Path, trained: Path, pe: str, seed: int, exact: dict[int, float]) -> Path:
    """An evaluation of it at several lengths, of 2 n + 3 tokens."""
    config = {"run": str(trained), "checkpoint": "best", "length": list(exact), "examples": 1024, "pe": None}
    more = {"run": str(trained), "seed": seed, "data": {"corpus_hash": "copy"}}
    write_run(directory, config=config, choices={"pe": pe, "softmax": "softmax", "data": "copy"}, **more)
    common = {"verb": "eval", "run": str(trained), "pe": pe, "seed": seed, "examples": 1024}
    records = [
        {"metric": metric, **common, "length": n, "context": 2 * n + 3, "value": value, "low": 0.0, "high": 1.0}
        for n, share in exact.items()
        for metric, value in (("exact_match", share), ("token_accuracy", (1 + share) / 2), ("error_rate", 1 - share))
    ]
    write_results(directory, records)
    return directory


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two encodings with three seeds each, trained on copying and evaluated at two lengths."""
    for pe, worse in (("rope", 0.5), ("nope", 0.1)):
        for seed in (1, 2, 3):
            trained = task_run(tmp_path / "train" / f"{pe}-{seed}", pe, seed, 1.0)
            exact = {20: 1 - seed / 100, 40: 1 - worse - seed / 100}
            evaluation(tmp_path / "eval" / f"{pe}-{seed}", trained, pe, seed, exact)
    return tmp_path


def test_right_answers_are_compared_at_each_length_over_seeds(outputs: Path) -> None:
    found = compare(outputs / "eval")
    table = [row for row in found.table if row["metric"] == "exact_match"]
    assert found.table[0]["metric"] == "exact_match"
    assert {tuple(place_of(row).items()) for row in table} == {(("length", n),) for n in LENGTHS}
    (row,) = [row for row in table if row["settings"]["pe"] == "nope" and place_of(row)["length"] == 40]
    assert (row["n_seeds"], row["mean"], row["difference"]) == (3, pytest.approx(0.88), pytest.approx(0.4))
    assert row["low"] is not None
    assert report.summary(found, [])["of_tasks"]


@pytest.mark.pictures
def test_figures_are_of_exact_match_against_length_with_the_lengths_in_training(
    outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(report, "save", lambda figure, folder, name, kinds: seen.update({name: figure}) or [])
    found = compare(outputs / "eval")
    report.draw(found.table, report.summary(found, []), tmp_path, SCREEN)
    assert {"eval_exact_match_by_length", "eval_exact_match_difference_by_length"} <= seen.keys()
    (axis,) = seen["eval_exact_match_by_length"].axes
    assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_yscale()) == ("length", "exact match", "linear")
    low, high = axis.get_ylim()
    assert (low < 0, high > 1, high < 1.1) == (True, True, True)
    (shaded,) = [patch for patch in axis.patches if patch.get_label() == "lengths in training"]
    left, right = axis.get_xlim()
    assert [shaded.get_x(), shaded.get_x() + shaded.get_width()] == [left, TRAIN_LENGTHS[1]], "from the edge"
    assert (10 < left < 20, 40 < right < 50) == (True, True), "what was measured fills the figure"


def test_a_grid_of_two_encodings_and_five_normalisers_is_drawn_whole() -> None:
    normalisers = ["softmax", "ssmax", "adaptive_temperature", "entmax15", "as_entmax", "log_n", "sigmoid"]
    x = [20.0, 40.0]
    lines = [
        ({"pe": pe, "softmax": name}, Curve("", x, [0.5, 0.25])) for name in normalisers for pe in ("rope", "nope")
    ]
    panels, n_more = report.cut(report.panels_of(lines[:10], "", ("length", "loss")))
    assert [panel.title for panel in panels] == [f"softmax={name}" for name in normalisers[:5]]
    assert ([[curve.name for curve in panel.curves] for panel in panels], n_more) == ([["pe=rope", "pe=nope"]] * 5, 0)
    panels, n_more = report.cut(report.panels_of(lines, "", ("length", "loss")))
    assert (len(panels), n_more) == (2, 10), "of too many the first are drawn"
