"""The values of each seed that are stored beside a page, as the page prints them, and the claims that it makes of them.

A claim is a paragraph or a bullet with words in bold and a number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from conftest import ROOT
from numpy.typing import NDArray

from roundround.analysis.intervals import half_width
from roundround.analysis.load import rows_of

DOCS = ROOT / "docs" / "results"
Array = NDArray[np.float64]
Values = dict[tuple[str | int, ...], Array]  # by the settings, the metric (and the task) and the length: [S]


def stored(name: str, *settings: str) -> Values:
    """A csv of settings, seed, metric, length, value as arrays over the seeds in order."""
    found: dict[tuple[str | int, ...], dict[int, float]] = defaultdict(dict)
    for _, row in rows_of(DOCS / f"{name}.csv"):
        found[*(str(row[key]) for key in settings), row["metric"], row["length"]][row["seed"]] = row["value"]
    return {place: np.array([by_seed[seed] for seed in sorted(by_seed)]) for place, by_seed in found.items()}


def text_of(page: str) -> str:
    """A page and its further parts, such as length.md and length_copying.md."""
    return "\n\n".join(path.read_text() for path in [DOCS / f"{page}.md", *sorted(DOCS.glob(f"{page}_*.md"))])


def seeds(values: Array) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def share(values: Array) -> str:
    """A mean of shares and half of its interval; the seeds where that would reach beyond 0 or 1."""
    mean, half = values.mean(), float(half_width(values))
    if half < 0.005:
        return f"{mean:.2f}"
    return f"{mean:.2f} ±{half:.2f}" if mean - half >= 0 and mean + half <= 1 else seeds(values)


def difference(values: Array, baseline: Array, digits: int = 2) -> str:
    mean, half = (values - baseline).mean(), float(half_width(values - baseline))
    return f"{mean:+.{digits}f} ({mean - half:.{digits}f} to {mean + half:.{digits}f})"


def printed(p: float) -> str:
    return f"{p:.3f}" if p >= 0.0005 else "below 0.001"


def claims_of(page: str) -> dict[str, str]:
    """Paragraphs and bullets with bold words and a number, in one line each, by their first bold words."""
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    blocks = [" ".join(block.split()) for block in re.split(r"\n\n|\n(?=- )", text)]
    bold = {block: re.search(r"\*\*(.+?)\*\*", block) for block in blocks if re.search(r"^[^|#].*\d", block)}
    return {found[1]: block for block, found in bold.items() if found}


def check_listed(page: str, tests: str, not_claims: list[str]) -> None:
    """Every claim of the page is checked in this file of tests, or is named as what states no number of ours."""
    checked = re.findall(rf'check_claim\(\s*"{page}",\s*"(.+?)"', Path(tests).read_text())
    found = list(claims_of(page))
    assert len(found) == len(checked) + len(not_claims)
    for bold in found:
        assert bold.startswith((*checked, *not_claims))


def check_claim(page: str, start: str, numbers: list[str]) -> None:
    """The paragraph that starts so has all the numbers."""
    (block,) = [block for bold, block in claims_of(page).items() if bold.startswith(start)]
    for number in numbers:
        assert number in block
