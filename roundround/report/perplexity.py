"""The figure of an evaluation: perplexity against context length, and loss by position in the window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from roundround.model.scoring import PositionLoss
from roundround.report.figures import BLUE, GREY, colour_map, save, subplots


def draw(losses: Mapping[int, PositionLoss], *, train_length: int, title: str, folder: Path) -> list[Path]:
    """Save `folder/perplexity.svg` and `.pdf`, from the loss at each length in tokens."""
    lengths = sorted(losses)
    figure, (left, right) = subplots(1, 2, figsize=(9.0, 3.6))
    left.plot(lengths, [losses[n].perplexity() for n in lengths], "o-", color=BLUE)
    left.set(xscale="log", xlabel="context length (tokens)", ylabel="held-out perplexity")
    left.set_xticks(lengths, [str(n) for n in lengths])
    left.minorticks_off()
    shades = colour_map("viridis")(np.linspace(0.85, 0.1, len(lengths)))
    for n, shade in zip(lengths, shades, strict=True):
        right.plot(*smoothed(losses[n], n), color=shade, label=str(n))
    right.set(xscale="log", xlabel="position in the window (tokens)", ylabel="loss (nats per token)")
    right.legend(title="context length", frameon=False, fontsize="small")
    for axis in (left, right):
        axis.axvline(train_length, color=GREY, linestyle="--", linewidth=1)
        axis.annotate(
            "training context length",
            (train_length, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-3, -3),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            color=GREY,
            fontsize="small",
        )
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    return save(figure, folder, "perplexity")


def smoothed(loss: PositionLoss, length: int) -> tuple[list[float], list[float]]:
    """Means over position ranges that double, (position, loss): single positions are noise."""
    bins = position_bins(length)
    return [math.sqrt((a + 1) * b) for a, b in bins], [loss.token_loss(a, b) for a, b in bins]


def position_bins(length: int) -> list[tuple[int, int]]:
    """Ranges [a, b) of positions, 0..1, 1..2, 2..4, 4..8, ... up to the length."""
    edges = [0, 1]
    while edges[-1] < length:
        edges.append(min(2 * edges[-1], length))
    return list(itertools.pairwise(edges))
