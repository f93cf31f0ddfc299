"""What the tests of faults share: commands without imports, a run to damage, and the table of counts at the end."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from forkserver import ROOT, Forkserver
from originals import Originals


@pytest.fixture(scope="session")
def server() -> Iterator[Forkserver]:
    if sys.platform != "linux":
        pytest.skip("commands are forked and stopped as Linux does it")
    with Forkserver() as running:
        yield running


@pytest.fixture(scope="session")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of every command: nothing of the tester's own, one token cache."""
    home = tmp_path_factory.mktemp("home")
    return {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | {
        "HOME": str(home), "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline",
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "ROUNDROUND_CACHE": str(tmp_path_factory.mktemp("token-cache")),
    }  # fmt: skip


@pytest.fixture(scope="session")
def originals(server: Forkserver, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Originals:
    return Originals(server, env, tmp_path_factory.mktemp("originals"))


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    """Where the output of a command goes: not the folder that it works in."""
    (tmp_path / "streams").mkdir()
    return tmp_path / "streams"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The counts by kind of fault, as docs/reliability.md shows them."""
    passed, failed = (
        Counter(kind(report) for report in terminalreporter.stats.get(outcome, []) if is_fault(report))
        for outcome in ("passed", "failed")
    )
    if not passed + failed:
        return
    terminalreporter.section("faults")
    for name in sorted(passed.keys() | failed.keys()):
        tried = passed[name] + failed[name]
        terminalreporter.write_line(f"{name:<40} {passed[name]:>5} of {tried:>5} as they should be")
    total = passed.total() + failed.total()
    terminalreporter.write_line(f"{'all':<40} {passed.total():>5} of {total:>5} as they should be")


def is_fault(report: object) -> bool:
    return isinstance(report, pytest.TestReport) and "faults/" in report.nodeid and report.when == "call"


def kind(report: pytest.TestReport) -> str:
    """The group of a test: the first words of its case, or the function."""
    function, _, parameter = report.nodeid.partition("::")[2].partition("[")
    return parameter.partition(":")[0] if parameter else function
