"""How far a number may be off by rounding alone, whatever CPU computes it: what tests of numbers allow."""

from __future__ import annotations

import math

import torch


def rounding(n: int = 1, size: float = 1.0, dtype: torch.dtype = torch.float32) -> float:
    """Four units in the last place of `size`, times the square root of the n roundings behind the number.

    n: the length of the sum, or of all sums one after the other. size: the largest number among them. Kinds of CPU and
    numbers of threads add in different orders, and the errors of n roundings add up as a random walk does (Higham 2002,
    Accuracy and Stability of Numerical Algorithms, section 2.8), of which this is eight standard deviations.
    """
    return 4 * torch.finfo(dtype).eps * size * math.sqrt(n)
