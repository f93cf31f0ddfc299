"""Runs compared: which settings vary, what is joined to what, what a reader has to know, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers_compare import write_curve, write_eval, write_results, write_train

from roundround.analysis.comparison import Comparison, Record, compare, format_settings, place_of, training_curves
from roundround.support.errors import UserError


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two encodings with three seeds each, trained."""
    for n, pe in enumerate(["rope", "nope"]):
        for seed in (1, 2, 3):
            write_train(tmp_path / "train" / f"{pe}-{seed}", pe, seed, 10 + n + seed / 10 + n * seed**2, minute=seed)
    return tmp_path


def rows(found: Comparison, verb: str = "train", metric: str = "perplexity", **where: Any) -> list[Record]:
    return [
        row
        for row in found.table
        if (row["verb"], row["metric"]) == (verb, metric)
        and all((row["settings"] | place_of(row)).get(key) == value for key, value in where.items())
    ]


def only(found: Comparison, **where: Any) -> Record:
    (row,) = rows(found, **where)
    return row


def remark(found: Comparison, *parts: str) -> str:
    """The one remark with these parts."""
    (message,) = [line for line in found.remarks if all(part in line for part in parts)]
    return message


# -- settings, groups, baselines


def test_the_settings_that_vary_are_found_and_the_seed_is_none(outputs: Path) -> None:
    found = compare(outputs)
    assert found.settings == {"pe": ["nope", "rope"]}, "not pe.theta, which follows pe, nor checkpoint_every"
    assert [(group.name, group.seeds) for group in found.groups] == [("pe=nope", [1, 2, 3]), ("pe=rope", [1, 2, 3])]
    row = only(found, pe="nope")
    assert (row["seeds"], row["values"], place_of(row)) == ([1, 2, 3], [12.1, 15.2, 20.3], {"length": 16})
    assert row["baseline"] == {"pe": "rope"}, "the plain attention, where nothing is asked for"
    assert row["tokens_per_second"] == 10 * 8 * 16 / 2
    assert (row["peak_resident_bytes"], row["peak_device_bytes"]) == (3 << 20, None)


def test_a_baseline_in_one_setting_is_the_run_that_differs_in_it_alone(outputs: Path) -> None:
    for n, seed in enumerate((1, 2, 3)):
        write_train(outputs / f"ssmax-rope-{seed}", "rope", seed, 20.0 + n, softmax="ssmax")
        write_train(outputs / f"ssmax-nope-{seed}", "nope", seed, 22.0 + n**2, softmax="ssmax")
    found = compare(outputs, baseline="pe=rope")
    partners = {
        format_settings(row["settings"]): format_settings(row["baseline"])
        for row in found.table
        if row["baseline"] is not None
    }
    assert partners == {
        "pe=nope, softmax=softmax": "pe=rope, softmax=softmax",
        "pe=nope, softmax=ssmax": "pe=rope, softmax=ssmax",
    }
    assert only(found, pe="nope", softmax="ssmax")["difference"] == pytest.approx((2 + 2 + 4) / 3)
    cell = compare(outputs, baseline=["pe=rope", "softmax=softmax"])
    baselines = [row["baseline"] for row in cell.table]
    assert [baselines.count(one) for one in ({"pe": "rope", "softmax": "softmax"}, None)] == [3, 1]


def change(directory: Path, edit: Any) -> None:
    manifest = json.loads((directory / "run.json").read_text())
    edit(manifest)
    (directory / "run.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("pe=alibi", r"baseline=pe=alibi matches nothing; the settings that vary are pe \(nope, rope\)"),
        ("p=rope", r"baseline=p=rope matches nothing"),
        ("rope", "baseline=rope matches nothing"),
    ],
)
def test_a_baseline_that_matches_nothing_is_refused_with_the_choices(
    outputs: Path, baseline: str | list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compare(outputs, baseline=baseline)


# -- evaluations and their training run


def test_evaluations_are_joined_to_the_training_run_that_they_measured(outputs: Path) -> None:
    for trained in sorted((outputs / "train").iterdir()):
        write_eval(outputs / "eval" / trained.name, trained, {16: 9.0, 32: 10.0 + len(trained.name)})
    found = compare(outputs / "eval", baseline="pe=rope")
    assert found.settings == {"pe": ["nope", "rope"]}
    assert [place_of(row)["length"] for row in rows(found, "eval")] == [16, 16, 32, 32]
    assert only(found, verb="eval", pe="nope", length=32)["tokens_per_second"] == 640


def test_the_join_survives_a_move_of_both(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for pe in ("rope", "nope"):
        write_eval(outputs / "eval" / pe, outputs / "train" / f"{pe}-1", {16: 9.0})
    change(outputs / "train" / "nope-1", lambda manifest: manifest["config"]["optim"].update(lr=0.5))
    moved = tmp_path_factory.mktemp("elsewhere") / "kept"
    shutil.move(outputs, moved)
    found = compare(moved / "eval")
    assert found.groups[0].models[0].settings["optim.lr"] == 0.5
    assert found.table[0]["tokens_per_second"] == 640
    assert "together, optim.lr with pe" in remark(found, "optim.lr")


def test_a_run_of_many_seeds_and_normalisers_is_a_trial_for_each(tmp_path: Path) -> None:
    records = [
        {"metric": "accuracy", "softmax": softmax, "seed": seed, "n": n, "value": seed + n + len(softmax)}
        for softmax in ("softmax", "ssmax")
        for seed in (0, 1, 2)
        for n in (16, 32)
    ]
    records += [{"metric": "logit_spread", "seed": seed, "n": 16, "value": 1.0 + seed} for seed in (0, 1, 2)]
    records.append({"metric": "gains_from_paper", "value": 3.0, "low": "nan", "high": "nan"})
    run = write_train(tmp_path / "run", "rope", 0)
    write_results(run, records)
    config = {"model": {"_target_": "x"}, "normalisers": {}, "seeds": 3}
    change(run, lambda manifest: manifest.update(verb="max-retrieval", config=config, choices={}))
    found = compare(run)
    assert found.settings == {"softmax": ["softmax", "ssmax", None]}, "of the logits, whatever comes after them"
    (row,) = [row for row in found.table if row["settings"] == {"softmax": "ssmax"} and place_of(row) == {"n": 32}]
    assert (row["values"], row["difference"]) == ([37, 38, 39], -2)
    assert {row["metric"] for row in found.table} == {"accuracy", "logit_spread"}, "not what is over all seeds"
    assert found.remarks == []


# -- what a reader has to know


def test_few_seeds_are_reported(tmp_path: Path) -> None:
    write_train(tmp_path / "a", "rope", 1)
    write_train(tmp_path / "b", "nope", 1, 11.0)
    write_train(tmp_path / "c", "nope", 2, 11.0)
    found = compare(tmp_path)
    assert remark(found, "one seed") == "train: only one seed, so there is no interval and no test: pe=rope"
    assert "12.7 standard errors each way: pe=nope" in remark(found, "two seeds")


def test_the_best_learning_rate_at_the_edge_is_reported_and_one_inside_is_not(tmp_path: Path) -> None:
    for pe, best in (("rope", 0.1), ("nope", 0.01)):
        for lr in (0.001, 0.01, 0.1):
            write_train(tmp_path / f"{pe}{lr}", pe, 1, 9.0 if lr == best else 10.0, lr=lr)
    assert remark(compare(tmp_path), "beyond").endswith("a better one may lie beyond it: pe=rope (0.1)")


def test_what_makes_runs_incomparable_is_reported(outputs: Path) -> None:
    odd = write_train(outputs / "odd", "nope", 4, data={"corpus_hash": "zzzz"}, steps=20)
    change(odd, lambda manifest: manifest.update(roundround="0.3.0", git={"commit": "f" * 40, "dirty": False}))
    found = compare(outputs)
    assert "aaaa (6), zzzz (1)" in remark(found, "training text (corpus hash)")
    assert "1,280 (6), 2,560 (1)" in remark(found, "tokens seen")
    assert "0.2.0 (6), 0.3.0 (1)" in remark(found, "version of roundround")
    assert not [line for line in compare(outputs / "train").remarks if "differ in" in line]


def test_unfinished_runs_are_named_and_left_out(outputs: Path) -> None:
    for n, status in enumerate(["failed: no memory", "interrupted", "running"]):
        write_train(outputs / "train" / f"bad-{n}", "alibi", 1, 1.0, status=status)
    found = compare(outputs)
    assert found.settings == {"pe": ["nope", "rope"]}
    message = remark(found, "3 runs left out")
    assert all(why in message for why in ("failed: no memory", "interrupted", "died"))
    assert {Path(run).name: why for run, why in found.skipped}["bad-2"] == "died", "nobody holds it"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", '{"roundround": ', "its run.json cannot be read"),
        ("run.json", '{"verb": "train"}', "it lacks at least one of the keys config, facts"),
        ("results.json", '[{"metric": "perplexity", "val', "results.json cannot be read"),
        ("results.json", '{"metric": "perplexity"}', "is not a list of records"),
        ("results.json", None, "it has no results.json"),
    ],
)
def test_damaged_runs_are_named_skipped_and_counted(outputs: Path, name: str, text: str | None, message: str) -> None:
    path = outputs / "train" / "nope-2" / name
    path.unlink() if text is None else path.write_text(text)
    found = compare(outputs)
    assert only(found, pe="nope")["seeds"] == [1, 3]
    assert re.search(r"^1 run left out: .*nope-2", remark(found, "left out", message))
    assert only(found, pe="nope")["n_pairs"] == 2


def test_the_rest_of_a_torn_curve_is_taken(outputs: Path) -> None:
    for run in (outputs / "train").iterdir():
        write_curve(run, {2: 3.0, 4: 2.0})
    torn = outputs / "train" / "nope-2" / "metrics.jsonl"
    torn.write_text(torn.read_text() + '{"step": 6, "held_out')
    (outputs / "train" / "nope-3" / "metrics.jsonl").unlink()
    curves, damaged = training_curves(compare(outputs).groups)
    assert {curve["settings"]["pe"]: curve["n_seeds"] for curve in curves} == {"nope": 2, "rope": 3}
    gone = outputs / "train" / "nope-3" / "metrics.jsonl"
    assert damaged == [f"{gone} is missing or empty: no training curve of this run"]


def test_a_metric_that_some_runs_lack_is_reported_and_its_mean_is_of_those_that_have_it(outputs: Path) -> None:
    for seed in (1, 2, 3):
        for pe in ("rope", "nope"):
            lengths = {16: 9.0, 32: 10.0 + seed} if (pe, seed) != ("nope", 3) else {16: 9.0}
            write_eval(outputs / "eval" / f"{pe}{seed}", outputs / "train" / f"{pe}-{seed}", lengths)
    found = compare(outputs / "eval")
    assert only(found, verb="eval", pe="nope", length=32)["seeds"] == [1, 2]
    told = "eval: measured with only some of the setting's seeds: perplexity at length=32 of pe=nope"
    assert remark(found, "only some of") == told


def test_a_number_that_a_setting_lacks_altogether_is_named(outputs: Path) -> None:
    for seed in (1, 2, 3):
        for pe, lengths in (("rope", {16: 9.0, 32: 10.0 + seed}), ("nope", {16: 9.0})):
            write_eval(outputs / "eval" / f"{pe}{seed}", outputs / "train" / f"{pe}-{seed}", lengths)
    expected = "eval: measured for only some of the settings: perplexity at length=32"
    assert remark(compare(outputs / "eval"), "measured for") == expected


def test_two_runs_with_the_same_settings_and_seed_are_named_and_the_newest_counts(outputs: Path) -> None:
    again = write_train(outputs / "train" / "again", "nope", 2, 99.0, minute=60)
    found = compare(outputs)
    assert only(found, pe="nope")["values"] == [12.1, 99.0, 20.3]
    message = remark(found, "different numbers for pe=nope, seed 2")
    assert str(again) in message
    assert str(outputs / "train" / "nope-2") in message
    assert "the numbers of the run that started last are used" in message


def test_settings_that_change_together_are_reported(outputs: Path) -> None:
    for run in (outputs / "train").glob("nope-*"):
        change(run, lambda manifest: manifest["config"]["optim"].update(lr=0.5))
    assert remark(compare(outputs), "together") == (
        "train: some settings always change together, optim.lr with pe: a difference may come from either"
    )


@pytest.mark.parametrize("value", ["nan", "-inf", float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_left_out_and_reported(outputs: Path, value: str | float) -> None:
    run = outputs / "train" / "nope-2"
    write_results(run, [{"metric": "perplexity", "pe": "nope", "seed": 2, "length": 16, "value": value}])
    found = compare(outputs)
    assert only(found, pe="nope")["seeds"] == [1, 3]
    assert remark(found, "not finite").startswith(f"perplexity of {run}")


# -- what is refused


def test_what_cannot_be_compared_is_refused(outputs: Path) -> None:
    with pytest.raises(UserError, match=r"metric=accuracy was not measured \(choices: perplexity\)"):
        compare(outputs, metric="accuracy")
    (outputs / "empty").mkdir()
    with pytest.raises(UserError, match="holds no run"):
        compare(outputs / "empty")
    with pytest.raises(UserError, match="there is no"):
        compare(outputs / "not there")
    failed = write_train(outputs / "failed", "rope", 1, status="failed: no luck")
    with pytest.raises(UserError, match=r"no finished run has results to compare .*failed: no luck"):
        compare(failed)
