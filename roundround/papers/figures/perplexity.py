"""Table 2 of arXiv:2410.06205: perplexity of seven encodings, at a small size and with seeds."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, final

from roundround.papers.claim import Comparison, Curve, Picture, near, shown
from roundround.papers.figures.item import Item, Outcome, RunVerb, Subject
from roundround.papers.figures.table2 import (
    BASELINE,
    CONTROLS,
    PAPER,
    Difference,
    Sweep,
    difference,
    paper_difference,
    sweep_of,
)

SEEDS = (1, 2, 3, 4, 5)
LENGTHS = (256, 512, 1024, 2048)  # the first is that of training
MARGIN = 0.005  # nats: by how much 0.75-RoPE is better than RoPE in the paper, on Wikipedia


@final
@dataclass(frozen=True, kw_only=True)
class Perplexities(Item):
    """Trains and evaluates every encoding from every seed; compares loss with RoPE's, seed by seed."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        records: list[dict[str, Any]] = []
        for seed in SEEDS:
            for pe in PAPER:
                trained = run("train", "experiment=rope/table2", f"pe={pe}", f"seed={seed}", "hydra.mode=RUN")
                evaluated = run("eval", f"run={trained}", f"length=[{','.join(map(str, LENGTHS))}]")
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
            panels={"perplexity": Picture("context (tokens)", "held-out perplexity", curves, log="xy")},
            remark=about(len(SEEDS)),
        )


def about(n_seeds: int) -> str:
    return (
        f"A model of a million parameters in place of Gemma 2B: {n_seeds} seeds, paired, differences in nats per token "
        "with 95 % t intervals. Judged are all six differences from RoPE at the context of training, beside Wikipedia, "
        f"with a margin of {MARGIN} nats, by which 0.75-RoPE is ahead in the paper; its single runs have no known "
        "error. docs/table2.md has what these seeds say."
    )


def compare(sweep: Sweep, corpus: str = "") -> list[Comparison]:
    """Every difference from RoPE at the context of training beside the paper's; the others are shown.

    corpus: what their names begin with, such as "TinyStories: ".
    """
    pairs = list(dict.fromkeys([*((pe, BASELINE) for pe in PAPER if pe != BASELINE), *CONTROLS]))
    places = [*((pair, LENGTHS[0]) for pair in pairs), *((pair, length) for pair in pairs for length in LENGTHS[1:])]
    return [beside(*pair, length, difference(sweep, *pair, length), corpus) for pair, length in places]


def beside(pe: str, baseline: str, length: int, found: Difference, corpus: str = "") -> Comparison:
    """A difference with its interval, judged where the paper has it too; differences that follow from two are shown."""
    paper = paper_difference(pe, baseline)
    what = f"{corpus}{PAPER[pe][0]} less {PAPER[baseline][0]}, {length:,} tokens"
    error = (found.high - found.low) / 2
    if paper is None or length != LENGTHS[0] or baseline != BASELINE:
        published = paper[0] if paper and length == LENGTHS[0] else None
        return replace(shown(f"{what} ({found.low:+.4f} to {found.high:+.4f})", found.nats, published), error=error)
    return replace(near(what, found.nats, paper[0], MARGIN, paper[0], error), signed=True)


ITEMS: dict[str, Item] = {
    "rope.table2": Perplexities(
        shows="perplexity of seven encodings trained from scratch, at a small size",
        published="NoPE 4.86, 0.25-RoPE 4.53, RoPE 4.46, 0.75-RoPE 4.44 (Gemma 2B, Wikipedia)",
        command="roundround train experiment=rope/table2 text=FOLDER, and roundround eval of each run",
        minutes=90,
        trains=True,
    )
}
