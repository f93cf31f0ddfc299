"""Many starts in one second: a directory each, one that tokenises; one run is never written by two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from forkserver import Forkserver
from stopping import RESTLESS, RUNS, TRAIN, Bench, contents, differences, next_command, runs_in, text_in

N = 20
# seconds of work after the kill: the last of three must be refused while the first goes on
LONG = ["trainer.max_steps=500", "checkpoint_every=100", "validate_every=500", "trainer.log_every_n_steps=100"]


@pytest.mark.faults
def test_twenty_starts_in_one_second_are_twenty_runs_that_tokenise_once(
    server: Forkserver, env: Mapping[str, str], streams: Path, tmp_path: Path
) -> None:
    args = [*TRAIN, *RESTLESS, "trainer.max_steps=2", *text_in(tmp_path)]
    cache = tmp_path / "cache"
    ends = server.run_together(args, tmp_path, streams, n=N, env={**env, "ROUNDROUND_CACHE": str(cache)})
    assert [ended.code for ended in ends] == [0] * N, [ended.err for ended in ends if ended.code]
    named = {ended.out.strip() for ended in ends}
    assert (len(named), named) == (N, {str(path) for path in tmp_path.glob(RUNS)})
    assert sum("tokenised: " in ended.err for ended in ends) == 1
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1
    weights = {(Path(name) / "checkpoints" / "last" / "model.safetensors").read_bytes() for name in named}
    assert len(weights) == 1


@pytest.mark.faults
def test_of_three_that_resume_one_run_two_are_refused_in_one_line(
    server: Forkserver, env: Mapping[str, str], streams: Path, tmp_path: Path
) -> None:
    bench, args = Bench(server, env, streams), [*TRAIN, *RESTLESS, *text_in(tmp_path), *LONG]
    reference = tmp_path / "never-stopped"
    folder = tmp_path / "here"
    reference.mkdir()
    folder.mkdir()
    assert bench.run(args, reference, timeout=300).code == 0
    assert bench.run(args, folder, kill_before="mkdir .*/.step-00000100", timeout=300).code == -9
    ends = server.run_together(next_command(args, folder), folder, streams, n=3, env=env)
    assert sorted(ended.code for ended in ends) == [0, 2, 2]
    for ended in ends:
        if ended.code == 2:
            assert len(ended.err.splitlines()) == 1
            assert f"{runs_in(folder)[0]} is being written by another process" in ended.err
    assert differences(contents(reference), contents(folder)) == []
