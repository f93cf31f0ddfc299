"""CLRS-Text from the hub: the real client libraries against a stand-in on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from hub_server import hub

ROWS = (ROOT / "tests" / "golden" / "clrs_text.jsonl").read_text().splitlines()
TRAIN, TEST = "someone/train", "someone/test"
BFS = {"answer": "[0]", "algo_name": "bfs"}  # without a length, as the authors' training set
CLIENT = """
import contextlib, json, sys
from roundround.data.hub import offline
from roundround.data.tasks.clrs_text import ClrsTextHub
from roundround.support.errors import UserError
settings = dict(name=sys.argv[1], split="train", revision=None, test_name=sys.argv[2], test_split="test_1+test_2",
    test_revision=None, lengths=None, train_examples=None, validation_examples=8, algorithms=["bfs", "minimum"])
for changes in json.load(sys.stdin):
    with offline() if changes.pop("offline", False) else contextlib.nullcontext():
        try:
            task = ClrsTextHub(**settings | changes)
            test = task.stored_texts(seed=0, split="test", length=4)
            train = [task.stored_texts(seed=0, split=split, length=None) for split in ("train", "validation")]
            found = sorted("".join(test.at(i)) for i in range(test.n))
            answer = [found, sum(texts.n for texts in train), task.identity()]
        except UserError as error:
            answer = str(error)
    print("ANSWER", json.dumps(answer))
"""


def data_set(**rows: list[str]) -> dict[str, bytes]:
    """The files of a data set with these splits."""
    splits = "".join(f"  - {{split: {name}, path: {name}.jsonl}}\n" for name in rows)
    readme = f"---\nconfigs:\n- config_name: default\n  data_files:\n{splits}---\n"
    return {"README.md": readme.encode()} | {f"{name}.jsonl": "\n".join(lines).encode() for name, lines in rows.items()}


@pytest.mark.slow  # a process that imports datasets, and a server
def test_the_two_sets_of_the_hub_and_what_is_wrong_with_others(tmp_path: Path) -> None:
    sets = {TRAIN: data_set(train=[json.dumps({**BFS, "question": f"bfs {i}"}) for i in range(300)])}
    sets[TEST] = data_set(test_1=ROWS[:20], test_2=ROWS[20:])
    with hub(sets) as address:
        wrong: list[dict[str, object]] = [{"name": "nobody/none"}, {"test_revision": "absent"}, {"lengths": [4]}]
        gone: list[dict[str, object]] = [{"offline": True}, {"offline": True, "name": "nobody/none"}]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", CLIENT, TRAIN, TEST],
            input=json.dumps(({}, *wrong, *gone)),
            env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        (tested, n_for_training, identity), *errors = [
            json.loads(line.removeprefix("ANSWER ")) for line in done.stdout.splitlines() if line.startswith("ANSWER ")
        ]  # type: ignore[misc]
    wanted = [row for row in map(json.loads, ROWS) if row["algo_name"] in ("bfs", "minimum")]
    assert tested == sorted(row["question"] + row["answer"] for row in wanted if row["length"] == 4)
    assert n_for_training == 300
    assert "no data set 'nobody/none' on the Hugging Face hub" in errors[0]
    assert "with revision absent" in errors[1]
    assert "data.test_revision" in errors[1]
    assert "no column 'length'; data.lengths=null" in errors[2]
    assert errors[3][2] == identity  # the copy that the first left
    assert "cannot be reached" in errors[4]
    assert "use data=clrs_text_files data.path=FILE" in errors[4]
