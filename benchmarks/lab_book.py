"""How long the lab book takes: `compare` over 1,000 runs, `runs` over 10,000, as whole processes.

    python benchmarks/lab_book.py            both
    python benchmarks/lab_book.py --runs 200 --folder /tmp/many   another number, in a folder that stays

The runs are written as `train` and `eval` leave them, with made-up numbers and no checkpoints: encodings crossed with
normalisers and learning rates, five seeds each; every second run is the evaluation of the one before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from roundround import __version__

ENCODINGS = ("nope", "rope", "p_rope", "p_rope_25", "alibi")
NORMALISERS = ("softmax", "ssmax", "entmax15", "adaptive_temperature")
RATES = (0.001, 0.002, 0.003, 0.006, 0.01)
SEEDS = range(5)
LENGTHS = (256, 512, 1024, 2048)
STEPS, LOGGED_EVERY, VALIDATED_EVERY = 1000, 10, 50
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
BUDGETS = {"compare": (1_000, 5.0), "runs": (10_000, 2.0)}  # runs, seconds


def write_runs(folder: Path, count: int) -> None:
    """`count` run directories below `folder`, laid out as under outputs/; half of them train, half eval."""
    made_up = random.Random(0)
    settings = itertools.cycle(itertools.product(ENCODINGS, NORMALISERS, RATES, SEEDS))
    started = BEGINNING
    for n in range(0, count, 2):
        pe, softmax, rate, seed = next(settings)
        started += timedelta(minutes=1)
        loss = 3 + 0.1 * ENCODINGS.index(pe) + 0.02 * NORMALISERS.index(softmax) + 0.05 * abs(rate - 0.003) / 0.003
        loss += made_up.gauss(0, 0.02) + 0.01 * seed
        trained = write_train(folder, started, pe, softmax, rate, seed, loss)
        if n + 1 < count:
            write_eval(folder, started + timedelta(seconds=30), trained, pe, softmax, rate, seed, loss)


def write_train(folder: Path, started: datetime, pe: str, softmax: str, rate: float, seed: int, loss: float) -> Path:
    config = {
        "outputs": "outputs",
        "pe": {"_target_": f"roundround.pe.{pe}", "theta": 10000.0},
        "softmax": {"_target_": f"roundround.softmax.{softmax}"},
        "model": {"_target_": "roundround.model.decoder.Decoder", "d_model": 128, "n_layers": 4, "train_length": 256},
        "data": {"_target_": "roundround.data.text.TextFiles", "path": "stories.txt", "held_out": 0.1},
        "tokenizer": {"_target_": "roundround.data.tokenizers.ByteLevelBPE", "n_vocab": 4096},
        "optim": {"_target_": "roundround.training.optim.AdamW", "lr": rate, "betas": [0.9, 0.95], "weight_decay": 0.1},
        "schedule": {"_target_": "roundround.training.optim.Cosine", "warmup_steps": 50, "final_fraction": 0.1},
        "trainer": {"_target_": "lightning.Trainer", "max_steps": STEPS, "gradient_clip_val": 1.0},
        "seed": seed,
        "batch_size": 8,
        "validate_every": VALIDATED_EVERY,
        "validation_tokens": 65536,
    }
    overrides = [f"pe={pe}", f"softmax={softmax}", f"optim.lr={rate}", f"seed={seed}", "data=text"]
    data = {"corpus_hash": "c" * 64, "tokenizer_hash": "d" * 64, "n_vocab": 4096, "end_of_document": 0}
    more = {"data": {**data, "training_tokens": 2_000_000}, "seconds_of_training": 100.0 + seed}
    directory = write_run(folder, "train", started, config, overrides, seed, more)
    common = common_fields("train", directory, pe, softmax, rate, seed)
    values = {"perplexity": 2.718281828**loss, "nats_per_token": loss, "nats_per_byte": loss / 4}
    write_results(
        directory, [{"metric": m, **common, "length": 256, "step": STEPS, "value": v} for m, v in values.items()]
    )
    with open(directory / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(LOGGED_EVERY, STEPS + 1, LOGGED_EVERY):
            now = loss + 5 / step**0.5
            line = {"step": step, "loss": now, "grad_norm": 0.5, "lr": rate, "tokens": step * 2048}
            file.write(json.dumps({**line, "tokens_per_second": 20480.123}) + "\n")
            if step % VALIDATED_EVERY == 0:
                file.write(json.dumps({"step": step, "held_out_nats_per_token": now + 0.1}) + "\n")
    return directory


def write_eval(
    folder: Path, started: datetime, trained: Path, pe: str, softmax: str, rate: float, seed: int, loss: float
) -> None:
    config = {"outputs": "outputs", "run": str(trained), "checkpoint": "best", "length": list(LENGTHS), "stride": None}
    more = {"run": str(trained), "data": {"corpus_hash": "c" * 64, "tokenizer_hash": "d" * 64}}
    config |= dict.fromkeys(("pe", "softmax", "data", "model"))
    directory = write_run(folder, "eval", started, config, [f"run={trained}"], seed, more)
    common = {**common_fields("eval", directory, pe, softmax, rate, seed), "run": str(trained), "checkpoint": "best"}
    records = []
    for length in LENGTHS:
        here = loss + 0.2 * (length / 256 - 1) * ("rope" in pe)
        values = {"perplexity": 2.718281828**here, "nats_per_token": here, "nats_per_byte": here / 4}
        values |= {"perplexity_with_joints": 2.718281828**here + 1, "share_of_loss_at_joints": 0.01}
        records += [{"metric": m, **common, "length": length, "value": v} for m, v in values.items()]
        for first in (0, 1, 2, 4, 8, 16, 32, 64, 128):
            place = {"first_position": first, "last_position": 2 * first, "targets": 1000}
            records.append(
                {"metric": "nats_per_token", **common, "length": length, **place, "value": here + 1 / (1 + first)}
            )
    write_results(directory, records)


def common_fields(verb: str, directory: Path, pe: str, softmax: str, rate: float, seed: int) -> dict[str, Any]:
    """The fields of every record, as records/identity.py makes them."""
    model = {"model": "tiny", "pe": pe, "softmax": softmax, "data": "text", "seed": seed, "pe.theta": 10000.0}
    return {"verb": verb, "run": str(directory), **model, "data.path": "stories.txt", "optim.lr": rate}


def write_run(
    folder: Path,
    verb: str,
    started: datetime,
    config: dict[str, Any],
    overrides: list[str],
    seed: int,
    more: dict[str, Any],
) -> Path:
    """A run directory with its manifest."""
    directory = folder / verb / f"{started:%Y-%m-%d}" / f"{started:%H-%M-%S}"
    directory.mkdir(parents=True)
    pe, softmax, *_ = (word.partition("=")[2] for word in [*overrides, "", ""])
    choices = {"pe": pe, "softmax": softmax, "model": "tiny", "data": "text", "optim": "adamw", "tokenizer": "bpe"}
    manifest = {
        "roundround": __version__,
        "verb": verb,
        "status": "done",
        "started": started.isoformat(timespec="microseconds"),
        "ended": (started + timedelta(seconds=20)).isoformat(timespec="microseconds"),
        "command": f"roundround {verb}",
        "overrides": overrides,
        "config": config,
        "git": {"commit": "a" * 40, "dirty": False},
        "variants": {},
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "device": "cpu",
        "seed": seed,
        "data": None,
        "facts": {"parameters": 1_000_000},
        "headline": {"perplexity": 20.0},
        "wandb": None,
        "sweep": None,
        "choices": choices if verb == "train" else {},
        **more,
    }
    (directory / "run.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    return directory


def write_results(directory: Path, records: list[dict[str, Any]]) -> None:
    (directory / "results.json").write_text(json.dumps(records, indent=2), encoding="utf-8")


def seconds_of(*words: str, cwd: Path) -> float:
    """The command as a process of its own, with its output thrown away."""
    before = time.perf_counter()
    subprocess.run([sys.executable, "-m", "roundround", *words], cwd=cwd, check=True, capture_output=True)
    return time.perf_counter() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="how many, instead of 1,000 and 10,000")
    parser.add_argument("--folder", type=Path, help="where to write them and leave them")
    parser.add_argument("verbs", nargs="*", default=list(BUDGETS), help="compare, runs")
    given = parser.parse_args()
    for verb in given.verbs:
        usual, budget = BUDGETS[verb]
        count = given.runs or usual
        with tempfile.TemporaryDirectory() as temporary:
            folder = given.folder or Path(temporary)
            if not (folder / "outputs").exists():
                write_runs(folder / "outputs", count)
            times = sorted(seconds_of(verb, "outputs", cwd=folder) for _ in range(3))
            print(f"{verb} over {count:,} runs: {times[1]:.2f} s (median of 3; the budget is {budget:.0f} s)")


if __name__ == "__main__":
    main()
