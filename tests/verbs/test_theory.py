"""What `roundround theory` says in the terminal, the page and the records."""

from __future__ import annotations

import re
from collections.abc import Callable

from conftest import Done

from roundround.papers.claim import Finding, at_most, shown


def test_a_statement_is_asked_on_its_construction_and_of_a_model(roundround: Callable[..., Done]) -> None:
    names = ["rope.equation_3", "softmax.polynomial"]
    done = roundround("theory", *names, "model=stories260k", "length=64", "max_tokens=128", "logger=none")
    assert done.code == 0, done.err
    labels = [*names, "rope.equation_3 (stories260k)"]
    assert re.findall(r"^holds  ([\w.]+(?: \(\w+\))?):", done.err, flags=re.MULTILINE) == labels
    assert "3 hold, 0 fail" in done.err
    page = (done.directory / "theory.md").read_text()
    assert "3 hold, 0 fail." in page
    assert re.findall(r"^## (.*): holds$", page, flags=re.MULTILINE) == labels
    assert {r["claim"]: r["verdict"] for r in done.results} == dict.fromkeys(labels, "holds")
    assert done.manifest["headline"] == {"hold": 3, "fail": 0}


def test_a_statement_holds_where_some_number_is_judged_and_none_differs() -> None:
    assert Finding([shown("a measurement", 3.0), at_most("a comparison", 0.9, 1.0)]).of_statement == "holds"
    assert Finding([at_most("a comparison", 0.9, 1.0), at_most("another", 1.1, 1.0)]).of_statement == "FAILS"
    assert Finding([at_most("a comparison", float("nan"), 1.0)]).of_statement == "FAILS"
    assert Finding([shown("a measurement", 3.0)]).of_statement == Finding([]).of_statement == "FAILS"
