"""Where the order of tokens comes from: interventions on the runs of experiment=order/text, for docs/results/order.md.

    python benchmarks/order.py OUTPUTS [CSV]    # OUTPUTS: the folder that the sweeps were written to

Each run is read with its held-out text; a row for each setting, seed, source taken away, distance and number. Runs that
the CSV (docs/results/order/interventions.csv) has already are not measured again. What `eval` found for the runs of
experiment=order/tasks, also below OUTPUTS, goes to tasks.csv beside it.

Shapes: B windows, T tokens, P pairs.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roundround.model.decoder import Decoder
from roundround.model.gated_deltanet import GatedDeltaNet
from roundround.model.mix import KeyOffset, ShortConvolution, Smear, TokenMix
from roundround.pe.rotary import RotaryEncoding
from roundround.trained.models import TrainedRun

WINDOWS, LENGTH, SHUFFLED = 512, 128, 64
DISTANCES = {"1": (1, 1), "2-3": (2, 3), "4-7": (4, 7), "8-15": (8, 15), "16-31": (16, 31), "32-63": (32, 63)}
COLUMNS = ("setting", "seed", "without", "metric", "distance", "value")


def main(outputs: str, stored: str = "docs/results/order/interventions.csv") -> None:
    path = Path(stored)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    for directory in sorted(Path(outputs).glob("train/*/*-sweep/*")):
        if not (directory / "results.json").exists():
            continue
        run = TrainedRun(directory, trust=False)
        setting, seed = setting_of(run.manifest["choices"]), str(run.manifest["seed"])
        if run.learns_a_task or any((row["setting"], row["seed"]) == (setting, seed) for row in rows):
            continue
        (held_out,) = values_of(directory, "nats_per_token").values()
        found = [("", "nats_per_token", str(LENGTH), held_out), *measured(run)]
        rows += [dict(zip(COLUMNS, (setting, seed, *values), strict=True)) for values in found]
        print(setting, seed, f"{held_out:.3f}", flush=True)
        write(path, rows)
    of_tasks = []
    for directory in sorted(Path(outputs).glob("eval/*/*-sweep/*")):
        if (directory / "results.json").exists():
            manifest = json.loads((directory / "run.json").read_text())
            choices, seed = manifest["choices"], manifest["seed"]
            for length, value in values_of(directory, "exact_match").items():
                row = (setting_of(choices), seed, "", choices["data"], length, value)
                of_tasks.append(dict(zip(COLUMNS, row, strict=True)))
    if of_tasks:
        write(path.with_name("tasks.csv"), of_tasks)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def values_of(directory: Path, metric: str) -> dict[int, float]:
    """The values of a metric in a run's results, by length."""
    records = json.loads((directory / "results.json").read_text())
    return {record["length"]: record["value"] for record in records if record["metric"] == metric}


def setting_of(choices: dict[str, Any]) -> str:
    """The choices of a run that the settings differ in."""
    parts = [choices["pe"] if choices["mix"] == "none" else f"{choices['pe']} {choices['mix']}"]
    if choices["pattern"] != "uniform":
        parts.append(choices["pattern"])
    if choices.get("pe@pattern.local.pe") == "nope":
        parts.append("nope in windows")
    return ", ".join(parts)


@torch.no_grad()
def measured(run: TrainedRun) -> list[tuple[str, str, str, float]]:
    """Rows of (source taken away, metric, distance, value); the metrics are `loss`, and `order` beyond a distance."""
    held_out = np.asarray(run.held_out_text().held_out[: WINDOWS * (LENGTH + 1)])
    windows_BT = torch.from_numpy(held_out.astype(np.int64)).view(WINDOWS, LENGTH + 1)
    order = torch.rand(WINDOWS, SHUFFLED, generator=torch.Generator().manual_seed(0)).argsort(-1)
    shuffled_BT = torch.cat([windows_BT[:, :SHUFFLED].gather(1, order), windows_BT[:, SHUFFLED:]], 1)
    rows = []
    for without, remove in {"": [], **removals(run.decoder("last"))}.items():
        decoder = run.decoder("last")
        for act in remove:
            act(decoder)
        losses = [decoder(x[:, :-1], targets_BT=x[:, 1:])[:, SHUFFLED - 1 :] for x in (windows_BT, shuffled_BT)]
        in_place_BT, after_shuffle_BT = (
            losses  # column d: the byte with d bytes in place between it and the shuffled ones
        )
        rows.append((without, "loss", "", float(in_place_BT.mean())))
        added_T = (after_shuffle_BT - in_place_BT).mean(0)
        rows += [
            (without, "order", name, float(added_T[first : last + 1].mean()))
            for name, (first, last) in DISTANCES.items()
        ]
    return rows


# -- sources of order, each as a change of the decoder

Change = Callable[[Decoder], None]


def removals(decoder: Decoder) -> dict[str, list[Change]]:
    """{what is taken away: the changes that take it away} for the sources that the decoder has."""
    found: dict[str, list[Change]] = {}
    if any(isinstance(one, RotaryEncoding) for one in decoder.all_encodings):
        found |= {
            "RoPE, faster half": [lambda model: rest(model, fast=True, slow=False)],
            "RoPE, slower half": [lambda model: rest(model, fast=False, slow=True)],
            "RoPE": [lambda model: rest(model, fast=True, slow=True)],
        }
    if any(type(layer.mix) is not TokenMix for layer in decoder.layers):
        found["mix"] = [unmix]
    if any(isinstance(layer.self_attn, GatedDeltaNet) for layer in decoder.layers):
        found["convolution of linear layers"] = [unconvolve]
    if any(kind.window for kind in decoder.kinds):
        found["windows"] = [open_windows]
    whole = [name for name in found if not name.startswith("RoPE,")]
    if len(whole) > 1:
        found[" and ".join(whole)] = [change for name in whole for change in found[name]]
    return found


def rest(decoder: Decoder, *, fast: bool, slow: bool) -> None:
    """Put the faster or the slower half of the rotating pairs to rest, or both."""
    for encoding in decoder.all_encodings:
        if isinstance(encoding, RotaryEncoding):
            frequencies_P = encoding.frequencies(torch.float64)
            half = int((frequencies_P != 0).sum()) // 2
            kept_P = frequencies_P.clone()
            kept_P[:half] *= not fast
            kept_P[half:] *= not slow
            encoding.frequencies = lambda dtype, device="cpu", kept=kept_P: kept.to(dtype)  # type: ignore[method-assign]


def forget(weight_W1N: Tensor) -> None:
    weight_W1N[..., :-1] = 0


def unmix(decoder: Decoder) -> None:
    for layer in decoder.layers:
        mix: Any = layer.mix
        if isinstance(mix, ShortConvolution):
            for weight in mix.filters.values():
                forget(weight)
        elif isinstance(mix, Smear):
            mix.share.zero_()
        elif isinstance(mix, KeyOffset):
            layer.mix = TokenMix(mix.shape, {})


def unconvolve(decoder: Decoder) -> None:
    for layer in decoder.layers:
        if isinstance(layer.self_attn, GatedDeltaNet):
            forget(layer.self_attn.conv)


def open_windows(decoder: Decoder) -> None:
    decoder.kinds = [replace(kind, window=None) for kind in decoder.kinds]


if __name__ == "__main__":
    main(*sys.argv[1:])
