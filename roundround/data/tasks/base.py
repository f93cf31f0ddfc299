"""A task: sequences whose right continuation is known, drawn as they are needed.

Example i of a split is a pure function of (seed, split, i), and of the length asked for. No example is in two splits:
the hash of its tokens decides the split, and an example of another split is drawn again.

Shapes: L tokens of an example.

Tested by tests/data/tasks/test_task_contract.py.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from roundround.data.corpora import Source, fingerprint
from roundround.data.tokenizers import Vocabulary, open_vocabulary
from roundround.support.errors import UserError

SPECIAL = ("<bos>", "<sep>", "<eos>", "<unk>")  # the first ids of every task; no task draws the last one
BOS, SEP, EOS = range(3)
LONGEST = 2**20  # the largest length, and the longest in the papers
FIRST = len(SPECIAL)  # the id of a task's first symbol
SPLITS = ("train", "validation", "test")
OF_EIGHT = {"train": range(6), "validation": range(6, 7), "test": range(7, 8)}  # eighths of all examples
MOST_DRAWS = 128  # for one example: that many draws miss a split of one eighth once in 3e7 times
IDENTIFYING = 8  # examples of each split and length that the hash of a task is made from

Ids = NDArray[np.int64]
Lengths = Sequence[int]  # the shortest and the longest
Item = TypeVar("Item")


class Example(NamedTuple):
    """A sequence [L], and which of its tokens are scored targets [L]: the tokens before them decide what they are.

    answers: the targets [L], where they do not stand in the sequence. output_at: the first token of the output, where
    the answer also has the steps to it.
    """

    tokens: Ids
    scored: NDArray[np.bool_]
    answers: Ids | None = None
    output_at: int | None = None

    @property
    def targets(self) -> Ids:
        """The right token at each position, [L]."""
        return self.tokens if self.answers is None else self.answers


class FixedSet(NamedTuple, Generic[Item]):
    """`n` items. `at(i)` gives item i, and starts again after the last one."""

    n: int
    at: Callable[[int], Item]


class Task(Source):
    """A family of sequences, of any length from `shortest` on, over a vocabulary of its own.

    symbols: the words of the tokens from FIRST on, without spaces. train_lengths: the shortest and the longest length
    in training, each length between them as likely. train_examples: how many examples training repeats; None draws a
    new one every time. validation_examples: how many are scored during training.

    A length counts what the task's paper counts, such as the symbols to copy; `context` gives its number of tokens.
    """

    shortest = 1

    def __init__(
        self,
        *,
        symbols: Sequence[str],
        train_lengths: Sequence[int],
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        if len(train_lengths) != 2 or not self.shortest <= train_lengths[0] <= train_lengths[1]:
            raise ValueError(
                f"train_lengths is {list(train_lengths)}: the shortest length and the longest are allowed, from "
                f"{self.shortest} on, such as [{self.shortest}, {self.shortest + 19}]"
            )
        self.symbols = list(symbols)
        self._train_lengths = train_lengths[0], train_lengths[1]
        self.train_examples, self.validation_examples = train_examples, validation_examples

    @property
    def train_lengths(self) -> tuple[int, int]:
        """The shortest and the longest length in training."""
        return self._train_lengths

    def train_length(self, rng: np.random.Generator) -> int:
        """The length of an example in training. By default each from the shortest to the longest is as likely."""
        shortest, longest = self.train_lengths
        return int(rng.integers(shortest, longest + 1))

    def stored(self, *, seed: int, split: str, length: int | None) -> FixedSet[Example] | None:
        """The examples of a split in the order of the seed, where a fixed set exists; None: all are drawn.

        `length` as for `Examples`. UserError where the set has no example of that length.
        """
        return None

    def test_lengths(self) -> Sequence[int] | None:
        """The lengths of the test, where it does not have all lengths."""
        return None

    def guessing_nats(self, example: Example) -> float:
        """The nats over all answers of an example that a guesser pays who knows the candidates, but not the right one.

        The guesser names a candidate as often as it stands in the sequence, less what was said already where each is
        said once. A model with this loss has found the candidates, but not which of them the question asks for. inf
        where the answers do not stand in the sequence: then only their frequencies are known.
        """
        return math.inf

    def shared_with_test(self) -> str | None:
        """A line on the test examples that are in the training set too; None where there are none."""
        return None

    def groups(self) -> dict[str, Task]:
        """The parts of this task that are scored separately, by name; empty where it has none."""
        return {}

    def part(self) -> str:
        """What the names of `groups` are. By default `task`: each has as many test examples as are asked for.

        With any other word, such as `depth`, the names are numbers, and the examples are divided among them.
        """
        return "task"

    @abstractmethod
    def example(self, rng: np.random.Generator, length: int) -> Example:
        """One example of this length, drawn from `rng` alone."""

    def context(self, length: int) -> int:
        """Tokens of the longest example of this length. By default all examples of a length have equally many."""
        return len(self.example(np.random.default_rng(0), length).tokens)

    def identity(self) -> str:
        drawn = [
            [np.asarray(x).tolist() for x in Examples(self, seed=0, split=split, length=length)[i] if x is not None]
            for split in SPLITS
            for length in (None, *self.train_lengths)
            for i in range(IDENTIFYING)
        ]
        numbers = {"train_lengths": self.train_lengths, "train_examples": self.train_examples, "symbols": self.symbols}
        return fingerprint(task=type(self).__name__, examples=drawn, **numbers)

    def vocabulary(self) -> Vocabulary:
        """The special tokens and the symbols as a tokenizer that splits at spaces; unknown words read as <unk>."""
        ids = {name: number for number, name in enumerate((*SPECIAL, *self.symbols))}
        tokenizer: Any = Tokenizer(models.WordLevel(vocab=ids, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
        return open_vocabulary(tokenizer, EOS)

    def check_length(self, length: int, what: str) -> None:
        """Raises UserError for a length that the task does not have."""
        if not self.shortest <= length <= LONGEST:
            raise UserError(f"{what}={length}: this task has lengths from {self.shortest} to {LONGEST:,}")


class Examples:
    """The examples of a split by number: all of one length, or each of a length that is drawn as in training.

    n: how many there are before they start again, where the task has a fixed set; None: infinitely many.
    n_shared: how many of the examples read so far may be in another split too, because the task has too few.
    """

    def __init__(self, task: Task, *, seed: int, split: str, length: int | None = None) -> None:
        self.task, self.length, self.split = task, length, OF_EIGHT[split]
        self.stored = task.stored(seed=seed, split=split, length=length)
        self.n = None if self.stored is None else self.stored.n
        self.n_shared = 0
        key: Any = np.random.SeedSequence([seed, SPLITS.index(split)]).generate_state(2, np.uint64)
        self._bits: Any = np.random.Philox(key=key)
        self._rng = np.random.Generator(self._bits)
        self._state = self._bits.state

    def __getitem__(self, i: int) -> Example:
        if self.stored is not None:
            return self.stored.at(i)
        # the counter-based generator jumps to the numbers of example i, 2^128 further for each example
        self._state["state"]["counter"][:] = [0, 0, i, self.length or 0]
        self._state["buffer_pos"], self._state["has_uint32"] = 4, 0  # nothing is left from another example
        self._bits.state = self._state
        length = self.task.train_length(self._rng) if self.length is None else self.length
        for _ in range(MOST_DRAWS):  # all of one length: else lengths with few examples in this split would be rarer
            example = self.task.example(self._rng, length)
            digest = hashlib.blake2b(example.tokens.astype(np.int64).tobytes(), digest_size=1).digest()
            if digest[0] % 8 in self.split:  # the eighth of all examples that it belongs to
                return example
        self.n_shared += 1
        return example


def distinct(examples: Iterable[Example]) -> list[tuple[Example, int]]:
    """Each different example once, in the order in which they first come, with how often it comes."""
    found: dict[bytes, tuple[Example, int]] = {}
    for example in examples:
        name = example.tokens.tobytes()
        first, times = found.get(name, (example, 0))
        found[name] = first, times + 1
    return list(found.values())


def numbered(n: int, *, before: str = "") -> list[str]:
    """The symbols 0, 1, ..., with `before` in front."""
    return [f"{before}{number}" for number in range(n)]


def check_range(name: str, value: float, least: float, most: float, *, because: str = "") -> None:
    """ValueError where a parameter is outside the range; both ends are allowed. because: the reason for the end."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}: {least} to {most:,} is allowed{because and f' ({because})'}")


def nats_of_order(answers: Ids) -> float:
    """Nats of naming these tokens in order, each time one of the tokens left: ln(n! / the product of each m!)."""
    _, counts = np.unique(answers, return_counts=True)
    return math.lgamma(len(answers) + 1) - sum(math.lgamma(m + 1) for m in counts.tolist())


def asked(prompt: Ids, answer: Ids, *, end: bool = True) -> Example:
    """<bos> prompt <sep> answer <eos>; the answer and its end are scored. Prompt and answer are token ids.

    end: False leaves out <eos>, which would be half of the scored tokens where each answer is one token.
    """
    tokens = np.concatenate([[BOS], prompt, [SEP], answer, [EOS]])[: None if end else -1]
    return Example(tokens, np.arange(len(tokens)) > len(prompt) + 1)
