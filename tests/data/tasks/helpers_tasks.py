"""What the tests of the tasks share: building one from its yaml, and what a solver gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import class_of, tunables, variants
from omegaconf import OmegaConf

from roundround.config.build import build as build_node
from roundround.data.tasks.base import SPECIAL, Example, Examples, Task
from roundround.data.tasks.text_task import TextTask

ROOT = Path(__file__).resolve().parents[3]
Solver = Callable[[list[str]], str]  # from the words before a target to the target


# the options of data that are tasks, and none of text: test_text_task.py and test_clrs_text.py test those
CLASSES = {name: class_of("data", name) for name in variants("data")}
NAMES = sorted(name for name, cls in CLASSES.items() if issubclass(cls, Task) and not issubclass(cls, TextTask))


def build(name: str, **changes: Any) -> Task:
    """The task that conf/data/<name>.yaml describes, with some of its parameters replaced."""
    values = tunables("data", name)
    assert changes.keys() <= values.keys(), f"{name} has no parameter {changes.keys() - values.keys()}"
    return build_node(OmegaConf.create({"data": values | changes})["data"], Task)


def drawn(task: Task, n: int, *, length: int | None = None, split: str = "test", seed: int = 0) -> list[Example]:
    """The first examples of a split."""
    examples = Examples(task, seed=seed, split=split, length=length)
    return [examples[i] for i in range(n)]


def spelled(task: Task, example: Example, *, targets: bool = False) -> list[str]:
    """The tokens of an example as words, or its targets."""
    words = [*SPECIAL, *task.symbols]
    return [words[token] for token in (example.targets if targets else example.tokens)]


def texts(task: Task, n: int, *, length: int, split: str = "test") -> list[list[str]]:
    """Examples as words."""
    return [spelled(task, example) for example in drawn(task, n, length=length, split=split)]


def mistakes(task: Task, solver: Solver, *lengths: int, n: int = 12) -> list[tuple[str, str, str]]:
    """(what stood before, the target, the solver's answer) of each scored target that it gets wrong.

    The solver sees no more than the words before a target.
    """
    found = []
    for length in lengths:
        for example in drawn(task, n, length=length):
            words, targets = spelled(task, example), spelled(task, example, targets=True)
            for place in example.scored.nonzero()[0]:
                answer = solver(words[:place])
                if answer != targets[place]:
                    found.append((" ".join(words[:place]), targets[place], answer))
    return found


def after(words: list[str], mark: str) -> list[str]:
    """What follows the first `mark`."""
    return words[words.index(mark) + 1 :]


def answered(symbols: list[str], before: list[str]) -> str:
    """Which of these symbols comes next in the answer, or the end after the last of them."""
    return [*symbols, "<eos>"][len(after(before, "<sep>"))]


def between(words: list[str], first: str, last: str) -> list[str]:
    """What stands between the first `first` and the first `last`."""
    return words[words.index(first) + 1 : words.index(last)]
