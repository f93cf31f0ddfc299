"""`roundround train`: what a run leaves behind, and that stopping it at any moment changes nothing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FAST, Done, at_step, held_out_stream, metrics_of, saved_weights, typed
from forkserver import Forkserver
from rounding import rounding
from torch.optim.optimizer import register_optimizer_step_pre_hook

from roundround.training import material

LONG = ["trainer.max_steps=60", "validate_every=20", "checkpoint_every=7", "trainer.log_every_n_steps=5"]


def assert_same_weights(one: Path, other: Path) -> None:
    a, b = saved_weights(one), saved_weights(other)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def without_clock(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    of_the_clock = {"tokens_per_second", "mfu", "waiting_share", "peak_memory_gb"}
    return [{key: value for key, value in row.items() if key not in of_the_clock} for row in rows]


def measured(run: Path, step: int) -> dict[str, float]:
    """What metrics.jsonl says of one step; `loss` is left out, a mean over steps since the last line."""
    rows = [row for row in without_clock(metrics_of(run)) if row["step"] == step]
    return {key: value for row in rows for key, value in row.items() if key != "loss"}


# -- what a run leaves behind


def test_a_run_tells_how_it_came_to_be(train: Callable[..., Done]) -> None:
    done = train("pe=p_rope", "seed=3")
    assert done.code == 0, done.err
    manifest = done.manifest
    assert manifest["status"] == "done"
    assert manifest["seed"] == 3
    assert manifest["choices"]["pe"] == "p_rope"
    assert manifest["config"]["pe"]["p"] == 0.75
    assert manifest["command"].startswith("roundround train ")
    assert {"torch", "lightning", "python"} <= manifest["versions"].keys()
    assert len(manifest["data"]["corpus_hash"]) == 64
    assert manifest["facts"]["rotated_pairs"] == 3
    assert manifest["facts"]["pairs"] == 4
    assert manifest["started"] < manifest["ended"]
    assert (done.directory / "checkpoints" / "best" / "model.safetensors").exists()
    assert (done.directory / "tokenizer.json").exists()


def test_results_hold_perplexity_in_three_units(train: Callable[..., Done], corpus: Path) -> None:
    done = train("pe=p_rope")
    n_bytes = len(held_out_stream(corpus)[1:257].replace(b"\0", b""))
    nats = done.value("nats_per_token", length=32)
    assert done.value("perplexity", length=32) == pytest.approx(math.exp(nats))
    assert done.value("nats_per_byte", length=32) == pytest.approx(nats * 256 / n_bytes)
    assert done.value("rotated_pairs") == 3


def test_metrics_hold_every_logging_step(train: Callable[..., Done]) -> None:
    rows = metrics_of(train().directory)
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if "held_out_nats_per_token" in row] == [2, 4]
    assert all(row["tokens"] == row["step"] * 4 * 32 for row in rows if "loss" in row)


def test_the_rate_of_a_line_is_that_of_its_steps_update(train: Callable[..., Done]) -> None:
    """Seen by the optimizer itself as it takes its steps, and the schedule's formula; over a resume too."""
    used: list[float] = []
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: used.append(optimizer.param_groups[0]["lr"]))
    try:
        done = train("schedule.warmup_steps=2", "schedule.final_fraction=0.1", "trainer.max_steps=6", "optim.lr=0.5")
        shutil.rmtree(done.directory / "checkpoints" / "step-00000006")
        run = done.manifest | {"status": "interrupted"}
        (done.directory / "run.json").write_text(json.dumps(run))
        resumed = typed("train", f"resume={done.directory}", "logger=none")
    finally:
        hook.remove()
    assert resumed.code == 0, resumed.err
    rates = [row["lr"] for row in metrics_of(done.directory) if "lr" in row]
    cosine = [0.1 + 0.9 * (1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]
    assert rates == pytest.approx([0.5 * factor for factor in (1 / 3, 2 / 3, *cosine)], rel=1e-15)
    assert rates == used[:4] + used[6:]  # steps 5 and 6 were taken twice


# -- the same data whatever the split


STEPS = 4 * 3 * rounding(4 * 32, 0.1)  # of lr / eps = 3, with gradients of 0.1 that are sums over the tokens of a batch


def test_accumulation_changes_nothing_but_rounding(train: Callable[..., Done]) -> None:
    one, two = train("optim.eps=1e-3"), train("optim.eps=1e-3", "trainer.accumulate_grad_batches=2")
    a, b = saved_weights(one.directory), saved_weights(two.directory)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=STEPS)


# a larger eps keeps Adam from blowing rounding up to whole steps
TWO = ["trainer.devices=2", "trainer.strategy=ddp", "optim.eps=1e-3"]


@pytest.mark.slow  # those of torchrun below take the same way from there on, in a third of the time
def test_two_processes_see_the_data_of_one(
    here: Path, fast: list[str], train: Callable[..., Done], server: Forkserver, env: dict[str, str], streams: Path
) -> None:
    both = server.run(["train", *fast, *TWO], here, streams, env=env, timeout=240)
    assert both.code == 0, both.err
    alone = train("optim.eps=1e-3")
    assert_same_data(alone.directory, Path(both.out.splitlines()[-1]))
    assert len(list(Path("outputs/train").glob("*/*/run.json"))) == 2


def assert_same_data(one: Path, two: Path) -> None:
    a, b = saved_weights(one), saved_weights(two)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=STEPS)
    for x, y in zip(metrics_of(one), metrics_of(two), strict=True):
        assert x.get("loss", 0) == pytest.approx(y.get("loss", 0), rel=1e-5)
        assert x.get("held_out_nats_per_token", 0) == pytest.approx(y.get("held_out_nats_per_token", 0), rel=1e-5)


def test_processes_of_torchrun_share_a_run_and_what_they_say(
    here: Path, fast: list[str], train: Callable[..., Done], server: Forkserver, env: dict[str, str], streams: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = train("optim.eps=1e-3")
    shared = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TMPDIR": str(here)}
    ends = server.run_together(
        ["train", *fast, "optim.eps=1e-3", "trainer.devices=auto"], here, streams, n=2,
        env={**env, **shared, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        own=[{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)],
    )  # fmt: skip
    assert [end.code for end in ends] == [0, 0], ends
    (run,) = set(here.glob("outputs/train/*/*")) - {alone.directory}
    assert [end.out.split() for end in ends] == [[str(run)], []]
    assert json.loads((run / "run.json").read_text())["status"] == "done"
    assert (run / "results.json").exists()
    assert_same_data(alone.directory, run)
    assert [end.err.count("held-out perplexity") for end in ends] == [3, 0]  # of two validations, and of the run
    assert not list(here.glob("roundround-rank-*"))


# -- interrupting and resuming


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    with contextlib.chdir(tmp_path_factory.mktemp("whole")):
        done = typed("train", *FAST, "data=text", f"data.path={corpus}", *LONG)
    assert done.code == 0, done.err
    return done.directory


def lines_so_far(path: Path) -> int:
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines() if line.endswith("}")]
    return max(steps, default=0)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_run_stopped_at_a_step_goes_on_bit_for_bit(
    train: Callable[..., Done],
    roundround: Callable[..., Done],
    uninterrupted: Path,
    signum: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, 15, lambda: os.kill(os.getpid(), signum))
        assert train(*LONG).code == code
    directory = next(Path("outputs/train").glob("*/*"))
    assert lines_so_far(directory / "metrics.jsonl") < 20
    assert_goes_on(roundround, directory, uninterrupted, "interrupted")


@pytest.mark.parametrize("step", [20, 60])
def test_a_run_stopped_while_it_validates_saves_at_once_and_goes_on_bit_for_bit(
    train: Callable[..., Done],
    roundround: Callable[..., Done],
    uninterrupted: Path,
    step: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound, validations, n_batches = material.score, [20, 40, 60], 0

    def score(decoder: Any, windows: Any, **options: Any) -> Any:
        def stop(*_: Any) -> None:
            nonlocal n_batches
            n_batches += 1
            os.kill(os.getpid(), signal.SIGINT)

        hook = decoder.register_forward_pre_hook(stop) if validations.pop(0) == step else None
        try:
            return sound(decoder, windows, **options)
        finally:
            if hook is not None:
                hook.remove()

    with monkeypatch.context() as patch:
        patch.setattr(material, "score", score)
        done = train(*LONG)
    directory = next(Path("outputs/train").glob("*/*")).absolute()
    assert (done.code, n_batches) == (130, 1)
    assert done.err.endswith(
        f"\nroundround train: interrupted by SIGINT\nresume with: roundround train resume={directory}\n"
    )
    assert (directory / "checkpoints" / "last").resolve().name == f"step-{step:08}"
    assert_goes_on(roundround, directory, uninterrupted, "interrupted")


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_a_resumed_run_is_bit_for_bit_in_any_precision(
    train: Callable[..., Done], roundround: Callable[..., Done], precision: str
) -> None:
    words = [f"trainer.precision={precision}", "trainer.max_steps=6", "checkpoint_every=3", "validate_every=6"]
    whole, stopped = train(*words).directory, train(*words).directory
    shutil.rmtree(stopped / "checkpoints" / "step-00000006")
    done = roundround("train", f"resume={stopped}", "logger=none")
    assert (done.code, "resuming after step 3" in done.err) == (0, True), done.err
    assert_same_weights(stopped, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "code", "status"),
    [(signal.SIGTERM, 143, "interrupted"), (signal.SIGINT, 130, "interrupted"), (signal.SIGKILL, -9, "running")],
)
def test_a_stopped_process_goes_on_bit_for_bit(
    here: Path,
    fast: list[str],
    roundround: Callable[..., Done],
    uninterrupted: Path,
    signum: int,
    code: int,
    status: str,
) -> None:
    # start a run in another process, send the signal once metrics show the step, and wait; (exit code, directory)
    process = subprocess.Popen(
        [sys.executable, "-m", "roundround", "train", *fast, *LONG],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        found = list(here.glob("outputs/train/*/*/metrics.jsonl"))
        if found and lines_so_far(found[0]) >= 15:
            break
        time.sleep(0.002)
    process.send_signal(signum)
    process.communicate(timeout=60)
    returned, directory = process.returncode, next(here.glob("outputs/train/*/*"))
    assert returned == code
    assert_goes_on(roundround, directory, uninterrupted, status)


def assert_goes_on(roundround: Callable[..., Done], directory: Path, uninterrupted: Path, status: str) -> None:
    assert json.loads((directory / "run.json").read_text())["status"] == status
    done = roundround("train", f"resume={directory}", "logger=none")
    assert done.code == 0, done.err
    assert done.directory == directory.absolute()
    assert done.manifest["status"] == "done"
    assert_same_weights(directory, uninterrupted)
    assert saved_weights(directory, "best").keys() == saved_weights(uninterrupted, "best").keys()
    for step in (20, 40, 60):
        assert measured(directory, step) == measured(uninterrupted, step)
    assert len(list(Path("outputs/train").glob("*/*"))) == 1


def test_a_finished_run_without_its_loss_is_measured_again(
    train: Callable[..., Done], roundround: Callable[..., Done]
) -> None:
    directory = train("trainer.max_steps=1").directory
    before = measured(directory, 1)
    path = directory / "checkpoints" / "last" / "state.json"
    state_before = json.loads(path.read_text())
    state = {key: value for key, value in state_before.items() if key not in ("best", "validated")}
    path.write_text(json.dumps(state))
    resumed = roundround("train", f"resume={directory}", "logger=none")
    assert (resumed.code, measured(directory, 1)) == (0, before)
    assert json.loads(path.read_text()) == state_before


def test_a_run_killed_while_it_writes_a_checkpoint_goes_on(
    train: Callable[..., Done], roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    from roundround.records import checkpoints

    whole = train("trainer.max_steps=6").directory
    write, calls = checkpoints.write_tensors, []

    class Killed(BaseException):
        pass

    def die_halfway(path: Path, tensors: dict[str, torch.Tensor]) -> None:
        calls.append(path)
        if len(calls) == 4:  # the second file of the second checkpoint
            path.write_bytes(b"half")
            raise Killed
        write(path, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_tensors", die_halfway)
        patch.setattr(checkpoints.shutil, "rmtree", lambda *args, **kwargs: None)  # nobody tidies up after kill -9
        with pytest.raises(Killed):
            train("trainer.max_steps=6")
    directory = max(Path("outputs/train").glob("*/*"))
    assert len(list((directory / "checkpoints").glob(".step-*"))) == 1
    done = roundround("train", f"resume={directory}", "logger=none")
    assert done.code == 0, done.err
    assert_same_weights(directory, whole)


def test_resuming_on_a_text_that_has_changed_is_refused(
    train: Callable[..., Done], roundround: Callable[..., Done], corpus: Path
) -> None:
    Path("mine.txt").write_text(corpus.read_text())
    run = train("data.path=mine.txt").directory
    Path("mine.txt").write_text(corpus.read_text().replace("fox", "owl"))
    done = roundround("train", f"resume={run}", "logger=none")
    assert done.code == 2
    assert "the corpus is no longer the one" in done.err


def test_a_damaged_checkpoint_is_named(train: Callable[..., Done], roundround: Callable[..., Done]) -> None:
    run = train().directory
    damaged = run / "checkpoints" / "step-00000004" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    for args in (["train", f"resume={run}"], ["eval", f"run={run}", "length=32", "checkpoint=last"]):
        done = roundround(*args, "logger=none")
        assert done.code == 2
        assert "model.safetensors is damaged" in done.err
    done = roundround("eval", f"run={run}", "length=32", "checkpoint=step-00000002", "logger=none")
    assert done.code == 0, done.err


def test_a_finished_run_resumed_is_still_finished(train: Callable[..., Done], roundround: Callable[..., Done]) -> None:
    run = train().directory
    before = (run / "metrics.jsonl").read_text()
    done = roundround("train", f"resume={run}")
    assert done.code == 0, done.err
    assert (run / "metrics.jsonl").read_text() == before
    assert done.manifest["status"] == "done"
    assert not (run / "wandb").exists(), "it keeps the logger that it was begun with"
    assert done.manifest["wandb"] is None


# -- what goes wrong


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    from roundround.training.module import LanguageModel

    sound = LanguageModel.training_step

    monkeypatch.setattr(
        LanguageModel,
        "training_step",
        lambda self, batch, index: {
            name: loss * torch.nan if self.step == 4 else loss for name, loss in sound(self, batch, index).items()
        },
    )
    done = train("trainer.max_steps=10", "trainer.log_every_n_steps=7", "checkpoint_every=3")
    assert done.code == 1
    assert "the loss is nan" in done.err
    assert "at step 5" in done.err
    run = next(Path("outputs/train").glob("*/*"))
    assert json.loads((run / "run.json").read_text())["status"].startswith("failed: NotFinite: the loss is nan")
    for tensor in saved_weights(run).values():
        assert tensor.isfinite().all()
    assert (run / "checkpoints" / "last").resolve().name == "step-00000004"


def test_weights_read_from_elsewhere_are_never_unpickled() -> None:
    import roundround

    sources = [path.read_text() for path in Path(roundround.__file__).parent.rglob("*.py")]
    assert not any("torch.load" in text or "import pickle" in text for text in sources)
