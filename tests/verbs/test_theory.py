"""What `roundround theory` says: what no model could fail is shown, in the terminal, the page and the records."""

from __future__ import annotations

import re
from collections.abc import Callable

from conftest import Done

from roundround.papers.claim import Finding, at_most, shown


def test_what_no_model_could_fail_is_shown_and_not_counted_among_what_holds(roundround: Callable[..., Done]) -> None:
    names = ["rope.thm_5_3", "softmax.polynomial"]
    done = roundround("theory", *names, "model=stories260k", "length=64", "max_tokens=128", "logger=none")
    assert done.code == 0, done.err
    verdicts = dict.fromkeys(names, "holds") | {
        "rope.thm_5_3 (stories260k)": "shown",
        "softmax.polynomial (stories260k)": "holds",
    }
    said = re.findall(r"^(holds|shown|FAILS)  ([\w.]+(?: \(\w+\))?):", done.err, flags=re.MULTILINE)
    assert {label: verdict for verdict, label in said} == verdicts
    assert "3 hold, 1 shown, 0 fail" in done.err
    page = (done.directory / "theory.md").read_text()
    assert "3 hold, 1 shown, 0 fail." in page
    assert dict(re.findall(r"^## (.*): (\w+)$", page, flags=re.MULTILINE)) == verdicts
    for label, verdict in verdicts.items():
        assert {r["verdict"] for r in done.results if r["claim"] == label} == {verdict}
    assert done.manifest["headline"] == {"hold": 3, "shown": 1, "fail": 0}


def test_a_number_out_of_its_interval_fails_even_where_no_model_could_be() -> None:
    """Then the program is wrong, and the exit code says so."""
    assert Finding([at_most("an identity", 1.1, 1.0)], can_fail=False).verdict == "FAILS"
    assert Finding([at_most("an identity", 0.9, 1.0)], can_fail=False).verdict == "shown"
    assert Finding([shown("a measurement", 3.0)]).verdict == "shown"
    assert Finding([shown("a measurement", 3.0), at_most("a comparison", 0.9, 1.0)]).verdict == "holds"
    assert Finding([]).verdict == "FAILS"
