"""What the standard set can tell: how its numbers vary, and how often it finds a difference that is there.

    python benchmarks/standard_set.py          # two minutes; the tables of docs/howto/bench.md

A simulated variant is RoPE but for a stated difference: its values are RoPE's mean plus deviations, drawn at random, of
stored runs of the variants that behave like RoPE (`like:` of the set) from their variant's mean. RoPE's own seeds are
drawn in the same way, once for each board of as many variants as are stored.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from roundround.analysis.standings import (
    BETTER,
    EQUIVALENT,
    WORSE,
    Column,
    StandardSet,
    Standing,
    compared,
    complete,
    read_set,
    usual_variance,
)

Array = NDArray[np.float64]

SET, SEEDS, OF_BASELINE, BOARDS, VARIANTS = "v2", 3, 12, 40, 50
EFFECTS = {
    "loss": (-0.02, -0.03, -0.05), "rise 8x": (-0.1, -0.2), "needle 2x": (0.1, 0.2), "copying 1.5x": (0.1, 0.2),
    "counting": (0.1, -0.2), "order 4x": (0.1, 0.2), "largest 4x": (0.1, 0.3), "induction": (-0.1, -0.2),
}  # fmt: skip


def pool_of(column: Column, the_set: StandardSet) -> Array:
    """RoPE's mean plus the deviations of the stored runs from their variant's mean, scaled to the usual variance."""
    runs = [np.array([*one.values(column).values()]) for one in the_set.like]
    deviations = np.concatenate([values - values.mean() for values in runs])
    variance, _ = usual_variance(column, the_set.like)
    rope = next(one for one in the_set.like if one.name == "rope")
    return (rope.mean(column) or 0.0) + deviations * np.sqrt(variance / max(float(np.square(deviations).mean()), 1e-12))


def drawn(
    the_set: StandardSet,
    pools: Mapping[str, Array],
    rng: np.random.Generator,
    n_seeds: int,
    shifts: Mapping[str, float],
) -> Standing:
    """A variant that is RoPE but for `shifts`, with values for n_seeds seeds."""
    made = Standing(the_set.name, the_set.size, the_set.hash, complete({"pe": f"own{n_seeds}"}), the_set.rate)
    made.made = {seed: {} for seed in range(1, n_seeds + 1)}
    for column in (column for column in the_set.columns if column.name in pools):
        values = rng.choice(pools[column.name], n_seeds) + shifts.get(column.name, 0.0)
        first, _, second = column.number.partition(" - ")
        less = made.numbers.get((column.part, second), dict.fromkeys(made.made, 0.0))
        made.numbers[column.part, first] = {seed: float(values[seed - 1]) + less[seed] for seed in made.made}
    return made


def boards(
    the_set: StandardSet, rng: np.random.Generator, shifts: Mapping[str, float], *, n: int = BOARDS
) -> list[list[dict[str, str]]]:
    """The verdicts by column of the variants of each of some boards, whose variants share RoPE's seeds."""
    pools = {column.name: pool_of(column, the_set) for column in the_set.columns if column.better != "none"}
    found = []
    for _ in range(n):
        rope = drawn(the_set, pools, rng, OF_BASELINE, {})
        some = [compared(drawn(the_set, pools, rng, SEEDS, shifts), rope, the_set) for _ in range(VARIANTS)]
        found.append([{record["metric"]: record["verdict"] for record in records} for records in some])
    return found


def main() -> None:
    the_set, rng = read_set(SET, "default", None), np.random.default_rng(0)
    alike = boards(the_set, rng, {})
    false = [[bool({BETTER, WORSE} & {*verdicts.values()}) for verdicts in board] for board in alike]
    print(f"A variant that is RoPE is better or worse in some number: {np.mean(false):.1%};")
    print(f"so is at least one of {VARIANTS} such variants: {np.mean([any(board) for board in false]):.0%}\n")
    print("| number | spread over seeds | margin | RoPE is called equivalent | found |")
    print("|---|---|---|---|---|")
    for column in (column for column in the_set.columns if column.name in EFFECTS):
        variance, _ = usual_variance(column, the_set.like)
        equal = np.mean([verdicts[column.name] == EQUIVALENT for board in alike for verdicts in board])
        cells = []
        for effect in EFFECTS[column.name]:
            shifted = boards(the_set, rng, {column.name: effect}, n=BOARDS // 2)
            share = np.mean([v[column.name] in (BETTER, WORSE) for board in shifted for v in board])
            cells.append(f"{effect:+.2f}: {share:.0%}")
        print(f"| {column.name} | {np.sqrt(variance):.3f} | {column.margin} | {equal:.0%} | {', '.join(cells)} |")


if __name__ == "__main__":
    main()
