"""The tables of docs/results/distance.md."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from results.stored import DOCS, Array, difference, printed
from roundround.analysis.intervals import half_width, holm, paired_p
from roundround.analysis.load import rows_of

SETTINGS = [(theta, p) for theta in (100, 1_000, 10_000, 500_000) for p in (1, 0.75, 0.5)] + [
    (10_000, 0.25),
    (10_000, 0),
]

DISTANCES = (4, 8, 16, 32, 64, 96, 128, 256, 384, 512, 768, 1_024, 1_536, 2_032)

NEW = [(3_000, 0.75), (30_000, 0.75)]

NEAR, FAR = DISTANCES[:7], (1_024, 1_536, 2_032)  # distances within training, and beyond it

CONTROL = (4, 16)

CONTRASTS = [(100, 16), (100, 256), (1_000, 64), (1_000, 1_024), (10_000, 384), (10_000, 2_032), (500_000, 2_032)]


def values(file: str) -> dict[tuple[float, float, int, int | None], Array]:
    """The exact match of each seed, [S], by theta, p, length and distance; None: over all distances."""
    found: dict[tuple[float, float, int, int | None], dict[int, float]] = defaultdict(dict)
    for _, row in rows_of(DOCS / "distance" / file):
        if row["metric"] == "exact_match":
            found[row["pe.theta"], row["pe.p"], row["length"], row.get("distance")][row["seed"]] = row["value"]
    return {place: np.array([by_seed[seed] for seed in sorted(by_seed)]) for place, by_seed in found.items()}


VALUES = values("distance.csv") | values("resting.csv")


def mean(values: Array) -> str:
    return f"{values.mean():.2f}"


def at(theta: float, p: float, distances: tuple[int, ...]) -> Array:
    """Mean exact match over distances in inputs of 2,048 tokens, of each run that has solved its own lengths, [S]."""
    solved = VALUES[theta, p, 128, None] >= 0.99
    return np.mean([VALUES[theta, p, 2048, d][solved] for d in distances], axis=0)


def quarter_turn(theta: float, p: float) -> float:
    """Tokens in which the slowest of the pairs that turn, 4 p of four, has turned by pi / 2."""
    return float(np.pi / 2 * theta ** ((4 * p - 1) / 4))


def contrasts() -> dict[tuple[int, int], tuple[str, float]]:
    """The differences of the rule as the page prints them, and their p after Holm."""
    pairs = [(VALUES[theta, 1, 2048, d], VALUES[theta, 0.5, 2048, d]) for theta, d in CONTRASTS]
    p = holm([float(paired_p(mine[:, None], theirs[:, None])[0][0]) for mine, theirs in pairs])
    return {place: (difference(*pair), corrected) for place, pair, corrected in zip(CONTRASTS, pairs, p, strict=True)}


def effect(theta: int, distance: int) -> Array:
    """RoPE less p = 0.5 in inputs of 2,048 tokens, within a seed."""
    return VALUES[theta, 1, 2048, distance] - VALUES[theta, 0.5, 2048, distance]


def control(theta: int) -> Array:
    """The same at 4 and 16 tokens, where only the length of the input can do harm."""
    return np.mean([effect(theta, distance) for distance in CONTROL], axis=0)


def less_control() -> dict[tuple[int, int], tuple[str, float]]:
    """The differences of the rule less their control, and their p after Holm; places of the control are left out."""
    places = [(theta, d) for theta, d in CONTRASTS if d not in CONTROL]
    pairs = [(effect(theta, d), control(theta)) for theta, d in places]
    p = holm([float(paired_p(mine[:, None], theirs[:, None])[0][0]) for mine, theirs in pairs])
    return {place: (difference(*pair), corrected) for place, pair, corrected in zip(places, pairs, p, strict=True)}


def apart(mine: Array, theirs: Array) -> str:
    """The difference, in bold where its interval excludes 0."""
    away = abs((mine - theirs).mean()) > half_width(mine - theirs)
    return f"**{difference(mine, theirs)}**" if away else difference(mine, theirs)


def table_of_contrasts() -> list[str]:
    rows = []
    for (theta, d), (_, p) in contrasts().items():
        mine, theirs = VALUES[theta, 1, 2048, d], VALUES[theta, 0.5, 2048, d]
        quarter = quarter_turn(theta, 1)
        cells = [f"{theta:,}, {quarter:,.0f}", f"{d:,}, {'before' if d < quarter else 'beyond'}"]
        left = "-"
        if (theta, d) in less_control():
            left = f"{apart(effect(theta, d), control(theta))}, {printed(less_control()[theta, d][1])}"
        rows.append(f"| {' | '.join(cells)} | {apart(mine, theirs)}, {printed(p)} | {left} |")
    return rows


TABLES = {"contrasts": table_of_contrasts}
