"""The figures of max retrieval: accuracy and dispersion against the number of items, heat maps, the fit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roundround.analysis.intervals import half_width
from roundround.papers.max_retrieval import PAPER, SECOND_HAND
from roundround.report.figures import BLUE, GREY, RED, SHADE, colour_map, save, subplots
from roundround.report.max_retrieval_tables import ADAPTIVE, BASELINE, Array, Measured, shown_name
from roundround.softmax.adaptive_temperature import PUBLISHED, inverse_temperature

MARKERS = "o^svDPX*<>"


def accuracy(measured: Measured, folder: Path) -> list[Path]:
    """Accuracy against the number of items, with 95 % intervals, and the paper's, ringed where it is second-hand."""
    figure, axis = subplots(figsize=(7.0, 4.2))
    for name, style in styles(measured).items():
        values = measured.accuracy(name)
        mean, half = values.mean(0), np.nan_to_num(half_width(values))
        label = shown_name(name, measured.distinct()[name])
        axis.plot(measured.sizes, mean, label=label, **style)
        axis.fill_between(measured.sizes, mean - half, mean + half, color=style["color"], alpha=0.18, linewidth=0)
    in_paper = [n for n in measured.sizes if n in PAPER]
    for place, (label, dashes) in enumerate((("paper: softmax", "--"), ("paper: adaptive", ":"))):
        axis.plot(in_paper, [PAPER[n][place] for n in in_paper], dashes, color="black", linewidth=1.1, label=label)
    ringed = [n for n in in_paper if n in SECOND_HAND]
    if ringed:
        rings = [(n, accuracy) for n in ringed for accuracy in PAPER[n]]
        ring = {"markerfacecolor": "white", "markeredgecolor": "black", "markersize": 4.5, "markeredgewidth": 0.9}
        axis.plot(*zip(*rings, strict=True), "o", **ring, label="paper: second-hand")
    over_items(axis, measured.sizes, "accuracy (%)")
    axis.set_ylim(0, 101)
    axis.legend(frameon=False, fontsize="small", loc="upper right")
    return save(figure, folder, "accuracy")


def dispersion(measured: Measured, folder: Path) -> list[Path]:
    """Entropy and largest weight against the number of items, beside the bounds of Lemma 2.1 at temperature 1."""
    figure, (left, right) = subplots(1, 2, figsize=(10.5, 4.0))
    n = np.array(measured.sizes, dtype=float)
    for name, style in styles(measured).items():
        for axis, metric in ((left, "entropy"), (right, "largest_weight")):
            label = shown_name(name, measured.distinct()[name])
            axis.plot(n, measured.values[name][metric].mean(0), label=label, **style)
    spread = measured.of_logits["logit_spread"].mean(0)
    left.plot(n, np.log(n), "--", color=GREY, label="uniform: ln n, 1 / n")
    right.plot(n, 1 / n, "--", color=GREY)
    bound = {"color": "black", "linestyle": ":", "label": "Lemma 2.1, for the plain softmax"}
    left.plot(n, measured.of_logits["entropy_bound"].mean(0), **bound)
    right.plot(n, measured.of_logits["largest_weight_bound"].mean(0), **bound)
    over_items(left, measured.sizes, "mean entropy of the weights (nats)")
    over_items(right, measured.sizes, "mean largest weight")
    right.set_ylim(bottom=0)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize="small", loc="outside right center")
    figure.suptitle(
        f"logit spread {spread[0]:.0f} at {measured.sizes[0]:,} items, {spread[-1]:.0f} at {measured.sizes[-1]:,}"
    )
    return save(figure, folder, "dispersion")


def heat_maps(by_size: Mapping[int, Array], name: str, folder: Path) -> list[Path]:
    """A frame for each size: rows are sets, columns their items of highest priority, the highest on the right."""
    n_columns = min(6, len(by_size))
    n_rows = -(-len(by_size) // n_columns)
    figure, axes = subplots(n_rows, n_columns, figsize=(1.75 * n_columns + 0.6, 3.0 * n_rows + 0.4), squeeze=False)
    for axis in axes.flat[len(by_size) :]:
        axis.set_visible(False)
    image: Any = None
    for axis, (n, weights) in zip(axes.flat, by_size.items(), strict=False):
        image = axis.imshow(weights, vmin=0, vmax=1, cmap="viridis", aspect="auto", interpolation="nearest")
        axis.set_title(f"{n:,} items", fontsize="small")
        axis.set_xticks([])
        axis.set_yticks([])
    axes[0, 0].set_ylabel("sets")
    axes[-1, 0].set_xlabel("items by priority")
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.6)
    figure.suptitle(f"{name}: weights of the items of highest priority")
    return save(figure, folder, f"attention_{name}")


def temperature_fit(points: Array, coefficients: Sequence[float], sizes: Sequence[int], folder: Path) -> list[Path]:
    """The points, the polynomial fitted to them, the published one and where that sharpens."""
    figure, axis = subplots(figsize=(6.4, 4.2))
    entropy, beta = points.T
    grid = np.linspace(0, max(6.2, float(entropy.max())), 400)
    active = grid[inverse_temperature(torch.from_numpy(grid)).numpy() > 1]
    axis.axvspan(active[0], active[-1], color=SHADE, zorder=0, label="the published one sharpens")
    axis.plot(entropy, beta, ".", color=GREY, markersize=2, alpha=0.35, rasterized=True, label="best for one input")
    axis.plot(grid, np.polyval(PUBLISHED, grid), color=RED, label="published polynomial")
    held = np.polyval(coefficients, grid.clip(entropy.min(), entropy.max()))  # at its ends beyond the points
    axis.plot(grid, held, color=BLUE, label="fitted here")
    axis.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axis.set(xlabel="entropy at temperature 1 (nats)", ylabel="inverse temperature", ylim=(0, np.quantile(beta, 0.98)))
    axis.set_title(f"{len(points):,} misordered inputs of {sizes[0]:,} to {sizes[-1]:,} items", fontsize="medium")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(facecolor="white", framealpha=1, edgecolor="white", fontsize="small")  # so that the shade shows in it
    return save(figure, folder, "temperature_fit")


def styles(measured: Measured) -> dict[str, dict[str, Any]]:
    """How the line of each normaliser is drawn; one of those that are alike, because only the upper one would be seen.

    Blue for the plain softmax, red for the adaptive temperature, eight more, then grey; a marker for each, because
    print may have no colours.
    """
    distinct = measured.distinct()
    others = [name for name in distinct if name not in (BASELINE, ADAPTIVE)]
    shades = dict(zip(others, colour_map("Dark2")(range(8)), strict=False))
    colours = {BASELINE: BLUE, ADAPTIVE: RED, **shades}
    return {
        name: {"color": colours.get(name, GREY), "marker": marker, "markersize": 4, "linewidth": 1.4}
        for name, marker in zip(distinct, itertools.cycle(MARKERS), strict=False)
    }


def over_items(axis: Any, sizes: Sequence[int], label: str) -> None:
    """The axis over the number of items, which doubles."""
    axis.set(xscale="log", xlabel="items", ylabel=label)
    axis.set_xticks(sizes, [f"{n:,}" for n in sizes], rotation=45, fontsize="small")
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
