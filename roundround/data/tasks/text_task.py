"""A task of text: prompts and their answers, which the run's tokenizer makes tokens of.

Shapes: L tokens of an example.
"""

from __future__ import annotations

import copy
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self, final

import numpy as np

from roundround.data.corpora import fingerprint
from roundround.data.tasks.base import Example, FixedSet, Task
from roundround.data.tokenizers import Vocabulary, check_known, unknown_token

TEXTS_TO_LEARN_FROM = 4096  # by a tokenizer that learns
BESIDE = 4  # tokens beside those of the text: beginning and end, and the space that SentencePiece puts before each part


class Text(NamedTuple):
    """A prompt and its answer: the whole text is one after the other, with nothing between them."""

    prompt: str
    answer: str


class TextTask(Task):
    """A task without symbols of its own: <beginning> prompt answer <end>, the answer and its end being scored.

    It draws examples once it has a vocabulary, which `with_vocabulary` gives it. The prompt's tokens are those of the
    prompt alone, as greedy decoding gets it. The answer's are those that it has behind the prompt where the tokenizer
    cuts there, else those of the answer alone: SentencePiece writes a space before whatever it is given first. The
    beginning is what the tokenizer itself puts before a text, or else the token that ends a document, behind which
    texts begin in training; the end is the latter.
    """

    def __init__(self, *, train_lengths: Sequence[int], train_examples: int | None, validation_examples: int) -> None:
        super().__init__(
            symbols=[],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self._vocabulary: Vocabulary | None = None
        self._beginning: list[int] = []
        self._last: tuple[Text, Example] | None = None  # a text that is measured first is made tokens of once

    @abstractmethod
    def text(self, rng: np.random.Generator, length: int) -> Text:
        """One prompt of this length with its answer, drawn from `rng` alone."""

    @abstractmethod
    def longest_texts(self, length: int) -> tuple[Iterable[Text], float]:
        """Texts among which are the longest up to this length, and by what factor others may be longer."""

    @abstractmethod
    def origin(self) -> object:
        """What decides the texts, the numbers of `Task` aside, as json can write it."""

    def output_at(self, answer: str) -> int | None:
        """The character of an answer with which its output begins; None where it is nothing else."""
        return None

    def stored_texts(self, *, seed: int, split: str, length: int | None) -> FixedSet[Text] | None:
        """The texts of a split where there is a fixed set of them, as `stored` has the examples."""
        return None

    def with_vocabulary(self, vocabulary: Vocabulary) -> Self:
        """The task with the tokenizer of a run, from which examples can be drawn."""
        drawable = copy.copy(self)
        drawable._vocabulary, drawable._beginning, drawable._last = vocabulary, beginning(vocabulary), None
        return drawable

    @final
    def vocabulary(self) -> Vocabulary:
        assert self._vocabulary is not None, "a task of text has the vocabulary that with_vocabulary gives it"
        return self._vocabulary

    @final
    def example(self, rng: np.random.Generator, length: int) -> Example:
        return self.tokenised(self.text(rng, length))

    @final
    def stored(self, *, seed: int, split: str, length: int | None) -> FixedSet[Example] | None:
        texts = self.stored_texts(seed=seed, split=split, length=length)
        return None if texts is None else FixedSet(texts.n, lambda i: self.tokenised(texts.at(i)))

    @final
    def tokenised(self, text: Text) -> Example:
        """The example [L] that a text makes."""
        if self._last is not None and self._last[0] == text:
            return self._last[1]
        vocabulary = self.vocabulary()
        prompt = vocabulary.encode(text.prompt)
        answer = self._behind(text.prompt, text.answer, prompt)
        tokens = np.array([*self._beginning, *prompt, *answer, vocabulary.end_of_document], dtype=np.int64)
        first = len(self._beginning) + len(prompt)
        output_at = self.output_at(text.answer)
        if output_at is not None:  # as a token of the answer; one that begins before the output belongs to it
            before = zip(answer, self._behind(text.prompt, text.answer[:output_at], prompt), strict=False)
            output_at = first + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], before))
        self._last = text, Example(tokens, np.arange(len(tokens)) >= first, output_at=output_at)
        return self._last[1]

    def _behind(self, prompt: str, answer: str, own: list[int]) -> list[int]:
        """The tokens of an answer, as they are behind the prompt, whose own tokens are given."""
        encode = self.vocabulary().encode
        whole = encode(prompt + answer)
        return whole[len(own) :] if whole[: len(own)] == own else encode(answer)

    def context(self, length: int) -> int:
        """Tokens of the longest example up to this length; without a vocabulary bytes, as no tokenizer makes more.

        Where texts are drawn, some are, and the longest is taken a little longer: others may be still longer.
        """
        texts, factor = self.longest_texts(length)
        if self._vocabulary is None:
            return round(factor * max(len("".join(text).encode()) + BESIDE for text in texts))
        return round(factor * max(len(self.tokenised(text).tokens) for text in texts))

    def check_is_read(self) -> None:
        """UserError where the tokenizer cannot read an example in training, or most of it."""
        vocabulary, example = self.vocabulary(), self.example(np.random.default_rng(0), self.train_lengths[0])
        check_known(example.tokens, unknown_token(vocabulary.tokenizer, vocabulary.end_of_document), "the task")

    @final
    def training_texts(self) -> Iterator[str]:
        """Whole texts as training has them, for a tokenizer that learns."""
        stored = self.stored_texts(seed=0, split="train", length=None)
        if stored is not None:
            return ("".join(stored.at(i)) for i in range(min(stored.n, TEXTS_TO_LEARN_FROM)))
        rng = np.random.default_rng(0)
        return ("".join(self.text(rng, self.train_length(rng))) for _ in range(TEXTS_TO_LEARN_FROM))

    @final
    def identity(self) -> str:
        return fingerprint(
            task=type(self).__name__,
            origin=self.origin(),
            train_lengths=self.train_lengths,
            train_examples=self.train_examples,
        )


def beginning(vocabulary: Vocabulary) -> list[int]:
    """The special tokens that a tokenizer puts before a text, or the token that ends a document where it puts none.

    None of a model that was trained on documents which do not see each other: there it stands before no text.
    """
    if vocabulary.documents_apart:
        return []
    encoded = vocabulary.tokenizer.encode("a", add_special_tokens=True)
    special = itertools.takewhile(lambda pair: pair[1], zip(encoded.ids, encoded.special_tokens_mask, strict=True))
    return [token for token, _ in special] or [vocabulary.end_of_document]
