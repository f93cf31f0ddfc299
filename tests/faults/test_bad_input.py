"""Every wrong invocation is answered with one line and the right exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from case import Case, faults_of
from cases import CASES
from originals import Originals

# what `make test` tries: the last of each kind that is quick
QUICK = {case.name.partition(":")[0]: case.name for case in CASES if case.shell is None and not case.ordinary_user}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.name in QUICK.values() else [pytest.mark.faults])
        for case in CASES
    ],
)
def test_wrong_input_is_answered_in_one_line(case: Case, tmp_path: Path, streams: Path, originals: Originals) -> None:
    folder, shell = tmp_path / "here", case.shell or ""
    folder.mkdir()
    if case.ordinary_user and os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("setpriv is not there to give up root's rights")
    if "mount" in shell:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "t", folder], capture_output=True, check=False)
        subprocess.run(["umount", "-q", folder], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("no right to mount a small disk")
    found = faults_of(case, folder, streams, originals)
    assert not found, "\n".join(found)
