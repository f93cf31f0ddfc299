"""`roundround max-retrieval` as people type it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Done, metrics_of, saved_weights, shell
from omegaconf import OmegaConf

from roundround.papers.max_retrieval.model import TrainingSets
from roundround.report import max_retrieval as report
from roundround.report.drawing.figures import save_drawing
from roundround.verbs.max_retrieval.run import fits_by_seed

SMALL = [
    "logger=none",
    "device=cpu",
    "seeds=2",
    "max_steps=6",
    "model.width=32",
    "batch_size=8",
    "test_sizes=16,32,64",
    "test_sets=40",
    "fit_sizes=32,64",
    "fit_inputs=40",
    "checkpoint_every=2",
    "log_every=2",
]
ALL = [
    "softmax",
    "adaptive_temperature",
    "fitted",
    "log_n",
    "ssmax",
    "temperature_50",
    "temperature_25",
    "temperature_10",
    "entmax15",
    "hard",
]


def test_every_normaliser_in_one_run(roundround: Callable[..., Done]) -> None:
    done = roundround("maxkey", *SMALL, "--temp", "all")
    assert done.code == 0, done.err
    assert done.manifest["verb"] == "max-retrieval"
    assert done.directory.parts[-3] == "max-retrieval"
    for name in ALL:
        for seed in (0, 1):
            for n in (16, 32, 64):
                assert 0 <= done.value("accuracy", softmax=name, seed=seed, n=n) <= 1
                assert 0 <= done.value("entropy", softmax=name, seed=seed, n=n) <= np.log(n) + 1e-5
    # at the sizes of training ln n scaling does nothing, and the untrained SSMax is the same as it from there on
    assert done.value("entropy", softmax="log_n", seed=0, n=16) == done.value(
        "entropy", softmax="softmax", seed=0, n=16
    )
    for n in (16, 32, 64):
        log_n, ssmax = (done.value("entropy", softmax=name, seed=0, n=n) for name in ("log_n", "ssmax"))
        assert ssmax == pytest.approx(log_n, rel=1e-5)
    rows = (done.directory / "table.md").read_text().splitlines()
    assert next(row for row in rows if "log_n" in row or "ssmax" in row).startswith("| log_n = ssmax |")
    assert not any(row.startswith(("| ssmax |", "| log_n |")) for row in rows)
    for seed in (0, 1):
        assert np.isfinite(done.value("logit_slope", seed=seed))
        assert done.value("gains_from_paper", seed=seed) >= 0
    figures = {path.name for path in (done.directory / "figures").iterdir()}
    names = [
        "accuracy",
        "heads",
        "dispersion",
        "attention_softmax",
        "attention_adaptive_temperature",
        "temperature_fit",
    ]
    assert figures == {f"{name}.{kind}" for name in names for kind in ("svg", "pdf", "png")}
    lines = (done.directory / "metrics.jsonl").read_text().splitlines()
    assert {"loss", "loss_0", "loss_1"} <= json.loads(lines[0]).keys()
    assert "paper: adaptive" in done.err
    assert "paired t-test" in done.err


def test_a_fit_can_be_used_by_the_other_verbs(roundround: Callable[..., Done], fast: list[str]) -> None:
    done = roundround("maxkey", *SMALL, "fit=true")
    assert done.code == 0, done.err
    node = OmegaConf.load(done.directory / "conf" / "softmax" / "fitted.yaml")
    fit = done.manifest["fit"]
    assert fit["coefficients"] == list(node.coefficients)
    low, high = fit["entropy_range"]
    assert 0 < low < high < math.log(max(fit["sizes"]))
    assert f"softmax.coefficients=[{','.join(map(str, node.coefficients))}]" in done.err
    assert list(node.entropy_range) == [low, high]
    assert f"softmax.entropy_range=[{low},{high}]" in done.err
    conf = str(done.directory / "conf")
    trained = roundround("train", *fast, "--config-dir", conf, "softmax=fitted", "softmax.in_training=true")
    assert trained.code == 0, trained.err
    for key in ("coefficients", "entropy_range"):
        assert trained.manifest["config"]["softmax"][key] == list(node[key])


def test_each_seed_is_fitted_to_its_own_points() -> None:
    """The points come seed by seed for one size after the other."""
    entropy_N = torch.linspace(0.1, 3, 20, dtype=torch.float64)
    of_seed = [torch.stack([entropy_N, share * entropy_N**4], -1) for share in (1.0, 2.0)]
    points = [of_seed[0][:10], of_seed[1][:10], of_seed[0][10:], of_seed[1][10:]]
    fits = fits_by_seed(points, n_seeds=2)
    for found, share in zip(fits, (1.0, 2.0), strict=True):
        assert found == pytest.approx([share, 0, 0, 0, 0], abs=1e-9)
    assert fits_by_seed(points[:3], n_seeds=2)
    assert fits_by_seed([points[0], points[1][:3]], n_seeds=2) == []


def test_a_fit_that_fails_costs_nothing_else(roundround: Callable[..., Done]) -> None:
    done = roundround("maxkey", *SMALL, "seeds=1", "fit=true", "fit_sizes=1")
    assert done.code == 0, done.err
    assert "the temperature could not be fitted: only 0 inputs" in done.err
    assert f"run={done.directory}" in done.err
    assert {r["softmax"] for r in done.results if r["metric"] == "accuracy"} == {"softmax", "adaptive_temperature"}


def test_a_run_from_elsewhere_cannot_name_foreign_code(roundround: Callable[..., Done]) -> None:
    run = roundround("maxkey", *SMALL).directory
    manifest = json.loads((run / "run.json").read_text())
    manifest["config"]["normalisers"]["hard"]["_target_"] = "os.system"
    (run / "run.json").write_text(json.dumps(manifest))
    for how in ("run", "resume"):
        refused = roundround("maxkey", f"{how}={run}", "logger=none")
        assert refused.code == 2
        assert "normalisers.hard is os.system" in refused.err


def test_a_run_that_stopped_early_is_not_evaluated_as_if_it_were_whole(roundround: Callable[..., Done]) -> None:
    run = roundround("maxkey", *SMALL).directory
    manifest = json.loads((run / "run.json").read_text())
    manifest["config"]["max_steps"] = 9
    (run / "run.json").write_text(json.dumps(manifest))
    refused = roundround("maxkey", f"run={run}", "logger=none")
    assert refused.code == 2
    assert "stopped after 6 of 9 steps; continue with resume=" in refused.err
    whole = roundround("maxkey", f"resume={run}", "logger=none")
    assert whole.code == 0, whole.err
    assert "resuming after step 6" in whole.err


def test_a_run_that_was_cut_off_in_evaluation_gives_the_same_results(roundround: Callable[..., Done]) -> None:
    whole = roundround("maxkey", *SMALL)
    before = whole.results
    (whole.directory / "results.json").unlink()
    again = roundround("maxkey", f"resume={whole.directory}", "logger=none")
    assert again.code == 0, again.err
    assert again.results == before


def test_run_and_resume_are_one_or_the_other(roundround: Callable[..., Done]) -> None:
    run = roundround("maxkey", *SMALL).directory
    both = roundround("maxkey", f"run={run}", f"resume={run}")
    assert both.code == 2
    assert "give one of them" in both.err
    evaluation = roundround("maxkey", f"run={run}", "logger=none", "test_sizes=16").directory
    nothing = roundround("maxkey", f"resume={evaluation}")
    assert nothing.code == 2
    assert f"only evaluated the models of {run}" in nothing.err


def test_a_run_can_be_evaluated_again_without_training(roundround: Callable[..., Done]) -> None:
    first = roundround("maxkey", *SMALL, "--temp", "adaptive")
    again = roundround("maxkey", "logger=none", "run=last", "evaluate=hard", "test_sizes=16,128")
    assert again.code == 0, again.err
    assert again.manifest["run"] == str(first.directory)
    assert again.manifest["config"]["seeds"] == 2
    assert again.manifest["config"]["test_sets"] == 40, "what is not given is the run's own"
    same = {"softmax": "softmax", "seed": 1, "n": 16}
    assert again.value("accuracy", **same) == first.value("accuracy", **same)
    assert not (again.directory / "checkpoints").exists()
    of_evaluation = roundround("maxkey", "logger=none", "run=last", "test_sizes=16")
    assert of_evaluation.manifest["run"] == str(first.directory), "the models are still those that were trained"
    refused = roundround("maxkey", "run=last", "model.width=48")
    assert refused.code == 2
    assert "model.width (32 -> 48)" in refused.err


def test_a_run_is_evaluated_in_bfloat16_and_at_one_temperature(
    roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("roundround.verbs.max_retrieval.run.draw", lambda *_: None)  # most of the time
        first = roundround("maxkey", *SMALL)
    both = ["bfloat16=true", "one_temperature=true"]
    done = roundround("maxkey", f"run={first.directory}", "logger=none", *both)
    assert done.code == 0, done.err
    assert "Evaluated with weights, items and every result in between rounded" in done.err
    assert "depend on the mean entropy of all sets" in (done.directory / "table.md").read_text()
    plain = {"softmax": "softmax", "seed": 1, "n": 32}
    assert done.value("entropy", **plain) == pytest.approx(first.value("entropy", **plain), rel=0.01)
    assert done.value("entropy", **plain) != first.value("entropy", **plain)
    done = roundround("maxkey", f"run={first.directory}", "logger=none", "bfloat16=factors")
    assert done.code == 0, done.err
    assert "Evaluated with the factors of matrix products rounded" in done.err
    resumed = roundround("maxkey", f"resume={first.directory}", "logger=none", *both)
    assert resumed.code == 2
    assert "bfloat16 (False -> True), one_temperature (False -> True)" in resumed.err


@pytest.mark.slow
def test_a_run_killed_at_any_step_goes_on_bit_identically(here: Path, roundround: Callable[..., Done]) -> None:
    options = [
        *SMALL,
        "model.width=16",
        "max_steps=600",
        "checkpoint_every=50",
        "log_every=10",
        "test_sizes=16",
        "test_sets=8",
    ]
    command = [sys.executable, "-m", "roundround", "maxkey", *options]
    process = subprocess.Popen(
        command,
        cwd=here,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    end = time.monotonic() + 120
    while not list(here.glob("outputs/max-retrieval/*/*/checkpoints/step-*")) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed = shell("maxkey", "resume=last", "logger=none", cwd=here)
    assert resumed.code == 0, resumed.err
    assert "resuming after step" in resumed.err
    whole = shell("maxkey", *options, cwd=here)
    assert whole.code == 0, whole.err
    assert resumed.directory != whole.directory
    ours, theirs = saved_weights(resumed.directory), saved_weights(whole.directory)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    steps = [line["step"] for line in metrics_of(resumed.directory)]
    assert steps == sorted(set(steps))


def test_an_interrupt_saves_the_step_it_comes_at(
    here: Path, roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = TrainingSets.batch

    def batch(self: TrainingSets, step: int) -> torch.Tensor:
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return sound(self, step)

    monkeypatch.setattr(TrainingSets, "batch", batch)
    done = roundround("maxkey", *SMALL, "max_steps=1000000", "checkpoint_every=1000000")
    assert done.code == 130
    (run,) = here.glob("outputs/max-retrieval/*/*")
    assert f"resume with: roundround max-retrieval resume={run}" in done.err
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert (run / "checkpoints" / "last").resolve().name == "step-00000005"
    assert saved_weights(run)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--temp", "adaptiv"], ["no normaliser 'adaptiv'", "did you mean 'adaptive_temperature'?"]),
        (["test_sizes=32,16"], ["test_sizes=[32, 16]", "larger than the one before"]),
        (["bfloat16=half"], ["bfloat16=half must be false, true or factors"]),
        (["one_temperature=true", "--temp", "hard"], ["one_temperature=true needs an adaptive temperature"]),
        (["model.haiku_init=true", "model.uniform_init=true"], ["are two initialisations"]),
        (["run=last"], ["no finished max-retrieval run"]),
        (["softmax@normalisers.softmax=ssmax"], ["normalisers.softmax is the baseline"]),
        (
            ["+softmax@normalisers.mine=as_entmax", "evaluate=mine"],
            ["normalisers.mine has a window, parameters of each token"],
        ),
        (["+softmax@normalisers.mine=stick_breaking", "evaluate=mine"], ["or an order of keys"]),
        (["+normalisers.hard.typo=1"], ["normalisers.hard has no parameter 'typo'"]),
        (["preset=quik"], ["did you mean 'max-retrieval/quick'?"]),
    ],
)
def test_bad_input_costs_one_line(roundround: Callable[..., Done], typed: list[str], said: list[str]) -> None:
    done = roundround("maxkey", "logger=none", *typed)
    assert done.code == 2
    assert len(done.err.strip().splitlines()) == 1, done.err
    for words in said:
        assert words in done.err


def test_one_seed_has_no_p_value_and_says_so(roundround: Callable[..., Done]) -> None:
    done = roundround("maxkey", *SMALL, "seeds=1")
    assert done.code == 0, done.err
    assert "intervals and p-values need two" in done.err
    assert " p " not in done.err


# -- the statistics


def measured(accuracies: dict[str, np.ndarray], sizes: list[int]) -> report.Measured:
    found = report.Measured(list(range(len(next(iter(accuracies.values()))))), sizes)
    found.values = {name: {"accuracy": values / 100} for name, values in accuracies.items()}
    return found


def test_a_gain_that_is_the_same_in_every_seed_has_the_p_of_its_signs() -> None:
    baseline = np.array([[50.0, 40.0], [51.0, 42.0], [53.0, 41.0]])
    *_, p = report.table(measured({"softmax": baseline, "hard": baseline + np.array([0, 25])}, [16, 32])).rows
    assert p == ["  p", "1", "<= 0.25"]


def accuracy_of(found: report.Measured, folder: Path) -> str:
    """The figure of accuracies as it is written."""
    (svg,) = save_drawing(report.drawings(found)[0], folder, kinds=["svg"])
    return svg.read_text()


@pytest.mark.pictures
def test_lines_that_lie_on_each_other_are_drawn_once_with_both_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(50, 3, (2, 3)), rng.normal(60, 3, (2, 3))
    found = measured({"softmax": one, "log_n": other, "ssmax": other + 1e-6}, [16, 32, 64])
    assert found.distinct() == {"softmax": ["softmax"], "log_n": ["log_n", "ssmax"]}
    drawn = accuracy_of(found, tmp_path)
    assert "log_n = ssmax" in drawn
    assert drawn.count("ssmax") == 1


def test_the_papers_own_numbers_lie_at_no_distance_from_the_paper() -> None:
    sizes = list(report.PAPER)
    paper = np.array([report.PAPER[n] for n in sizes])
    own = measured({"softmax": paper[None, :, 0], "adaptive_temperature": paper[None, :, 1]}, sizes)
    apart = report.distances(own)
    assert apart is not None
    assert (apart[0].value, apart[1].value) == pytest.approx((0, 0), abs=1e-9)
    off = measured({"softmax": paper[None, :, 0] + 3, "adaptive_temperature": paper[None, :, 1] + 4}, sizes)
    apart = report.distances(off)
    assert apart is not None
    assert (apart[0].value, apart[1].value) == pytest.approx((3, 1))


@pytest.mark.pictures
def test_what_is_second_hand_of_the_paper_is_marked_and_explained(tmp_path: Path) -> None:
    for sizes, words in (([16, 32, 8192], "32 and 8,192 items"), ([32, 64], "32 items"), ([16, 64], None)):
        values = np.full((2, len(sizes)), 50.0)
        found = measured({"softmax": values, "adaptive_temperature": values + 1}, sizes)
        shown = report.table(found)
        assert [cell.startswith("*") for cell in shown.rows[0][1:]] == [n in (32, 8192) for n in sizes]
        assert not any("*" in cell for row in shown.rows[2:] for cell in row), "our own numbers are first-hand"
        legend = [line for line in report.scope(found, {"test_sets": 1}) if "*" in line]
        drawn = accuracy_of(found, tmp_path)
        if words is None:
            assert not legend
        else:
            assert len(legend) == 1
            assert words in legend[0]
        assert ("paper: second-hand" in drawn) is (words is not None)
