"""TensorBoard, CSV, and several loggers at once: what they hold is what the run directory says."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import FAST, Done, assert_refused, metrics_of, typed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from roundround.analysis.past_run import past_run
from roundround.analysis.repetition import overrides_of
from roundround.command_line.arguments import read_command_line
from roundround.records.loggers.base import CSV, Logger, NoLogger, Several, TensorBoard
from roundround.records.opening import opened
from roundround.records.run import Invocation
from roundround.support.errors import Interrupted, UserError
from roundround.verbs import verb_named


def table(path: Path) -> list[dict[str, Any]]:
    """The rows of a csv file without their empty cells."""
    with open(path, newline="") as file:
        return [{name: cell for name, cell in row.items() if cell != ""} for row in csv.DictReader(file)]


def events(directory: Path) -> EventAccumulator:
    """What TensorBoard reads in a run directory, all of it."""
    everything = {"scalars": 0, "tensors": 0, "images": 0}
    return EventAccumulator(str(directory / "tensorboard"), size_guidance=everything).Reload()


def scalars(directory: Path) -> set[tuple[str, int, float]]:
    """Every number that TensorBoard has of the metrics."""
    found = events(directory)
    tags = [tag for tag in found.Tags()["scalars"] if not tag.startswith("headline/")]
    series = [(tag, event.step, event.value) for tag in tags for event in found.Scalars(tag)]
    assert len(set(series)) == len(series), "no step is there twice"
    return set(series)


def numbers(directory: Path) -> set[tuple[str, int, float]]:
    """The numbers of metrics.jsonl, in the single precision of TensorBoard's scalars."""
    found = metrics_of(directory)
    pairs = [(name, line["step"], value) for line in found for name, value in line.items() if name != "step"]
    return {(name, step, float(np.float32(value))) for name, step, value in pairs}


def text(directory: Path, tag: str) -> str:
    """The text that was logged last under a tag."""
    return events(directory).Tensors(f"{tag}/text_summary")[-1].tensor_proto.string_val[0].decode()


# -- a run from the command line


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, shared_cache: None, corpus: Path) -> Iterator[Path]:
    """A sweep of two jobs with two loggers; the first has then been resumed."""
    before, folder = os.getcwd(), tmp_path_factory.mktemp("work")
    os.chdir(folder)
    done = typed("train", "-m", *FAST, "data=text", f"data.path={corpus}", "logger=[csv,tensorboard]", "seed=0,1")
    assert done.code == 0, done.err
    assert typed("train", f"resume={done.directory / '0'}").code == 0
    yield done.directory
    os.chdir(before)


@pytest.mark.parametrize("job", ["0", "1"])
def test_every_number_of_the_metrics_is_in_both(sweep: Path, job: str) -> None:
    assert len(metrics_of(sweep / job)) > 4
    assert scalars(sweep / job) == numbers(sweep / job)
    ours = [{name: str(value) for name, value in line.items()} for line in metrics_of(sweep / job)]
    assert table(sweep / job / "metrics.csv") == ours


def test_the_results_are_a_table(sweep: Path) -> None:
    results = json.loads((sweep / "1" / "results.json").read_text())
    assert len(results) > 4
    kept = [{name: str(value) for name, value in record.items() if value is not None} for record in results]
    assert table(sweep / "1" / "results.csv") == kept


def test_tensorboard_has_the_config_the_headline_and_how_the_run_ended(sweep: Path) -> None:
    manifest = json.loads((sweep / "1" / "run.json").read_text())
    assert json.loads(text(sweep / "1", "config").strip("`")) == manifest["config"]
    assert text(sweep / "1", "status") == "done (exit code 0)"
    found = events(sweep / "1")
    headline = {tag: found.Scalars(tag)[-1].value for tag in found.Tags()["scalars"] if tag.startswith("headline/")}
    assert headline == {f"headline/{name}": float(np.float32(value)) for name, value in manifest["headline"].items()}
    assert headline
    assert "_hparams_/session_start_info" in found.summary_metadata


def test_the_manifest_records_all_loggers(sweep: Path) -> None:
    manifest = json.loads((sweep / "1" / "run.json").read_text())
    targets = {name: node["_target_"] for name, node in manifest["config"]["logger"].items() if name != "_target_"}
    assert targets == {
        "csv": "roundround.records.loggers.base.CSV",
        "tensorboard": "roundround.records.loggers.base.TensorBoard",
    }
    assert manifest["choices"]["logger"] == "several"
    assert {"+logger@logger.csv=csv", "+logger@logger.tensorboard=tensorboard"} <= set(manifest["overrides"])


def test_a_run_with_several_loggers_is_repeated_without_them(sweep: Path) -> None:
    run = past_run(sweep / "1")
    assert [word for word in run.manifest["overrides"] if "logger" in word]
    assert [word for word in overrides_of(run) if "logger" in word] == []


# -- a run that is stopped and goes on

CONFIG = {"seed": 3, "resume": None, "remark": "the config"}


def start_again(directory: Path, logger: Logger, after: int, steps: range, stopped: bool) -> None:
    """A start of a run that logs these steps, behind one that it goes on from."""
    invocation = Invocation(verb="probe", directory=directory, overrides=[], choices={})
    try:
        resume = str(directory) if (directory / "run.json").exists() else None
        with opened(invocation, config=CONFIG | {"resume": resume}, logger=logger) as run:
            run.forget_after(after)
            for step in steps:
                more = {"late": float("nan")} if step == steps[-1] else {}
                run.log(step, loss=step / 3 + after, **more)
            if stopped:
                raise Interrupted(15)
            run.results([{"metric": "loss", "value": 0.1}], loss=0.1)
    except Interrupted:
        pass


def test_a_resumed_run_goes_on_in_the_same_tables_and_no_step_is_doubled(tmp_path: Path) -> None:
    start_again(tmp_path, CSV(), 0, range(1, 7), stopped=True)
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("7,2.3")  # torn
    start_again(tmp_path, CSV(), 4, range(5, 8), stopped=False)
    rows = [("1", "2", "3", "4", "5", "6", "7")]
    assert [tuple(row["step"] for row in table(tmp_path / "metrics.csv"))] == rows
    assert table(tmp_path / "metrics.csv")[-1] == {"step": "7", "loss": str(7 / 3 + 4), "late": "nan"}


def test_a_resumed_run_is_one_run_in_tensorboard_and_no_step_is_doubled(tmp_path: Path) -> None:
    start_again(tmp_path, TensorBoard(), 0, range(1, 7), stopped=True)
    assert text(tmp_path, "status") == "interrupted (exit code 143)"
    start_again(tmp_path, TensorBoard(), 4, range(5, 8), stopped=False)
    losses = {(tag, step, value) for tag, step, value in scalars(tmp_path) if tag == "loss"}
    assert losses == {number for number in numbers(tmp_path) if number[0] == "loss"}
    assert [step for _, step, _ in sorted(losses)] == [1, 2, 3, 4, 5, 6, 7]
    assert [(event.step, str(event.value)) for event in events(tmp_path).Scalars("late")] == [(7, "nan")]
    assert text(tmp_path, "status") == "done (exit code 0)"


@pytest.mark.parametrize("logger", [CSV, TensorBoard])
def test_a_run_that_is_refused_before_its_first_step_leaves_nothing(
    tmp_path: Path, logger: Callable[[], Logger]
) -> None:
    invocation = Invocation(verb="train", directory=tmp_path, overrides=[], choices={})
    with pytest.raises(UserError, match="refused"), opened(invocation, config=CONFIG, logger=logger()):
        raise UserError("refused")
    assert list(tmp_path.iterdir()) == []


# -- one of several that fails


def test_what_one_of_several_loggers_cannot_do_the_others_still_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = NoLogger()
    broken.results = Mock(side_effect=RuntimeError("this one is broken"))
    start_again(tmp_path, Several([broken, CSV()]), 0, range(1, 3), stopped=False)
    assert [row["metric"] for row in table(tmp_path / "results.csv")] == ["loss"]
    assert "the results could not be given to the logger: this one is broken" in caplog.text


# -- the command line


def words(*args: str) -> list[str]:
    return read_command_line(list(args), verb_named("train"))[0]


def test_a_list_of_loggers_gives_each_a_node_of_its_own() -> None:
    expanded = ["logger=several", "+logger@logger.wandb=wandb", "+logger@logger.csv=csv"]
    assert words("pe=rope", "logger=[wandb, csv]") == ["pe=rope", *expanded]
    assert words("logger=['wandb','csv']") == expanded
    assert words(*expanded) == expanded, "as other processes of the run get it"


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("[csv,tensorbord]", ["no logger=tensorbord", "did you mean 'tensorboard'?"]),
        ("several", ["give the list itself"]),
    ],
)
def test_a_list_that_nobody_can_mean_is_refused(train: Callable[..., Done], given: str, parts: list[str]) -> None:
    assert_refused(train(f"logger={given}"), *parts)


def test_a_yaml_that_lists_loggers_is_refused_because_hydra_would_merge_them(here: Path) -> None:
    Path("own/experiment").mkdir(parents=True)
    given = "# @package _global_\ndefaults:\n  - override /logger: [csv, tensorboard]\n"
    Path("own/experiment/mine.yaml").write_text(given)
    without = [word for word in FAST if word != "logger=none"]
    done = typed("train", *without, "experiment=mine", "--config-dir", "own")
    assert_refused(done, "to give several, write logger=[wandb,csv] on the command line")


def test_an_option_of_one_of_several_is_set_by_its_name(roundround: Callable[..., Done]) -> None:
    done = roundround("train", "logger=[wandb,csv]", "logger.wandb.project=mine", "--cfg", "job")
    assert done.code == 0, done.err
    assert "project: mine" in done.out
    refused = roundround("train", "logger=[wandb,csv]", "logger.project=mine")
    assert_refused(refused, "did you mean 'logger.wandb.project'?")
