"""What a text costs a model at several context lengths, and the dispersion of the attention that led to it.

Tested by tests/training/test_eval.py, tests/asking/test_eval_pretrained.py and tests/test_api.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from roundround.asking.reader import Reader
from roundround.distributed.peers import Peers
from roundround.model.decoder import Decoder
from roundround.model.scoring import PositionLoss
from roundround.probing.dispersion import Dispersion, watched
from roundround.support.errors import UserError


def check_dispersion(dispersion: bool, *, separate: bool) -> None:
    """UserError for the dispersion of separate documents: rows are counted by their position in the window."""
    if separate and dispersion:
        raise UserError(
            "dispersion=true reads windows as one text, and here documents do not see each other; look at "
            "the documents with roundround probe, or give data= with data.separate_documents=false"
        )


def check_lengths(decoder: Decoder, n_tokens: int, what: str, pe: str | None) -> None:
    """Raises UserError where the encoding has fewer positions than `n_tokens`, which `what` asks for."""
    longest = decoder.longest()
    if longest is not None and n_tokens > longest:
        raise UserError(
            f"pe={pe} has {longest} positions and {what} asks for more; "
            "evaluate at a smaller length, or train with more positions"
        )


def first_tokens_of(reader: Reader, lengths: Sequence[int]) -> dict[int, int | None]:
    """The token in front of the windows of each length. UserError where there is too little text."""
    reader.check(max(lengths))
    return {length: reader.first_token(length) for length in sorted(set(lengths))}


def measure(
    reader: Reader, first_tokens: Mapping[int, int | None], *, dispersion: bool
) -> tuple[dict[int, PositionLoss], dict[int, Dispersion]]:
    """Losses at each length, and where asked for the dispersion of the attention that led to them.

    The targets are the same at all lengths: every token of the stream but the first, or the first max_tokens of them.
    """
    losses, dispersions = {}, {}
    for length, first in first_tokens.items():
        n_keys, model = length + (first is not None), reader.scored_model(first)
        with watched(model, n_keys) if dispersion else nullcontext() as seen:
            losses[length] = reader.loss(length, first)
        if seen is not None:
            dispersions[length] = of_all(seen, reader.peers)
    return losses, dispersions


def of_all(own: Dispersion, peers: Peers) -> Dispersion:
    """One process's dispersion with those of the others added."""
    sums = peers.gather((own.sums_LHN, own.n_rows_LN))
    own.add_all(theirs for rank, theirs in enumerate(sums) if rank != peers.rank)
    return own
