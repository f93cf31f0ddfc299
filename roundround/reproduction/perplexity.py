"""Table 2 of arXiv:2410.06205: perplexity of seven encodings, at a small size and with seeds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, final

from roundround.reproduction.item import Item, Outcome, RunVerb, Subject
from roundround.reproduction.table2 import BASELINE, CONTROLS, PAPER, Sweep, difference, paper_difference, sweep_of
from roundround.theory.claim import Comparison, Curve, Picture, at_least, shown

SEEDS = (1, 2, 3, 4, 5)
LENGTHS = (256, 512, 1024, 2048)  # the first is that of training
CLEARLY_WORSE = ("nope", "p_rope_25")  # than RoPE in the paper: by 0.085 and 0.015 nats on Wikipedia


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
            comparisons=[*judged(sweep), *told(sweep)],
            panels={"perplexity": Picture("context (tokens)", "held-out perplexity", curves, log="xy")},
            remark=f"At a laptop's size: {len(SEEDS)} seeds, paired, differences in nats per token with 95 % t "
            "intervals. Judged is what the paper's margins can show here: NoPE and 0.25-RoPE are worse than RoPE, so "
            "that the lower end of the interval lies above 0. The other encodings' margins in the paper are below "
            "half a per cent of one run each, and only shown; docs/table2.md has what these seeds say about them.",
        )


def judged(sweep: Sweep) -> list[Comparison]:
    """The lower ends of the intervals that must lie above 0."""
    found = {pe: difference(sweep, pe, BASELINE, LENGTHS[0]) for pe in CLEARLY_WORSE}
    return [
        at_least(f"{PAPER[pe][0]} less RoPE, lower end, {LENGTHS[0]} tokens", d.low, 0.0) for pe, d in found.items()
    ]


def told(sweep: Sweep) -> list[Comparison]:
    """Every difference beside the paper's on Wikipedia."""
    pairs = list(dict.fromkeys([*((pe, BASELINE) for pe in PAPER if pe != BASELINE), *CONTROLS]))
    comparisons = []
    for pe, baseline in pairs:
        for length in LENGTHS:
            d, paper = difference(sweep, pe, baseline, length), paper_difference(pe, baseline)
            what = f"{PAPER[pe][0]} less {PAPER[baseline][0]}, {length:,} tokens ({d.low:+.4f} to {d.high:+.4f})"
            comparisons.append(shown(what, d.nats, paper[0] if paper and length == LENGTHS[0] else None))
    return comparisons


ITEMS: dict[str, Item] = {
    "rope.table2": Perplexities(
        shows="perplexity of seven encodings trained from scratch, at a small size",
        published="NoPE 4.86, 0.25-RoPE 4.53, RoPE 4.46, 0.75-RoPE 4.44 (Gemma 2B, Wikipedia)",
        command="roundround train experiment=rope/table2 text=FOLDER, and roundround eval of each run",
        minutes=90,
        trains=True,
    )
}
