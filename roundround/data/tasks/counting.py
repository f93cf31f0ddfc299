"""Tasks that carry a number or a bit along the sequence: sums, counts, the bit that was last written.

Tested by tests/data/tasks/test_counting.py.
"""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.data.tasks.base import BOS, FIRST, SEP, Example, Ids, Lengths, Task, asked, check_range, numbered

PLUS = FIRST + 10  # in Addition
WRITE, READ, IGNORE = range(3)  # in FlipFlop; the symbols of the two bits follow
ZERO = FIRST + 3


@final
class Addition(Task):
    """Adds two numbers, digit by digit.

    <bos> a + b <sep> (a + b) <eos>, each digit a token; length is the number of digits of the longer number

    Kazemnejad et al. 2023, arXiv:2305.19466, without the paper's words around the numbers. The shorter number has 1 to
    `length` digits, drawn evenly. The order of the two numbers is drawn too. Only 0 itself begins with 0.
    reverse_answer: whether the sum begins with its last digit (Lee et al. 2023, arXiv:2307.03381). reverse_operands:
    whether both numbers begin with their last digits (Zhou et al. 2024, arXiv:2402.09371, use both options).
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
    """The digits of a random number, last digit first. A number of several digits does not begin with 0."""
    digits = rng.integers(10, size=n_digits)
    if n_digits > 1:
        digits[-1] = rng.integers(1, 10)
    return digits


def added(longer: Ids, shorter: Ids) -> Ids:
    """The digits of the sum of two numbers; the last digit comes first in all three.

    A position whose two digits have the sum 9 passes on the carry that it receives. All other positions send a carry to
    the left exactly if the sum of their digits is at least 10. Hence the nearest sum that is not 9, at a position or
    to its right, determines whether the position sends a carry.
    """
    sums = longer.copy()
    sums[: len(shorter)] += shorter
    decides = np.maximum.accumulate(np.where(sums != 9, np.arange(len(sums)), -1))
    carries = (sums[decides] >= 10) & (decides >= 0)
    digits = np.append(sums, 0)
    digits[1:] += carries
    digits %= 10
    return digits if carries[-1] else digits[:-1]


@final
class Parity(Task):
    """Says whether the number of ones among the bits is even.

    <bos> b_1 .. b_n <sep> even|odd, every b drawn evenly; length is n

    Kazemnejad et al. 2023, arXiv:2305.19466, without the paper's words around the bits. There are only 2^n examples of
    n bits. So for 1 to 4 bits a split can have no example of its own; it then uses examples of other splits, and the
    number of such examples is reported.
    """

    def __init__(self, *, train_lengths: Lengths, train_examples: int | None, validation_examples: int) -> None:
        super().__init__(
            symbols=["0", "1", "even", "odd"],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )

    def example(self, rng: np.random.Generator, length: int) -> Example:
        bits = rng.integers(2, size=length)
        return asked(FIRST + bits, FIRST + 2 + bits.sum(keepdims=True) % 2, end=False)


@final
class LocalCount(Task):
    """Counts the repetitions of the current symbol.

    <bos> x_1 .. x_1 <sep> r_1 x_2 .. x_2 <sep> r_2 .., r_i times x_i, x_i not x_(i-1); length is the sum of all r_i

    Vasylenko et al. 2025, arXiv:2506.16640. In the paper the sequence has no counts, and the model predicts at every
    symbol how often the symbol has occurred so far in its run. Here the sequence contains a count only at the end of
    each run, because a count after every symbol would reveal the next count. r_i is drawn evenly from 2 to
    `longest_run`, and x_i from `n_symbols` symbols. The last run is cut so that the length is exact.
    """

    shortest = 2

    def __init__(
        self,
        *,
        n_symbols: int,
        longest_run: int,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        super().__init__(
            symbols=[*map(str, range(1, longest_run + 1)), *numbered(n_symbols, before="x")],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.n_symbols, self.longest_run = n_symbols, longest_run

    def example(self, rng: np.random.Generator, length: int) -> Example:
        ends = rng.integers(2, self.longest_run + 1, size=length // 2 + 1).cumsum()
        ends = ends[: np.searchsorted(ends, length) + 1]
        ends[-1] = length
        runs = ends.copy()
        runs[1:] -= ends[:-1]
        steps = rng.integers(1, self.n_symbols, size=len(runs))  # never 0: no two neighbours are the same
        steps[0] += rng.integers(self.n_symbols)
        x = FIRST + self.longest_run + steps.cumsum() % self.n_symbols
        answers = ends + 2 * np.arange(1, len(runs) + 1)
        tokens = np.full(answers[-1] + 1, BOS)
        tokens[1:] = x.repeat(runs + 2)
        tokens[answers - 1], tokens[answers] = SEP, FIRST - 1 + runs
        scored = np.zeros(len(tokens), dtype=np.bool_)
        scored[answers] = True
        return Example(tokens, scored)

    def context(self, length: int) -> int:
        return 1 + length + 2 * -(-length // 2)  # reached if every run is a pair


@final
class NBack(Task):
    """At every symbol, names the symbol a fixed number of places before it.

    <bos> x_1 y_1 .. x_n y_n, y_t = x_(t - steps), or "." if t <= steps; length is n, every x drawn evenly

    Vasylenko et al. 2025, arXiv:2506.16640 (2Back), where y_t is predicted at x_t and is not in the sequence.
    """

    def __init__(
        self,
        *,
        n_symbols: int,
        steps: int,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        self.shortest = steps + 1
        super().__init__(
            symbols=[".", *numbered(n_symbols)],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.steps = steps

    def example(self, rng: np.random.Generator, length: int) -> Example:
        tokens = np.full(2 * length + 1, FIRST)
        tokens[0] = BOS
        tokens[1::2] = FIRST + rng.integers(1, len(self.symbols), size=length)
        tokens[2 * self.steps + 2 :: 2] = tokens[1 : -2 * self.steps : 2]
        scored = np.zeros(len(tokens), dtype=np.bool_)
        scored[2::2] = True
        return Example(tokens, scored)

    def guessing_nats(self, example: Example) -> float:
        """At each target the guesser names one of the `steps` + 1 most recent symbols."""
        recent = np.lib.stride_tricks.sliding_window_view(example.tokens[1::2], self.steps + 1)
        alike = (recent == recent[:, :1]).sum(1)  # the first of the recent symbols is the answer
        return float(-np.log(alike / (self.steps + 1)).sum())


@final
class FlipFlop(Task):
    """Remembers one bit: after an instruction to read comes the bit that was last written.

    <bos> w b_1 c_2 b_2 .. r b_n, c = w, r or i, b drawn evenly except after r; length is 2n, odd ones are rounded down

    Liu et al. 2023, arXiv:2306.00946, definition 1. The first instruction writes (w) and the last one reads (r). Every
    other instruction writes with probability `p_write`, reads with probability `p_read`, and otherwise ignores its bit
    (i). The paper's FFL(p) has p_write = p_read = (1 - p) / 2, where p is 0.8 in training, 0.98 in the sparse test and
    0.1 in the dense test. As in the paper, the error rate is that of the bits after r, which are scored. In Vasylenko
    et al. 2025, arXiv:2506.16640, only the last instruction reads: p_read = 0.
    """

    shortest = 4

    def __init__(
        self,
        *,
        p_write: float,
        p_read: float,
        train_lengths: Lengths,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        check_range("p_write + p_read", round(p_write + p_read, 12), 0, 1)
        super().__init__(
            symbols=["w", "r", "i", "0", "1"],
            train_lengths=train_lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.p_write, self.p_read = p_write, p_read

    def example(self, rng: np.random.Generator, length: int) -> Example:
        n = length // 2
        u = rng.random(n)
        instructions = (u >= self.p_write).astype(np.int64) + (u >= self.p_write + self.p_read)
        instructions[0], instructions[-1] = WRITE, READ
        reads = instructions == READ
        last_write = np.maximum.accumulate(np.where(instructions == WRITE, np.arange(n), 0))
        bits = rng.integers(2, size=n)
        bits[reads] = bits[last_write[reads]]
        tokens = np.full(2 * n + 1, BOS)
        tokens[1::2], tokens[2::2] = FIRST + instructions, ZERO + bits
        scored = np.zeros(len(tokens), dtype=np.bool_)
        scored[2::2] = reads
        return Example(tokens, scored)

    def guessing_nats(self, example: Example) -> float:
        """At each read the guesser names one of the bits written so far."""
        instructions, bits = example.tokens[1::2] - FIRST, example.tokens[2::2] - ZERO
        writes, reads = instructions == WRITE, instructions == READ
        alike = np.where(bits == 1, (writes & (bits == 1)).cumsum(), (writes & (bits == 0)).cumsum())
        return float(-np.log((alike / writes.cumsum())[reads]).sum())
