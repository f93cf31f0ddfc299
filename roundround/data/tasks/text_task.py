"""A text task: prompts and answers, which the run's tokenizer turns into tokens.

Shapes: L tokens of an example.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self, final

import numpy as np

from roundround.data.corpora import fingerprint
from roundround.data.tasks.base import Example, FixedSet, Task
from roundround.data.tokenizers import Vocabulary, check_known, unknown_token

TEXTS_TO_LEARN_FROM = 4096  # the most texts from which a tokenizer is learnt


class Text(NamedTuple):
    """A prompt and its answer; the whole text is their concatenation."""

    prompt: str
    answer: str


class TextTask(Task):
    """A task without symbols of its own. An example is <beginning> prompt answer <end>; answer and <end> are scored.

    Examples can be drawn after `with_vocabulary`. The prompt is tokenised alone, as in greedy decoding. Then prompt and
    answer are tokenised together. If the result begins with the tokens of the prompt, the rest are the tokens of the
    answer; otherwise the answer is tokenised alone, and SentencePiece puts a space before it. <end> is the token that
    ends a document. <beginning> is what the tokenizer puts before a text, or else <end> (see `beginning`).
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
        self._last: tuple[Text, Example] | None = None  # so that a text is not tokenised again after it was measured

    @abstractmethod
    def text(self, rng: np.random.Generator, length: int) -> Text:
        """One prompt of this length with its answer; all its randomness comes from `rng`."""

    @abstractmethod
    def origin(self) -> object:
        """Everything that determines the texts, apart from the parameters of `Task`, in values that fit into JSON."""

    def output_at(self, answer: str) -> int | None:
        """The index of the first character of an answer's output; None if no intermediate steps precede the output."""
        return None

    def stored_texts(self, *, seed: int, split: str, length: int | None) -> FixedSet[Text] | None:
        """The texts of a split if the task has a fixed set of texts, else None. The arguments are as for `stored`."""
        return None

    def with_vocabulary(self, vocabulary: Vocabulary) -> Self:
        """A copy of the task that has this vocabulary, and so can draw examples."""
        return self.with_values(_vocabulary=vocabulary, _beginning=beginning(vocabulary), _last=None)

    @final
    def vocabulary(self) -> Vocabulary:
        assert self._vocabulary is not None, "a task of text has no vocabulary before with_vocabulary"
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
        """The example [L] of a text."""
        if self._last is not None and self._last[0] == text:
            return self._last[1]
        vocabulary = self.vocabulary()
        prompt = vocabulary.encode(text.prompt)
        answer = self._behind(text.prompt, text.answer, prompt)
        tokens = np.array([*self._beginning, *prompt, *answer, vocabulary.end_of_document], dtype=np.int64)
        first = len(self._beginning) + len(prompt)
        output_at = self.output_at(text.answer)
        if output_at is not None:  # a token that holds the first character of the output belongs to the output
            before = zip(answer, self._behind(text.prompt, text.answer[:output_at], prompt), strict=False)
            output_at = first + sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], before))
        self._last = text, Example(tokens, np.arange(len(tokens)) >= first, output_at=output_at)
        return self._last[1]

    def _behind(self, prompt: str, answer: str, own: list[int]) -> list[int]:
        """The tokens of an answer that follows a prompt. own: the tokens of the prompt alone."""
        encode = self.vocabulary().encode
        whole = encode(prompt + answer)
        return whole[len(own) :] if whole[: len(own)] == own else encode(answer)

    def check_is_read(self) -> None:
        """Raises UserError if most tokens of a training example are unknown to the tokenizer."""
        vocabulary, example = self.vocabulary(), self.example(np.random.default_rng(0), self.train_lengths[0])
        check_known(example.tokens, unknown_token(vocabulary.tokenizer, vocabulary.end_of_document), "the task")

    @final
    def training_texts(self) -> Iterator[str]:
        """Prompts with their answers, as in training, from which a tokenizer can be learnt."""
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
    """The special tokens that a tokenizer puts before a text; if it puts none there, the token that ends a document.

    The list is empty for a model that was trained on separate documents: there, no token precedes a text.
    """
    if vocabulary.documents_apart:
        return []
    encoded = vocabulary.tokenizer.encode("a", add_special_tokens=True)
    special = itertools.takewhile(lambda pair: pair[1], zip(encoded.ids, encoded.special_tokens_mask, strict=True))
    return [token for token, _ in special] or [vocabulary.end_of_document]
