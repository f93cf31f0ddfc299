"""Runs that recorded a class by an earlier name, or before it gained a parameter, are rebuilt, resumed and exported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done
from hydra.utils import get_class
from omegaconf import OmegaConf

from roundround.config.build import checked_values, target_class
from roundround.config.moved import GAINED, MOVED
from roundround.config.options import load_option
from roundround.data.tasks.base import Task
from roundround.pe.base import PositionalEncoding
from roundround.runs.loggers.base import Logger
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_name_that_moved_leads_to_a_class_and_is_taken_by_no_other(old: str, new: str) -> None:
    assert isinstance(get_class(new), type)
    with pytest.raises(Exception, match=r"Error (locating|loading)"):
        get_class(old)


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_node_with_an_earlier_name_is_the_class_it_is_now(old: str, new: str) -> None:
    node = OmegaConf.create({"logger": {"_target_": old}}).logger
    assert target_class(node, Logger) is get_class(new)


@pytest.mark.parametrize("name", ["ssmax", "ssmax_bias", "as_entmax", "adaptive_temperature"])
def test_a_node_from_before_a_parameter_was_there_is_the_class_as_its_yaml_has_it(name: str) -> None:
    now = load_option("softmax", name)
    then = {key: value for key, value in now.items() if key not in GAINED[str(now["_target_"])]}
    assert then.keys() < now.keys()
    found = checked_values(OmegaConf.create({"softmax": then}).softmax, AttentionSoftmax, [])
    assert found == {key: value for key, value in now.items() if key != "_target_"}


def test_a_gained_parameter_that_is_given_without_a_value_is_refused() -> None:
    node = OmegaConf.create({"softmax": {**load_option("softmax", "ssmax"), "scaled_heads": "???"}}).softmax
    with pytest.raises(UserError, match=r"^softmax\.scaled_heads has no value; give softmax\.scaled_heads="):
        checked_values(node, AttentionSoftmax, [])


@pytest.fixture
def old_run(train: Callable[..., Done]) -> Path:
    """A run as an earlier version recorded it."""
    done = train("trainer.max_steps=6", "softmax=ssmax")
    assert done.code == 0, done.err
    path = done.directory / "run.json"
    text = path.read_text()
    for old, new in MOVED.items():
        text = text.replace(f'"{new}"', f'"{old}"')
    manifest = json.loads(text)
    assert manifest["config"]["logger"]["_target_"] == "roundround.run.NoLogger"
    del manifest["config"]["softmax"]["scaled_heads"]
    path.write_text(json.dumps(manifest))
    return done.directory


@pytest.mark.usefixtures("checked_here")
def test_a_run_as_an_earlier_version_recorded_it_is_evaluated_exported_and_resumed(
    roundround: Callable[..., Done], old_run: Path
) -> None:
    done = roundround("eval", f"run={old_run}", "length=16,32", "logger=none")
    assert done.code == 0, done.err
    done = roundround("export", f"run={old_run}", "to=model", "logger=none")
    assert done.code == 0, done.err
    assert Path("model/config.json").exists()
    manifest = json.loads((old_run / "run.json").read_text())
    manifest["config"]["trainer"]["max_steps"] = 8
    (old_run / "run.json").write_text(json.dumps(manifest))
    done = roundround("train", f"resume={old_run}")
    assert done.code == 0, done.err
    assert "resuming after step 6" in done.err
    assert (old_run / "checkpoints" / "step-00000008").is_dir()


def test_random_positions_from_before_they_were_drawn_in_evaluations_stay_consecutive_there() -> None:
    now = load_option("pe", "rope_random")
    then = {key: value for key, value in now.items() if key != "positions"}
    found = checked_values(OmegaConf.create({"pe": then}).pe, PositionalEncoding, [])
    assert (now["positions"], found["positions"]) == ("drawn", "consecutive")


def test_associative_recall_from_before_its_answers_could_be_kept_out_has_them_in_its_sequence() -> None:
    now = load_option("data", "mqar")
    then = {key: value for key, value in now.items() if key != "answers_in_sequence"}
    found = checked_values(OmegaConf.create({"data": then}).data, Task, [])
    assert (now["answers_in_sequence"], found["answers_in_sequence"]) == (False, True)
