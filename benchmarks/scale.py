"""What several processes cost and change: the speed of FSDP2 on one, and the loss curves of one, of DDP and of FSDP2.

    python benchmarks/scale.py speed               # a step of FSDP2 on one process against plain, at `small`
    python benchmarks/scale.py curves              # 50 steps of one process, DDP and FSDP2: for docs/howto/clusters.md
    python benchmarks/scale.py save                # how long training stands still for a sharded checkpoint, at `small`

Steps are timed in interleaved rounds of one process, so that a machine whose speed drifts is fair to both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from train_throughput import BATCH, N_VOCAB, read, timed

from roundround.model.decoder import Decoder
from roundround.records import checkpoints
from roundround.records.sharded_checkpoints import ShardedSaver
from roundround.trained.models import build_decoder
from roundround.training.module import clip, sharded_decoder
from roundround.training.optim import AdamW

CURVES = {  # name: processes, strategy
    "one process": (1, "auto"),
    "DDP, 2 processes": (2, "ddp"),
    "FSDP2, 1 process": (1, "fsdp2"),
    "FSDP2, 2 processes": (2, "fsdp2"),
    "FSDP2, 4 processes": (4, "fsdp2"),
}
RECIPE = [
    "logger=none", "pe=p_rope", "model=tiny", "data=pydoc", "batch_size=8", "trainer.max_steps=50",
    "trainer.log_every_n_steps=1", "validate_every=50", "validation_tokens=8192", "checkpoint_every=25",
    "trainer.accelerator=cpu", "seed=0",
]  # fmt: skip


def whole(value: Any) -> Any:
    """A tensor of which each process has rows, gathered; any other value as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def decoders(size: str) -> dict[str, Decoder]:
    """The same decoder plain and sharded among one process."""
    mesh = init_device_mesh("cpu", (1,))

    def make(shard_layer: Callable[..., object] | None = None) -> Decoder:
        nodes = read("model", size), read("pe", "rope"), read("softmax", "softmax")
        return build_decoder(*nodes, N_VOCAB, shard_layer=shard_layer)

    torch.manual_seed(0)
    return {"plain": make(), "fsdp2": sharded_decoder(make, mesh, seed=0, compiled=False)}


def stepper(decoder: Decoder, tokens: Tensor) -> Callable[[], None]:
    """One optimizer step as training makes it: loss, backward, clipping, update."""
    adam = AdamW(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1).create(decoder)

    def step() -> None:
        decoder(tokens[:, :-1], targets_BT=tokens[:, 1:]).mean().backward()
        clip(decoder, 1.0, by_value=False)
        adam.step()
        adam.zero_grad()

    return step


def speed(size: str, rounds: int) -> None:
    tokens = torch.randint(N_VOCAB, (BATCH[size], read("model", size).train_length + 1))
    steps = {name: stepper(decoder, tokens) for name, decoder in decoders(size).items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step(), step()
    for number in range(rounds):
        for name in sorted(steps, reverse=number % 2 == 1):  # each goes first as often
            seconds[name].append(timed(steps[name], 1, torch.device("cpu")))
    ratios = sorted(a / b for a, b in zip(seconds["fsdp2"], seconds["plain"], strict=True))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        f"{size}: plain {medians['plain']:.3f} s a step, fsdp2 on one process {medians['fsdp2']:.3f} s: "
        f"{statistics.median(ratios):.3f} times ({ratios[0]:.3f} to {ratios[-1]:.3f}, {rounds} rounds)"
    )


def save(size: str, rounds: int) -> None:
    """How long a sharded checkpoint holds training up, and when it is there; and one that is written whole."""
    decoder = decoders(size)["fsdp2"]
    tokens = torch.randint(N_VOCAB, (BATCH[size], read("model", size).train_length + 1))
    adam = AdamW(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1).create(decoder)
    decoder(tokens[:, :-1], targets_BT=tokens[:, 1:]).mean().backward()
    adam.step()
    stood, wrote, at_once = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        saver = ShardedSaver(Path(folder) / "sharded")
        for number in range(1, rounds + 1):
            begin = time.perf_counter()
            saver.save(number, weights=decoder.state_dict(), optimizer=adam.state_dict(), state={})
            stood.append(time.perf_counter() - begin)
            saver.wait()
            wrote.append(time.perf_counter() - begin)
            tensors = {name: whole(value) for name, value in decoder.state_dict().items()}
            state = {
                n: {name: whole(value) for name, value in of.items()} for n, of in adam.state_dict()["state"].items()
            }
            begin = time.perf_counter()
            optimizer = {"state": state, "param_groups": adam.state_dict()["param_groups"]}
            checkpoints.save(Path(folder) / "whole", step=number, weights=tensors, optimizer=optimizer, state={})
            at_once.append(time.perf_counter() - begin)
    print(
        f"{size}: training stands still for {statistics.median(stood):.3f} s, and the checkpoint is there after "
        f"{statistics.median(wrote):.3f} s; written whole it takes {statistics.median(at_once):.3f} s ({rounds} rounds)"
    )


def curves() -> None:
    """The losses of docs/howto/clusters.md, from real commands."""
    with tempfile.TemporaryDirectory() as folder:
        found = {name: curve(Path(folder), *of) for name, of in CURVES.items()}
    reference = found["one process"]
    print(f"roundround train {' '.join(RECIPE)}\n")
    print("| | loss at step 1 | at step 50 | held out at step 50 | largest difference of a loss |")
    print("|---|---|---|---|---|")
    for name, (losses, held_out) in found.items():
        off = max(abs(a - b) for a, b in zip(losses, reference[0], strict=True))
        print(f"| {name} | {losses[0]:.7f} | {losses[-1]:.7f} | {held_out:.7f} | {off:.1e} |")


def curve(folder: Path, n: int, strategy: str) -> tuple[list[float], float]:
    words = [*RECIPE, f"trainer.devices={n}", f"trainer.strategy={strategy}", f"outputs={folder / strategy}-{n}"]
    command = [sys.executable, "-m", "roundround", "train", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = [json.loads(line) for line in (Path(done.stdout.split()[-1]) / "metrics.jsonl").read_text().splitlines()]
    held_out = [line["held_out_nats_per_token"] for line in lines if "held_out_nats_per_token" in line]
    return [line["loss"] for line in lines if "loss" in line], held_out[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "save", "curves"])
    parser.add_argument("--size", default="small", choices=list(BATCH))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.what == "curves":
        curves()
        return
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        {"speed": speed, "save": save}[options.what](options.size, options.rounds)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
