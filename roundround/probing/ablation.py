"""Sets bands of frequencies to zero at inference (p-RoPE without training) and measures the loss of the changed model.

Losses are means over ranges of positions; a mean over fewer than FEWEST targets is marked with FEW.
Shapes: B batch, T tokens, P pairs.

Tested by tests/probing/test_probe.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roundround.model.scoring import FEWEST, PositionLoss, n_targets
from roundround.probing.probe import batches, check_texts
from roundround.probing.probed_model import ProbedModel, filled_up
from roundround.support.errors import UserError

FEW = "*"  # marks a number from fewer than FEWEST targets


def mark(loss: PositionLoss, first: int = 0, last: int | None = None) -> str:
    """The text to print after a mean over positions: FEW if these positions hold fewer than FEWEST targets, else ""."""
    return "" if n_targets(loss, first, last) >= FEWEST else f" {FEW}"


ENDS = ("lowest", "highest")


@dataclass(frozen=True)
class Band:
    """A fraction of the rotated pairs, namely those with the `lowest` or those with the `highest` frequencies."""

    end: str
    fraction: float

    def __str__(self) -> str:
        return f"{self.end}:{self.fraction:g}"


def parse_band(text: str) -> Band:
    """The band that a text such as `lowest:0.25` names. Raises UserError if the text has another form."""
    end, colon, number = str(text).partition(":")
    try:
        fraction = float(number)
    except ValueError:
        fraction = math.nan
    if end not in ENDS or not colon or not 0 < fraction <= 1:
        raise UserError(
            f"ablate={text} is no band of frequencies; write lowest:FRACTION or highest:FRACTION (above 0, up to 1), "
            "or curve"
        )
    return Band(end, fraction)


def without(table_P: Tensor, bands: Sequence[Band]) -> Tensor:
    """The frequencies in `table_P`, but 0 in the bands; the fraction of a band counts only pairs that rotate."""
    rotated = torch.nonzero(table_P > 0)[:, 0]
    by_speed = rotated[table_P[rotated].argsort(descending=True)]  # fastest first
    left = table_P.clone()
    for band in bands:
        n = math.ceil(band.fraction * len(by_speed) - 1e-9)  # rounded up, because p-RoPE rounds down what it keeps
        left[by_speed[len(by_speed) - n :] if band.end == "lowest" else by_speed[:n]] = 0.0
    return left


@torch.no_grad()
def text_loss(
    probed: ProbedModel,
    texts: Sequence[Sequence[int]],
    *,
    batch_tokens: int,
    scored: Sequence[Sequence[bool]] | None = None,
) -> PositionLoss:
    """The loss of texts (token ids), each read by itself. The first token of a text is never a target.

    scored: for each text, True at the tokens that are targets; None for all but the first.
    """
    check_texts(texts)
    loss = PositionLoss(max(map(len, texts)) - 1)
    counted = iter([[True] * len(text) for text in texts] if scored is None else scored)
    for batch in batches(texts, batch_tokens, alike=probed.draws or probed.follows_length):
        tokens_BT = filled_up(batch)
        counted_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        for row, text in enumerate(batch):
            counted_BT[row, : len(text)] = torch.tensor(next(counted))
        loss_BT = probed.token_loss(tokens_BT[:, :-1].to(probed.device), tokens_BT[:, 1:].to(probed.device))
        loss.add(loss_BT, counted_BT[:, 1:])
    return loss


def ablated_loss(probed: ProbedModel, bands: Sequence[Band], measure: Callable[[], PositionLoss]) -> PositionLoss:
    """The loss that `measure` returns while the bands' frequencies are zero in every layer."""
    with probed.with_frequencies([without(table, bands) for table in probed.tables()]):
        return measure()


def curve(n_rotated: int, n_points: int = 8) -> list[Band]:
    """Up to `n_points` bands of lowest frequencies, and as many of highest, for a curve of perplexity over band size.

    The largest band of each kind has all pairs.
    """
    steps = sorted({round(i * n_rotated / min(n_points, n_rotated)) for i in range(1, min(n_points, n_rotated) + 1)})
    return [Band(end, n / n_rotated) for end in ENDS for n in steps]
