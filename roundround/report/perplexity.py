"""The figure of an evaluation: perplexity against context length, and loss by position in the window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from roundround.model.scoring import PositionLoss
from roundround.probing.ablation import FEWEST, Range, merged, n_targets
from roundround.report.figures import BLUE, GREY, colour_map, save, set_title, subplots, widen


def draw(by_length: Mapping[int, PositionLoss], *, train_length: int, title: str, folder: Path) -> list[Path]:
    """Save `folder/perplexity` as svg, pdf and png; `by_length` maps a length in tokens to the losses by position."""
    lengths = sorted(by_length)
    figure, (left, right) = subplots(1, 2, figsize=(9.8, 3.6))
    left.plot(lengths, [by_length[n].perplexity() for n in lengths], "o-", color=BLUE)
    left.set(xscale="log", xlabel="context length (tokens)", ylabel="held-out perplexity")
    left.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=45 if len(lengths) > 4 else 0)
    left.ticklabel_format(axis="y", useOffset=False)
    left.minorticks_off()
    shades = colour_map("viridis")(np.linspace(0.85, 0.1, len(lengths)))
    for n, shade in zip(lengths, shades, strict=True):
        positions, losses = smoothed(by_length[n])
        right.plot(positions, losses, color=shade, label=f"{n:,}")
    right.set(xscale="log", xlabel="position in the window (tokens)", ylabel="loss (nats per token)")
    right.legend(title="context length", frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    for axis in (left, right):
        widen(axis)
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
    n = max(n_targets(loss) for loss in by_length.values())
    set_title(figure, f"{title}; {n:,} targets, the same at each length{'' if n >= FEWEST else ', too few to tell'}")
    return save(figure, folder, "perplexity")


def smoothed(loss: PositionLoss) -> tuple[list[float], list[float]]:
    """Means over position ranges that double, (position, loss): single positions are noise."""
    bins = position_bins(loss)
    return [math.sqrt((a + 1) * b) for a, b in bins], [loss.token_loss(a, b) for a, b in bins]


def position_bins(loss: PositionLoss) -> list[Range]:
    """Ranges [a, b) of positions, 0..1, 1..2, 2..4, 4..8, ... up to the length; those with few targets are merged."""
    edges = [0, 1]
    while edges[-1] < len(loss.sum_T):
        edges.append(min(2 * edges[-1], len(loss.sum_T)))
    return merged(list(itertools.pairwise(edges)), loss)
