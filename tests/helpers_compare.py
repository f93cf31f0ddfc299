"""Training runs and evaluations written by hand, as the verbs leave them: settings and numbers can be chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers_runs import write_run

NODE = {"_target_": "roundround.of.no.matter"}
DATA = {"corpus_hash": "aaaa", "tokenizer_hash": "bbbb", "n_vocab": 9, "end_of_document": 0, "training_tokens": 99}


def write_train(
    directory: Path,
    pe: str,
    seed: int,
    perplexity: float = 10.0,
    *,
    minute: int = 0,
    lr: float = 0.001,
    softmax: str = "softmax",
    steps: int = 10,
    data: dict[str, Any] | None = None,
    records: list[dict[str, Any]] | None = None,
    **fields: Any,
) -> Path:
    """A training run of 8 windows x 16 tokens a step; its directory."""
    config = {
        "pe": {**NODE, "theta": 100.0 if pe == "rope" else 7.0},
        "softmax": NODE,
        "model": {**NODE, "train_length": 16},
        "data": NODE,
        "tokenizer": NODE,
        "optim": {**NODE, "lr": lr},
        "trainer": {**NODE, "max_steps": steps},
        "batch_size": 8,
        "seed": seed,
        "outputs": "outputs",
        "checkpoint_every": minute + 1,
    }
    write_run(
        directory,
        minute,
        "train",
        **{"config": config, "choices": {"pe": pe, "softmax": softmax}, "seed": seed, "data": DATA | (data or {})}
        | {"seconds_of_training": 2.0, "peak_memory": {"resident_bytes": 3 << 20, "device_bytes": None}}
        | fields,
    )
    common = {"verb": "train", "run": str(directory), "pe": pe, "softmax": softmax, "seed": seed}
    own = [{"metric": "perplexity", **common, "length": 16, "joints": "targets", "step": steps, "value": perplexity}]
    write_results(directory, own if records is None else [{**common, **record} for record in records])
    return directory


def write_eval(directory: Path, trained: Path, values: dict[int, float], *, minute: int = 0, **config: Any) -> Path:
    """An evaluation of a run at several lengths; `config` replaces its own values."""
    manifest = json.loads((trained / "run.json").read_text())
    own = {"run": str(trained), "checkpoint": "best", "length": list(values), "stride": None, "pe": None, **config}
    more = {"run": str(trained), "seed": manifest["seed"], "data": {"corpus_hash": "aaaa"}, "first_token": None}
    write_run(directory, minute, "eval", config=own, choices=manifest["choices"], **more)
    common = {"verb": "eval", "run": str(trained), "pe": manifest["choices"]["pe"], "seed": manifest["seed"]}
    records = [
        {"metric": "perplexity", **common, "length": length, "first_token": None, "stride": None, "value": value}
        for length, value in values.items()
    ]
    write_results(directory, records)
    return directory


def write_results(directory: Path, records: list[dict[str, Any]]) -> None:
    (directory / "results.json").write_text(json.dumps(records))


def write_curve(directory: Path, losses: dict[int, float]) -> None:
    """The metrics.jsonl of a training run: held-out loss by step."""
    lines = [json.dumps({"step": step, "held_out_nats_per_token": loss}) for step, loss in losses.items()]
    (directory / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
