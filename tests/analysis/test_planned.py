"""The config that is looked for is the one that the verb records."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import FAST, Done

from roundround.analysis.repetition import has_same_numbers, planned_config

SMALL = ["seeds=2", "max_steps=3", "test_sizes=[4,8]", "test_sets=8", "model.width=8"]


def is_found(manifest: dict[str, Any], *words: str) -> bool:
    return has_same_numbers(manifest, planned_config(manifest["verb"], words, "elsewhere", None))


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
    assert is_found(done.manifest, *words)


def test_so_are_those_of_training_and_of_evaluating_a_run(roundround: Callable[..., Done], corpus: Path) -> None:
    words = [*FAST, "data=text", f"data.path={corpus}"]
    trained = roundround("train", *words)
    assert is_found(trained.manifest, *words)
    assert trained.manifest["config"]["pe"]["theta"] == 10_000.0, "as runs recorded it when the yaml had the number"
    assert not is_found(trained.manifest, *words, "pe.theta=500")
    evaluated = [f"run={trained.directory}", "length=[16,32]"]
    assert is_found(roundround("eval", *evaluated).manifest, *evaluated)
    words = ["init=stories260k", *FAST[:1], *FAST[8:], "data=text", f"data.path={corpus}", "model.train_length=32"]
    assert is_found(roundround("train", *words).manifest, *words)


def test_where_it_goes_and_what_is_logged_changes_no_number_and_all_else_does(roundround: Callable[..., Done]) -> None:
    manifest = roundround("max-retrieval", *SMALL, "device=cpu", "logger=none").manifest
    assert is_found(manifest, *SMALL, "device=cpu", "logger=wandb")
    assert not is_found(manifest, *SMALL, "device=cpu", "seed=7")


def test_a_key_that_came_later_stood_at_its_default(roundround: Callable[..., Done], corpus: Path) -> None:
    words = [*FAST, "data=text", f"data.path={corpus}"]
    trained = roundround("train", *words)
    older = copy.deepcopy(trained.manifest)
    del older["config"]["trainer"]["peak_flops"], older["config"]["data"]["separate_documents"]
    assert is_found(older, *words)
    assert is_found(older, *words, "data.separate_documents=false")
    assert not is_found(older, *words, "data.separate_documents=true")
    del older["config"]["seed"]
    assert not is_found({**older, "choices": {"pe": "an option that is gone"}}, *words), "nothing says what was usual"
    evaluated = [f"run={trained.directory}", "length=[16,32]"]
    older = copy.deepcopy(roundround("eval", *evaluated).manifest)
    del older["config"]["examples"]
    assert is_found(older, *evaluated)
