"""`trainer.strategy=fsdp2`: the run of one process, its checkpoints gone on with by any number, and what is refused."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Done
from forkserver import Ended, Forkserver
from safetensors.torch import load_file

from roundround.runs import checkpoints

FSDP2 = ["trainer.strategy=fsdp2", "trainer.devices=auto"]
STEADY = ["optim.eps=1e-3"]  # a larger eps keeps Adam from blowing rounding up to whole steps


@pytest.fixture
def together(
    server: Forkserver, here: Path, env: dict[str, str], streams: Path
) -> Callable[..., tuple[list[Ended], Path]]:
    """The same command in n processes that torchrun would have started; how they ended, and the run."""

    def run(n: int, *args: str) -> tuple[list[Ended], Path]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "TMPDIR": str(here)}
        ends = server.run_together(
            list(args), here, streams, n=n,
            env={**env, **shared, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            own=[{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(n)],
        )  # fmt: skip
        return ends, Path((ends[0].out.split() or ["."])[-1])

    return run


def losses(run: Path, name: str = "loss") -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return checkpoints.load_weights(checkpoints.find(run, "last"))


def assert_same(one: Path, other: Path, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    for name in ("loss", "grad_norm", "held_out_nats_per_token"):
        assert losses(one, name) == pytest.approx(losses(other, name), rel=1e-4)
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=rtol, atol=atol)


def without_its_last_checkpoint(run: Path, name: str) -> Path:
    """A copy of a run as if it had been stopped after the checkpoint before its last."""
    copy = run.with_name(name)
    shutil.copytree(run, copy, symlinks=True)
    shutil.rmtree(checkpoints.find(copy, "last"))
    shutil.rmtree(copy / "exported", ignore_errors=True)
    return copy


def test_one_process_that_shards_is_one_that_does_not_bit_for_bit(train: Callable[..., Done]) -> None:
    plain, sharded = train("compile=false"), train("trainer.strategy=fsdp2")
    assert sharded.code == 0, sharded.err
    assert_same(plain.directory, sharded.directory, rtol=0, atol=0)
    assert losses(plain.directory) == losses(sharded.directory)
    assert sharded.results[0]["value"] == plain.results[0]["value"]
    assert sharded.manifest["facts"] == plain.manifest["facts"]
    assert f"exported to {sharded.directory / 'exported'}" in sharded.err
    named = load_file(sharded.directory / "exported" / "model.safetensors")
    best = checkpoints.load_weights(checkpoints.find(plain.directory, "best"))
    assert torch.equal(named["model.layers.1.mlp.up_proj.weight"], best["layers.1.mlp.up_proj.weight"])
    assert (sharded.directory / "exported" / "config.json").is_file()


def test_two_processes_that_share_the_parameters_out_and_one_go_on_from_each_other(
    together: Callable[..., tuple[list[Ended], Path]],
    fast: list[str],
    train: Callable[..., Done],
    roundround: Callable[..., Done],
) -> None:
    plain = train(*STEADY).directory
    ends, sharded = together(2, "train", *fast, *STEADY, *FSDP2)
    assert [end.code for end in ends] == [0, 0], ends
    assert_same(plain, sharded)
    stopped = without_its_last_checkpoint(sharded, "sharded")
    alone = roundround("train", f"resume={stopped}", "logger=none", "trainer.strategy=auto", "trainer.devices=1")
    assert alone.code == 0, alone.err
    assert_same(plain, stopped)
    assert [(p["n"], p["strategy"], p["from_step"]) for p in alone.manifest["processes"]] == [
        (2, "fsdp2", 0), (1, "auto", 2),
    ]  # fmt: skip
    stopped = without_its_last_checkpoint(plain, "plain")
    ends, again = together(2, "train", f"resume={stopped}", "logger=none", *FSDP2)
    assert [end.code for end in ends] == [0, 0], ends
    assert again == stopped
    assert_same(plain, stopped)
