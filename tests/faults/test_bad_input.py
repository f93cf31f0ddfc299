"""Every wrong invocation is answered with one line and the right exit code, and leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from case import Case, faults_of, reason_to_skip
from cases import CASES
from originals import Originals

EVERY = 80  # one in so many runs with every `make test`


def parameters() -> list[object]:
    """The cases; all but a sample, spread over the kinds, are left to `make test-faults`."""
    return [
        pytest.param(case, id=case.name, marks=[] if number % EVERY == 0 and case.forked else [pytest.mark.faults])
        for number, case in enumerate(CASES)
    ]


@pytest.mark.parametrize("case", parameters())
def test_wrong_input_is_answered_in_one_line(case: Case, tmp_path: Path, streams: Path, originals: Originals) -> None:
    reason = reason_to_skip(case)
    if reason:
        pytest.skip(reason)
    folder = tmp_path / "here"
    folder.mkdir()
    found = faults_of(case, folder, streams, originals)
    assert not found, "\n".join(found)


def test_every_case_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []
