"""Passkey."""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.data.tasks.base import BOS, FIRST, Example, Ids, Lengths, Task, check_range, nats_of_order, numbered

FILLER = "the grass is green . the sky is blue . the sun is yellow . here we go . there and back again ."
BEFORE, BETWEEN, AFTER = "the pass key is", ". remember it .", "is the pass key ."
QUESTION = "what is the pass key ? the pass key is"
WORDS = list(dict.fromkeys(f"{FILLER} {BEFORE} {BETWEEN} {AFTER} {QUESTION}".split()))
DIGIT = FIRST + len(WORDS)


def ids_of(text: str) -> Ids:
    return np.array([FIRST + WORDS.index(word) for word in text.split()])


@final
class Passkey(Task):
    """Finds the number that one sentence gives in a long filler text.

    <bos> filler "the pass key is" D ". remember it ." D "is the pass key ." filler question D; length is all tokens

    The words of Mohtashami and Jaggi 2023, arXiv:2305.16300, a token each, without the instruction to a pretrained
    model; the question is "what is the pass key ? the pass key is". D has `n_digits` digits, drawn evenly, and is
    scored where it is asked for. The filler starts again after the sentence, as in the authors' code.
    """

    def __init__(
        self, *, n_digits: int, train_lengths: Lengths, train_examples: int | None, validation_examples: int
    ) -> None:
        check_range("n_digits", n_digits, 1)
        self.filler, self.question = ids_of(FILLER), ids_of(QUESTION)
        self.sentence = ids_of(BEFORE), ids_of(BETWEEN), ids_of(AFTER)
        self.shortest = 1 + sum(map(len, self.sentence)) + len(self.question) + 3 * n_digits
        super().__init__(
            symbols=[*WORDS, *numbered(10)],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_digits = n_digits

    def example(self, rng: np.random.Generator, length: int) -> Example:
        key = DIGIT + rng.integers(10, size=self.n_digits)
        n_filler = length - self.shortest
        n_before = rng.integers(n_filler + 1)
        before, after = np.resize(self.filler, n_before), np.resize(self.filler, n_filler - n_before)
        start, middle, end = self.sentence
        tokens = np.concatenate([[BOS], before, start, key, middle, key, end, after, self.question, key])
        return Example(tokens, np.arange(length) >= length - self.n_digits)

    def guessing_nats(self, example: Example) -> float:
        """One of the digits that have not been repeated yet."""
        return nats_of_order(example.tokens[example.scored])
