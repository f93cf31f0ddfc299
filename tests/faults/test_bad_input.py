"""Every wrong invocation is answered with one line and the right exit code, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from case import Case, faults_of
from cases import CASES
from originals import Originals


def kind_of(case: Case) -> str:
    return re.sub(r"^(typos in|parameters of) .*", r"\1", case.name.partition(":")[0])


# of kinds that take a second or more, that test_every_verb.py has, or that another kind is like
SELDOM = {
    *("sweeps", "sweeps of eval", "sweeps of maxkey", "odd prompts", "eval", "eval of a task", "mistaken runs"),
    *("good values", "good reproduce", "good theory", "good bench", "shell syntax", "texts", "theory", "reproduce"),
    *("values of the model", "values of the optimiser", "values of the trainer", "values of the training"),
    *("values of the encoding", "values of the normaliser", "eval without a run", "export without a run"),
    *("models with code", "models' tokenizers", "models' weights", "eval a model", "eval of text as a task"),
    *("looks at a task", "text beside a task", "environment", "maxkey", "bench", "probe"),
}
# what `make test` tries: the first cheap case of each kind of wrong input, of one task where the kinds are the tasks
# (tests/data has the parameters of each), and cheap right ones
CHEAP = [
    case
    for case in reversed(CASES)
    if case.forked and case.patience <= 60 and "maxkey-run" not in case.given and kind_of(case) not in SELDOM
]
OFTEN = {
    # the last to be set is the first there is
    *{kind_of(case): case.name for case in CHEAP if case.codes != (0,)}.values(),
    *{
        case.args[0]: case.name for case in CHEAP if case.codes == (0,) and case.args and case.args[0].isalpha()
    }.values(),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[] if case.name in OFTEN else [pytest.mark.faults]) for case in CASES],
)
def test_wrong_input_is_answered_in_one_line(case: Case, tmp_path: Path, streams: Path, originals: Originals) -> None:
    folder, shell = tmp_path / "here", case.shell or ""
    folder.mkdir()
    if case.ordinary_user and os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("setpriv is not there to give up root's rights")
    if "script" in shell and not shutil.which("script"):
        pytest.skip("script is not there to make a terminal")
    if "mount" in shell:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "t", folder], capture_output=True, check=False)
        subprocess.run(["umount", "-q", folder], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("no right to mount a small disk")
    found = faults_of(case, folder, streams, originals)
    assert not found, "\n".join(found)


def test_every_case_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(case.name for case in CASES).items() if times > 1] == []
