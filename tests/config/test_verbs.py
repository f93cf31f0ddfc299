"""A verb is said once: its entry and its config, its function, its yaml."""

from __future__ import annotations

import itertools
import shutil
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, shell
from omegaconf import OmegaConf

from roundround.config.options import conf_dir, config_name
from roundround.config.verb import HOW, MEASURED, REPLICATE, SETTING, WHERE, Verb, is_below
from roundround.verbs import VERBS, keys_of, verb_named

ENTRY = '''
from dataclasses import dataclass
from typing import Any

from roundround.config.verb import at_least_one
from roundround.config.verb import Verb


@dataclass(kw_only=True)
class CountConfig:
    """What `roundround count` reads."""

    size: int
    outputs: str
    logger: "Node[Logger]"

    def check(self) -> None:
        at_least_one(size=self.size)


VERB = Verb(name="count", run="roundround.verbs.count.run:count", order=99, help="Count.", config=CountConfig)
'''
FUNCTION = """
from roundround.config.build import checked
from roundround.config.recorded import as_dict
from roundround.verbs.count import CountConfig
from roundround.records.opening import build_logger
from roundround.records.opening import opened


def count(cfg, invocation):
    config = checked(CountConfig, cfg)
    with opened(invocation, config=as_dict(cfg), logger=build_logger(config.logger)) as run:
        run.results([{"metric": "size", "value": config.size}])
"""
VALUES = """# roundround count size=3
defaults:
  - run
  - logger: none
  - _self_

size: 1  # of what is counted

hydra:
  job:
    name: count
"""


def test_a_new_verb_is_three_files(tmp_path: Path) -> None:
    """In a copy of the program where nothing else is touched."""
    ignored = shutil.ignore_patterns("__pycache__", "pretrained")
    shutil.copytree(ROOT / "roundround", tmp_path / "roundround", ignore=ignored)
    shutil.copytree(conf_dir(), tmp_path / "conf")
    for name, text in {
        "roundround/verbs/count/__init__.py": ENTRY,
        "roundround/verbs/count/run.py": FUNCTION,
        "conf/count.yaml": VALUES,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    typed = partial(shell, cwd=tmp_path)
    done = typed("count", "size=3")
    assert done.code == 0, done.err
    assert done.directory.is_relative_to(tmp_path / "outputs" / "count")
    (record,) = done.results
    assert (record["verb"], record["metric"], record["value"]) == ("count", "size", 3)
    assert "Count." in typed("--help").out
    assert "  size=1 " in typed("count", "--help").out
    for wrong in (["count", "size=x"], ["count", "sise=1"], ["count", "size=0"]):
        refused = typed(*wrong)
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused.err
    assert "count" in typed("runs").out


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.config is not None], ids=lambda verb: verb.name)
def test_the_yaml_of_a_verb_gives_keys_of_its_config(verb: Verb) -> None:
    given = OmegaConf.load(conf_dir() / f"{config_name(verb.name)}.yaml")
    assert {str(key) for key in given} - {"defaults", "hydra"} <= verb.keys
    assert {verb.words, verb.filters, *verb.pairs} - {""} <= verb.keys


def test_a_key_has_one_role_in_all_verbs() -> None:
    roles = (SETTING, REPLICATE, MEASURED, HOW, WHERE)
    for one, other in itertools.combinations(roles, 2):
        assert keys_of(one) & keys_of(other) == set()
    assert keys_of(*roles) >= set.union(*(verb.keys for verb in VERBS))


def test_what_a_resumed_run_may_be_given_changes_no_result() -> None:
    """Everything else of a config is what run.json recorded; no other key becomes free unnoticed."""
    free = {"outputs", "logger", "resume", "trust", "checkpoint_every"}
    trainer = ("accelerator", "devices", "num_nodes", "strategy", "accumulate_grad_batches", "log_every_n_steps")
    of_train = {"compile", "activation_checkpointing", "attention_stats_every", "trainer.peak_flops"}
    of_train |= {f"trainer.{name}" for name in trainer}
    assert verb_named("train").keys_of(HOW, WHERE) == free | of_train
    assert verb_named("max-retrieval").keys_of(HOW, WHERE) == free | {"run", "log_every", "device", "figures"}


@pytest.mark.parametrize(("key", "below"), [("trust", True), ("trainer.devices", True), ("trainer.max_steps", False)])
def test_a_dotted_key_has_the_role_of_what_it_stands_below(key: str, below: bool) -> None:
    assert is_below(key, keys_of(HOW, WHERE)) is below


def test_a_verb_is_found_by_its_name_and_by_its_alias() -> None:
    assert verb_named("maxkey") is verb_named("max-retrieval")
    assert verb_named("maxkey").trains


def test_a_verb_of_another_version_is_known_for_nothing() -> None:
    other = verb_named("of-another-version")
    assert (other.title, other.keys, other.trains, other.page) == ("Of another version", set(), False, "")
