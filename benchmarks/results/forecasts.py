"""The table of docs/results/forecasts.md, and the hash of the forecasts."""

from __future__ import annotations

import csv
import hashlib

from results.stored import DOCS

FILE = DOCS / "forecasts" / "forecasts.csv"
with FILE.open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


def hash_of_forecasts() -> str:
    return hashlib.sha256(FILE.read_bytes()).hexdigest()


def row_of(row: dict[str, str]) -> str:
    """The comparison, the number that speaks to it, the difference and its interval, P(first better), the forecast."""
    question = f"{row['question']}{', ' * bool(row['size'])}{row['size']}"
    if row["forecast"] == "none":
        return f"| {row['n']} | {question} | - | - | - | none |"
    difference, low, high = (float(row[name]) for name in ("difference", "low", "high"))
    if not row["number"].startswith("nats"):  # a share
        low, high = max(low, -1.0), min(high, 1.0)
    interval = f"{difference:+.3f} ({low:+.3f} to {high:+.3f})"
    better = float(row["first_better"])
    chance = "< 0.001" if better < 0.001 else "> 0.999" if better > 0.999 else f"{better:.3f}"
    number = row["number"].replace("nats_per_token", "loss").replace("beyond", "mean of four")
    return f"| {row['n']} | {question} | {number} | {interval} | {chance} | {row['forecast']} |"


TABLES = {"forecasts": lambda: list(map(row_of, ROWS))}
