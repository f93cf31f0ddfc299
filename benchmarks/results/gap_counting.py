"""The tables of docs/results/gap_counting.md.

Shapes: S texts, N heads of all layers.
"""

from __future__ import annotations

import numpy as np

from results.stored import DOCS, Array
from roundround.analysis.intervals import half_width
from roundround.analysis.load import rows_of

ROWS = {
    model: [row for _, row in rows_of(DOCS / "gap_counting" / f"{model}.csv")] for model in ("stories260k", "gemma3")
}

GLOBAL = (5, 11, 17)  # layers of Gemma 3 270M

KINDS = {  # model, its layers (None: all), and the longest trained length asked
    "stories260k": ("stories260k", None, 512),
    "Gemma 3 270M": ("gemma3", None, 2048),
    "its local layers": ("gemma3", tuple(n for n in range(18) if n not in GLOBAL), 2048),
    "its global layers": ("gemma3", GLOBAL, 2048),
}

SIDE, CHANGE = 0.5, 0.05


def values(kind: str, measure: str, softmax: str = "softmax") -> Array:
    """Of each text and head, [S, N]."""
    model, layers, longest = KINDS[kind]
    wanted = {"softmax": softmax, "length": longest}
    found: dict[int, list[float]] = {}
    for row in ROWS[model]:
        if wanted.items() <= row.items() and (layers is None or row["layer"] in layers):
            found.setdefault(row["text"], []).append(row[measure])
    return np.array(list(found.values()))


def mean(values_S: Array, digits: int = 2) -> str:
    middle, half = float(values_S.mean()), float(half_width(values_S))
    return f"{middle:.{digits}f} ({middle - half:.{digits}f} to {middle + half:.{digits}f})"


def sides(kind: str) -> tuple[int, int, int]:
    """How many heads are collapsed, dispersed, and not clear."""
    share_SN = values(kind, "collapsed")
    middle_N, half_N = share_SN.mean(0), half_width(share_SN)
    return (
        int((middle_N - half_N > SIDE).sum()),
        int((middle_N + half_N < SIDE).sum()),
        int((np.abs(middle_N - SIDE) <= half_N).sum()),
    )


def moved(kind: str) -> tuple[Array, Array, Array, Array]:
    """How many heads are right, of how many dispersed ones; wrong, of how many collapsed ones: [S] each."""
    before_SN, after_SN = (values(kind, "collapsed", softmax) for softmax in ("softmax", "adaptive_temperature"))
    low_SN, high_SN, change_SN = before_SN < SIDE, before_SN > SIDE, after_SN - before_SN
    right_SN, wrong_SN = low_SN & (change_SN > CHANGE), high_SN & (np.abs(change_SN) > CHANGE)
    return right_SN.sum(1), low_SN.sum(1), wrong_SN.sum(1), high_SN.sum(1)


def row_of_sides(kind: str) -> str:
    xi_SN = values(kind, "xi")
    low, middle, high = np.percentile(xi_SN.mean(0), (25, 50, 75))
    cells = [kind, f"{xi_SN.shape[1]}", *map(str, sides(kind))]
    return f"| {' | '.join([*cells, f'{middle:.2f} ({low:.2f} to {high:.2f})', mean(np.median(xi_SN, 1))])} |"


def row_of_moves(kind: str) -> str:
    right_S, low_S, wrong_S, high_S = moved(kind)
    cells = [kind, f"{right_S.mean():.1f} of {low_S.mean():.1f}", f"{wrong_S.mean():.1f} of {high_S.mean():.1f}"]
    return f"| {' | '.join([*cells, mean(right_S - wrong_S, 1)])} |"


TABLES = {
    "gap_sides": lambda: [row_of_sides(kind) for kind in KINDS],
    "gap_moves": lambda: [row_of_moves(kind) for kind in KINDS],
}
