"""What encodings and normalisers share: bases whose variants are final, checks of numbers, and a part of the heads.

A part of the heads is named by its share, the last ones, as NAPE leaves those without position.
Shapes: B batch, Q queries, H heads, S heads of the part.

Tested by tests/pe/test_pe_contract.py, tests/softmax/test_normalisers.py and tests/softmax/test_scaled_heads.py.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


class FinalVariants:
    """Base of bases: a class that derives from one marked `@final` raises TypeError when it is defined.

    Exports, checks and patches recognise a variant by its type, and would take an instance of the subclass for it.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for final in cls.__mro__[1:]:
            if "__final__" in vars(final):
                bases = [base.__name__ for base in final.__mro__[1:] if FinalVariants in base.__mro__[1:]]
                raise TypeError(
                    f"{cls.__name__} derives from {final.__name__}, which is final and for which it would be taken: "
                    f"derive it from {' or '.join(bases)}, give it a {final.__name__} as an attribute, and call that"
                )


def checked_finite(**values: float) -> None:
    """Raises ValueError for the first value that is not a finite number."""
    for name, value in values.items():
        if not abs(value) < float("inf"):
            raise ValueError(f"{name}={value} must be a finite number")


def checked_positive(**values: float) -> None:
    """Raises ValueError for the first value that is not a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value} must be a finite number above 0")


def n_last_heads(n_heads: int, share: float) -> int:
    """Number of heads in a share of them, rounded up."""
    return math.ceil(share * n_heads - 1e-9)  # 0.7 * 10 is a little above 7


def n_scaled_heads(n_heads: int, scaled_heads: float | None) -> int:
    """Number of heads that a normaliser scales; None means all. Raises ValueError for what is no share."""
    if scaled_heads is None:
        return n_heads
    if not 0 < scaled_heads <= 1:
        raise ValueError(
            f"scaled_heads={scaled_heads} must be a share of the heads, above 0 and at most 1, or null for all"
        )
    return n_last_heads(n_heads, scaled_heads)


def of_all_heads(scale_BSQ1: Tensor, n_heads: int) -> Tensor:
    """The scale of all heads [B, H, Q, 1] from that of the last ones; the heads before have exactly 1."""
    n_plain = n_heads - scale_BSQ1.shape[1]
    return F.pad(scale_BSQ1, (0, 0, 0, 0, n_plain, 0), value=1.0) if n_plain else scale_BSQ1
