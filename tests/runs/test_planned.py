"""The config that is looked for is the one that the verb records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FAST, Done

from roundround.runs.planned import hash_of_numbers, planned_config

SMALL = ["seeds=2", "max_steps=3", "test_sizes=[4,8]", "test_sets=8", "model.width=8"]


def planned(verb: str, words: list[str]) -> str:
    return hash_of_numbers(planned_config(verb, words, "elsewhere", None))


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("theory", ["claim=[rope.lemma_a_3]"]),
        ("eval", ["model=stories260k", "length=[16]", "max_tokens=100", "bos=false"]),
        ("probe", ["model=stories260k", "max_documents=1", "rows=false", "entropy=false"]),
        ("max-retrieval", SMALL),
    ],
)
def test_the_config_that_is_looked_for_is_the_one_that_the_verb_records(
    roundround: Callable[..., Done], verb: str, words: list[str]
) -> None:
    words = [*words, "device=cpu"]
    done = roundround(verb, *words, "logger=none")
    assert planned(verb, words) == hash_of_numbers(done.manifest["config"])


def test_so_are_those_of_training_and_of_evaluating_a_run(roundround: Callable[..., Done], corpus: Path) -> None:
    words = [*FAST, "data=text", f"data.path={corpus}"]
    trained = roundround("train", *words)
    assert planned("train", words) == hash_of_numbers(trained.manifest["config"])
    words = ["init=stories260k", *FAST[:1], *FAST[8:], "data=text", f"data.path={corpus}", "model.train_length=32"]
    assert planned("train", words) == hash_of_numbers(roundround("train", *words).manifest["config"])
    words = [f"run={trained.directory}", "length=[16,32]"]
    done = roundround("eval", *words)
    assert planned("eval", words) == hash_of_numbers(done.manifest["config"])


def test_where_it_goes_and_what_is_logged_changes_no_number_and_all_else_does() -> None:
    assert planned("train", ["logger=none"]) == planned("train", ["logger=wandb"])
    assert planned("train", ["seed=1"]) != planned("train", ["seed=2"])
