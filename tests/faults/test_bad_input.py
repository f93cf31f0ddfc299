"""Every wrong invocation is answered with one line and the right exit code, and leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from case import Case, faults_of
from cases import CASES
from originals import Originals


def sample() -> set[str]:
    """The cases of every `make test`: the first cheap one of each kind of wrong input, and a right one of each verb."""
    cheap = [case for case in reversed(CASES) if case.forked and case.patience <= 60 and "maxkey-run" not in case.given]
    # the last to be set is the first there is
    kinds = {case.name.partition(":")[0]: case.name for case in cheap if case.codes != (0,)}
    verbs = {case.args[0]: case.name for case in cheap if case.codes == (0,) and case.args and case.args[0].isalpha()}
    return {*kinds.values(), *verbs.values()}


OFTEN = sample()  # all but these are left to `make test-faults`


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case.name in OFTEN else [pytest.mark.faults]) for case in CASES],
)
def test_wrong_input_is_answered_in_one_line(case: Case, tmp_path: Path, streams: Path, originals: Originals) -> None:
    reason = case.reason_to_skip()
    if reason:
        pytest.skip(reason)
    folder = tmp_path / "here"
    folder.mkdir()
    found = faults_of(case, folder, streams, originals)
    assert not found, "\n".join(found)


def test_every_case_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []
