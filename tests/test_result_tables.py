"""The tables of docs/results are those that benchmarks/results/write.py makes of the stored values."""

from __future__ import annotations

import pytest
from results import write
from results.stored import DOCS


def test_the_pages_have_the_tables_of_their_values() -> None:
    assert [path.name for path, text in write.pages().items() if path.read_text(encoding="utf-8") != text] == []


def test_another_value_is_another_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "PAGES", {"norm_band": write.norm_band})
    monkeypatch.setitem(write.norm_band.TABLES, "band", lambda: ["| 100 | 128 | 1.00 |"])
    page = DOCS / "norm_band.md"
    assert write.pages() != {page: page.read_text(encoding="utf-8")}
