"""What the tests of faults share: commands without imports, a run to damage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import forkserver
import pytest
from forkserver import ROOT, Forkserver
from originals import Originals
from stopping import AssertNoFaults, Bench


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
def assert_no_faults() -> AssertNoFaults:
    """Asserts for many cases of one test: their kind, and what is wrong with each by its name."""

    def assert_all(kind: str, faults: Mapping[str, Sequence[str]]) -> None:
        short = {name: found for name, found in faults.items() if found}
        assert faults, "no case was tried"
        assert not short, "\n".join(f"{kind}: {name}: {'; '.join(found)}" for name, found in short.items())

    return assert_all
