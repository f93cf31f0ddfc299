"""Table 2 of arXiv:2410.06205: perplexity of seven encodings, at a small size and with seeds, compared seed by seed.

It reads records of `results.json` as `roundround eval` writes them, of one corpus. The runs of a seed share their first
weights and their batches, so differences are taken within a seed: what its runs have in common is not counted as noise.
Shapes: L context lengths, E encodings, S seeds.

Tested by tests/papers/test_table2.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.analysis.intervals import half_width
from roundround.config.options import as_value
from roundround.papers.claim import (
    CheckedNumber,
    near,
    shown,
)
from roundround.papers.figures import Figure, Outcome, RunVerb
from roundround.support.panels import Curve, Panel

BASELINE = "rope"
SEEDS = (1, 2, 3, 4, 5)
LENGTHS = (256, 512, 1024, 2048)  # the first is that of training
MARGIN = 0.005  # nats: by how much 0.75-RoPE is better than RoPE in the paper, on Wikipedia
ABOUT = (
    f"A model of a million parameters in place of Gemma 2B: {len(SEEDS)} seeds, paired, differences in nats per token "
    "with 95 % t intervals. Judged are all six differences from RoPE at the context of training, beside Wikipedia, "
    f"with a margin of {MARGIN} nats, by which 0.75-RoPE is ahead in the paper; its single runs have no known "
    "error. docs/results/table2.md has what these seeds say, and table2_turning.md what resting costs where the pairs "
    "turn as far as in the paper."
)

# option of `pe`: (the paper's name, validation perplexity on Wikipedia, on FLAN v2)
# Barbero et al. 2024, arXiv:2410.06205v3, table 2: Gemma 2B from scratch, one run each, context 8,192
PAPER = {
    "nope": ("NoPE", 4.8594, 6.6429),
    "rope": ("RoPE, theta 10,000", 4.4627, 6.4429),
    "rope_500k": ("RoPE, theta 500,000", 4.4485, 6.4593),
    "p_rope_reversed": ("0.75-RoPE reversed", 4.4592, 6.4683),
    "partial_rope": ("0.75-RoPE partial", 4.4537, 6.4562),
    "p_rope_25": ("0.25-RoPE", 4.5302, 6.5111),
    "p_rope": ("0.75-RoPE", 4.4414, 6.4422),
}

# a hard cut or fewer frequencies? Three encodings rotate three quarters of the pairs: 0.75-RoPE cuts the slow ones,
# reversed the fast ones, partial none: its fewer frequencies span the whole ladder
CONTROLS = (
    ("p_rope", BASELINE),
    ("p_rope_reversed", BASELINE),
    ("partial_rope", BASELINE),
    ("p_rope", "p_rope_reversed"),
    ("p_rope", "partial_rope"),
)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Held-out perplexity [L, E, S] of every encoding on the seeds that all encodings and lengths have."""

    lengths: list[int]
    encodings: list[str]
    seeds: list[int]
    perplexity_LES: NDArray[np.float64]

    def seeds_of(self, encoding: str, length: int) -> NDArray[np.float64]:
        """Perplexity [S] by seed."""
        found: NDArray[np.float64] = self.perplexity_LES[self.lengths.index(length), self.encodings.index(encoding)]
        return found


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of a loss minus another's, in nats per token, and its t interval."""

    nats: float
    low: float
    high: float


def sweep_of(records: Iterable[Mapping[str, Any]]) -> Sweep:
    """The perplexities among the records of evaluations, whole seeds only.

    The encodings of the table come in the paper's order, others after them. Raises ValueError where a place has two
    perplexities, as with the runs of two corpora, and where no seed is whole.
    """
    found: dict[tuple[int, str, int], float] = {}
    for record in records:
        if record["metric"] == "perplexity" and record["verb"] == "eval":
            place = int(record["length"]), str(record["pe"]), int(record["seed"])
            if found.setdefault(place, record["value"]) != record["value"]:
                raise ValueError(
                    f"length={place[0]}, pe={place[1]}, seed={place[2]} has the perplexities {found[place]} and "
                    f"{record['value']}; give the runs of one corpus and one training"
                )
    lengths, names = sorted({length for length, _, _ in found}), {pe for _, pe, _ in found}
    encodings = [pe for pe in PAPER if pe in names] + sorted(names - PAPER.keys())
    seeds = [
        seed
        for seed in sorted({seed for _, _, seed in found})
        if all((length, pe, seed) in found for length in lengths for pe in encodings)
    ]
    if not seeds:
        raise ValueError("no seed has a perplexity for every encoding and length")
    values = [[[found[length, pe, seed] for seed in seeds] for pe in encodings] for length in lengths]
    return Sweep(lengths, encodings, seeds, np.asarray(values, dtype=np.float64))


def difference(sweep: Sweep, encoding: str, baseline: str, length: int) -> Difference:
    """Loss of an encoding minus the baseline's at a context length, paired by seed: Student's t with S - 1 degrees.

    The ends of its 95 % interval are NaN with one seed.
    """
    nats_S = np.log(sweep.seeds_of(encoding, length)) - np.log(sweep.seeds_of(baseline, length))
    mean, half = float(nats_S.mean()), float(half_width(nats_S))
    return Difference(mean, mean - half, mean + half)


def paper_difference(encoding: str, baseline: str) -> tuple[float, float] | None:
    """The same in the paper, on Wikipedia and FLAN v2: single runs. None for an encoding that it does not have."""
    if encoding not in PAPER or baseline not in PAPER:
        return None
    (_, wiki, flan), (_, wiki_baseline, flan_baseline) = PAPER[encoding], PAPER[baseline]
    return math.log(wiki / wiki_baseline), math.log(flan / flan_baseline)


def perplexities(run: RunVerb) -> Outcome:
    """Trains and evaluates every encoding from every seed; compares loss with RoPE's, seed by seed."""
    records: list[dict[str, Any]] = []
    for seed in SEEDS:
        for pe in PAPER:
            trained = run("train", "experiment=rope/table2", f"pe={pe}", f"seed={seed}", "hydra.mode=RUN")
            evaluated = run("eval", f"run={as_value(trained)}", f"length=[{','.join(map(str, LENGTHS))}]")
            records += json.loads((evaluated / "results.json").read_text(encoding="utf-8"))
    sweep = sweep_of(records)
    means = {pe: float(sweep.seeds_of(pe, LENGTHS[0]).mean()) for pe in sweep.encodings}
    curves = [
        Curve(PAPER[pe][0], LENGTHS, [sweep.seeds_of(pe, length).mean() for length in LENGTHS])
        for pe in sweep.encodings
    ]
    return Outcome(
        ours=", ".join(f"{PAPER[pe][0]} {means[pe]:.1f}" for pe in ("nope", "p_rope_25", BASELINE, "p_rope")),
        comparisons=compare(sweep),
        panels={"perplexity": Panel("context (tokens)", "held-out perplexity", curves, log="xy")},
        remark=ABOUT,
    )


def compare(sweep: Sweep, corpus: str = "") -> list[CheckedNumber]:
    """Every difference from RoPE at the context of training beside the paper's, with its interval.

    The others are shown; differences that follow from two are, too. corpus: what their names begin with, such as
    "TinyStories: ".
    """
    comparisons = []
    pairs = list(dict.fromkeys([*((pe, BASELINE) for pe in PAPER if pe != BASELINE), *CONTROLS]))
    places = [*((pair, LENGTHS[0]) for pair in pairs), *((pair, length) for pair in pairs for length in LENGTHS[1:])]
    for (pe, baseline), length in places:
        found, paper = difference(sweep, pe, baseline, length), paper_difference(pe, baseline)
        what = f"{corpus}{PAPER[pe][0]} less {PAPER[baseline][0]}, {length:,} tokens"
        error, published = (found.high - found.low) / 2, paper[0] if paper and length == LENGTHS[0] else None
        if published is None or baseline != BASELINE:
            number = shown(f"{what} ({found.low:+.4f} to {found.high:+.4f})", found.nats, published)
            comparisons.append(replace(number, error=error))
        else:
            number = near(what, found.nats, published, MARGIN, published, error)
            comparisons.append(replace(number, signed=True))
    return comparisons


FIGURES: dict[str, Figure] = {
    "rope.table2": Figure(
        measure=perplexities,
        shows="perplexity of seven encodings trained from scratch, at a small size",
        published="NoPE 4.86, 0.25-RoPE 4.53, RoPE 4.46, 0.75-RoPE 4.44 (Gemma 2B, Wikipedia)",
        command="roundround train experiment=rope/table2 text=FOLDER, and roundround eval of each run",
        minutes=90,
        trains=True,
    )
}
