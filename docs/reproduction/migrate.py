"""Judge, once, the outcomes that outcomes.json stores by the rule of verdict.py: python docs/reproduction/migrate.py

What has no stored seeds is judged from the intervals that were printed, and its remark says so.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

from roundround.intervals import error_widths
from roundround.reproduction import verdict
from roundround.reproduction.ledger import FILE, without_infinities
from roundround.reproduction.max_retrieval import ABOUT_FIT, ABOUT_TABLE, compare, compare_fit
from roundround.reproduction.perplexity import about, beside
from roundround.reproduction.table2 import BASELINE, PAPER, Difference
from roundround.retrieval.published import PAPER as SIZES
from roundround.theory.claim import Comparison

HERE = Path(__file__).parent
NO_SEEDS = "The values of the seeds were not stored: this is judged from the intervals that were printed."
ONE_HEAD = "The values of the 32 sets were not stored"
CELL = r"\*?\*?([+-][\d.]+) \(([+-][\d.]+) to ([+-][\d.]+)\)\*?\*?"
SECOND_FIT = [0.126853, -0.0381044, -2.3796, 7.02409, -3.26589]  # of the other training, docs/max_retrieval.md


def read(c: dict) -> Comparison:
    low = -math.inf if c["low"] is None else c["low"]
    return Comparison(c["what"], c["ours"], low, math.inf if c["high"] is None else c["high"], c["published"])


def table2(found: list[Comparison]) -> list[Comparison]:
    """Both corpora from the tables of docs/table2.md; the other lengths as they were."""
    tables = (HERE.parent / "table2.md").read_text().split("**WikiText-2, five seeds.**")
    judged = []
    for corpus, text in zip(("TinyStories", "WikiText-2"), tables, strict=True):
        for pe, (name, *_) in PAPER.items():
            if pe != BASELINE:
                row = re.search(rf"^\| {re.escape(name)} - RoPE, theta 10,000 \| {CELL}", text, re.M)
                judged.append(beside(pe, BASELINE, 256, Difference(*map(float, row.groups())), f"{corpus}: "))
    rest = [c for c in found if not verdict.is_judged(c) and "less RoPE, theta 10,000, 256 tokens" not in c.what]
    return judged + [replace(c, what=f"TinyStories: {c.what}") for c in rest]


def table1(found: list[Comparison]) -> list[Comparison]:
    """The allowed interval was the published number and half of ours, with 0.05 for its rounding."""
    old = {c.what.replace(" (second-hand)", ""): c for c in found}
    judged = []
    for n in SIZES:
        plain, gain = (
            (c.ours, ((c.high - c.low) / 2 - 0.05) / error_widths(10))
            for c in (old[f"softmax, {n:,} items"], old[f"gain, {n:,} items"])
        )
        judged += compare(n, plain, gain, 10)
    return judged


def heat_map(c: Comparison) -> Comparison:
    """Weights lie between 0 and 1, so that their mean bounds their spread; of differences nothing is known."""
    if c.what.startswith("gain"):
        return replace(c, error=math.inf)
    return replace(c, error=error_widths(32) * math.sqrt(c.ours * (1 - c.ours) / 31))


def main() -> None:
    entries = json.loads((HERE / FILE).read_text())
    for entry in entries:
        found, name = [read(c) for c in entry["comparisons"]], entry["name"]
        entry["untested"] = entry.pop("incomparable")
        if name == "rope.table2":
            found, entry["remark"] = table2(found), f"{about(5)} {NO_SEEDS}"
        elif name == "softmax.table1":
            found = table1(found)
            entry["remark"] = f"{ABOUT_TABLE} {NO_SEEDS}"
            of = [verdict.counts(map(verdict.of_number, found[part::3])) for part in (0, 1)]
            entry["ours"] = f"{entry['ours'].split(';')[0]}; accuracies: {of[0]}; gains: {of[1]}"
        elif name in ("softmax.fig2", "softmax.fig6"):
            found = list(map(heat_map, found))
            more = f"{ONE_HEAD}: the interval is the widest that weights with this mean can have"
            more += "; that of the gains is not known." if name == "softmax.fig6" else "."
            entry["remark"] = f"{entry['remark']} The 32 sets are of one head, the first seed's. {more}"
        elif name == "softmax.fig5":
            (*ours,) = (next(c.ours for c in found if c.what == f"coefficient of H^{n}") for n in (4, 3, 2, 1, 0))
            found = compare_fit(ours, [ours, SECOND_FIT])
            entry["remark"] = (
                "Fitted to 28,000 inputs in which the largest logit is a wrong one, as in the paper, whose sizes and "
                "numbers of inputs are not known. The fits of single seeds were not stored: the interval is over two "
                f"trainings of the ten heads (the other is in docs/max_retrieval.md). {ABOUT_FIT}"
            )
        drawn = name in ("rope.fig1", "softmax.fig1", "softmax.fig4")
        entry["verdict"] = verdict.of_item(found, untested=bool(entry["untested"]), drawn=drawn)
        entry["comparisons"] = [without_infinities(asdict(c)) for c in found]
    (HERE / FILE).write_text(json.dumps(entries, indent=2) + "\n")


main()
