"""`trainer.strategy=fsdp2`: the run of one process, its checkpoints gone on with by any number, and what is refused."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Done, at_step, metrics_of, typed
from forkserver import Ended, Forkserver
from safetensors.torch import load_file

from roundround.records import checkpoints

FSDP2 = ["trainer.strategy=fsdp2", "trainer.devices=auto"]
# a larger eps keeps Adam from blowing rounding up to whole steps; of nine windows one process validates on one more
STEADY = ["optim.eps=1e-3", "validation_tokens=288"]


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
    lines = metrics_of(run)
    return [line[name] for line in lines if name in line]


def assert_same(one: Path, other: Path, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    for name in ("loss", "grad_norm", "held_out_nats_per_token"):
        assert losses(one, name) == pytest.approx(losses(other, name), rel=1e-4)
    a, b = (checkpoints.load_weights(checkpoints.find(run, "last")) for run in (one, other))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=rtol, atol=atol)


def without_its_last_checkpoint(run: Path, name: str) -> Path:
    """A copy of a run as if it had been stopped after the checkpoint before its last."""
    copy = run.with_name(name)
    shutil.copytree(run, copy, symlinks=True)
    shutil.rmtree(checkpoints.find(copy, "last"))
    return copy


def test_one_process_that_shards_is_one_that_does_not_bit_for_bit(train: Callable[..., Done]) -> None:
    plain, sharded = train("compile=false"), train("trainer.strategy=fsdp2")
    assert sharded.code == 0, sharded.err
    assert_same(plain.directory, sharded.directory, rtol=0, atol=0)
    assert losses(plain.directory) == losses(sharded.directory)
    assert sharded.results[0]["value"] == plain.results[0]["value"]
    assert sharded.manifest["facts"] == plain.manifest["facts"]
    assert typed("export", f"run={sharded.directory}", "to=exported", "logger=none").code == 0
    named = load_file(Path("exported") / "model.safetensors")
    best = checkpoints.load_weights(checkpoints.find(plain.directory, "best"))
    assert torch.equal(named["model.layers.1.mlp.up_proj.weight"], best["layers.1.mlp.up_proj.weight"])


@pytest.mark.slow  # test_sharding.py has every pair of numbers of processes
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


@pytest.mark.slow  # three runs
def test_a_signal_waits_for_the_checkpoint_that_is_being_written(
    train: Callable[..., Done], roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train().directory
    with monkeypatch.context() as patch:
        at_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert train("trainer.strategy=fsdp2").code == 143
    stopped = max(Path("outputs/train").glob("*/*")).absolute()
    assert [checkpoints.step_of(path) for path in checkpoints.steps(stopped / "checkpoints")] == [2, 3]
    done = roundround("train", f"resume={stopped}", "logger=none")
    assert done.code == 0, done.err
    assert_same(whole, stopped, rtol=0, atol=0)


def test_a_damaged_shard_is_one_line_for_each_verb_that_reads_it(
    train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    run = without_its_last_checkpoint(train("trainer.strategy=fsdp2", "trainer.max_steps=6").directory, "stopped")
    folder = checkpoints.find(run, "last")
    before = (run / "run.json").read_bytes()
    shard = folder / "shard-00001-model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    for words in (["train", f"resume={run}"], ["eval", f"run={run}", "checkpoint=last", "length=32"]):
        done = roundround(*words, "logger=none")
        assert (done.code, done.out) == (2, ""), done.err
        assert f"{shard.name} is damaged" in done.err.strip().splitlines()[-1]
    assert (run / "run.json").read_bytes() == before


@pytest.mark.slow
def test_shards_start_from_a_checkpoint_of_hugging_face(
    train: Callable[..., Done], roundround: Callable[..., Done], corpus: Path
) -> None:
    few = ["trainer.max_steps=1", "batch_size=2", "logger=none", "data=text", f"data.path={corpus}"]
    few += ["trainer.accelerator=cpu", "validation_tokens=512", "model.train_length=64", "init=stories260k"]
    plain, sharded = roundround("train", *few), roundround("train", *few, "trainer.strategy=fsdp2")
    assert sharded.code == 0, sharded.err
    assert_same(plain.directory, sharded.directory, rtol=0, atol=0)


@pytest.mark.slow
def test_four_processes_and_two_go_on_from_each_other_with_a_task(
    together: Callable[..., tuple[list[Ended], Path]], fast: list[str]
) -> None:
    of_text = ("data", "tokenizer", "validation_tokens", "model.train_length")
    words = [word for word in fast if not word.startswith(of_text)]
    task = [*words, "data=copy", "optim.eps=1e-3"]
    (end,), plain = together(1, "train", *task)
    assert end.code == 0, end.err
    ends, four = together(4, "train", *task, *FSDP2)
    assert [end.code for end in ends] == [0] * 4, ends
    assert_same(plain, four)
    stopped = without_its_last_checkpoint(four, "stopped")
    ends, two = together(2, "train", f"resume={stopped}", "logger=none")
    assert [end.code for end in ends] == [0, 0], ends
    assert_same(plain, two)
