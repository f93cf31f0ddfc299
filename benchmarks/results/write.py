"""Write the tables of the pages of results anew.

    make tables

The rows of a table stand under a line `<!-- rows: NAME -->` and its two lines of heads. The module of the page has a
function for each name.
"""

from __future__ import annotations

import re
from pathlib import Path

from results import (
    distance,
    encodings_by_normalisers,
    engines,
    forecasts,
    gap_counting,
    induction_heads,
    language_tasks,
    length,
    max_retrieval,
    needles,
    norm_band,
    order,
    table2,
)
from results.stored import DOCS

PAGES = {
    "distance": distance,
    "encodings_by_normalisers": encodings_by_normalisers,
    "engines": engines,
    "forecasts": forecasts,
    "gap_counting": gap_counting,
    "induction_heads": induction_heads,
    "language_tasks": language_tasks,
    "length": length,
    "max_retrieval": max_retrieval,
    "needles": needles,
    "norm_band": norm_band,
    "order": order,
    "table2": table2,
}
TABLE = re.compile(r"(<!-- rows: (\S+) -->\n\|.*\n\|.*\n)((?:\|.*\n)+)")


def pages() -> dict[Path, str]:
    """Each page with tables of stored values, and what it should say."""
    found = {}
    for name, module in PAGES.items():
        unused = set(module.TABLES)
        for path in sorted(DOCS.glob(f"{name}*.md")):
            head, *tables = TABLE.split(path.read_text(encoding="utf-8"))
            found[path] = head
            for heads, table, _, text in zip(tables[::4], tables[1::4], tables[2::4], tables[3::4], strict=True):
                unused.remove(table)
                rows = "".join(f"{row}\n" for row in module.TABLES[table]())
                found[path] += heads + rows + text
        assert not unused, f"{name}: no page has the tables {', '.join(sorted(unused))}"
    return found


if __name__ == "__main__":
    for path, text in pages().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path)
