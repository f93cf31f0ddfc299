"""No positional encoding."""

from __future__ import annotations

from typing import final

from roundround.pe.base import PositionalEncoding


@final
class NoPE(PositionalEncoding):
    """Adds nothing: what order there is, the causal mask alone provides.

    logit = q . k

    Kazemnejad et al. 2023, arXiv:2305.19466.
    """
