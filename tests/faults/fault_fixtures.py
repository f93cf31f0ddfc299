"""What the tests of faults share: commands without imports, a run to damage, and the table of counts at the end."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Tally:
    """The cases of one test, as the table at the end counts them."""

    kind: str
    tried: int
    fell_short: int


@pytest.fixture
def judge(record_property: Callable[[str, object], None]) -> Callable[[str, Mapping[str, Sequence[str]]], None]:
    """Judges many cases of one test: their kind, and what is wrong with each by its name."""

    def judged(kind: str, faults: Mapping[str, Sequence[str]]) -> None:
        short = {name: found for name, found in faults.items() if found}
        record_property("tally", [kind, len(faults), len(short)])
        assert faults, "no case was tried"
        assert not short, "\n".join(f"{name}: {'; '.join(found)}" for name, found in short.items())

    return judged


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The counts by kind of fault, as docs/reliability.md shows them."""
    tried, short = Counter[str](), Counter[str]()
    for outcome in ("passed", "failed"):
        for tally in map(tallied, filter(is_fault, terminalreporter.stats.get(outcome, []))):
            tried[tally.kind] += tally.tried
            short[tally.kind] += tally.fell_short
    if not tried:
        return
    terminalreporter.section("faults")
    for name in sorted(tried):
        terminalreporter.write_line(f"{name:<50} {tried[name] - short[name]:>5} of {tried[name]:>5} as they should be")
    total = tried.total()
    terminalreporter.write_line(f"{'all':<50} {total - short.total():>5} of {total:>5} as they should be")


def is_fault(report: object) -> bool:
    return isinstance(report, pytest.TestReport) and "faults/" in report.nodeid and report.when == "call"


def tallied(report: pytest.TestReport) -> Tally:
    """What a test counts for: what it says itself, or one case of a kind named by its parameter or its function."""
    own = dict(report.user_properties).get("tally")
    if own is not None:
        return Tally(*own)
    function, _, parameter = report.nodeid.partition("::")[2].partition("[")
    kind = parameter.partition(":")[0] if ":" in parameter else function.removeprefix("test_").replace("_", " ")
    return Tally(kind, 1, int(report.failed))
