"""A signal while Python still imports: the exit code of an interruption, at most one line, nothing that stays."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from forkserver import COMMAND, in_a_process
from stopping import RESTLESS, TRAIN, AssertNoFaults, text_in

MOMENTS = [0.1, 0.4, 0.8, 1.3, 2.0, 3.0, 4.5]  # seconds after the start
CODES = {
    signal.SIGINT: {130, -signal.SIGINT},
    signal.SIGTERM: {143, -signal.SIGTERM},
    signal.SIGHUP: {129, -signal.SIGHUP},
}


@pytest.mark.faults
@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("signum", CODES, ids=lambda signum: signum.name)
def test_a_signal_while_python_imports_prints_no_traceback(
    signum: signal.Signals,
    env: Mapping[str, str],
    tmp_path: Path,
    assert_no_faults: AssertNoFaults,
) -> None:
    args = [*TRAIN, *RESTLESS, "trainer.max_steps=100000", *text_in(tmp_path)]
    assert_no_faults(
        "signals in the first seconds",
        {f"{signum.name} after {s} s": stopped(args, signum, s, env, tmp_path) for s in MOMENTS},
    )


def stopped(
    args: Sequence[str], signum: signal.Signals, moment: float, env: Mapping[str, str], parent: Path
) -> list[str]:
    """Start a whole process, send it a signal after so many seconds; what is wrong with its end, in words."""
    folder = parent / f"after-{moment}"
    folder.mkdir()
    ended = in_a_process([*COMMAND, *args], folder, env=env, timeout=60, interrupted=(moment, signum))
    if ended.hung:
        return ["no answer in 60 s"]
    begun = "model, pe=" in ended.err  # then there is more to say
    faults = [] if ended.code in CODES[signum] else [f"exit code {ended.code}"]
    faults += ["a traceback"] if "Traceback" in ended.out + ended.err else []
    told = [line for line in ended.err.splitlines() if line.strip()]
    return faults + ([f"told {told[:4]}"] if len(told) > 1 and not begun else [])
