"""Copy."""

from __future__ import annotations

from typing import final

from roundround.data.tasks.base import Ids, Rearrangement


@final
class Copy(Rearrangement):
    """Copies a sequence of symbols.

    <bos> x_1 .. x_n <sep> x_1 .. x_n <eos>, every x drawn evenly; length is n

    Kazemnejad et al. 2023, arXiv:2305.19466; Vasylenko et al. 2025, arXiv:2506.16640.
    """

    def answer(self, x: Ids) -> Ids:
        return x
