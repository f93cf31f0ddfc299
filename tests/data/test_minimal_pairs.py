"""Minimal pairs: the sample in the package, files of both formats and what is wrong in them, and the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from hub_server import hub

from roundround.data.minimal_pairs import SAMPLES, MinimalPairs, Pair
from roundround.support.errors import UserError

ROW = {"UID": "agreement", "sentence_good": "the dogs bark .", "sentence_bad": "the dogs barks ."}
NAME = "someone/pairs"
CLIENT = """
import contextlib, json, sys
from roundround.data.hub import offline
from roundround.data.minimal_pairs import MinimalPairs
from roundround.support.errors import UserError
for changes in json.load(sys.stdin):
    with offline() if changes.pop("offline", False) else contextlib.nullcontext():
        given = dict(path=None, name=sys.argv[1], sample="blimp", phenomena=["causative"], pairs=None, before="")
        try:
            pairs = MinimalPairs(**given | changes)
            answer = [pairs.by_phenomenon(), pairs.identity()]
        except UserError as error:
            answer = str(error)
    print("ANSWER", json.dumps(answer))
"""


def pairs(sample: str = "blimp", **given: Any) -> MinimalPairs:
    return MinimalPairs(**{"path": None, "sample": sample, "phenomena": None, "pairs": None, "before": "", **given})


@pytest.mark.parametrize(("sample", "n_phenomena", "n_each"), [("blimp", 67, 10), ("zorro", 23, 20)])
def test_the_sample_has_as_many_of_every_phenomenon(sample: str, n_phenomena: int, n_each: int) -> None:
    found = pairs(sample).by_phenomenon()
    assert {name: len(some) for name, some in found.items()} == dict.fromkeys(found, n_each)
    assert len(found) == n_phenomena
    assert len({pair for some in found.values() for pair in some}) == n_phenomena * n_each


def test_the_sample_is_every_hundredth_pair_of_the_data_set() -> None:
    """Pairs 0 and 100 of BLiMP's adjunct_island and of Zorro's first file, as github.com has them."""
    first, second, *_ = pairs().by_phenomenon()["adjunct_island"]
    assert first[1:] == ("Who should Derek hug after shocking Richard?", "Who should Derek hug Richard after shocking?")
    assert second.good == "What does this mall look like while looking like the paintings?"
    first, *_ = pairs("zorro").by_phenomenon()["agreement_determiner_noun-across_1_adjective"]
    assert first[1:] == ("look at this purple thing .", "look at this purple things .")


def test_the_sample_says_where_it_is_from_and_under_which_licence() -> None:
    source = (SAMPLES / "SOURCE.md").read_text()
    for words in ("alexwarstadt/blimp", "670 of 67,000", "CC BY 4.0", "phueb/Zorro", "460 of 46,000", "MIT"):
        assert words in source
    assert "Philip Huebner" in (SAMPLES / "zorro" / "LICENSE").read_text()
    declared = (ROOT / "pyproject.toml").read_text()
    assert "CC-BY-4.0" in declared
    assert "roundround/data/pairs/*/LICENSE" in declared


def test_both_formats_are_read_and_said_to_be_the_same(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW))
    (tmp_path / "agreement.txt").write_text("the cats sleeps .\nthe cats sleep .\n")
    found = pairs(path=[str(tmp_path)]).by_phenomenon()
    expected = [
        Pair("agreement", "the cats sleep .", "the cats sleeps ."),
        Pair("agreement", ROW["sentence_good"], ROW["sentence_bad"]),
    ]
    assert found == {"agreement": expected}


def test_some_pairs_are_evenly_spaced(tmp_path: Path) -> None:
    rows = [{**ROW, "sentence_good": f"{i} dogs bark ."} for i in range(10)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {"path": [str(tmp_path)]}
    some = pairs(**given, pairs=4).by_phenomenon()["agreement"]
    assert [pair.good[0] for pair in some] == ["0", "2", "5", "7"]
    assert len(pairs(**given, pairs=99).by_phenomenon()["agreement"]) == 10
    assert pairs(**given, pairs=4).identity() != pairs(**given).identity()


def row(**changes: object) -> str:
    return json.dumps(ROW | changes)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.jsonl", f"{row()}\n{{broken\n", "rows.jsonl, line 2: not valid JSON"),
        ("rows.jsonl", f"{row()}\n\n{row(sentence_bad='')}\n", "rows.jsonl, line 3: a text is missing; each row needs"),
        ("rows.jsonl", '{"UID": "a", "sentence_good": "b"}', "line 1: there is no column 'sentence_bad'"),
        ("rows.csv", "UID,sentence_good\na,b\n", "rows.csv: there is no column 'sentence_bad'"),
        ("agree.txt", "a wrong one .\nthe right one .\nalone .\n", "agree.txt, line 3: no right sentence follows"),
    ],
)
def test_a_broken_line_is_named_with_its_file(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as told:
        pairs(path=[str(tmp_path)]).by_phenomenon()
    assert message in str(told.value)


@pytest.mark.slow  # a process that imports datasets, and a server
def test_the_hub_has_a_configuration_for_each_phenomenon(tmp_path: Path) -> None:
    readme = "---\nconfigs:\n- config_name: causative\n  data_files: causative.jsonl\n---\n"
    rows = f"{row(UID='causative')}\n{row(UID='causative', sentence_good='dogs bark .')}\n"
    with hub({NAME: {"README.md": readme.encode(), "causative.jsonl": rows.encode()}}) as address:
        asked = [{}, {"offline": True}, {"offline": True, "name": "nobody/none"}]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CLIENT, NAME],
            input=json.dumps(asked),
            env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    read, again, gone = [
        json.loads(line.removeprefix("ANSWER ")) for line in done.stdout.splitlines() if line.startswith("ANSWER ")
    ]
    assert [pair[1] for pair in read[0]["causative"]] == [ROW["sentence_good"], "dogs bark ."]
    assert again == read  # the copy that the first left
    assert "cannot be reached" in gone
    assert "or leave data.name out for the sample in the package" in gone


def test_a_verb_that_learns_or_tokenises_says_what_they_are_for(roundround: Callable[..., Any]) -> None:
    for words, message in (
        (["train", "data=blimp"], "data= is minimal pairs, which only eval uses, on a trained model"),
        (["prepare", "data=zorro"], "MinimalPairs is not a Corpus"),
    ):
        done = roundround(*words)
        assert done.code == 2, done
        assert message in done.err.strip().splitlines()[-1]
