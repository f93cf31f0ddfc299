"""Signals at random moments: the run stops with the right exit code, and a resume makes it the run never stopped."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from forkserver import Ended
from stopping import (
    MAX_RETRIEVAL,
    RESTLESS,
    TRAIN,
    AssertNoFaults,
    Bench,
    Reference,
    contents,
    differences,
    never_stopped,
    next_command,
    text_in,
)

TRIALS, GROUPS = 8, 2  # of each verb; tests that share them
MOST_STOPS = 3  # of one run, before it is left to finish
LEAST_STOPPED = 0.4  # share of the signals that find the run at work: a resumed one has less left to do
# how a run is stopped: the signals, and the right exit codes; a signal that comes before Python knows the program's
# handlers, or too late, has its own
KINDS = {
    "KILL": ([signal.SIGKILL], {-9}),
    "TERM": ([signal.SIGTERM], {143, -15}),
    "INT": ([signal.SIGINT], {130, -2}),
    "two INT": ([signal.SIGINT, signal.SIGINT], {130, -2}),
}
ARGS = {
    # a stop between two lines of the metrics writes one of its own: here every step has its line
    "train": [*TRAIN, *RESTLESS, "trainer.max_steps=30", "checkpoint_every=2", "trainer.log_every_n_steps=1"],
    "max-retrieval": [*MAX_RETRIEVAL, "max_steps=60"],
}


@pytest.fixture(scope="module", params=ARGS)
def reference(request: pytest.FixtureRequest, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("never-stopped")
    args = [*ARGS[request.param], *(text_in(tmp_path_factory.mktemp("corpus")) if request.param == "train" else [])]
    return never_stopped(bench, args, folder)


@pytest.mark.faults
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_run_stopped_at_random_moments_and_resumed_is_the_run_never_stopped(
    group: int,
    bench: Bench,
    reference: Reference,
    tmp_path: Path,
    assert_no_faults: AssertNoFaults,
) -> None:
    faults, codes = {}, []
    seconds = reference.seconds  # the least that a run has taken
    for trial in range(group, TRIALS, GROUPS):
        folder, draw, found = tmp_path / str(trial), random.Random(trial), []
        folder.mkdir()
        for _ in range(draw.randint(1, MOST_STOPS)):
            kind, moment = draw.choice(sorted(KINDS)), draw.uniform(0.02, seconds)
            signals = [(moment + n * draw.uniform(0, 0.2), signum) for n, signum in enumerate(KINDS[kind][0])]
            began = time.monotonic()
            ended = bench.run(next_command(reference.args, folder), folder, signals=signals)
            if ended.code == 0:
                seconds = min(seconds, time.monotonic() - began)
            codes.append(ended.code)
            found += [f"{kind} after {moment:.2f} s: {fault}" for fault in faults_of_stop(ended, KINDS[kind][1])]
        ended = bench.run(next_command(reference.args, folder), folder)
        if ended.code == 0:
            found += differences(named_checkpoints(reference.contents), named_checkpoints(contents(folder)))
        else:
            found.append(f"the last resume ends with {ended.code}: {ended.err[-300:]!r}")
        faults[f"trial {trial}"] = found
    in_time = sum(code != 0 for code in codes)
    assert in_time >= LEAST_STOPPED * len(codes), f"{in_time} of {len(codes)} signals came before the end"
    assert_no_faults(f"stopped at random moments: {reference.args[0]}", faults)


def named_checkpoints(found: Mapping[str, Any]) -> dict[str, Any]:
    """Contents without the checkpoints that are neither `last` nor `best`: a stop saves one more."""
    named = {str(value).removeprefix("-> ") for name, value in found.items() if name.endswith(("/last", "/best"))}
    return {name: value for name, value in found.items() if "/step-" not in name or name.split("/")[2] in named}


def faults_of_stop(ended: Ended, codes: set[int]) -> list[str]:
    """What is wrong with how a process ended that got a signal; 0 is right for one that had done its work."""
    if ended.hung:
        return ["no answer to the signal"]
    wrong = [] if ended.code in {*codes, 0} else [f"exit code {ended.code}: {ended.err[-300:]!r}"]
    told = [line for line in ended.err.splitlines() if "Traceback" in line or "Error" in line]
    return wrong + ([f"told {told[:3]}"] if told else [])
