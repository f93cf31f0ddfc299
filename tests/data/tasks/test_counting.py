"""Sums, counts and a memory of one bit."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from helpers_tasks import after, between, build, drawn, mistakes, texts
from scipy.stats import chisquare

from roundround.data.tasks.base import SPLITS, Examples
from roundround.data.tasks.counting import added

# -- addition


@pytest.mark.parametrize(("reverse_answer", "reverse_operands"), [*itertools.product([False, True], repeat=2)])
def test_addition_is_solved_by_adding(reverse_answer: bool, reverse_operands: bool) -> None:
    task = build("addition", reverse_answer=reverse_answer, reverse_operands=reverse_operands)

    def solver(before: list[str]) -> str:
        """Adds Python's whole numbers, and says the digits that come next, or the end."""
        a, b = "".join(between(before, "<bos>", "<sep>")).split("+")
        total = str(int(a[::-1]) + int(b[::-1]) if reverse_operands else int(a) + int(b))
        return [*(reversed(total) if reverse_answer else total), "<eos>"][len(after(before, "<sep>"))]

    assert mistakes(task, solver, 1, 2, 8, 40) == []


@pytest.mark.parametrize("pair", [(999, 1), (5, 5), (95, 5), (990, 10), (0, 0), (1000, 9), (10**40 - 1, 1), (949, 51)])
def test_carries_go_as_far_as_they_must(pair: tuple[int, int]) -> None:
    longer, shorter = ([int(digit) for digit in reversed(str(number))] for number in pair)
    found = added(np.array(longer), np.array(shorter))
    assert "".join(map(str, found[::-1])) == str(sum(pair))


def test_the_longer_number_has_the_length_and_the_shorter_any_and_either_is_first() -> None:
    sizes = Counter()
    for words in texts(build("addition"), 800, length=5):
        a, b = "".join(between(words, "<bos>", "<sep>")).split("+")
        assert str(int(a)) == a, "no zeros in front"
        assert str(int(b)) == b
        assert max(len(a), len(b)) == 5
        sizes[len(a) - len(b)] += 1
    shorter = [sizes[0] if size == 5 else sizes[5 - size] + sizes[size - 5] for size in range(1, 6)]
    assert chisquare(shorter).pvalue > 1e-3
    assert chisquare([sizes[4] + sizes[3], sizes[-4] + sizes[-3]]).pvalue > 1e-3


# -- parity, n_back


def test_parity_is_solved_by_counting() -> None:
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


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_n_back_is_solved_by_the_symbols(steps: int) -> None:
    task = build("n_back", steps=steps, train_lengths=[8, 8])
    assert task.shortest == steps + 1

    # looks at the symbols alone, which stand at every other place
    found = mistakes(task, lambda before: ([*"." * steps, *before[1::2]])[-1 - steps], steps + 1, steps + 2, 20, 64)
    assert found == []


# -- local_count


def runs_of(words: list[str]) -> list[tuple[str, int]]:
    """The symbols and how often each is repeated, questions and answers left out."""
    symbols = [word for word in words if word.startswith("x")]
    return [(symbol, len(list(run))) for symbol, run in itertools.groupby(symbols)]


def test_local_count_is_solved_by_the_last_run() -> None:
    """How often the symbol before the question is repeated there."""
    for task, lengths in (
        (build("local_count"), (2, 3, 32, 128)),
        (build("local_count", n_symbols=16, longest_run=48), (64, 128)),
    ):
        assert mistakes(task, lambda before: str(runs_of(before)[-1][1]), *lengths) == []


def test_neighbours_differ_and_runs_make_up_the_length() -> None:
    for words in texts(build("local_count", n_symbols=2), 30, length=40):
        runs = runs_of(words)
        assert len(runs) == words.count("<sep>"), "two runs of one symbol would be one"
        assert sum(size for _, size in runs) == 40
        assert all(2 <= size <= 8 for _, size in runs[:-1])
        assert 1 <= runs[-1][1] <= 8


def test_runs_are_drawn_evenly() -> None:
    first = [runs_of(words)[0] for words in texts(build("local_count"), 700, length=32)]
    assert chisquare(np.bincount([size for _, size in first], minlength=9)[2:]).pvalue > 1e-3
    assert chisquare(np.bincount([int(symbol[1:]) for symbol, _ in first], minlength=16)).pvalue > 1e-3


@pytest.mark.parametrize("length", [2, 3, 64])
def test_context_is_reached_by_runs_of_two(length: int) -> None:
    task = build("local_count", longest_run=2)
    assert {len(words) for words in texts(task, 3, length=length)} == {task.context(length)}


# -- flip_flop


@pytest.mark.parametrize("p", [0.1, 0.01, 0.45, 0.0, 0.5])  # FFL(0.8), sparse, dense, neither, never ignored
def test_flip_flop_is_solved_by_the_last_write(p: float) -> None:
    """The last bit that was written."""
    task = build("flip_flop", p_write=p, p_read=p)
    found = mistakes(task, lambda before: dict(zip(before[1:-1:2], before[2::2], strict=True))["w"], 4, 5, 64, 512)
    assert found == []


def test_the_first_instruction_writes_and_the_last_one_reads_and_every_read_is_scored() -> None:
    task = build("flip_flop")
    for example, words in zip(drawn(task, 20, length=64), texts(task, 20, length=64), strict=True):
        assert (words[1], words[-2]) == ("w", "r")
        reads = [2 * place + 2 for place, name in enumerate(words[1::2]) if name == "r"]
        assert example.scored.nonzero()[0].tolist() == reads


def test_instructions_are_drawn_with_their_probabilities() -> None:
    drawn_ones = [name for words in texts(build("flip_flop"), 40, length=512) for name in words[1::2][1:-1]]
    for name, p in (("w", 0.1), ("r", 0.1), ("i", 0.8)):
        n = len(drawn_ones)
        assert abs(drawn_ones.count(name) / n - p) < 4 * np.sqrt(p * (1 - p) / n)
