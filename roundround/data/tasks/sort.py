"""Sort."""

from __future__ import annotations

from typing import final

import numpy as np

from roundround.data.tasks.base import Ids, Rearrangement


@final
class Sort(Rearrangement):
    """Sorts a sequence of symbols, repeated ones included.

    <bos> x_1 .. x_n <sep> sorted(x_1 .. x_n) <eos>, every x drawn evenly; length is n

    Vasylenko et al. 2025, arXiv:2506.16640; Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    def answer(self, x: Ids) -> Ids:
        return np.sort(x)
