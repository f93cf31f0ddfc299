"""What the standard set forecasts for published comparisons: python benchmarks/forecasts.py FOLDER

Reads docs/results/forecasts/comparisons.csv, the stored values of version 2, and those of FOLDER (values/*.json, of
variants that have none). Writes forecasts.csv beside the comparisons. The rule is on
docs/results/forecasts.md.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from roundround.analysis.standings import Column, Standing, read_set, read_standing, stored, tested, usual_variance

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "forecasts"
BEYOND = ("needle 2x", "copying 1.5x", "order 4x", "largest 4x")
SHARES = {"needle": "token_accuracy", "copying": "token_accuracy", "counting": "exact_match"}


def column_of(number: str) -> Column:
    """The column of the comparison's number, with its direction and margin."""
    name, _, length = number.partition("@")
    if name == "nats_per_token":
        return Column(
            name=number,
            part="language",
            number=number,
            unit="",
            better="lower",
            margin=0.03 if length == "128" else 0.1,
        )
    if number == "beyond":
        return Column(name=number, part=number, number=number, unit="", better="higher", margin=0.1)
    return Column(name=number, part=name, number=f"{SHARES[name]}@{length}", unit="", better="higher", margin=0.1)


def with_mean(one: Standing, beyond: list[Column]) -> Standing:
    """The standing with one more number: the mean of the numbers beyond the trained lengths, for each seed."""
    values = [one.values(column) for column in beyond]
    seeds = set.intersection(*({*some} for some in values))
    one.numbers["beyond", "beyond"] = {seed: float(np.mean([some[seed] for some in values])) for seed in seeds}
    return one


def forecasts(folder: Path) -> list[dict[str, object]]:
    the_set = read_set("v2", "default", None)
    beyond = [column for column in the_set.columns if column.name in BEYOND]
    found = {
        one.name: one for one in map(read_standing, sorted(folder.rglob("values/*.json"))) if one.size == "default"
    }
    found |= {one.name: one for one in stored("v2", "default")}
    then = {"rope": 12, "cope": 1}  # the last stored seed when the forecasts were made; of all others 3
    found = {n: one.without({seed for seed in one.made if seed > then.get(n, 3)}) for n, one in found.items()}
    found = {name: with_mean(one, beyond) for name, one in found.items()}
    like = [found[one.name] for one in the_set.like]
    rows = []
    for row in csv.DictReader((FOLDER / "comparisons.csv").read_text().splitlines()):
        if not row["number"]:
            rows.append({**row, "forecast": "none"})
            continue
        column, own, other = column_of(row["number"]), found[row["first"]], found[row["second"]]
        mean, half, within, p = tested(own, other, column, usual_variance(column, like))
        better = 1 - p / 2 if (mean < 0) == (column.better == "lower") else p / 2
        forecast = "equivalent" if within < (column.margin or 0) else "better" if better > 0.5 else "worse"
        rows.append(
            {
                **row,
                "first_mean": own.mean(column),
                "first_seeds": len(own.values(column)),
                "second_mean": other.mean(column),
                "second_seeds": len(other.values(column)),
                "difference": mean,
                "low": mean - half,
                "high": mean + half,
                "margin": column.margin,
                "first_better": better,
                "forecast": forecast,
            }
        )
    return rows


def main() -> None:
    rows = forecasts(Path(sys.argv[1]))
    with (FOLDER / "forecasts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=max((list(row) for row in rows), key=len), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
