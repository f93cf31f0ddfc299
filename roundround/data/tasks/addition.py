"""Addition."""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.data.tasks.base import FIRST, Example, Ids, Lengths, Task, asked, numbered

PLUS = FIRST + 10


@final
class Addition(Task):
    """Adds two numbers, digit by digit.

    <bos> a + b <sep> (a + b) <eos>, a token each digit; length is the digits of the longer number

    Kazemnejad et al. 2023, arXiv:2305.19466, whose words around the numbers are left out. The shorter number
    has from one digit to as many as the longer, each as likely; the order of the two is drawn too, and only 0 itself
    begins with 0. reverse_answer: the sum begins with its last digit (Lee et al. 2023, arXiv:2307.03381);
    reverse_operands: so do the two numbers (Zhou et al. 2024, arXiv:2402.09371, do both).
    """

    def __init__(
        self,
        *,
        reverse_answer: bool,
        reverse_operands: bool,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        super().__init__(
            symbols=[*numbered(10), "+"],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.reverse_answer, self.reverse_operands = reverse_answer, reverse_operands

    def example(self, rng: np.random.Generator, length: int) -> Example:
        longer, shorter = drawn(rng, length), drawn(rng, int(rng.integers(1, length + 1)))
        a, b = (longer, shorter) if rng.integers(2) else (shorter, longer)
        c = added(longer, shorter)
        if not self.reverse_operands:
            a, b = a[::-1], b[::-1]
        return asked(np.concatenate([FIRST + a, [PLUS], FIRST + b]), FIRST + (c if self.reverse_answer else c[::-1]))

    def context(self, length: int) -> int:
        return 3 * length + 5  # two numbers, a sum with one digit more, and <bos> + <sep> <eos>


def drawn(rng: np.random.Generator, n_digits: int) -> Ids:
    """The digits of a number, the last one first; the first one is not 0 where there are several."""
    digits = rng.integers(10, size=n_digits)
    if n_digits > 1:
        digits[-1] = rng.integers(1, 10)
    return digits


def added(longer: Ids, shorter: Ids) -> Ids:
    """The digits of a sum, of numbers whose last digit is first.

    A digit carries where the nearest digit from it downwards whose sum is not 9 has a sum of at least 10: a sum of 9
    passes a carry on.
    """
    sums = longer.copy()
    sums[: len(shorter)] += shorter
    decides = np.maximum.accumulate(np.where(sums != 9, np.arange(len(sums)), -1))
    carries = (sums[decides] >= 10) & (decides >= 0)
    digits = np.append(sums, 0)
    digits[1:] += carries
    digits %= 10
    return digits if carries[-1] else digits[:-1]
