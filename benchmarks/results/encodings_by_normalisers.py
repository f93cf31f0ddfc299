"""The tables of docs/results/encodings_by_normalisers.md."""

from __future__ import annotations

import csv

import numpy as np

from results.stored import DOCS, Values, family
from roundround.analysis.intervals import half_width

NAMES = {"nope": "NoPE", "rope": "RoPE", "p_rope": "0.75-RoPE", "p_rope_25": "0.25-RoPE"}

CROSSED: Values = {}

with open(DOCS / "encodings_by_normalisers" / "comparison.csv") as file:
    for row in csv.DictReader(file):
        pe, softmax = (setting.partition("=")[2] for setting in row["settings"].split(", "))
        CROSSED[pe, softmax, int(row["length"])] = np.array(row["values"].split(), dtype=np.float64)

COLUMNS = ("adaptive_temperature", "adaptive_temperature_trained", "ssmax", "entmax15")

LENGTHS = (256, 512, 1024, 2048)


def crossed(softmax: str, length: int) -> list[tuple[float, float, float, float]]:
    """Of each encoding the difference from its softmax, the ends of the interval, p after Holm over all 64."""
    cells = [(pe, name, n) for n in LENGTHS for pe in NAMES for name in COLUMNS]
    p = family({(pe, name, n): (CROSSED[pe, name, n], CROSSED[pe, "softmax", n]) for pe, name, n in cells})
    found = []
    for pe in NAMES:
        values = CROSSED[pe, softmax, length] - CROSSED[pe, "softmax", length]
        mean, half = float(values.mean()), float(half_width(values))
        found.append((mean, mean - half, mean + half, p[pe, softmax, length]))
    return found


def table_of_adaptive_temperature() -> list[str]:
    rows = []
    for k, name in enumerate(NAMES.values()):
        cells = []
        for softmax in COLUMNS[:2]:
            for length in (LENGTHS[0], LENGTHS[-1]):
                mean, low, high, p = crossed(softmax, length)[k]
                cell = f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
                cells.append((f"**{cell}**" if low > 0 or high < 0 else cell) + " *" * (p < 0.05))
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


TABLES = {"adaptive": table_of_adaptive_temperature}
