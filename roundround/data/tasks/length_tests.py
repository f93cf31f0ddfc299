"""Tests of long contexts: numbers hidden in filler, chains of names, the most common words of a list.

Lengths are in tokens of the model's own tokenizer. As in RULER (Hsieh et al. 2024, arXiv:2404.06654), the score of the
text that a model writes is the share of the references that the text contains.

Tested by tests/data/tasks/test_length_tests.py.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Self, final

import numpy as np

from roundround.data.tasks.base import Task, check_range
from roundround.data.tasks.text_task import Text, TextTask
from roundround.data.tokenizers import Vocabulary
from roundround.support.errors import UserError, nearest

FILLER = (
    "The road is long.", "The house is old.", "Rain falls on the hills.", "A cat sleeps by the door.",
    "The boat comes home in the evening.",
)  # fmt: skip
HAYSTACKS = ("sentences", "words", "needles")
ONSETS, VOWELS = "bdfgklmnprstvz", "aeiou"
SYLLABLES = 3  # in a made-up word; 343,000 such words exist
FEWEST_WORDS = 64  # if a vocabulary has fewer words that are single tokens, all words are made up
WORD = re.compile("[\u0120\u2581]([a-z]{3,})")  # a token that is a word, after the mark of a space
BETWEEN = ", "  # separates the references in an answer
DRAWS = 200  # the most draws until an example fits into the length
Filled = tuple[Callable[[int], Text], Callable[[int], int]]  # n -> text with n units of filler, i -> tokens of unit i


class LengthTest(TextTask):
    """Base of tests whose length is the number of all tokens of an example, from its beginning to its end.

    Filler is added unit by unit (a sentence, or a listed word), as long as the next unit fits into the length. Words
    are drawn from the vocabulary's words that are a single token; if there are few of these, words are made up of
    syllables.

    haystack: the kind of filler around the hidden sentences: "sentences" repeats five plain sentences, "words" makes
    sentences of drawn words, and "needles" makes sentences of the same form as the hidden ones. written: the largest
    number of tokens that a model can write as its answer. sentences: the wording that all examples of the test share;
    none of its words is ever drawn.
    """

    written: ClassVar[int]
    sentences: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        *,
        train_lengths: Sequence[int],
        train_examples: int | None,
        validation_examples: int,
        haystack: str = "sentences",
    ) -> None:
        if haystack not in HAYSTACKS:
            raise ValueError(f"haystack is '{haystack}'{nearest(haystack, HAYSTACKS)}")
        super().__init__(
            train_lengths=train_lengths, train_examples=train_examples, validation_examples=validation_examples
        )
        self.haystack, self._words = haystack, list[str]()

    @abstractmethod
    def filled(self, rng: np.random.Generator, length: int) -> Filled:
        """Two functions for one example: n -> text with n units of filler, and i -> number of tokens of unit i.

        All randomness comes from `rng`.
        """

    @final
    def text(self, rng: np.random.Generator, length: int) -> Text:
        """The first drawn text that fits into the length.

        Drawn texts differ in size, because made-up words differ in their number of tokens.
        """
        for _ in range(DRAWS):
            with_filler, cost = self.filled(rng, length)
            if (room := length - self.n_tokens(with_filler(0))) >= 0:
                break
        else:
            raise UserError(
                f"{length} tokens are too few for an example of this test; with this tokenizer an example needs "
                f"{length - room} or more"
            )
        n = 0
        while (own := cost(n)) <= room:
            room, n = room - own, n + 1
        while n and self.n_tokens(with_filler(n)) > length:  # tokens may merge at the joints
            n -= 1
        return with_filler(n)

    @final
    def n_tokens(self, text: Text) -> int:
        """The number of tokens of an example; before a tokenizer is learnt, the number of words."""
        return len("".join(text).split()) if self._vocabulary is None else len(self.tokenised(text).tokens)

    @final
    def n_behind(self, text: str) -> int:
        """The number of tokens that a text adds after another; before a tokenizer is learnt, the number of words."""
        return len(text.split()) if self._vocabulary is None else n_tokens_behind(self._vocabulary, text)

    @final
    def references(self, answer: str) -> list[str]:
        """The parts of an answer; a model has to write each of them, in any order."""
        return answer.strip().split(BETWEEN)

    @final
    def context(self, length: int) -> int:
        return length

    @final
    def with_vocabulary(self, vocabulary: Vocabulary) -> Self:
        drawable = super().with_vocabulary(vocabulary)
        reserved = set(re.findall("[a-z]+", " ".join((*self.sentences, *FILLER)).lower()))
        found = {match[1] for token in vocabulary.tokenizer.get_vocab() if (match := WORD.fullmatch(token))}
        drawable._words = sorted(word for word in found - reserved if n_tokens_behind(vocabulary, word) == 1)
        if len(drawable._words) < FEWEST_WORDS:
            drawable._words = []
        return drawable

    @final
    def words(self, rng: np.random.Generator, n: int, but: Collection[str] = ()) -> list[str]:
        """n different words that are not in `but`: first words of the vocabulary, then made-up words."""
        most = min(n + len(but), len(self._words))
        own = [self._words[i] for i in rng.choice(len(self._words), most, replace=False)] if most else []
        found = dict.fromkeys([word for word in own if word not in but][:n])
        while len(found) < n:
            made = rng.integers([[len(ONSETS), len(VOWELS)]] * SYLLABLES)
            word = "".join(ONSETS[onset] + VOWELS[vowel] for onset, vowel in made)
            found |= {} if word in but else {word: None}
        return list(found)

    @final
    def hidden_in(
        self,
        rng: np.random.Generator,
        needles: Sequence[str],
        places: Sequence[float],
        around: tuple[str, str, str],
        another: Callable[[], str],
    ) -> Filled:
        """Hides the sentences `needles` in filler; returns the functions that `filled` returns.

        places: the position of each needle, from 0 (before all filler) to 1 (after all filler). around: (opening,
        question, answer). another: a function that draws a sentence of the needles' form, with other names.
        """
        filler: list[str] = []
        opening, question, answer = around

        def cost(i: int) -> int:
            while len(filler) <= i:
                if self.haystack == "sentences":
                    filler.append(FILLER[len(filler) % len(FILLER)])
                elif self.haystack == "needles":
                    filler.append(another())
                else:
                    filler.append(f"{' '.join(self.words(rng, 8)).capitalize()}.")
            return self.n_behind(filler[i])

        def with_filler(n: int) -> Text:
            shown = filler[:n]
            for place, needle in sorted(zip(places, needles, strict=True), reverse=True):
                shown.insert(round(place * n), needle)
            return Text(f"{opening}\n{' '.join(shown)}\n{question}", f" {answer}")

        return with_filler, cost


def n_tokens_behind(vocabulary: Vocabulary, text: str) -> int:
    """The number of tokens that a text adds after a letter "a".

    The "a" is there because some tokenizers add a space at the beginning of a text.
    """
    return len(vocabulary.encode(f"a {text}")) - len(vocabulary.encode("a"))


@final
class Needles(LengthTest):
    """Finds numbers in a long text, where each number is in a sentence of its own.

    filler "The secret number of K is V." filler "What is the secret number of K? .." V, V; length is all tokens

    Hsieh et al. 2024, arXiv:2404.06654. The paper's tests of this kind differ in the number of keys, the number of
    values of each key, the number of queries, and the haystack. If the answer is one number, the test divides its
    examples among `depths`, the positions of the sentence with this number. Otherwise, and in training, positions are
    drawn evenly. The opening and the words differ from the paper's; every key is a single word.
    """

    written = 128
    sentences = (
        "Secret numbers are hidden in this text. Remember them.", "The secret number of {} is {}.",
        "What is the secret number of {}? The secret number of {} is", "What are all secret numbers of {}? They are",
    )  # fmt: skip

    def __init__(
        self,
        *,
        n_keys: int,
        n_values: int,
        n_queries: int,
        n_digits: int,
        haystack: str,
        depths: Sequence[float],
        train_lengths: Sequence[int],
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        check_range("n_queries", n_queries, 1, n_keys, because=f"n_keys={n_keys}")
        if 10 ** (n_digits - 1) < n_keys * n_values:
            raise ValueError(
                f"n_digits is {n_digits}, too few for {n_keys * n_values} different numbers; give more digits"
            )
        for depth in depths:
            check_range("depths", depth, 0, 1)
        super().__init__(
            haystack=haystack,
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_keys, self.n_values, self.n_queries, self.n_digits = n_keys, n_values, n_queries, n_digits
        self.depths = sorted({float(depth) for depth in depths})
        self._depth: float | None = None

    def groups(self) -> dict[str, Task]:
        """One task for each depth (the sentence's position, from 0 to 1); none if the answer has several numbers."""
        depths = self.depths if self.n_queries * self.n_values == 1 else []
        return {f"{depth:g}": self.with_values(_depth=depth) for depth in depths}

    def part(self) -> str:
        return "depth"

    def number(self, rng: np.random.Generator) -> str:
        return str(rng.integers(10 ** (self.n_digits - 1), 10**self.n_digits))

    def filled(self, rng: np.random.Generator, length: int) -> Filled:
        keys, n = self.words(rng, self.n_keys), self.n_keys * self.n_values
        values = dict.fromkeys([self.number(rng)])
        while len(values) < n:
            values[self.number(rng)] = None
        places = rng.random(n)
        places[0] = places[0] if self._depth is None else self._depth
        of_key = np.repeat(np.arange(self.n_keys), self.n_values)
        needles = [self.sentences[1].format(keys[key], value) for key, value in zip(of_key, values, strict=True)]
        in_order = sorted(zip(of_key.tolist(), places.tolist(), values, strict=True))
        answer = BETWEEN.join(value for key, _, value in in_order if key < self.n_queries)
        asked = " and ".join(keys[: self.n_queries])
        one = self.n_queries * self.n_values == 1
        question = self.sentences[2].format(asked, asked) if one else self.sentences[3].format(asked)
        return self.hidden_in(
            rng,
            needles,
            places.tolist(),
            (self.sentences[0], question, answer),
            lambda: self.sentences[1].format(*self.words(rng, 1, keys), self.number(rng)),
        )

    def origin(self) -> object:
        return [self.n_keys, self.n_values, self.n_queries, self.n_digits, self.haystack, self._depth]


@final
class VariableTracking(LengthTest):
    """Names all variables that have a given value: the first is set to it, each later one to the variable before it.

    filler "Let A be V." filler "Let B be A." filler "Which names stand for V? .." A, B; length is all tokens

    Hsieh et al. 2024, arXiv:2404.06654. The sentences of a chain are in order: the first sets a variable to the number,
    and each of the `n_hops` later sentences sets a variable to the previous variable. With one chain, the text has no
    other number. Unlike in the paper, variables have words as names, and no solved example precedes the text.
    """

    written = 30
    sentences = (
        "Names stand for numbers in this text. Remember which.", "Let {} be {}.",
        "Which names stand for {}? The names that stand for {} are",
    )  # fmt: skip

    def __init__(
        self,
        *,
        n_chains: int,
        n_hops: int,
        haystack: str,
        train_lengths: Sequence[int],
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        super().__init__(
            haystack=haystack,
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_chains, self.n_hops = n_chains, n_hops

    def filled(self, rng: np.random.Generator, length: int) -> Filled:
        size = self.n_hops + 1
        names, needles, places = self.words(rng, self.n_chains * size), [], []
        values = 10_000 + rng.choice(90_000, self.n_chains, replace=False)
        for chain, value in enumerate(values.tolist()):
            own = names[chain * size : (chain + 1) * size]
            needles += [self.sentences[1].format(*pair) for pair in zip(own, [value, *own], strict=False)]
            places += np.sort(rng.random(size)).tolist()
        question = self.sentences[2].format(values[0], values[0])
        return self.hidden_in(
            rng,
            needles,
            places,
            (self.sentences[0], question, BETWEEN.join(names[:size])),
            lambda: self.sentences[1].format(*self.words(rng, 2, names)),
        )

    def origin(self) -> object:
        return [self.n_chains, self.n_hops, self.haystack]


@final
class CommonWords(LengthTest):
    """Names the most frequent words of a long list.

    w, w, w, .. "The 10 most common words of this list are" c, c, c; length is all tokens

    Hsieh et al. 2024, arXiv:2404.06654. Each of `n_common` words is in the list `times[0]` times, each other word
    `times[1]` times; below 4,096 tokens, `short_times` replaces `times`. The answer has the common words in the order
    of their first occurrence. Unlike in the paper, words are not numbered, and no solved example precedes the list.
    """

    written = 120
    sentences = ("Some words of this list are more common than others.", "The {} most common words of this list are")
    SHORT: ClassVar[int] = 4096  # tokens

    def __init__(
        self,
        *,
        n_common: int,
        times: Sequence[int],
        short_times: Sequence[int],
        train_lengths: Sequence[int],
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        for name, pair in (("times", times), ("short_times", short_times)):
            if len(pair) != 2 or not 1 <= pair[1] < pair[0] <= 1000:
                raise ValueError(
                    f"{name} is {list(pair)}; give two numbers, how often each common word occurs and how often each "
                    "other word occurs, such as [30, 3]"
                )
        super().__init__(
            train_lengths=train_lengths, train_examples=train_examples, validation_examples=validation_examples
        )
        self.n_common, self.times, self.short_times = n_common, list(times), list(short_times)

    def filled(self, rng: np.random.Generator, length: int) -> Filled:
        often, seldom = self.short_times if length < self.SHORT else self.times
        words, seed = self.words(rng, self.n_common + length // seldom), int(rng.integers(2**32))
        order = np.random.default_rng(seed).permutation(len(words))  # words of the vocabulary come first in `words`
        common, others = [words[i] for i in order[: self.n_common]], [words[i] for i in order[self.n_common :]]

        def with_filler(n: int) -> Text:
            listed = common * often + others[:n] * seldom
            listed = [listed[i] for i in np.random.default_rng(seed).permutation(len(listed))]
            first = [word for word in dict.fromkeys(listed) if word in common]
            question = self.sentences[1].format(self.n_common)
            return Text(f"{self.sentences[0]}\n{BETWEEN.join(listed)}.\n{question}", f" {BETWEEN.join(first)}")

        return with_filler, lambda i: seldom * self.n_behind(f"{others[i]},") if i < len(others) else length + 1

    def origin(self) -> object:
        return [self.n_common, self.times, self.short_times]
