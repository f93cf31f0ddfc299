"""Every figure and table of the two papers: how it is made again here, and how it compares."""

from __future__ import annotations

FIGURES_AND_TABLES = {"rope": (19, 5), "softmax": (7, 1)}  # softmax: as its second version numbers them


def names() -> list[str]:
    """All of them in the papers' order, such as rope.fig2; softmax.deltas is a table without a number."""
    found = []
    for paper, (n_figures, n_tables) in FIGURES_AND_TABLES.items():
        found += [f"{paper}.fig{n + 1}" for n in range(n_figures)] + [f"{paper}.table{n + 1}" for n in range(n_tables)]
    return [*found, "softmax.deltas"]
