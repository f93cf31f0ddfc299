"""The forecasts of docs/results/forecasts.md: they are as they were made, and the rule gives them from the values."""

from __future__ import annotations

import forecasts
import pytest
from results.forecasts import ROWS, hash_of_forecasts
from results.stored import DOCS


def test_the_forecasts_are_those_whose_hash_the_page_has() -> None:
    assert f"`{hash_of_forecasts()}`" in (DOCS / "forecasts.md").read_text()
    assert [int(row["n"]) for row in ROWS] == list(range(1, 29))


def test_the_rule_gives_the_forecasts_from_the_stored_values() -> None:
    again = {row["n"]: row for row in forecasts.forecasts(DOCS / "forecasts")}
    for row in ROWS:
        assert row["first_seeds"] == str(again[row["n"]].get("first_seeds", ""))
        assert row["forecast"] == again[row["n"]]["forecast"]
        if row["forecast"] != "none":
            assert float(row["first_better"]) == pytest.approx(again[row["n"]]["first_better"], abs=1e-9)
            sign = 1 if float(row["difference"]) < 0 else -1
            lower = row["number"].startswith("nats")
            assert row["forecast"] in ("equivalent", "better" if (sign > 0) == lower else "worse")
