"""Data sets of the hub: the real client libraries against a stand-in on this machine, then with it gone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, NAME, STORY_ROWS, hub

from roundround.data.hub import Hub, join_rows

TITLE = r"^ = [^=].* = $"
SETTINGS: dict[str, Any] = {
    "name": NAME,
    "config": None,
    "split": "train",
    "column": ["text"],
    "revision": None,
    "streaming": False,
    "document_start": None,
    "shuffle_seed": None,
    "max_documents": None,
    "held_out": 0.3,
}
# The client reads the hub's address when imported, so it runs in a process of its own: a list of settings in, and for
# each a list [identity, texts] or the one line of a UserError out.
CLIENT = """
import json, sys
from roundround.data.hub import Hub
from roundround.support.errors import UserError
for settings in json.load(sys.stdin):
    try:
        corpus = Hub(**settings)
        answer = [corpus.identity(), [text for _, text in corpus.documents()]]
    except UserError as error:
        answer = str(error)
    print("ANSWER", json.dumps(answer))
"""


def ask(address: str, home: Path, *changes: dict[str, Any]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CLIENT],
        input=json.dumps([SETTINGS | change for change in changes]),
        env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line.removeprefix("ANSWER ")) for line in done.stdout.splitlines() if line.startswith("ANSWER ")]


def stories() -> list[str]:
    """The stand-in's rows joined by hand."""
    return [f" = Story {n} = \n\n It began with {n} . \n = = Part = = \n It went on to {n + 1} . " for n in range(12)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf_home")


@pytest.fixture(scope="module")
def online(home: Path) -> tuple[str, dict[str, Any]]:
    """One client session with the stand-in up, answers by name, and the address it leaves behind."""
    changes: dict[str, dict[str, Any]] = {
        "rows": {},
        "stories": {"document_start": TITLE},
        "streamed": {"document_start": TITLE, "streaming": True},
        "pinned": {"revision": COMMIT},
        "first": {"document_start": TITLE, "max_documents": 3, "streaming": True},
        "first rows": {"max_documents": 3},
        "shuffled": {"shuffle_seed": 1},
        "shuffled again": {"shuffle_seed": 1},
        "no name": {"name": "nobody/none"},
        "bad name": {"name": "a b"},
        "no revision": {"revision": "absent"},
        "no split": {"split": "tset"},
        "no config": {"config": "absent"},
        "no column": {"column": ["txt"]},
        "no column streamed": {"column": ["txt"], "streaming": True},
        "numbers": {"column": ["n"]},
    }
    with hub() as address:
        answers = ask(address, home, *changes.values())
    return address, dict(zip(changes, answers, strict=True))


def test_rows_are_documents(online: tuple[str, dict[str, Any]]) -> None:
    assert online[1]["rows"][1] == [row for row in STORY_ROWS if row]
    assert online[1]["first rows"][1] == [row for row in STORY_ROWS if row][:3]


def test_rows_join_into_documents_streamed_or_not(online: tuple[str, dict[str, Any]]) -> None:
    answers = online[1]
    assert answers["stories"][1] == stories()
    assert answers["streamed"] == answers["stories"]  # the identity too: the documents are the same
    assert answers["first"][1] == stories()[:3]
    assert answers["first"][0] != answers["stories"][0]


def test_the_newest_revision_is_known_by_its_commit(online: tuple[str, dict[str, Any]]) -> None:
    assert online[1]["pinned"] == online[1]["rows"]


def test_shuffling_is_a_permutation_fixed_by_its_seed(online: tuple[str, dict[str, Any]]) -> None:
    rows, shuffled = online[1]["rows"], online[1]["shuffled"]
    assert shuffled == online[1]["shuffled again"]
    assert shuffled[1] != rows[1]
    assert sorted(shuffled[1]) == sorted(rows[1])
    assert shuffled[0] != rows[0]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("no name", r"no data set 'nobody/none' on the Hugging Face hub.*check data.name"),
        ("bad name", r"no data set 'a b' on the Hugging Face hub"),
        ("no revision", r"no data set .* with revision absent.*check data.name and data.revision"),
        ("no split", r"data set 'someone/stories': Unknown split \"tset\". Should be one of \['train'\]"),
        ("no config", r"'absent' not found. Available: \['default'\]"),
        ("no column", r"no column 'txt', or there are two; .*data.column \(columns: text, n\)"),
        ("no column streamed", r"no column 'txt', or there are two; .*data.column \(columns: text, n\)"),
        ("numbers", r"column 'n' holds int, not text"),
    ],
)
def test_wrong_settings_give_a_one_line_error(online: tuple[str, dict[str, Any]], case: str, message: str) -> None:
    assert re.search(message, online[1][case]), online[1][case]
    assert "\n" not in online[1][case]


def test_with_the_hub_gone_the_cached_copy_serves_and_the_rest_fails_in_seconds(
    online: tuple[str, dict[str, Any]], home: Path, tmp_path: Path
) -> None:
    address, answers = online
    started = time.monotonic()
    rows, streamed, other, absent = ask(
        address,
        home,
        {},
        {"document_start": TITLE, "streaming": True},
        {"revision": "f" * 40},
        {"name": "nobody/none"},
    )
    assert time.monotonic() - started < 20  # the libraries alone retry for 23 s for each
    assert rows == answers["rows"]
    assert "cannot be reached" in streamed
    assert re.search(f"copy cached here is of another commit; set data.revision={COMMIT}", other)
    assert re.search(r"'nobody/none': .* cannot be reached .*data=pydoc, or data=text data.path=FILE", absent)


def test_rows_before_the_first_beginning_are_a_document() -> None:
    assert list(join_rows(["x\n", "# a", "b\n", "# c"], re.compile("^#"))) == ["x", "# a\nb", "# c"]
    assert list(join_rows(["# a\n", "b"], re.compile("^#"))) == ["# a\nb"]
    assert list(join_rows([], re.compile("^#"))) == []


def test_a_commit_needs_no_network_and_is_part_of_the_identity() -> None:
    one, same, other = (Hub(**SETTINGS | {"revision": letter * 40}).identity() for letter in "aab")
    assert one == same != other
