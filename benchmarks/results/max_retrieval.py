"""The tables of docs/results/max_retrieval_heads.md."""

from __future__ import annotations

from scipy import stats

from results.stored import DOCS, Array
from roundround.analysis.intervals import half_width
from roundround.analysis.load import rows_of
from roundround.papers.max_retrieval import PAPER, SEEDS, P
from roundround.report import max_retrieval
from roundround.report.max_retrieval import BY_WEIGHT, Distance, Measured, measured_of

ROWS = [row for _, row in rows_of(DOCS / "max_retrieval" / "heads.csv")]

SETTINGS = list(dict.fromkeys(row["setting"] for row in ROWS))

ASKED = (256, 512, 1024)  # items


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


def welch(setting: str, n: int) -> float:
    """p of the difference from the paper's gain, whose error follows from its own p."""
    ours, theirs = gains(setting, n), PAPER[n][1] - PAPER[n][0]
    their_spread = theirs / stats.t(SEEDS - 1).isf(P[n] / 2) * SEEDS**0.5
    test = stats.ttest_ind_from_stats(ours.mean(), ours.std(ddof=1), len(ours), theirs, their_spread, SEEDS, False)
    return float(test.pvalue)


def slope(setting: str) -> Array:
    return heads(setting).of_heads["logit_slope"]


def around(values: Array, digits: int) -> str:
    return f"{values.mean():.{digits}f} ±{float(half_width(values)):.{digits}f}"


def between(values: Array) -> str:
    mean, half = values.mean(), float(half_width(values))
    middle, low, high = (round(float(value), 1) + 0.0 for value in (mean, mean - half, mean + half))  # no -0.0
    return f"{middle} ({low} to {high})"


def gained(setting: str, metric: str = "accuracy") -> str:
    return ", ".join(f"{round(float(gains(setting, n, metric).mean()), 1) + 0.0:+.1f}" for n in ASKED)


def typed(setting: str) -> str:
    return f"`{setting}`" if "=" in setting else setting


def row_of(setting: str) -> str:
    cells = [around(slope(setting), 0), around(heads(setting).of_heads["class_offset_spread"], 4)]
    cells += map(str, distances(setting))
    cells.append(gained(setting))
    cells.append(", ".join(f"{welch(setting, n):.2g}" for n in ASKED if n in P))
    return f"| {' | '.join([typed(setting), *cells])} |"


def by_weight() -> list[str]:
    """Settings whose weights were looked at too."""
    return [name for name in SETTINGS if BY_WEIGHT in heads(name).values["softmax"]]


def row_by_weight(setting: str) -> str:
    cells = [*map(str, distances(setting, BY_WEIGHT))]
    cells.append(gained(setting, BY_WEIGHT))
    lost = [gains(setting, n) - gains(setting, n, BY_WEIGHT) for n in ASKED]
    return f"| {' | '.join([typed(setting), *cells, *map(between, lost)])} |"


def table_of_settings() -> list[str]:
    paper = ", ".join(f"{PAPER[n][1] - PAPER[n][0]:+.1f}" for n in ASKED)
    return [f"| the paper; an untrained head | 260 | 0.0015 | | | {paper} | |", *map(row_of, SETTINGS)]


TABLES = {"settings": table_of_settings, "by-weight": lambda: [row_by_weight(name) for name in by_weight()]}
