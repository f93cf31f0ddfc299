"""Flip-flop language."""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.data.tasks.base import BOS, FIRST, Example, Lengths, Task, check_range

WRITE, READ, IGNORE = range(3)
SYMBOLS = ["w", "r", "i", "0", "1"]
ZERO = FIRST + SYMBOLS.index("0")


@final
class FlipFlop(Task):
    """Remembers one bit: after an instruction to read comes the bit that was last written.

    <bos> w b_1 c_2 b_2 .. r b_n, c = w, r or i, b drawn evenly except after r; length is 2n, odd ones are rounded down

    Liu et al. 2023, arXiv:2306.00946, definition 1: the first instruction writes, the last one reads, the others write
    and read with `p_write` and `p_read` and ignore their bit otherwise. FFL(p) has p_write = p_read = (1 - p) / 2: p is
    0.8 in training, 0.98 in the sparse test, 0.1 in the dense one. The bits after r are scored; their error rate is the
    paper's. Vasylenko et al. 2025, arXiv:2506.16640, read once, at the end: p_read = 0.
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
        check_range("p_write", p_write, 0, 1)
        check_range("p_read", p_read, 0, 1)
        check_range("p_write + p_read", round(p_write + p_read, 12), 0, 1)
        super().__init__(
            symbols=SYMBOLS,
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
        """One of the bits that have been written."""
        instructions, bits = example.tokens[1::2] - FIRST, example.tokens[2::2] - ZERO
        writes, reads = instructions == WRITE, instructions == READ
        alike = np.where(bits == 1, (writes & (bits == 1)).cumsum(), (writes & (bits == 0)).cumsum())
        return float(-np.log((alike / writes.cumsum())[reads]).sum())
