"""The table of docs/results/norm_band.md."""

from __future__ import annotations

import numpy as np

from results.stored import DOCS, Array, stored
from roundround.analysis.load import rows_of

BASES, LENGTHS = (100, 1_000, 10_000, 500_000), (128, 256, 512)

ASKED, SEEDS = (10_000, 500_000), (1, 2, 3)

CONTEXTS = stored("norm_band/contexts", "pe.theta", "trained")

PAIRS = [row for _, row in rows_of(DOCS / "norm_band" / "pairs.csv")]  # a row for each seed, layer, queries and keys


def contexts(theta: int, length: int, trained: str = "yes") -> Array:
    """Wavelength of the strongest pair in trained lengths, the median over layers, queries and keys, [S]."""
    return CONTEXTS[str(theta), trained, "wavelength_over_trained_length", length]


def of_layers(metric: str, theta: int, length: int, trained: str = "yes") -> Array:
    """Each layer's queries and keys by seed, [S, 8]."""
    wanted = {"metric": metric, "pe.theta": theta, "length": length, "trained": trained}
    rows = [row for row in PAIRS if wanted.items() <= row.items()]
    return np.array([[row["value"] for row in rows if row["seed"] == seed] for seed in SEEDS])


def row_of(theta: int) -> str:
    cells = [contexts(theta, length).mean() for length in LENGTHS]
    return f"| {theta:,} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"


TABLES = {"band": lambda: [row_of(theta) for theta in BASES]}
