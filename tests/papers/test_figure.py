"""One rule for every item: what its words mean, and which numbers each judged item must not let through."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT
from omegaconf import OmegaConf
from safetensors.numpy import save_file
from scipy import stats

from roundround import papers
from roundround.analysis.intervals import error_from_p, p_of_mean, welch_width
from roundround.papers.claim import (
    JUDGED,
    LEARNED,
    NOT_TESTED,
    CheckedNumber,
    Entry,
    Finding,
    at_least,
    at_most,
    figures_of,
    near,
    read_entries,
    shown,
    write_entries,
)
from roundround.papers.figures import own
from roundround.papers.figures import own as table2
from roundround.papers.figures.own import Difference
from roundround.papers.max_retrieval import PAPER, P
from roundround.softmax.adaptive_temperature import PUBLISHED

FIGURES = figures_of(papers.FIGURES)


def of(ours: float, error: float, published: float = 0.2, margin: float = 0.1, signed: bool = True) -> str:
    return near("x", ours, published, margin, published, error, signed).verdict


def test_a_number_agrees_with_its_whole_interval_alone() -> None:
    assert of(0.22, 0.07) == "agrees"
    assert of(0.22, 0.09) == "sign agrees"
    assert of(0.22, 0.09, signed=False) == "no clear difference"
    assert of(0.22, 0.3) == "no clear difference"


def test_a_number_differs_where_its_whole_interval_is_outside() -> None:
    assert of(0.45, 0.1) == "differs"
    assert of(0.45, 0.2) == "sign agrees"
    assert of(-0.45, 0.2) == "differs"
    assert of(-0.2, 0.15, margin=0.3) == "no clear difference"  # 0 is left out on the other side
    assert of(math.nan, 0.1) == "differs"


def test_a_direction_can_have_its_sign_agree_and_no_more() -> None:
    assert at_least("x", 0.9, 0.6).verdict == "sign agrees"
    assert at_least("x", 0.7, 0.6, 0.2).verdict == "no clear difference"
    assert at_least("x", 0.3, 0.6, 0.2).verdict == "differs"


def test_an_item_has_the_verdict_of_its_worst_number() -> None:
    agrees, sign, unknown, differs = (
        near("a", 1, 1, 1),
        at_least("b", 1, 0),
        near("c", 1, 1, 1, 1, 5),
        at_most("d", 1, 0),
    )
    assert Finding([agrees, shown("e", 5, published=9)]).verdict == "agrees"
    assert Finding([agrees, sign]).verdict == "sign agrees"
    assert Finding([sign, unknown, agrees]).verdict == "no clear difference"
    assert Finding([unknown, differs, agrees]).verdict == "differs"
    assert Finding([agrees], drawn=True).verdict == "plotted only"
    assert Finding([agrees, differs], drawn=True).verdict == "differs"
    assert Finding([differs], untested="another model").verdict == "not tested"
    assert Finding([]).verdict == Finding([shown("e", 5)]).verdict == "not run"


# -- no decay


CURVES = {
    "rope.fig2": lambda: own.fresh(own.ENDS),
    "rope.fig8": lambda: own.fresh(torch.stack([own.spacing(50_000, n) for n in range(100)])[:, own.ENDS]),
    "rope.fig9": lambda: own.one_pair(own.ENDS, 1e4, own.DRAWS),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "rope.fig8")) for name in CURVES]
)
def test_a_fall_to_85_per_cent_of_the_amplitude_is_a_decay(name: str) -> None:
    curves_DN = CURVES[name]()
    assert own.without_decay("", curves_DN).verdict == "agrees"
    fading_DN = curves_DN * (1 - 0.15 * own.ENDS / 5000)
    assert own.without_decay("", fading_DN).verdict == "differs"


# -- max retrieval


def test_the_error_of_a_printed_p_is_that_of_its_test() -> None:
    first, second = np.random.default_rng(0).normal([[1.0], [0.0]], 1.0, (2, 10))
    error, p = stats.sem(first - second), stats.ttest_rel(first, second).pvalue
    mean = float((first - second).mean())
    assert error_from_p(mean, p, 10) == pytest.approx(error)
    assert p_of_mean(mean, error, 10) == pytest.approx(p)
    assert math.isnan(p_of_mean(1.0, 0.0, 10))


def test_two_means_are_compared_by_welchs_interval() -> None:
    first, second = (np.random.default_rng(0).normal(size=n) * n for n in (10, 4))
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    width = welch_width(stats.sem(first), 10, stats.sem(second), 4)
    assert 2 * width == pytest.approx(interval.high - interval.low)


def seeds(mean: float, error: float, n: int = 10) -> np.ndarray:
    """Numbers with this mean, and this standard error of it."""
    return mean + error * np.sqrt(n - 1) * np.tile([1.0, -1.0], n // 2)


def test_the_papers_own_error_widens_the_interval_where_its_p_is_known() -> None:
    """2 points apart with a standard error of 0.4: that of the paper's 3.9 is 0.6, by p = 1e-4."""
    own_alone = 2.2622 * 0.4
    for n, is_wider in ((512, False), (1024, True)):
        _, gain, p = own.compare_size(n, seeds(60.0, 1.0), seeds(PAPER[n][1] - PAPER[n][0] + 2, 0.4))
        assert (gain.error > 1.1 * own_alone) == is_wider == (n in P)
        assert p.published == P.get(n)
        assert not p.is_judged


def test_gains_twice_as_large_differ_and_uncertain_ones_are_not_told_apart() -> None:
    of_gain = {error: own.compare_size(256, seeds(81.3, 0.2), seeds(1.9, error))[1] for error in (0.1, 0.6, 2.0)}
    assert [c.verdict for c in of_gain.values()] == ["differs", "sign agrees", "no clear difference"]
    assert own.compare_size(256, seeds(81.3, 0.2), seeds(0.8, 0.05))[1].verdict == "agrees"
    assert own.compare_size(256, np.array([81.3]), np.array([0.85]))[0].verdict == "no clear difference"


def fitted(tmp_path: Path, by_seed: list[list[float]], scale: float = 1.0) -> Finding:
    coefficients = [scale * c for c in PUBLISHED]
    fit = {"coefficients": coefficients, "inputs": 9, "entropy_range": [0.1, 3.2], "by_seed": by_seed, "sizes": [16]}
    (tmp_path / "run.json").write_text(json.dumps({"fit": fit}))
    accuracies = {("fitted", 16): (0.9, 0.9), ("fitted", 2048): (0.4, 0.5), ("fitted", 4096): (0.2, 0.3)}
    records = [
        {"metric": "accuracy", "softmax": softmax, "n": n, "seed": seed, "value": value}
        for (softmax, n), values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    (tmp_path / "results.json").write_text(json.dumps(records))
    return FIGURES["softmax.fig5"].make(lambda *_: tmp_path, None)


def test_a_fit_is_judged_with_the_interval_of_its_seeds(tmp_path: Path) -> None:
    seeds = [[share * c for c in PUBLISHED] for share in (0.99, 1.0, 1.01)]
    assert fitted(tmp_path, seeds).verdict == "agrees"
    assert fitted(tmp_path, seeds, scale=1.5).verdict == "differs"
    assert fitted(tmp_path, []).verdict == "no clear difference"  # some seed had too few points


@pytest.mark.parametrize("name", ["softmax.fig2", "softmax.fig6"])
def test_the_sets_of_one_head_are_no_sample_of_heads(tmp_path: Path, name: str) -> None:
    """32 sets on which one head does all that the paper says, without spread."""
    weights = {}
    for n in PAPER:
        for softmax, on_largest in (("softmax", 0.9), ("adaptive_temperature", 0.95)):
            weights[f"{softmax}.{n}"] = np.full((32, 16), on_largest if n < 4096 else on_largest / 100, np.float32)
    save_file(weights, tmp_path / "attention.safetensors")
    found = FIGURES[name].make(lambda *_: tmp_path, None)
    assert {c.verdict for c in found.comparisons} == {found.verdict} == {"no clear difference"}


# -- table 2


def sweep(of_pe: dict[str, list[float]]) -> pd.DataFrame:
    """Losses less RoPE's in nats, by encoding and seed, the same at every length."""
    losses = {"rope": [0.0] * 3, **{pe: of_pe.get(pe, [0.0] * 3) for pe in own.PAPER if pe != "rope"}}
    return own.sweep_of(
        {"metric": "perplexity", "verb": "eval", "pe": pe, "seed": seed, "length": n, "value": math.exp(3 + loss)}
        for pe, found in losses.items()
        for seed, loss in enumerate(found)
        for n in own.LENGTHS
    )


def around_the_paper(spread: float) -> dict[str, list[float]]:
    published = {pe: own.paper_difference(pe, "rope") for pe in own.PAPER if pe != "rope"}
    return {pe: [d[0] - spread, d[0], d[0] + spread] for pe, d in published.items() if d}


def test_differences_of_table_2_stand_beside_the_papers_and_are_not_judged() -> None:
    """A model of a million parameters is a stand-in, as another pretrained model is."""
    found = own.compare_encodings(sweep(around_the_paper(0.001)))
    assert not any(c.is_judged for c in found)
    beside = [c for c in found if c.published is not None and "less RoPE, theta 10,000" in c.what]
    assert [c.ours for c in beside] == pytest.approx([c.published for c in beside])
    assert len(beside) == 6
    assert all("256 tokens (" in c.what for c in beside)
    assert Finding(found, untested="made of another model").verdict == "not tested"


def test_an_entry_of_comparisons_is_read_back(tmp_path: Path) -> None:
    found = [CheckedNumber("a", 1.0, 0.0, 2.0, 1.0, 0.5, True), at_least("b", 1.0, 0.0, math.inf)]
    entry = Entry("rope.fig1", "agrees", "", found, "", "", None, True, [], None, 0.0, "2026-01-01T00:00:00+00:00")
    write_entries([entry], tmp_path)
    assert read_entries(tmp_path) == [entry]


# -- docs/results/length.md and length_recall.md


@pytest.mark.parametrize(
    ("file", "begins", "of", "length"),
    [
        ("repeat", "repeating a symbol", {"pe": "rope"}, "20"),
        ("repeat", "repeating a symbol", {"pe": "sinusoidal"}, "20"),
        ("repeat", "the same: NoPE first", {"pe": "nope"}, "20"),
        ("repeat", "the same: T5's bias before ALiBi", {"pe": "t5_bias"}, "20"),
        *(("copy", "copying", {"pe": pe, "softmax": "softmax"}, "20") for pe in ("nope", "t5_bias", "alibi", "rope")),
        *(
            ("solved", begins, {"data": task, "softmax": name}, "16")
            for task, begins in (("sort", "sorting"), ("reverse", "reversing"))
            for name in ("softmax", "as_entmax_nape")
        ),
        ("random_positions", "random positions", {"data": "copy", "pe": "rope_random"}, "16"),
        ("random_positions", "random positions", {"data": "reverse", "pe": "rope_random"}, "16"),
        ("clrs_text_small", "CLRS-Text", {"task": "all", "softmax": "softmax"}, "4"),
    ],
)
def test_a_task_that_was_not_learned_is_not_tested(file: str, begins: str, of: dict[str, str], length: str) -> None:
    """What is stored of the trained lengths decides, at the best learning rate."""
    found: dict[str, list[float]] = {}
    docs = ROOT / "docs" / "results"
    for row in csv.DictReader((docs / "length" / f"{file}.csv").read_text(encoding="utf-8").splitlines()):
        if {"metric": "exact_match", "length": length, **of}.items() <= row.items():
            found.setdefault(row.get("optim.lr", ""), []).append(float(row["value"]))
    learned = max(float(np.mean(values)) for values in found.values()) >= LEARNED
    lines = [line for name in ("length", "length_recall") for line in (docs / f"{name}.md").read_text().splitlines()]
    (said,) = [line.split("|")[-2].strip() for line in lines if line.startswith(f"| {begins}")]
    assert said in (*JUDGED, NOT_TESTED, "no clear difference")
    assert learned == (said != NOT_TESTED)


CONF = ROOT / "conf"
EXPERIMENT = OmegaConf.load(CONF / "experiment" / "rope" / "table2.yaml")


def record(pe: str, seed: int, value: float, *, length: int = 256, **fields: Any) -> dict[str, Any]:
    return {"metric": "perplexity", "verb": "eval", "pe": pe, "seed": seed, "length": length, "value": value, **fields}


def records(losses: dict[str, list[float]], *, length: int = 256) -> list[dict[str, Any]]:
    """Perplexities of these losses in nats, by encoding, for the seeds 1, 2, ..."""
    return [
        record(pe, seed, math.exp(nats), length=length)
        for pe, by_seed in losses.items()
        for seed, nats in enumerate(by_seed, start=1)
    ]


def between(first: list[float], second: list[float]) -> Difference:
    sweep = table2.sweep_of(records({"p_rope": first, "rope": second}))
    return table2.difference(sweep, "p_rope", "rope", 256)


def test_an_interval_by_hand() -> None:
    found = between([3.01, 3.02, 3.03, 3.04, 3.05], [3.0] * 5)
    # mean 0.03, deviation sqrt(2.5e-4), over sqrt(5), times 2.776445, the 97.5 % quantile of t with 4 degrees
    assert (found.nats, found.low, found.high) == pytest.approx((0.03, 0.01036757, 0.04963243), abs=1e-7)


def test_what_the_seeds_share_is_no_noise() -> None:
    shared, own = np.array([0.0, 0.5, 1.0, -0.5, 0.2]), np.array([0.01, 0.012, 0.008, 0.011, 0.009])
    found = between((3 + shared + own).tolist(), (3 + shared).tolist())
    assert found.nats == pytest.approx(0.01)
    assert found.high - found.low < 0.005


def test_only_whole_seeds_count() -> None:
    whole = records({"rope": [3.0, 3.1, 3.2, 3.3], "p_rope": [3.0, 3.1, 3.2]})
    longer = records({"rope": [3.0, 3.1, 3.2, 3.3], "p_rope": [3.0, 3.1]}, length=512)
    sweep = table2.sweep_of(whole + longer)
    assert set(sweep.columns) == {(n, pe) for n in (256, 512) for pe in ("rope", "p_rope")}
    assert list(sweep.index) == [1, 2]
    assert list(sweep[512, "p_rope"]) == pytest.approx(np.exp([3.0, 3.1]))


def test_two_corpora_are_not_mixed_and_an_evaluation_may_be_repeated() -> None:
    once = record("rope", 1, 40.0)
    assert list(table2.sweep_of([once, once]).index) == [1]
    with pytest.raises(ValueError, match="duplicate"):
        table2.sweep_of([once, record("rope", 1, 44.0)])


@pytest.mark.parametrize(
    ("encoding", "wiki", "flan"),
    [
        ("nope", 0.0852, 0.0306),
        ("rope_500k", -0.0032, 0.0025),
        ("p_rope_reversed", -0.0008, 0.0039),
        ("partial_rope", -0.0020, 0.0021),
        ("p_rope_25", 0.0150, 0.0105),
        ("p_rope", -0.0048, -0.0001),
    ],
)
def test_the_papers_differences_in_nats(encoding: str, wiki: float, flan: float) -> None:
    """Worked out from the published perplexities by hand."""
    assert table2.paper_difference(encoding, "rope") == pytest.approx((wiki, flan), abs=6e-5)


def test_the_experiment_runs_the_encodings_of_the_paper() -> None:
    assert EXPERIMENT.hydra.sweeper.params.pe.split(",") == list(table2.PAPER)
    assert {name for pair in table2.CONTROLS for name in pair} <= table2.PAPER.keys()
