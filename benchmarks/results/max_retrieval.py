"""The tables of docs/results/max_retrieval.md."""

from __future__ import annotations

import json

import numpy as np
from scipy import stats

from results.stored import DOCS, Array, difference, stored
from roundround.analysis.intervals import holm, paired_p
from roundround.analysis.load import rows_of
from roundround.papers.max_retrieval import PAPER, SEEDS, P
from roundround.report import max_retrieval
from roundround.report.max_retrieval import Distance, Measured, measured_of

ROWS = [row for _, row in rows_of(DOCS / "max_retrieval" / "heads.csv")]

SETTINGS = list(dict.fromkeys(row["setting"] for row in ROWS))

SHOWN = (
    *("nothing", "max_steps=200000", "model.bfloat16_products=true"),
    *("optim=adamw", "optim.decay_biases=true", "model.scaled_logits=false"),
)

ASKED = (256, 512, 1024)  # items

TABLE_1 = {
    one["what"]: one
    for figure in json.loads((DOCS / "reproduction" / "outcomes.json").read_text())
    if figure["name"] == "softmax.table1"
    for one in figure["comparisons"]
}

FITS = {
    (row["softmax"], row["n"], row["seed"]): 100 * row["accuracy"]
    for _, row in rows_of(DOCS / "max_retrieval" / "fitted.csv")
}

NORMALISERS = stored("max_retrieval/normalisers", "softmax")

OF_NORMALISERS = (256, 1024, 4096, 16384)  # items

NAMES = ("softmax", "adaptive_temperature", "log_n", "entmax15", "temperature_10", "hard")


def heads(setting: str) -> Measured:
    rows = [row for row in ROWS if row["setting"] == setting]
    return measured_of([{k: v for k, v in row.items() if v is not None} for row in rows])


def distances(setting: str, metric: str = "accuracy") -> tuple[Distance, Distance]:
    """Of the baseline and of the gains from the paper's, in points."""
    found = max_retrieval.distances(heads(setting), metric)
    assert found is not None
    return found


def gains(setting: str, n: int, metric: str = "accuracy") -> Array:
    """Of the adaptive temperature, in points, [S]."""
    found = heads(setting)
    plain, sharp = (found.accuracy(name, metric) for name in ("softmax", "adaptive_temperature"))
    return (sharp - plain)[:, found.sizes.index(n)]


def welch(ours: float, error: float, n_seeds: int, n: int) -> float:
    """p of the difference of a gain from the paper's, whose error follows from its own p."""
    theirs = PAPER[n][1] - PAPER[n][0]
    their_spread = theirs / stats.t(SEEDS - 1).isf(P[n] / 2) * SEEDS**0.5
    return float(
        stats.ttest_ind_from_stats(ours, error * n_seeds**0.5, n_seeds, theirs, their_spread, SEEDS, False).pvalue
    )


def welch_of(setting: str, n: int) -> float:
    ours = gains(setting, n)
    return welch(ours.mean(), ours.std(ddof=1) / len(ours) ** 0.5, len(ours), n)


def welch_of_p(gain: float, p: float, n: int) -> float:
    """Of ten seeds, whose error follows from the p of their own gain."""
    return welch(gain, gain / stats.t(SEEDS - 1).isf(p / 2), SEEDS, n)


def welch_of_table(n: int) -> float:
    return welch_of_p(*(TABLE_1[f"{what}, {n:,} items"]["ours"] for what in ("gain", "p of the gain")), n)


def trainings() -> list[dict[int, float]]:
    """p of the gains' difference from the paper's by size, after Holm, in three trainings of ten heads.

    They are that of the table, the second one, and that of the normalisers. A gain of 0.0 gives no error.
    """
    sizes = [n for n in P if n > 16]
    first = {n: welch_of_table(n) for n in sizes}
    rows = (row for _, row in rows_of(DOCS / "max_retrieval" / "second.csv"))
    second = {row["n"]: welch_of_p(row["gain"], row["p"], row["n"]) for row in rows if row["n"] in sizes}
    third = {}
    for n, ours in zip(OF_NORMALISERS, per_cent_right("adaptive_temperature") - per_cent_right("softmax"), strict=True):
        third[n] = welch(ours.mean(), ours.std(ddof=1) / len(ours) ** 0.5, len(ours), n)
    return [dict(zip(of, holm([*of.values()]), strict=True)) for of in (first, second, third)]


def times_the_paper() -> str:
    """The least and the largest ratio of a gain to the paper's, at 256 to 4,096 items."""
    gains = [TABLE_1[f"gain, {n:,} items"] for n in (256, 512, 1024, 2048, 4096)]
    times = sorted(gain["ours"] / gain["published"] for gain in gains)
    return f"{times[0]:.1f} to {times[-1]:.1f} times"


def row_of_gains(n: int) -> str:
    accuracy, gain = (TABLE_1[f"{what}, {n:,} items"] for what in ("softmax", "gain"))
    cells = [
        f"{one[whose]:.{digits}f}"
        for one in (accuracy, gain)
        for whose, digits in (("ours", 2 if one is gain else 1), ("published", 1))
    ]
    if gain["published"]:
        cells += [f"{gain['ours'] - gain['published']:.2f} ±{gain['error']:.2f}", f"{welch_of_table(n):.2g}"]
    return f"| {n:,} | {' | '.join(cells + [''] * (6 - len(cells)))} |"


def fits(name: str) -> Array:
    """Mean accuracy at sizes beyond the fit, [S]."""
    return np.array([np.mean([FITS[name, n, seed] for n in (2048, 4096, 8192, 16384)]) for seed in range(5)])


def p_of_fits() -> dict[str, float]:
    others = ("softmax", "adaptive_temperature", "log_n", "hard")
    return {one: float(paired_p(fits("fitted")[:, None], fits(one)[:, None])[0][0]) for one in others}


def row_of_fits(name: str) -> str:
    return f"| {name} | {fits(name).mean():.1f} | {difference(fits('fitted'), fits(name), 1, np.inf)} |"


def per_cent_right(name: str) -> Array:
    """Ten models with this normaliser: [sizes, S]."""
    return 100 * np.array([NORMALISERS[name, "accuracy", n] for n in OF_NORMALISERS])


def row_of_normalisers(name: str) -> str:
    shown = "log_n = ssmax" if name == "log_n" else name
    return f"| {shown} | {' | '.join(f'{mean:.1f}' for mean in per_cent_right(name).mean(1))} |"


def slope(setting: str) -> Array:
    return heads(setting).of_heads["logit_slope"]


def typed(setting: str) -> str:
    return f"`{setting}`" if "=" in setting else setting


def row_of(setting: str) -> str:
    return f"| {' | '.join([typed(setting), *map(str, distances(setting))])} |"


TABLES = {
    "gains": lambda: [row_of_gains(n) for n in P],
    "normalisers": lambda: list(map(row_of_normalisers, NAMES)),
    "fits": lambda: [row_of_fits(name) for name in ("softmax", "adaptive_temperature", "log_n", "hard")],
    "settings": lambda: [row_of(name) for name in SHOWN],
}
