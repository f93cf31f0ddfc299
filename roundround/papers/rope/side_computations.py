"""The numbers that the paper computes in passing."""

from __future__ import annotations

import math
from typing import ClassVar, final

from roundround.papers.claim import Claim, Curve, Finding, Picture, as_printed, near
from roundround.papers.constructions import HEAD_DIM, THETA, frequencies

LLAMA_HEAD_DIM, LLAMA_THETA = 128, 500_000.0


@final
class SideComputations(Claim):
    """The slow pairs of Gemma and Llama turn as far within a context as the paper says, with one exception.

    128,000 / 10,000 / 2 pi = 2.04 rotations; 8000 g_119 = 1.64, about pi / 2; 10,000^-0.8 = 0.0006; printed
    500,000^(-40/64) = 0.0001 is 0.00027

    Barbero et al. 2024, arXiv:2410.06205, sections 5 and 6 and appendix C.
    """

    title: ClassVar[str] = "numbers in passing"

    def check(self) -> Finding:
        gemma = frequencies().numpy()
        llama = frequencies(LLAMA_HEAD_DIM, LLAMA_THETA).numpy()
        fifths = frequencies(10, THETA).numpy()  # pairs at 10,000^0, ^-0.2, ... ^-0.8
        turn = 2 * math.pi
        comparisons = [
            as_printed("rotations in 128,000 tokens at 1 / theta", 128_000 / THETA / turn, 2.04, 0.005),
            near("rotations in 128,000 tokens of the slowest pair", 128_000 * gemma[-1] / turn, 2.189, 5e-4),
            as_printed("g_119 of Gemma", gemma[118], 2.05e-4, 5e-7),
            as_printed("8,000 g_119", 8000 * gemma[118], 1.64, 0.005),
            as_printed("10,000^-0.8", fifths[4], 0.0006, 5e-5),
            near("500,000^(-40/64), printed as 0.0001", llama[40], 2.74e-4, 5e-7, published=1e-4),
            near("g_97, the first that p = 0.75 leaves out", gemma[96], 1e-3, 1e-12),
            near("pairs that take more than 8,192 tokens for a turn", int((turn / gemma > 8192).sum()), 28, 0),
            near("tokens for a turn of the slowest pair", turn / gemma[-1], 58_470, 1),
            near("radians of the slowest pair in 8,192 tokens", 8192 * gemma[-1], 0.88, 0.005),
            near("radians of g_97 in 8,192 tokens", 8192 * gemma[96], 8.2, 0.05),
        ]
        pairs = [range(1, len(ladder) + 1) for ladder in (gemma, llama)]
        picture = Picture(
            "pair k",
            "radians per token",
            [
                Curve("Gemma: d = 256, theta = 10,000", pairs[0], gemma),
                Curve("Llama 3.1: d = 128, theta = 500,000", pairs[1], llama),
                Curve("g_119 of Gemma, as printed", [119], [2.05e-4], points=True),
                Curve("printed for 40 of 64 pairs of Llama", [41], [1e-4], points=True),
                Curve(f"pi / 2 in {8000:,} tokens", [1, HEAD_DIM // 2], [math.pi / 2 / 8000] * 2),
            ],
            log="y",
        )
        return Finding(comparisons, picture)
