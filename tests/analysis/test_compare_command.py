"""`roundround compare` as a person types it, on runs that a person made, and what it leaves."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done
from helpers_compare import write_curve, write_eval, write_train
from scipy import stats

FIELDS = {
    *("metric", "length", "settings", "mean", "low", "high", "n_seeds"),
    *("difference", "difference_low", "difference_high", "p", "p_holm", "p_is_bound"),
}


@pytest.fixture
def crossed(here: Path) -> Path:
    """Two encodings crossed with two normalisers, three seeds, evaluated at two lengths."""
    for a, pe in enumerate(["rope", "nope"]):
        for b, softmax in enumerate(["softmax", "ssmax"]):
            for seed in (1, 2, 3):
                name = f"{pe}-{softmax}-{seed}"
                level = 10 + a + 2 * b + seed / 10 + 0.01 * seed**2 * a
                trained = write_train(here / "outputs" / "train" / name, pe, seed, level, softmax=softmax)
                write_curve(trained, {2: level, 4: level - 1, 6: level - 2})
                write_eval(here / "outputs" / "eval" / name, trained, {16: level, 32: level + 5 * a + seed * b})
    return here


def test_a_sweep_of_somebody_is_compared_with_what_evaluated_it(
    train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    swept = train("-m", "pe=rope,nope", "seed=1,2", "trainer.max_steps=2")
    assert swept.code == 0, swept.err
    jobs = sorted(path for path in swept.directory.iterdir() if path.is_dir())
    assert len(jobs) == 4
    evaluations = [roundround("eval", f"run={job}", "length=16,32", "max_tokens=64", "logger=none") for job in jobs]
    done = roundround("compare", "outputs", "verb=eval", "baseline=pe=rope", "metric=perplexity")
    assert done.code == 0, done.err
    records = done.results
    assert {(r["settings"]["pe"], r["length"], r["n_seeds"]) for r in records} == {
        *(("rope", 16, 2), ("rope", 32, 2), ("nope", 16, 2), ("nope", 32, 2))
    }
    values = {
        (e.manifest["choices"]["pe"], e.manifest["seed"], r["length"]): r["value"]
        for e in evaluations
        for r in e.results
        if r["metric"] == "perplexity"
    }
    (nope,) = [r for r in records if r["settings"] == {"pe": "nope"} and r["length"] == 32]
    pairs = [[values[pe, seed, 32] for seed in (1, 2)] for pe in ("nope", "rope")]
    assert nope["values"] == pairs[0]
    assert nope["p"] == pytest.approx(stats.ttest_rel(*pairs).pvalue)
    assert nope["tokens_per_second"] > 0
    assert "two seeds" in done.err
    assert "differ in" not in done.err


def test_two_runs_begin_with_what_differs_between_them(crossed: Path, roundround: Callable[..., Done]) -> None:
    runs = [f"outputs/train/{name}" for name in ("rope-softmax-1", "nope-softmax-2")]
    done = roundround("compare", *runs)
    table = done.out.partition("perplexity")[0]
    rows = {
        line.split()[0]: {*line.split()[1:]} for line in table.splitlines() if line.startswith(" ") and line.strip()
    }
    assert table.startswith("what differs")
    assert (rows["pe"], rows["seed"]) == ({"rope", "nope"}, {"1", "2"})
    assert "softmax" not in rows
    assert "what differs" in (done.directory / "comparison.md").read_text()
    assert "what differs" not in roundround("compare", *runs, "outputs/train/rope-softmax-3").out


def test_it_leaves_results_tables_and_figures(crossed: Path, roundround: Callable[..., Done]) -> None:
    done = roundround("compare", "outputs", "baseline=[pe=rope,softmax=softmax]")
    assert done.code == 0, done.err
    directory = done.directory
    assert {path.name for path in directory.iterdir()} >= {
        *("run.json", "results.json", "comparison.json", "comparison.csv", "comparison.md", "comparison.tex")
    }
    figures = {"eval_perplexity_by_length", "eval_perplexity_difference_by_length", "eval_perplexity_matrix"}
    figures.add("training_curves")
    assert {path.stem for path in (directory / "figures").iterdir()} == figures
    assert {path.suffix for path in (directory / "figures").iterdir()} >= {".svg", ".pdf"}
    summary = json.loads((directory / "comparison.json").read_text())
    assert summary["settings"] == {"pe": ["nope", "rope"], "softmax": ["softmax", "ssmax"]}
    assert summary["baseline"] == ["pe=rope", "softmax=softmax"]
    assert set(summary["figures"]) == figures
    assert {len(curve["tokens"]) for curve in summary["curves"]} == {3}
    assert {len(group["runs"]) for group in summary["groups"]} == {3}
    assert {record["verb"] for record in done.results} == {"eval", "train"}
    assert not any("pe" in record for record in done.results), "that is one of the settings"


@pytest.mark.parametrize("form", ["csv", "json", "markdown", "latex"])
def test_standard_output_is_the_document_alone(crossed: Path, roundround: Callable[..., Done], form: str) -> None:
    done = roundround("compare", "outputs/eval", f"format={form}")
    assert done.code == 0, done.err
    directory = Path(done.err.splitlines()[-1])
    assert (directory / "run.json").exists(), "named on standard error"
    assert str(directory) not in done.out
    ending = {"csv": "csv", "markdown": "md", "latex": "tex"}.get(form)
    if ending is not None:
        assert (directory / f"comparison.{ending}").read_text() == done.out
    if form == "json":
        records = json.loads(done.out)
        assert all(record.keys() >= FIELDS for record in records)
    if form == "csv":
        records = list(csv.DictReader(io.StringIO(done.out)))
        assert records[0].keys() >= FIELDS
        assert {record["settings"] for record in records} >= {"pe=nope, softmax=ssmax"}
    if form in ("csv", "json"):
        rope_ssmax = [{"pe": "rope", "softmax": "ssmax"}, "pe=rope, softmax=ssmax"]
        (one,) = [r for r in records if str(r["length"]) == "32" and r["settings"] in rope_ssmax]
        assert float(one["mean"]) == pytest.approx(10 + 2 + 0.2 + 2)
    if form == "markdown":
        assert "| length | pe | softmax | mean | 95 % interval | seeds | difference |" in done.out
        assert "| 32 | rope | ssmax | 14.20 |" in done.out
    if form == "latex":
        assert r"95 \% interval" in done.out
        assert done.out.count(r"\begin{tabular}") == done.out.count(r"\end{tabular}") == 1


def test_the_table_is_on_standard_output_without_remarks(crossed: Path, roundround: Callable[..., Done]) -> None:
    done = roundround("compare", "outputs/eval")
    assert "p (Holm)" in done.out
    assert "640" not in done.out, "tokens per second say more of the machine's load than of the models"
    assert "640" in (done.directory / "comparison.csv").read_text()
    assert done.out.startswith("eval: perplexity against pe=rope, softmax=softmax at length=32, 3 seeds: worse: ")
    assert "3.0 MiB" in done.out
    assert "the baseline is pe=rope, softmax=softmax" in done.err
    none = roundround("compare", "outputs/eval", "baseline=none")
    assert "difference" not in none.out + none.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["outputs/eval", "baseline=pe=alibi"], "baseline=pe=alibi matches nothing; the settings that vary are pe"),
        (["outputs/eval", "format=xml"], "no format=xml"),
        (["outputs/eval", "metric=accuracy"], "metric=accuracy was not measured"),
        (["nowhere"], "there is no 'nowhere'"),
        (["outputs/eval", "pe=alibi"], "no finished run has results to compare (none with pe=alibi)"),
        (["outputs/eval", "nonsense=1"], "no run has the setting 'nonsense'"),
        (["bad.csv"], "bad.csv, line 2: value=None must be a number"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    crossed: Path, roundround: Callable[..., Done], words: list[str], message: str
) -> None:
    (crossed / "bad.csv").write_text("pe\nrope\n")
    done = roundround("compare", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1
    assert not list(Path("outputs").glob("compare/*/*")), "nothing left behind"
