"""`prepare` killed anywhere and typed again: the same corpus, and no shard that was whole is made twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from forkserver import COMMAND
from stopping import AssertNoFaults, Bench


@pytest.fixture(scope="module")
def args(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of seven megabytes, in three shards: one, two and four."""
    text = tmp_path_factory.mktemp("corpus") / "numbers.txt"
    text.write_text("\n\n".join(f"{n} and then {n * n} " + "and so on " * (n % 90) for n in range(15_000)))
    return ["prepare", "data=text", f"data.path={text}", "tokenizer=bytes", "n_processes=1", "to=mine", "logger=none"]


@pytest.fixture(scope="module")
def whole(
    bench: Bench, args: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], list[str]]:
    """The corpus that was never stopped, and the changes to the disk that it took."""
    folder = tmp_path_factory.mktemp("never-stopped")
    ended = bench.run(args, folder, watch=True)
    assert ended.code == 0, ended.err
    assert len(list(folder.glob("mine/shard-*"))) == 3
    return corpus_in(folder), list(ended.changes)


def corpus_in(folder: Path) -> dict[str, bytes]:
    found = (path for path in (folder / "mine").iterdir() if path.name not in (".lock", "stamps.json"))
    return {path.name: path.read_bytes() for path in found}


def whole_shards(folder: Path) -> dict[str, int]:
    """The files of shards that are whole, and what changes when one is written again."""
    numbers = [path.stem.partition("-")[2] for path in folder.glob("mine/shard-*.json")]
    return {path.name: path.stat().st_ino for n in numbers for path in (folder / "mine").glob(f"*-{n}.*")}


def finished(bench: Bench, args: list[str], folder: Path, whole: dict[str, bytes]) -> list[str]:
    """Prepare to the end what was stopped; what is wrong, in words."""
    before = whole_shards(folder)
    ended = bench.run(args, folder)
    if ended.code != 0:
        return [f"the next one ends with {ended.code}: {ended.err[-300:]!r}"]
    after = whole_shards(folder)
    faults = [f"{name} was made twice" for name, made in before.items() if after.get(name) != made]
    return (
        faults
        + [f"{name} differs" for name in whole if corpus_in(folder).get(name) != whole[name]]
        + [f"{name} is left" for name in corpus_in(folder) if name not in whole]
    )


def killed_before(kills: list[int], bench: Bench, args: list[str], folder: Path, whole: dict[str, bytes]) -> list[str]:
    folder.mkdir()
    for kill in kills:
        bench.run(args, folder, kill_before=kill)
    return finished(bench, args, folder, whole)


@pytest.mark.parametrize(
    "pattern",
    ["shard-00001", *(pytest.param(name, marks=pytest.mark.slow) for name in ("held_out-00001", "meta.json"))],
)
def test_a_preparation_that_is_killed_goes_on(
    pattern: str, bench: Bench, args: list[str], whole: tuple[dict[str, bytes], list[str]], tmp_path: Path
) -> None:
    kill = next(n for n, change in enumerate(whole[1], 1) if f"mine/{pattern}" in change or f".{pattern}" in change)
    assert killed_before([kill], bench, args, tmp_path / "here", whole[0]) == []


@pytest.mark.faults
@pytest.mark.parametrize("part", range(4))
def test_killed_before_any_change_to_the_disk(
    part: int,
    bench: Bench,
    args: list[str],
    whole: tuple[dict[str, bytes], list[str]],
    tmp_path: Path,
    assert_no_faults: AssertNoFaults,
) -> None:
    faults = {}
    for kill in range(1 + part, len(whole[1]) + 1, 4):
        kills = [kill, *([kill + 9] if kill % 3 == 0 else [])]
        faults[f"prepare, changes {kills}"] = killed_before(kills, bench, args, tmp_path / f"{kill}", whole[0])
    assert_no_faults("prepare killed before each change", faults)


@pytest.mark.faults
def test_two_at_once_do_the_work_once(
    bench: Bench, args: list[str], whole: tuple[dict[str, bytes], list[str]], tmp_path: Path
) -> None:
    processes = [
        subprocess.Popen([*COMMAND, *args], cwd=tmp_path, env=dict(bench.env), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert sum("tokenised: " in text for text in told) == 1
    assert corpus_in(tmp_path) == whole[0]
