"""Values of the papers: those of the heat maps of arXiv:2410.06205, as they were read off its pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "published"


def heat_map(name: str) -> NDArray[np.float64]:
    """The cells of a figure, such as G7B_Fig3a_query_layer: [rows, columns]."""
    return np.loadtxt(FOLDER / f"{name}.csv", delimiter=",", ndmin=2)
