"""No positional encoding."""

from __future__ import annotations

from typing import final

from roundround.pe.base import PositionalEncoding


@final
class NoPE(PositionalEncoding):
    """Adds nothing, so the model learns the order of the tokens only through the causal mask.

    logit = q . k

    Kazemnejad et al. 2023, arXiv:2305.19466.
    """
