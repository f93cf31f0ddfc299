"""The tables of docs/results/needles.md."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from results.stored import DOCS, Array, difference, printed
from roundround.analysis.intervals import half_width, holm, paired_p
from roundround.analysis.load import rows_of

FAR = (512, 2_048, 8_192)

AT_INFERENCE = ("log_n", "adaptive_temperature")  # on the softmax's runs

TRAINED = ("ssmax", "as_entmax_nape", "adaptive_temperature_trained")

SHORT, LONG = 3_000, 6_000  # steps

# rate and steps of each normaliser: those that the rule gave, and the same for all
CHOSEN = dict.fromkeys(("softmax", *AT_INFERENCE), (1e-2, LONG)) | dict.fromkeys(TRAINED, (2e-2, SHORT))

SAME = dict.fromkeys(("softmax", *TRAINED), (2e-2, LONG))

NAMES = {
    "softmax": "softmax",
    "log_n": "log n, at inference",
    "adaptive_temperature": "adaptive temperature, at inference",
    "adaptive_temperature_trained": "adaptive temperature",
    "ssmax": "SSMax",
    "as_entmax_nape": "ASEntmax",
}

Settings = dict[str, tuple[float, int]]


def values() -> dict[tuple[str, float, int, str, int, int | None], Array]:
    """Of each seed, [S], by normaliser, rate, steps, metric, length and distance; None: over all distances."""
    found: dict[tuple[str, float, int, str, int, int | None], dict[int, float]] = defaultdict(dict)
    for file in ("rates.csv", "needles.csv"):
        for _, row in rows_of(DOCS / "needles" / file):
            place = (row["softmax"], row["optim.lr"], row["max_steps"], row["metric"], row["length"])
            found[*place, row.get("distance")][row["seed"]] = row["value"]
    return {place: np.array([by_seed[seed] for seed in sorted(by_seed)]) for place, by_seed in found.items()}


VALUES = values()


def at(name: str, length: int, distance: int | None = None, of: Settings = CHOSEN) -> Array:
    return VALUES[name, *of[name], "exact_match", length, distance]


def contrasts(length: int, of: Settings = CHOSEN) -> dict[str, tuple[Array, Array, float]]:
    """Values, the softmax's, and p after Holm over all of them, of each normaliser at this length."""
    softmax = at("softmax", length, of=of)
    pairs = {name: at(name, length, of=of) for name in of if name != "softmax"}
    p = holm([float(paired_p(mine[:, None], softmax[:, None])[0][0]) for mine in pairs.values()])
    return {name: (mine, softmax, corrected) for (name, mine), corrected in zip(pairs.items(), p, strict=True)}


def row_of_lengths(name: str, of: Settings = CHOSEN) -> str:
    cells = ["-" if n == 128 and name in AT_INFERENCE else f"{at(name, n, of=of).mean():.2f}" for n in (128, 8_192)]
    if name == "softmax":
        return f"| softmax | {' | '.join(cells)} | | |"
    mine, softmax, p = contrasts(8_192, of)[name]
    apart = difference(mine, softmax)
    away = abs((mine - softmax).mean()) > half_width(mine - softmax)
    return f"| {NAMES[name]} | {' | '.join(cells)} | {f'**{apart}**' if away else apart} | {printed(p)} |"


TABLES = {
    "by-the-rule": lambda: [row_of_lengths(name) for name in NAMES],
    "same-rate": lambda: [row_of_lengths(name, SAME) for name in SAME],
}
