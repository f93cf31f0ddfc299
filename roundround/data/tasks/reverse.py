"""Reverse."""

from __future__ import annotations

from typing import final

from roundround.data.tasks.base import Ids, Rearrangement


@final
class Reverse(Rearrangement):
    """Writes a sequence of symbols in reverse order.

    <bos> x_1 .. x_n <sep> x_n .. x_1 <eos>, every x drawn evenly; length is n

    Vasylenko et al. 2025, arXiv:2506.16640; Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    def answer(self, x: Ids) -> Ids:
        return x[::-1]
