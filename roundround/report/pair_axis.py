"""The axis of channel pairs down a picture: their wavelengths, and where the training context ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundround.probing.layout import Layout, same
from roundround.report.probe_tables import shown_wavelength

KINDS_NAMED = 2  # layouts whose wavelengths fit side by side
LAYERS_NAMED = 4


def name_pairs(
    axis: Any, n_pairs: int, layouts: Sequence[Layout], contexts: Sequence[int], strongest: int | None = None
) -> None:
    """Pairs down the axis with their wavelengths, the strongest among them; dashed where the context ends.

    layouts, contexts: the pairs of each column and the tokens that it sees, or one of both for all; none for vectors to
    which RoPE is not applied. Where columns differ, the wavelengths of both kinds stand side by side.
    """
    ticks = {0, n_pairs - 1, *range(0, n_pairs, max(1, n_pairs // 4))}
    if strongest is not None:
        ticks = {tick for tick in ticks if abs(tick - strongest) >= n_pairs / 16} | {strongest}
    kinds = kinds_of(layouts)
    if not 1 <= len(kinds) <= KINDS_NAMED:
        axis.set(yticks=sorted(ticks), ylabel="pair")
    else:
        names = [
            f"{tick}: " + " | ".join(wavelength_if_any(layouts[columns[0]], tick) for columns in kinds)
            for tick in sorted(ticks)
        ]
        axis.set_yticks(sorted(ticks), names, fontsize="small")
        others = "".join(f" | {in_layers(columns)}" for columns in kinds[1:])
        axis.set_ylabel(f"pair: wavelength (tokens){others}")
    draw_context(axis, layouts, contexts)


def wavelength_if_any(layout: Layout, pair: int) -> str:
    """Tokens; `-` where the heads of this layout are too small to have the pair."""
    return shown_wavelength(layout, pair) if pair < layout.n_pairs else "-"


def kinds_of(layouts: Sequence[Layout]) -> list[list[int]]:
    """The columns whose pairs rotate alike, those of the most frequent layout first; without those that do not."""
    kinds: list[list[int]] = []
    for column, layout in enumerate(layouts):
        alike = [columns for columns in kinds if same(layouts[columns[0]], layout)]
        if alike:
            alike[0].append(column)
        elif layout.n_rotated:
            kinds.append([column])
    return sorted(kinds, key=len, reverse=True)


def in_layers(columns: Sequence[int]) -> str:
    """`layers 5, 11, 17`, the first few of them."""
    more = ", ..." if len(columns) > LAYERS_NAMED else ""
    return f"layers {', '.join(map(str, columns[:LAYERS_NAMED]))}{more}"


def draw_context(axis: Any, layouts: Sequence[Layout], contexts: Sequence[int]) -> None:
    """A dashed line below the slowest pair that turns at least once within the context, in every column."""
    left, right = axis.get_xlim()
    for column, (layout, context) in enumerate(zip(layouts, contexts, strict=True)):
        ends = (left, right) if len(layouts) == 1 else (column - 0.5, column + 0.5)
        longer = [layout.wavelength(pair) > context for pair in range(layout.n_pairs)]
        for pair in range(1, layout.n_pairs):
            if longer[pair] != longer[pair - 1]:
                axis.plot(ends, (pair - 0.5,) * 2, color="black", linestyle="--", linewidth=0.8)
    axis.set_xlim(left, right)
