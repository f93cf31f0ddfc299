"""The clock is set back by a day while a run is stopped: nothing in it, or in what is found by time, goes wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from forkserver import COMMAND, Forkserver, in_a_process
from stopping import RESTLESS, TRAIN, Bench, contents, differences, next_command, runs_in, text_in

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
A_DAY_BACK = {"LD_PRELOAD": str(LIBRARY), "FAKETIME": "-1d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
TIMEOUT = 120  # seconds


@pytest.mark.faults
@pytest.mark.skipif(LIBRARY is None, reason="needs Debian's libfaketime, under which the clock is another")
def test_a_run_goes_on_and_the_next_begins_with_the_clock_a_day_back(
    server: Forkserver, env: Mapping[str, str], streams: Path, tmp_path: Path
) -> None:
    bench, args = Bench(server, env, streams), [*TRAIN, *RESTLESS, *text_in(tmp_path)]
    reference, folder = tmp_path / "never-stopped", tmp_path / "here"
    reference.mkdir()
    folder.mkdir()
    assert bench.run(args, reference).code == 0
    assert bench.run(args, folder, kill_before="mkdir .*/.step-00000006").code == -9
    earlier = {**env, **A_DAY_BACK}
    resumed = in_a_process([*COMMAND, *next_command(args, folder)], folder, env=earlier, timeout=TIMEOUT)
    assert resumed.code == 0, resumed.err
    assert differences(contents(reference), contents(folder)) == []
    again = in_a_process([*COMMAND, *args], folder, env=earlier, timeout=TIMEOUT)
    assert again.code == 0, again.err
    first, second = (json.loads((run / "run.json").read_text()) for run in runs_in(folder)[::-1])
    assert second["started"][:10] < first["started"][:10], "the clock was set back"
    listed = in_a_process([*COMMAND, "runs", "format=json"], folder, env=env, timeout=TIMEOUT)
    assert [run["status"] for run in json.loads(listed.out)] == ["done", "done"]
