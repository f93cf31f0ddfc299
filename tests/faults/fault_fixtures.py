"""What the tests of faults share: commands without imports, a run to damage, and the table of counts at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from forkserver import ROOT, Forkserver
from originals import Originals
from stopping import AssertNoFaults, Bench


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


@dataclass
class Count:
    """What the table at the end says of a kind of fault."""

    tried: int = 0
    right: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def add(self, other: Count) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note whether a test tries the package: the suite's checks of itself have neither the mark nor a case."""
    call = getattr(item, "callspec", None)
    if item.get_closest_marker("faults") or (call is not None and "case" in call.params):
        item.user_properties.append(("fault", True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The counts by kind of fault, as docs/reliability.md shows them."""
    counts, total = counted(terminalreporter.stats), Count()
    if not counts:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(f"{'kind':<50} {'tried':>6} {'right':>6} {'skipped':>8} {'seconds':>8}")
    for kind, count in sorted(counts.items()):
        terminalreporter.write_line(line_of(kind, count))
        total.add(count)
    terminalreporter.write_line(line_of("all", total))


def line_of(kind: str, count: Count) -> str:
    return f"{kind:<50} {count.tried:>6} {count.right:>6} {count.skipped:>8} {count.seconds:>8.0f}"


def counted(stats: Mapping[str, Sequence[object]]) -> dict[str, Count]:
    """By kind; a test whose setup or end fails falls short, like one that fails."""
    reports: dict[str, list[pytest.TestReport]] = {}
    for outcome in ("passed", "failed", "error", "skipped", ""):  # "": setups and ends with nothing to say
        for report in stats.get(outcome, []):
            if isinstance(report, pytest.TestReport) and is_fault(report):
                reports.setdefault(report.nodeid, []).append(report)
    counts: dict[str, Count] = {}
    for of_test in filter(has_ended, reports.values()):
        kind, count = count_of(of_test)
        counts.setdefault(kind, Count()).add(count)
    return counts


def has_ended(reports: Sequence[pytest.TestReport]) -> bool:
    """Whether a test was done: not one whose end nobody waited for."""
    return any(report.when == "call" or not report.passed for report in reports)


def is_fault(report: pytest.TestReport) -> bool:
    return any(name == "fault" for name, _ in report.user_properties)


def parameter_of(report: pytest.TestReport) -> str:
    return report.nodeid.partition("::")[2].partition("[")[2]


def count_of(reports: Sequence[pytest.TestReport]) -> tuple[str, Count]:
    """(kind, what a test counts for): what it says itself, or one case of a kind named by its parameter or function."""
    seconds = sum(report.duration for report in reports)
    own = next((value for report in reports for name, value in report.user_properties if name == "tally"), None)
    if own is not None:
        kind, tried, short = own
        return kind, Count(tried, tried - max(short, fallen(reports)), 0, seconds)
    parameter = parameter_of(reports[0])
    function = reports[0].nodeid.partition("::")[2].partition("[")[0]
    kind = parameter.partition(":")[0] if ": " in parameter else function.removeprefix("test_").replace("_", " ")
    if any(report.skipped for report in reports):
        return kind, Count(skipped=1, seconds=seconds)
    return kind, Count(1, 1 - fallen(reports), 0, seconds)


def fallen(reports: Sequence[pytest.TestReport]) -> int:
    return int(any(report.failed for report in reports))
