"""Every wrong invocation is answered with one line and the right exit code, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from case import Case, faults_of
from cases import CASES
from forkserver import Forkserver

EVERY = 25  # one in so many runs with every `make test`


def parameters() -> list[object]:
    """The cases; all but a sample, spread over the kinds, are left to `make test-faults`."""
    return [
        pytest.param(case, id=case.name, marks=[] if number % EVERY == 0 and case.forked else [pytest.mark.faults])
        for number, case in enumerate(CASES)
    ]


@pytest.mark.parametrize("case", parameters())
def test_wrong_input_is_answered_in_one_line(
    case: Case, tmp_path: Path, streams: Path, server: Forkserver, env: Mapping[str, str]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    assert faults_of(case, folder, streams, server, env) == []
