"""What guessing costs: a guesser who plays by the rule, seeing words alone, pays what each task says he pays.

The rule: he knows what may be an answer to this example, and names one of that as often as it stands there, without
what has been said where each is said once. He uses everything that stands before a target but the key, the place or the
order by which the right one is found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from helpers_tasks import NAMES, after, between, build, drawn, spelled

from roundround.data.tasks.base import Example, Task
from roundround.training.material import guessing_loss, unread_loss

Guesser = Callable[[list[str]], list[str]]  # what stands before a target -> what it may be, as often as it is likely


def left(there: list[str], said: list[str]) -> list[str]:
    return list((Counter(there) - Counter(said)).elements())


def of_digits(before: list[str]) -> list[str]:
    start = before.index("key") + 2  # the pass key is
    return left(before[start : before.index(".", start)], before[len(before) - before[::-1].index("is") :])


def of_values_left(before: list[str]) -> list[str]:
    return left(before[1:8:2], [word for word in before[8:] if word.startswith("v")])


def of_words(before: list[str]) -> list[str]:
    places = [place for place, word in enumerate(before) if word == ":"]
    values = [before[place + 1 : place + 3] for place in places]
    said = after(before, "<sep>")
    if len(said) == 4 * 3:
        return ["<eos>"]
    match said[len(said) // 3 * 3 :]:
        case []:
            return ["?"]
        case [_]:
            return [first for first, _ in values]
        case [_, known]:
            return [second for first, second in values if first == known]
    raise AssertionError(said)


GUESSERS: dict[str, Guesser] = {
    **dict.fromkeys(
        ("copy", "reverse", "sort"),
        lambda before: left(between(before, "<bos>", "<sep>"), after(before, "<sep>")) or ["<eos>"],
    ),
    "passkey": of_digits,
    "n_back": lambda before: left(before[1::2], before[2::2]) if len(before) >= 6 else ["."],
    "flip_flop": (
        lambda before: [bit for instruction, bit in zip(before[1::2], before[2::2], strict=False) if instruction == "w"]
    ),
    "induction": lambda before: [word for word in before[1:-1] if word != "=>"],
    "max": lambda before: [word for word in before if word.startswith("c")],
    "mqar": lambda before: before[1:8:2],
    "mqmtar": of_words,
    "recall": lambda before: [word[word.index("v") :] for word in before if "v" in word],
}
# their answers do not stand in the sequence: frequencies are all that a guesser has
COMPUTED = {"addition", "local_count", "parity"}


def nats(task: Task, example: Example, guesser: Guesser) -> float:
    """What the guesser pays for the targets of an example: -ln of how often he names the right one."""
    words, targets, paid = spelled(task, example), spelled(task, example, targets=True), 0.0
    for place in example.scored.nonzero()[0]:
        guesses = guesser(words[:place])
        assert targets[place] in guesses
        paid -= math.log(guesses.count(targets[place]) / len(guesses))
    return paid


def test_every_task_has_a_guesser_or_computes_its_answer() -> None:
    assert set(NAMES) == {*GUESSERS, *COMPUTED, "repeat"}


@pytest.mark.parametrize("name", GUESSERS)
def test_a_guesser_who_plays_by_the_rule_pays_what_the_task_says(name: str) -> None:
    task = build(name)
    examples = drawn(task, 60, split="validation")
    for example in examples:
        assert task.guessing_nats(example) == pytest.approx(nats(task, example, GUESSERS[name]))
    mean = sum(nats(task, example, GUESSERS[name]) for example in examples) / sum(e.scored.sum() for e in examples)
    assert guessing_loss(task, examples) == pytest.approx(mean)
    assert 0 < guessing_loss(task, examples) < unread_loss(drawn(task, 512, split="validation"))


def test_where_values_follow_their_keys_the_guesser_names_one_that_is_left() -> None:
    task = build("mqar", answers_in_sequence=True)
    examples = drawn(task, 40)
    paid = [nats(task, example, of_values_left) for example in examples]
    assert [task.guessing_nats(example) for example in examples] == pytest.approx(paid)
    assert guessing_loss(task, examples) == pytest.approx(math.lgamma(5) / 4)
    rng, right = np.random.default_rng(0), []
    for example in drawn(task, 2000):
        words = spelled(task, example)
        right += [rng.choice(of_values_left(words[:p])) == words[p] for p in example.scored.nonzero()[0]]
    share = (1 / 4 + 1 / 3 + 1 / 2 + 1) / 4  # 52 %
    assert np.mean(right) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 8000))


def test_one_who_does_not_know_how_often_a_symbol_is_repeated_pays_for_the_end_alone() -> None:
    task = build("repeat", train_lengths=[3, 9])
    for example in drawn(task, 20, split="validation"):
        n, paid = int(example.scored.sum()) - 1, 0.0
        for said in range(3, n):  # after `said` symbols: it is not the end, which all of the longer lengths say
            paid -= math.log((9 - said) / (9 - said + 1))
        paid -= math.log(1 / (9 - n + 1))
        assert task.guessing_nats(example) == pytest.approx(paid)


@pytest.mark.parametrize("name", sorted(COMPUTED))
def test_where_the_answer_is_computed_its_frequencies_decide(name: str) -> None:
    task = build(name)
    assert guessing_loss(task, drawn(task, 4)) == math.inf


def test_a_guess_that_is_always_right_is_none() -> None:
    for name, changes in (("mqar", {"n_pairs": 1}), ("repeat", {"train_lengths": [5, 5]})):
        task = build(name, **changes)
        assert guessing_loss(task, drawn(task, 4)) == math.inf
