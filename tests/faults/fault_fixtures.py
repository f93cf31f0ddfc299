"""What the tests of faults share: commands without imports, a run to damage, and the table of counts at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import forkserver
import pytest
from forkserver import ROOT, Forkserver
from originals import Originals
from stopping import AssertNoFaults, Bench

ONE_CASE = "::test_wrong_input_is_answered_in_one_line["


@pytest.fixture(scope="session")
def server() -> Iterator[Forkserver]:
    if sys.platform != "linux":
        pytest.skip("commands are forked and stopped as Linux does it")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, forkserver.__file__], cwd=ROOT, env=os.environ | offline, **pipes) as server:
        yield Forkserver(server)
        server.stdin.close()  # its end


@pytest.fixture(scope="session")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of every command: nothing of the tester's own, one token cache."""
    home = tmp_path_factory.mktemp("home")
    return {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | {
        "HOME": str(home), "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline",
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # with a GPU, device=cuda would be right
        "ROUNDROUND_CACHE": str(tmp_path_factory.mktemp("token-cache")),
    }  # fmt: skip


@pytest.fixture(scope="session")
def originals(server: Forkserver, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Originals:
    return Originals(server, env, tmp_path_factory.mktemp("originals"))


@pytest.fixture(scope="session")
def bench(server: Forkserver, env: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Each command tokenises anew, into the folder that it works in: a kill on the way there counts as well."""
    return Bench(server, env, tmp_path_factory.mktemp("streams"), cache="cache")


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    """Where the output of a command goes: not the folder that it works in."""
    (tmp_path / "streams").mkdir()
    return tmp_path / "streams"


@pytest.fixture
def assert_no_faults(record_property: Callable[[str, object], None]) -> AssertNoFaults:
    """Asserts for many cases of one test: their kind, and what is wrong with each by its name."""

    def assert_all(kind: str, faults: Mapping[str, Sequence[str]]) -> None:
        short = {name: found for name, found in faults.items() if found}
        record_property("tally", [kind, len(faults), len(short)])
        assert faults, "no case was tried"
        assert not short, "\n".join(f"{name}: {'; '.join(found)}" for name, found in short.items())

    return assert_all


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The counts by kind of fault, as docs/inside/reliability.md shows; a test whose setup or end fails falls short.

    A test says its kind and counts itself (`assert_no_faults`), or is one case of its parameter's kind. The suite's
    checks of itself have neither the mark nor a case.
    """
    reports: dict[str, list[pytest.TestReport]] = {}
    for outcome in ("passed", "failed", "error", "skipped", ""):  # "": setups and ends with nothing to say
        for report in terminalreporter.stats.get(outcome, []):
            if isinstance(report, pytest.TestReport) and ("faults" in report.keywords or ONE_CASE in report.nodeid):
                reports.setdefault(report.nodeid, []).append(report)
    counts: dict[str, list[float]] = {}
    for name, of_test in reports.items():
        if not any(report.when == "call" or not report.passed for report in of_test):
            continue  # nobody waited for its end
        failed, skipped = (any(getattr(report, how) for report in of_test) for how in ("failed", "skipped"))
        tallies = [value for report in of_test for key, value in report.user_properties if key == "tally"]
        function, _, parameter = name.partition("::")[2].partition("[")
        kind = parameter.partition(":")[0] if ": " in parameter else function.removeprefix("test_").replace("_", " ")
        tried, short = int(not skipped), 0
        if tallies:
            kind, tried, short = tallies[0]
        right = tried - max(short, int(failed)) if tried else 0
        numbers = (tried, right, int(skipped and not tallies), sum(report.duration for report in of_test))
        counts[kind] = [a + b for a, b in zip(counts.get(kind, [0] * 4), numbers, strict=True)]
    if not counts:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'kind':<50} {'tried':>6} {'right':>6} {'skipped':>8} {'seconds':>8}")
    every = [sum(column) for column in zip(*counts.values(), strict=True)]
    for kind, (tried, right, skipped, seconds) in [*sorted(counts.items()), ("all", every)]:
        terminalreporter.write_line(f"{kind:<50} {tried:>6} {right:>6} {skipped:>8} {seconds:>8.0f}")
