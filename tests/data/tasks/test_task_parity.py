"""Parity: is the number of ones even?"""

from __future__ import annotations

from helpers_tasks import between, build, drawn, mistakes, texts

from roundround.data.tasks.base import SPLITS, Examples


def test_a_solver_gets_every_scored_target() -> None:
    """Counts the ones."""
    task, answers = build("parity"), ("even", "odd")
    assert mistakes(task, lambda before: answers[between(before, "<bos>", "<sep>").count("1") % 2], 1, 2, 20, 64) == []


def test_the_answer_alone_is_scored_and_is_a_coin() -> None:
    task = build("parity")
    assert {int(example.scored.sum()) for example in drawn(task, 20, length=12)} == {1}
    answers = [words[-1] for words in texts(task, 400, length=12)]
    assert 140 < answers.count("even") < 260


def test_two_examples_cannot_fill_three_splits_and_those_that_are_shared_are_counted() -> None:
    splits = [Examples(build("parity"), seed=0, split=split, length=1) for split in SPLITS]
    for examples in splits:
        assert {len(examples[i].tokens) for i in range(10)} == {4}
    assert any(examples.n_shared == 10 for examples in splits)
    assert all(examples.n_shared in (0, 10) for examples in splits)
