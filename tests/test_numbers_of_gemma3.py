"""The intervals of docs/results/gemma3*.md are those of the values stored beside them."""

from __future__ import annotations

import csv
import re

from helpers_stored import DOCS, text_of

INTERVAL = re.compile(r"(?<![\d.])[-+]?(\d[\d,]*(?:\.\d+)?) \(([-+]?[\d,]+(?:\.\d+)?) to ([-+]?[\d,]+(?:\.\d+)?)\)")
OF_A_PROMPT = "## Alignment"  # of its tokens: from alignment.json of a run


def printed(number: str) -> str:
    """Without its sign: a page says that a head loses 0.6 where a change of -0.6 is stored."""
    return number.replace(",", "").lstrip("+-")


def test_every_interval_is_of_a_stored_number() -> None:
    stored = set()
    for path in (DOCS / "gemma3").glob("*.csv"):
        with path.open() as file:
            ends = [
                (float(row["value"]), float(row["low"] or 0), float(row["high"] or 0)) for row in csv.DictReader(file)
            ]
        for digits in range(4):
            stored |= {tuple(sorted(f"{abs(x):.{digits}f}" for x in three)) for three in ends}
    listed = (DOCS / "gemma3" / "heads.txt").read_text()
    stored |= {tuple(sorted(map(printed, found))) for found in INTERVAL.findall(listed)}
    page = re.sub(rf"{OF_A_PROMPT}.*?(?=\n# |\n## |\Z)", "", text_of("gemma3"), flags=re.DOTALL)
    found = INTERVAL.findall(page)
    assert len(found) > 150
    assert [three for three in found if tuple(sorted(map(printed, three))) not in stored] == []
