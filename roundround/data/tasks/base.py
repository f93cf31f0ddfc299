"""A task: sequences whose right continuation is known, drawn when they are needed.

Example i of a split is a pure function of (seed, split, i) and of the requested length. No example is in two splits:
the hash of an example's tokens determines to which split the example belongs. If a drawn example belongs to a different
split, another example is drawn.

Shapes: L tokens of an example.

Tested by tests/data/tasks/test_task_contract.py.
"""

from __future__ import annotations

import copy
import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

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
OF_EIGHT = {"train": range(6), "validation": range(6, 7), "test": range(7, 8)}  # the eighths of all examples
MOST_DRAWS = 128  # for one example; the probability that all draws miss a split of one eighth is 1 in 3e7
IDENTIFYING = 8  # the number of examples of each split and length that enter the hash of a task

Ids = NDArray[np.int64]
Lengths = Sequence[int]  # the shortest and the longest
Item = TypeVar("Item")


class Example(NamedTuple):
    """A sequence and its scored targets. The tokens before a scored target determine it.

    tokens: the sequence, [L]. scored: True at scored targets, [L]. answers: the right token at each position, [L]; None
    if `tokens` are the right tokens. output_at: the position of the first token of the output, if intermediate
    steps of the answer precede the output.
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
    """A set of `n` items. `at(i)` returns the item at position i; from position `n` on, the items repeat."""

    n: int
    at: Callable[[int], Item]


class Task(Source):
    """A family of sequences, of any length from `shortest` on, over a vocabulary of its own.

    A length counts what the task's paper counts, such as the symbols to copy; `context` turns it into tokens.

    symbols: the words of the task, which have the token ids from FIRST on; no word contains a space. train_lengths: the
    shortest and the longest length in training; all lengths between them are equally likely. train_examples: the number
    of training examples, which repeat; None if every example is new. validation_examples: the number of examples scored
    during training.
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
                f"train_lengths is {list(train_lengths)}; give the shortest length and the longest, none below "
                f"{self.shortest}, such as [{self.shortest}, {self.shortest + 19}]"
            )
        self.symbols = list(symbols)
        self._train_lengths = train_lengths[0], train_lengths[1]
        self.train_examples, self.validation_examples = train_examples, validation_examples

    @property
    def train_lengths(self) -> tuple[int, int]:
        """The shortest and the longest length in training."""
        return self._train_lengths

    def train_length(self, rng: np.random.Generator) -> int:
        """The length of an example in training. By default all lengths in `train_lengths` are equally likely."""
        shortest, longest = self.train_lengths
        return int(rng.integers(shortest, longest + 1))

    def stored(self, *, seed: int, split: str, length: int | None) -> FixedSet[Example] | None:
        """The examples of a split, in an order that the seed determines; None if the task has no fixed set.

        length: as for `Examples`. Raises UserError if the set has no example of that length.
        """
        return None

    def test_lengths(self) -> Sequence[int] | None:
        """The lengths of the test examples; None if every length can be tested."""
        return None

    def guessing_nats(self, example: Example) -> float:
        """The loss in nats, summed over the answers, of a guesser that knows only which tokens are candidates.

        The guesser names each candidate with a probability equal to the candidate's frequency in the sequence. If no
        candidate can be an answer twice, the guesser names none twice. A model with this loss has found the candidates,
        but not which of them is the answer. The loss is inf if the answers are not in the sequence, because then there
        are no candidates.
        """
        return math.inf

    def shared_with_test(self) -> str | None:
        """A line that says how many test examples are also in the training set; None if there are none."""
        return None

    def groups(self) -> dict[str, Task]:
        """{name: part} for the parts of this task that are scored separately; empty if the task has no parts."""
        return {}

    def part(self) -> str:
        """The kind of the names in `groups`: "task" (the default), or a quantity such as "depth".

        With "task", each part is tested with the full number of examples. With a quantity, the names are its values,
        and the examples are divided among the parts.
        """
        return "task"

    def with_values(self, **attributes: Any) -> Self:
        """A copy of the task in which these attributes have other values."""
        copied = copy.copy(self)
        vars(copied).update(attributes)
        return copied

    @abstractmethod
    def example(self, rng: np.random.Generator, length: int) -> Example:
        """One example of this length; all its randomness comes from `rng`."""

    def context(self, length: int) -> int:
        """The number of tokens in the longest example of this length. By default all examples have the same number."""
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
        """The special tokens and the symbols, with a tokenizer that splits at spaces; unknown words become <unk>."""
        ids = {name: number for number, name in enumerate((*SPECIAL, *self.symbols))}
        tokenizer: Any = Tokenizer(models.WordLevel(vocab=ids, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
        return open_vocabulary(tokenizer, EOS)

    def check_length(self, length: int, what: str) -> None:
        """Raises UserError if the task has no examples of this length."""
        if not self.shortest <= length <= LONGEST:
            raise UserError(f"{what}={length}: the lengths of this task go from {self.shortest} to {LONGEST:,}")


class Examples:
    """The examples of a split, indexed by their numbers.

    length: the length of all examples; None if lengths are drawn as in training. n: the size of the task's fixed set,
    after which examples repeat; None if there is no such set. n_shared: the number of examples read so far that belong
    to other splits, because the task has too few examples.
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
        # the counter-based generator jumps to the random numbers of example i, which begin at i * 2^128
        self._state["state"]["counter"][:] = [0, 0, i, self.length or 0]
        self._state["buffer_pos"], self._state["has_uint32"] = 4, 0  # discards buffered numbers of another example
        self._bits.state = self._state
        length = self.task.train_length(self._rng) if self.length is None else self.length
        for _ in range(MOST_DRAWS):  # a new length each time would make lengths with few examples of this split rarer
            example = self.task.example(self._rng, length)
            digest = hashlib.blake2b(example.tokens.astype(np.int64).tobytes(), digest_size=1).digest()
            if digest[0] % 8 in self.split:  # the eighth of all examples that it belongs to
                return example
        self.n_shared += 1
        return example


def distinct(examples: Iterable[Example]) -> list[tuple[Example, int]]:
    """(example, number of its occurrences) for each different example, in the order of first occurrence."""
    found: dict[bytes, tuple[Example, int]] = {}
    for example in examples:
        name = example.tokens.tobytes()
        first, times = found.get(name, (example, 0))
        found[name] = first, times + 1
    return list(found.values())


def numbered(n: int, *, before: str = "") -> list[str]:
    """The symbols 0, 1, ..., with the prefix `before`."""
    return [f"{before}{number}" for number in range(n)]


def check_range(name: str, value: float, least: float, most: float, *, because: str = "") -> None:
    """Raises ValueError if a parameter is outside [least, most]. because: the reason for the bound."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must lie between {least} and {most:,}{because and f' ({because})'}")


def nats_of_order(answers: Ids) -> float:
    """The loss, in nats, of guessing these tokens in turn, each from the tokens that are left.

    ln(n! / (m_1! m_2! ...)) for n tokens, in which the different tokens occur m_1, m_2, ... times.
    """
    _, counts = np.unique(answers, return_counts=True)
    return math.lgamma(len(answers) + 1) - sum(math.lgamma(m + 1) for m in counts.tolist())


def asked(prompt: Ids, answer: Ids, *, end: bool = True) -> Example:
    """The example <bos> prompt <sep> answer <eos>, in token ids; the answer and <eos> are scored.

    end: whether the example ends with <eos>. Tasks whose answers are one token leave <eos> out, because half of the
    scored tokens would be <eos>.
    """
    tokens = np.concatenate([[BOS], prompt, [SEP], answer, [EOS]])[: None if end else -1]
    return Example(tokens, np.arange(len(tokens)) > len(prompt) + 1)
