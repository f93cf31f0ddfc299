"""What docs/results/induction_heads.md measures: python benchmarks/induction_heads.py MODEL FOLDER

MODEL: a folder whose name is in PLANS. Writes FOLDER/NAME_heads.csv, the weight of every head on the token after the
first copy in short texts, and FOLDER/NAME.csv, a row for each text, distance, induction head and share of pairs at
rest. It goes on where it stopped: texts that are in NAME.csv are not read again.
Shapes: P pairs, C head channels, R rows, K keys.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gemma3_windows import Record, last_rows, mean_with_ends, write
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.pe.rotary import apply_rotation, rotation
from roundround.probing.ablation import parse_band, without

Head = tuple[int, int]  # layer, head

COPIED, IDS = 64, (1000, 49_000)  # tokens of a segment that comes twice; from which tokens they are drawn
SHORT, N_SHORT, LEAST = (
    (2 * COPIED + 1, (COPIED,)),
    20,
    0.3,
)  # length and distance of a short text, texts, weight of an induction head
OTHER_SEEDS = 100  # seeds of the texts by which heads are chosen begin here
TURNING, AT_REST, ALL = 0.0, (0.25, 0.375), 1.0  # shares of the pairs at rest


@dataclass(frozen=True)
class Plan:
    """Long texts: tokens, texts, distances, and how many texts are also read with all pairs of a head at rest."""

    length: int
    n_texts: int
    distances: tuple[int, ...]
    n_all: int


PLANS = {
    "smollm2-135m-instruct": Plan(8192, 20, (64, 512, 2048, 4096, 7680), 5),
    "gemma-3-270m": Plan(32768, 4, (64, 512, 2048, 8192, 16384, 32256), 4),
}


def text(seed: int, length: int, distances: Sequence[int], first: int) -> tuple[list[int], dict[int, int]]:
    """Random tokens, all different, whose end are second copies; and where the second copy of each distance begins."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [first, *(torch.randperm(IDS[1] - IDS[0], generator=generator)[: length - 1] + IDS[0]).tolist()]
    starts, end = dict[int, int](), length
    for n in torch.randperm(len(distances), generator=generator).tolist():
        distance, start = distances[n], end - COPIED
        tokens[start:end] = tokens[start - distance : end - distance]
        starts[distance] = start
        end = start - COPIED if distance == COPIED else start  # its first copy stands right before it
    return tokens, starts


def at_rest(x_NC: Tensor, first: int, resting_P: Tensor) -> Tensor:
    """Rotated vectors of the positions from `first` on, without the rotation at these frequencies: [N, C]."""
    cos, sin = rotation(-torch.arange(first, first + len(x_NC))[None], resting_P)
    return apply_rotation(x_NC[None, None], cos, sin)[0, 0]


def measured(logits_RK: Tensor, target_R: Tensor) -> dict[str, float]:
    """Means over rows of logits that are -inf where a row does not see."""
    rows = torch.arange(len(target_R))
    target, left = logits_RK[rows, target_R], logits_RK.clone()
    left[rows, target_R] = -torch.inf
    odds = target - left.logsumexp(-1)
    found = {"gap": target - left[:, 1:].amax(-1), "over_first": target - logits_RK[:, 0]}
    found |= {"weight": odds.sigmoid(), "odds": odds}
    return {name: float(values.mean()) for name, values in found.items()}


def read(
    probed: ProbedHuggingFaceModel, seed: int, at: tuple[int, Sequence[int]], heads: Sequence[Head], *shares: float
) -> list[Record]:
    """The rows of one text, `at` its length and distances, with these shares of the head's pairs at rest."""
    length, distances = at
    assert probed.first_token is not None
    tokens, starts = text(seed, length, distances, probed.first_token)
    n_rows, table_P = length - min(starts.values()), min(probed.tables(), key=lambda table: float(table.min()))
    found: list[Record] = []
    for head, (q, k, scale) in last_rows(probed, tokens, n_rows, heads).items():
        for share in shares:
            resting_P = table_P - without(table_P, [parse_band(f"lowest:{share}")]) if share else table_P * 0
            q_RC, k_KC = at_rest(q, length - n_rows, resting_P), at_rest(k, 0, resting_P)
            for distance, start in starts.items():
                rows = torch.arange(start, start + COPIED - 1)  # behind the last another token comes
                logits_RK = q_RC[rows - (length - n_rows)] @ k_KC.T * scale
                logits_RK[torch.arange(length) > rows[:, None]] = -torch.inf
                own: Record = {"length": length, "text": seed, "distance": distance, "head": f"{head[0]}.{head[1]}"}
                found.append(own | {"at_rest": share} | measured(logits_RK, rows - distance + 1))
    return found


def main(path: str, folder: str) -> None:
    disable_progress_bar()
    name, out, plan = Path(path).name, Path(folder), PLANS[Path(path).name]
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(path)
    file, records = out / f"{name}.csv", list[Record]()
    if file.exists():
        with file.open() as stored:
            records += csv.DictReader(stored)
    done = {(int(row["length"]), int(row["text"]), float(row["at_rest"])) for row in records}
    with installed(model):
        probed, usual = ProbedHuggingFaceModel(name, model, tokenizer), (TURNING, *AT_REST)
        probed.first_token = tokenizer.bos_token_id  # SmolLM2's tokenizer does not put it there by itself
        heads, long = chosen(probed, out / f"{name}_heads.csv"), (plan.length, plan.distances)
        jobs: list[Any] = [(SHORT, seed, usual) for seed in range(N_SHORT)]
        jobs += [(long, seed, (*usual, ALL) if seed < plan.n_all else usual) for seed in range(plan.n_texts)]
        for at, seed, shares in jobs:
            left = [share for share in shares if (at[0], seed, share) not in done]
            if left:
                records += read(probed, seed, at, heads, *left)
                write(file, records)


def chosen(probed: ProbedHuggingFaceModel, file: Path) -> list[Head]:
    """The induction heads of layers without a window; the file gets the weight of every head."""
    every = [(softmax.shape.layer, head) for softmax in probed.normalisers for head in range(softmax.shape.n_heads)]
    weights: dict[str, list[float]] = defaultdict(list)
    for seed in range(OTHER_SEEDS, OTHER_SEEDS + N_SHORT):
        for row in read(probed, seed, SHORT, every, TURNING):
            weights[row["head"]].append(row["weight"])
    means = {head: mean_with_ends(own) for head, own in weights.items()}
    windows = dict(zip(probed.layers, probed.windows(), strict=True))
    write(file, [{"head": head, "window": windows[int(head.split(".")[0])] or ""} | own for head, own in means.items()])
    return [own for own in every if means[f"{own[0]}.{own[1]}"]["value"] >= LEAST and windows[own[0]] is None]


if __name__ == "__main__":
    main(*sys.argv[1:])
