"""A signal while Python still imports: the exit code of an interruption, at most one line, nothing that stays."""

from __future__ import annotations

import signal
from collections.abc import Mapping
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
    faults = {}
    for moment in MOMENTS:
        folder = tmp_path / f"after-{moment}"
        folder.mkdir()
        ended = in_a_process([*COMMAND, *args], folder, env=env, timeout=60, interrupted=(moment, signum))
        begun = "model, pe=" in ended.err  # then there is more to say
        told = [line for line in ended.err.splitlines() if line.strip()]
        wrong = {
            "no answer in 60 s": ended.hung,
            f"exit code {ended.code}": ended.code not in CODES[signum],
            "a traceback": "Traceback" in ended.out + ended.err,
            f"told {told[:4]}": len(told) > 1 and not begun,
        }
        faults[f"{signum.name} after {moment} s"] = [what for what, is_wrong in wrong.items() if is_wrong]
    assert_no_faults("signals in the first seconds", faults)
