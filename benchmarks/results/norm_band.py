"""The tables of docs/results/norm_band.md and norm_band_public.md."""

from __future__ import annotations

import csv
from collections.abc import Callable

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


with (DOCS / "norm_band" / "public.csv").open(encoding="utf-8") as file:
    PUBLIC = list(csv.DictReader(file))  # a row for each layer, queries and keys; `without`: where a text is left out

CASES = {
    ("stories260K", "all"): "stories260K",
    ("gemma-3-270m", "local"): "Gemma 3 270M, local",
    ("gemma-3-270m", "global"): "Gemma 3 270M, global",
    ("smollm2-135m-instruct", "all"): "SmolLM2-135M",
}
N_TEXTS = 10
VERDICTS = {"holds": "yes", "does not hold": "no", "open": "open"}
Case = tuple[str, str]


def bounds() -> tuple[float, float]:
    """The predicted range in trained lengths: that of the small models, widened by a factor of 2."""
    values = np.concatenate([contexts(theta, length) for theta in ASKED for length in LENGTHS])
    return float(values.min() / 2), float(values.max() * 2)


def rows_of_case(case: Case, *, without: int = 0, of: str | None = None) -> list[dict[str, str]]:
    """The row of each layer's queries and keys, or of one `of` them, without one text."""
    own = [row for row in PUBLIC if (row["model"], row["layers"]) == case and of in (None, row["of"])]
    found = {(row["layer"], row["of"]): row for row in own if row["without"] == "0"}
    changed = [row for row in own if row["without"] == str(without) != "0"]
    return list((found | {(row["layer"], row["of"]): row for row in changed}).values())


def lengths_a_turn(rows: list[dict[str, str]]) -> Array:
    """Wavelength of the strongest pair in trained lengths."""
    return np.array([float(row["wavelength"]) / int(row["trained_length"]) for row in rows])


def median_turn(rows: list[dict[str, str]]) -> float:
    return float(np.median(lengths_a_turn(rows)))


def share_within(rows: list[dict[str, str]]) -> float:
    (low, high), turns = bounds(), lengths_a_turn(rows)
    return float(((turns >= low) & (turns <= high)).mean())


def with_ends(case: Case, measure: Callable[[list[dict[str, str]]], float]) -> tuple[float, float, float]:
    """A number of all texts, and the least and the most without one of them."""
    less = [measure(rows_of_case(case, without=text)) for text in range(1, 1 + N_TEXTS)]
    return measure(rows_of_case(case)), min(less), max(less)


def verdict(case: Case) -> str:
    (low, high), (_, *ends) = bounds(), with_ends(case, median_turn)
    met = [{low <= end <= high for end in ends}, {end >= 0.5 for end in with_ends(case, share_within)[1:]}]
    return "holds" if met == [{True}, {True}] else "does not hold" if {False} in met else "open"


def public_row(case: Case) -> str:
    numbers = [[f"{number:.2f}" for number in with_ends(case, of)] for of in (median_turn, share_within)]
    cells = [value if low == high else f"{value} ({low} to {high})" for value, low, high in numbers]
    each = ", ".join(f"{median_turn(rows_of_case(case, of=of)):.2f}" for of in ("query", "key"))
    length = int(rows_of_case(case)[0]["trained_length"])
    return f"| {CASES[case]} | {length:,} | {cells[0]} | {each} | {cells[1]} | {VERDICTS[verdict(case)]} |"


TABLES = {
    "band": lambda: [row_of(theta) for theta in BASES],
    "public": lambda: [public_row(case) for case in CASES],
}
