"""The stories of the package are what benchmarks/write_stories.py prints, and a corpus like any other."""

from __future__ import annotations

import importlib.util

from conftest import ROOT, STORIES

from roundround.data.local_texts import Stories


def test_the_model_writes_the_first_story_again() -> None:
    found = importlib.util.spec_from_file_location("write_stories", ROOT / "benchmarks" / "write_stories.py")
    assert found is not None
    assert found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    assert script.stories(1, 1) == (STORIES / "stories.txt").read_text(encoding="utf-8").split("\n\n")[:1]


def test_every_story_is_a_document_and_held_out() -> None:
    documents = list(Stories(held_out=1).documents())
    assert "\n\n".join(text for _, text in documents) + "\n" == (STORIES / "stories.txt").read_text(encoding="utf-8")
    assert [held_out for held_out, _ in documents] == [True] * 24
