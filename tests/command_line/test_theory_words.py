"""`roundround theory NAME ...`: names of statements stand where other verbs have none."""

from __future__ import annotations

import pytest

from roundround.command_line.arguments import expand_sugar
from roundround.command_line.completion import complete_override
from roundround.papers import statement_names
from roundround.verbs import verb_named


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["rope.thm_6_1"], ["claim=[rope.thm_6_1]"]),
        (["rope.thm_6_1", "model=hf", "softmax.lemma_2_1"], ["model=hf", "claim=[rope.thm_6_1,softmax.lemma_2_1]"]),
        (["--cfg", "job", "rope.thm_6_1"], ["--cfg", "job", "claim=[rope.thm_6_1]"]),
        (["-c", "job"], ["-c", "job"]),
        (["claim=rope.thm_6_1"], ["claim=rope.thm_6_1"]),
        ([], []),
    ],
)
def test_bare_words_are_statements(typed: list[str], meant: list[str]) -> None:
    assert expand_sugar(typed, verb_named("theory")) == meant
    assert expand_sugar(typed, verb_named("probe")) == typed


def test_tab_completes_them() -> None:
    assert complete_override("theory", [], "rope.l") == ["rope.lemma_a_1", "rope.lemma_a_2", "rope.lemma_a_3"]
    assert complete_override("theory", [], "claim=softmax.le") == ["claim=softmax.lemma_2_1"]
    assert complete_override("theory", ["claim", "="], "softmax.le") == ["softmax.lemma_2_1"]
    assert {*statement_names()} < {*complete_override("theory", ["rope.lemma_a_1"], "")}
    assert "model=stories260k" in complete_override("theory", [], "model=st")
