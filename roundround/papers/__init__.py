"""The two papers: their statements, one file each, as checks; their figures and tables, made again; max retrieval.

Here are their names. Nothing is imported for them: TAB is fast.
"""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("beyond", "derived", "rope", "softmax")  # of statements
FIGURES_AND_TABLES = {"rope": (19, 5), "softmax": (7, 1)}  # softmax: as its second version numbers them


def statement_names() -> list[str]:
    """All statements, such as rope.thm_6_1: the files of their folders."""
    here = Path(__file__).parent
    return [f"{folder}.{path.stem}" for folder in FOLDERS for path in sorted((here / folder).glob("[!_]*.py"))]


def figure_names() -> list[str]:
    """All figures and tables in the papers' order, such as rope.fig2; softmax.deltas is a table without a number."""
    found = []
    for paper, (n_figures, n_tables) in FIGURES_AND_TABLES.items():
        found += [f"{paper}.fig{n + 1}" for n in range(n_figures)] + [f"{paper}.table{n + 1}" for n in range(n_tables)]
    return [*found, "softmax.deltas"]


def item_names() -> list[str]:
    """What `reproduce` can be asked for."""
    return [*figure_names(), "all"]
