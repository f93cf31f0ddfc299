"""Do weights reveal a wrong config? Models whose config.json was falsified are given to `fitted_rotations`.

    python benchmarks/fitted_rotations.py --texts FILE MODEL...    # folders that `roundround export` or the hub wrote

Each model is asked with its own config, and with FALSE others that are drawn at random. For layers that the config
rotates as the true one does, an answer is right if it does not contradict the config. For others it is right if it
does, and if the true rotation costs less than LEAST nats per token more than the answer. A false rotation cannot be
told apart from the true one if it costs less than LEAST more, or less than half of the interval.
docs/results/engines/weights.csv has a row for each answer; rows that are there are not asked again.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from roundround.asking.fitted_rotations import (
    JUDGED,
    LEAST,
    LENGTH,
    NOTHING,
    TEXTS,
    UNROTATED,
    Guess,
    begun_with,
    declared_rotations,
    fitted_rotations,
    loss_of,
)

STORED = Path(__file__).resolve().parents[1] / "docs" / "results" / "engines" / "weights.csv"
COLUMNS = ("model", "config", "kind", "declared", "best", "cost", "half_width", "verdict", "true_costs", "answer")
FALSE = 5
Rope = dict[str, Any]
CHANGES: dict[str, Callable[[Rope, int], Rope]] = {  # of the `rope_parameters` of each kind of layers
    "base x 10": lambda rope, longest: {**rope, "rope_theta": rope["rope_theta"] * 10},
    "base / 10": lambda rope, longest: {**rope, "rope_theta": rope["rope_theta"] / 10},
    "base 500,000": lambda rope, longest: {**rope, "rope_theta": 500_000.0},
    "linear, factor 4": lambda rope, longest: scaled("linear", 4.0, rope, longest),
    "yarn, factor 4": lambda rope, longest: scaled("yarn", 4.0, rope, longest),
    "llama3, factor 8": lambda rope, longest: scaled("llama3", 8.0, rope, longest),
    "p-RoPE, p 0.25": lambda rope, longest: share(0.25, rope),
    "p-RoPE, p 0.5": lambda rope, longest: share(0.5, rope),
    "plain RoPE": lambda rope, longest: {"rope_type": "default", "rope_theta": rope["rope_theta"]},
}


def scaled(kind: str, factor: float, rope: Rope, longest: int) -> Rope:
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    lengths = {"factor": factor, "original_max_position_embeddings": int(longest / factor)}
    return {"rope_type": kind, "rope_theta": rope["rope_theta"], **lengths, **more}


def share(p: float, rope: Rope) -> Rope:
    return {"rope_type": "proportional", "rope_theta": rope["rope_theta"], "partial_rotary_factor": p}


def falsified(rope: Rope, longest: int, name: str) -> Rope:
    """The `rope_parameters` of a config with one change, in every kind of layers."""
    change = CHANGES[name]
    if "rope_theta" in rope:
        return change(rope, longest)
    return {kind: change(own, longest) for kind, own in rope.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=LENGTH, help="the most tokens of a text")
    given = parser.parse_args()
    disable_progress_bar()
    set_verbosity_error()
    STORED.parent.mkdir(exist_ok=True)
    known = [*csv.DictReader(STORED.open())] if STORED.exists() else []
    for path in given.models:
        own = json.loads((path / "config.json").read_text())["rope_parameters"]
        longest = AutoConfig.from_pretrained(path).get_text_config().max_position_embeddings
        names = [name for name in CHANGES if falsified(own, longest, name) != own]
        for name in ["its own", *random.Random(f"{given.seed}{path.name}").sample(names, FALSE)]:
            if any((row["model"], row["config"]) == (path.name, name) for row in known):
                continue
            rope = own if name == "its own" else falsified(own, longest, name)
            for row in answers(path, own, rope, given.texts, given.length):
                known.append({"model": path.name, "config": name, **row})
                print(*known[-1].values(), sep=" | ", flush=True)
            with STORED.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(known)


def answers(path: Path, own: Rope, rope: Rope, texts: Path, length: int) -> list[dict[str, Any]]:
    """The answer for each kind of layers of a model with these `rope_parameters`."""
    config, tokenizer = AutoConfig.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    config.rope_parameters = own
    model = AutoModelForCausalLM.from_pretrained(path, config=config, dtype="auto").eval().requires_grad_(False)
    _, honest = declared_rotations(model)
    honest = {kind.removesuffix(UNROTATED): guess for kind, guess in honest.items()} | honest
    model.config.rope_parameters = rope
    kinds, declared = declared_rotations(model)
    ids, first = tokenizer(texts.read_text()).input_ids, tokenizer.bos_token_id
    records = fitted_rotations(model, ids, first=first, length=length)
    length = min(length, config.get_text_config().max_position_embeddings)
    texts_BT = torch.tensor(ids[: TEXTS * length]).view(TEXTS, length)
    texts_BT = begun_with(first, model, kinds, declared, texts_BT)
    best = {record["kind"]: guess_of(record["best"]) for record in records}
    least, found = loss_of(model, kinds, best, texts_BT), []
    for record in records:
        kind, cost, half_width = (record[key] for key in ("kind", "value", "half_width"))
        right = honest.get(kind, honest[kind.removesuffix(UNROTATED)])
        of_truth = float((loss_of(model, kinds, {**best, kind: right}, texts_BT) - least)[JUDGED:].mean())
        if record["declared"] == str(right):  # the false config rotates these layers as the true one does
            answer = "wrong" if record["verdict"] == "differs" else "right"
        elif cost - of_truth < max(LEAST, half_width):
            answer = "no clear difference"
        else:
            answer = "right" if record["verdict"] == "differs" and of_truth < LEAST else "wrong"
        row = {key: record[key] for key in ("kind", "declared", "best", "half_width", "verdict")}
        found.append({**row, "cost": cost, "true_costs": of_truth, "answer": answer})
    return found


def guess_of(words: str) -> Guess:
    """The guess that these words describe."""
    if words == "no rotation":
        return Guess({"rope_theta": 1e4, **NOTHING}, "half-split")
    *parts, pairing = words.split(", ")
    values = dict(part.split("=") for part in parts)
    return Guess({key: value if key == "rope_type" else float(value) for key, value in values.items()}, pairing)


if __name__ == "__main__":
    main()
