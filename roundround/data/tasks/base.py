"""A task: sequences whose right continuation is known, drawn as they are needed.

Example i of a split is a pure function of (seed, split, i), and of the length asked for. No example is of two splits:
the hash of its tokens says which one it belongs to, and the others are drawn again.

Shapes: L tokens of an example.

Tested by tests/data/tasks/test_task_contract.py.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from roundround.data.corpora import Source, fingerprint
from roundround.data.tokenizers import LARGEST_VOCABULARY, Vocabulary, open_vocabulary
from roundround.support.errors import UserError

SPECIAL = ("<bos>", "<sep>", "<eos>", "<unk>")  # the first ids of every task; the last is what no generator draws
BOS, SEP, EOS = range(3)
LONGEST = 2**20  # the most that a length may be, and the longest in the papers
MOST_VALIDATED = 10**7  # examples, from which a share is known to 0.02 %
MOST_REPEATED = 10**8  # training examples that come again: their order takes a GB
BYTES_OF_TOKEN = 9  # of an example in memory: the token, and whether it is scored
FIRST = len(SPECIAL)  # the id of a task's first symbol
SPLITS = ("train", "validation", "test")
OF_EIGHT = {"train": range(6), "validation": range(6, 7), "test": range(7, 8)}  # shares of all examples there are
MOST_DRAWS = 128  # for one example; a split that has an eighth of them is missed so often once in 3e7
IDENTIFYING = 8  # examples of each split and length that the hash of a task is taken of

Ids = NDArray[np.int64]
Lengths = Sequence[int]  # the shortest and the longest
Item = TypeVar("Item")


class Example(NamedTuple):
    """A sequence [L], and which of its tokens are scored targets [L]: those that the ones before them decide.

    answers: the targets [L], where they do not stand in the sequence. output_at: the first token of the output, where
    the answer also says how one comes to it.
    """

    tokens: Ids
    scored: NDArray[np.bool_]
    answers: Ids | None = None
    output_at: int | None = None

    @property
    def targets(self) -> Ids:
        """The right token at each place, [L]."""
        return self.tokens if self.answers is None else self.answers


class FixedSet(NamedTuple, Generic[Item]):
    """`n` things by number: `at(i)` for i from 0 on, which begins again after them."""

    n: int
    at: Callable[[int], Item]


class Task(Source):
    """A family of sequences, of any length from `shortest` on, over a vocabulary of its own.

    symbols: how the tokens from FIRST on read, without spaces. train_lengths: the shortest and the longest length in
    training, each length between them as likely. train_examples: how many examples training goes through again and
    again; None draws a new one every time. validation_examples: those that are measured while it trains.

    A length counts what the task's paper counts, such as the symbols to copy; `context` says how many tokens it makes.
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
        if len(train_lengths) != 2 or not self.shortest <= train_lengths[0] <= train_lengths[1] <= LONGEST:
            raise ValueError(
                f"train_lengths is {list(train_lengths)}: the shortest length and the longest are allowed, from "
                f"{self.shortest} to {LONGEST:,}, such as [{self.shortest}, {self.shortest + 19}]"
            )
        check_range("validation_examples", validation_examples, 1, MOST_VALIDATED)
        if train_examples is not None:
            check_range("train_examples", train_examples, 1, MOST_REPEATED)
        self.symbols = list(symbols)
        self._train_lengths = train_lengths[0], train_lengths[1]
        self.train_examples, self.validation_examples = train_examples, validation_examples

    @property
    def train_lengths(self) -> tuple[int, int]:
        """The shortest and the longest length in training."""
        return self._train_lengths

    def train_length(self, rng: np.random.Generator) -> int:
        """The length of an example in training. Here: each from the shortest to the longest as likely."""
        shortest, longest = self.train_lengths
        return int(rng.integers(shortest, longest + 1))

    def stored(self, *, seed: int, split: str, length: int | None) -> FixedSet[Example] | None:
        """The examples of a split, in the order of the seed, where there is a fixed set of them; None: all are drawn.

        `length` as for `Examples`. UserError where the set has none such.
        """
        return None

    def test_lengths(self) -> Sequence[int] | None:
        """The lengths that its test has, where it has some alone."""
        return None

    def guessing_nats(self, example: Example) -> float:
        """Nats for all answers of an example of who knows what may be one, and guesses which of it is asked for.

        He names what stands in the sequence as often as it stands there, less what has been said already where each is
        said once. A model that stays there has found the answers, and not which belongs to the question. inf where they
        do not stand in the sequence: nothing but their frequencies is known then.
        """
        return math.inf

    def shared_with_test(self) -> str | None:
        """A line on the examples of the test that are in training too; None where there are none."""
        return None

    def groups(self) -> dict[str, Task]:
        """The tasks that this one is made of and whose scores are told apart, by name; empty where it is one."""
        return {}

    def part(self) -> str:
        """What the names of `groups` are. Here: `task`, each of which has as many test examples as are asked for.

        By anything else, such as `depth`, those are shared out, and names are numbers.
        """
        return "task"

    @abstractmethod
    def example(self, rng: np.random.Generator, length: int) -> Example:
        """One example of this length, drawn from `rng` alone."""

    def context(self, length: int) -> int:
        """Tokens of the longest example of this length. Here: of any, because they have equally many."""
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
        if length < self.shortest:
            raise UserError(f"{what}={length} is shorter than this task's smallest length, {self.shortest}")
        if length > LONGEST:
            raise UserError(f"{what}={length} is longer than {LONGEST:,}, up to which memory is taken")


class Examples:
    """The examples of a split, by number: of one length, or each of a length in training, drawn for it.

    n: how many there are, where the task has a fixed set of them, after which they begin again; None: no end of them.
    n_shared: how many of those read so far may be of another split too, because the task has too few of their length.
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
        # the counter-based generator goes to where the numbers of example i begin, 2^128 further for each example
        self._state["state"]["counter"][:] = [0, 0, i, self.length or 0]
        self._state["buffer_pos"], self._state["has_uint32"] = 4, 0  # nothing is left over from another example
        self._bits.state = self._state
        length = self.task.train_length(self._rng) if self.length is None else self.length
        for _ in range(MOST_DRAWS):  # of one length, or those with few examples of this split would be rarer
            example = self.task.example(self._rng, length)
            if share_of(example) in self.split:
                return example
        self.n_shared += 1
        return example


def share_of(example: Example) -> int:
    """Which eighth of all examples this one is of, by the hash of its tokens."""
    return hashlib.blake2b(example.tokens.astype(np.int64).tobytes(), digest_size=1).digest()[0] % 8


def distinct(examples: Iterable[Example]) -> list[tuple[Example, int]]:
    """Each different example once, in the order of their first, with how often it is there."""
    found: dict[bytes, tuple[Example, int]] = {}
    for example in examples:
        name = example.tokens.tobytes()
        first, times = found.get(name, (example, 0))
        found[name] = first, times + 1
    return list(found.values())


def numbered(n: int, *, name: str = "n_symbols", fewest: int = 2, before: str = "") -> list[str]:
    """The symbols 0, 1, ..., or with `before` in front. ValueError for too few, or for more than memory is taken for.

    name: the parameter that says how many there are.
    """
    check_range(name, n, fewest, LARGEST_VOCABULARY)
    return [f"{before}{number}" for number in range(n)]


def check_range(name: str, value: float, least: float, most: float = math.inf, *, because: str = "") -> None:
    """ValueError where a parameter lies outside; both ends are allowed. because: what sets the end, if not the task."""
    if not least <= value <= most:
        allowed = f"a whole number from {least}" if most == math.inf else f"{least} to {most:,}"
        raise ValueError(f"{name} is {value}: {allowed} is allowed{because and f' ({because})'}")


def nats_of_order(answers: Ids) -> float:
    """Of naming these tokens in their order, each time one of those that are left: ln(n! / the product of each m!)."""
    _, counts = np.unique(answers, return_counts=True)
    return math.lgamma(len(answers) + 1) - sum(math.lgamma(m + 1) for m in counts.tolist())


def asked(prompt: Ids, answer: Ids, *, end: bool = True) -> Example:
    """<bos> prompt <sep> answer <eos>, of which the answer and its end are scored; both are given as token ids.

    end: False where each answer is one token: no <eos> then, which would be half of what is scored.
    """
    tokens = np.concatenate([[BOS], prompt, [SEP], answer, [EOS]])[: None if end else -1]
    return Example(tokens, np.arange(len(tokens)) > len(prompt) + 1)


# -- tasks of symbols that differ in nothing but their number


class OfSymbols(Task):
    """Base of tasks whose `n_symbols` symbols are all alike."""

    def __init__(
        self, *, n_symbols: int, train_lengths: Sequence[int], train_examples: int | None, validation_examples: int
    ) -> None:
        super().__init__(
            symbols=numbered(n_symbols),
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )


class Rearrangement(OfSymbols):
    """<bos> x_1 .. x_n <sep> answer(x_1 .. x_n) <eos>, every x drawn evenly; length is n."""

    @abstractmethod
    def answer(self, x: Ids) -> Ids:
        """The symbols again, [n], as token ids."""

    @final
    def example(self, rng: np.random.Generator, length: int) -> Example:
        x = FIRST + rng.integers(len(self.symbols), size=length)
        return asked(x, self.answer(x))

    @final
    def guessing_nats(self, example: Example) -> float:
        """One of the symbols that have not been said again, and the end after the last."""
        return nats_of_order(example.tokens[example.scored][:-1])
