"""What the standard set can tell: how its numbers vary, and how often it finds a difference that is there.

    python benchmarks/standard_set.py          # two minutes; the tables of docs/howto/bench.md

A simulated variant is RoPE but for a stated difference. Its values are those of RoPE plus what is left, in stored runs
of the variants that behave like RoPE (`like:` of the set), without a mean of each variant and of each seed; what is
left is drawn at random. RoPE's own values are drawn in the same way, once for each board of as many variants as are
stored. What seeds do to all variants alike does not matter: differences are taken within a seed. With `tune=true` the
values at the second rate are drawn in the same way, from the stored runs at that rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from roundround.analysis.standings import (
    BETTER,
    RATE,
    WORSE,
    Array,
    Column,
    StandardSet,
    Standing,
    at_better_rate,
    compared,
    complete,
    left_over,
    read_set,
    usual_variance,
)

SET, SEEDS, BOARDS, VARIANTS, FEW = "v2", 3, 300, 50, 5
EFFECTS = {
    "loss": (-0.02, -0.03, -0.05), "rise 8x": (-0.1, -0.2), "needle 2x": (0.1, 0.2), "copying 1.5x": (0.1, 0.2),
    "counting": (0.1, -0.2), "order 4x": (0.1, 0.2), "largest 4x": (0.1, 0.3), "induction": (-0.1, -0.2),
}  # fmt: skip


def pool_of(column: Column, like: Sequence[Standing]) -> Array:
    """RoPE's mean plus what is left of the stored runs, scaled to half the usual variance of a difference."""
    left, _ = left_over(column, like)
    variance, _ = usual_variance(column, like)
    rope = next(one for one in like if (one.variant["pe"], one.variant["softmax"]) == ("rope", "softmax"))
    return (rope.mean(column) or 0.0) + left * np.sqrt(variance / 2 / max(float(np.square(left).mean()), 1e-12))


def drawn(
    the_set: StandardSet,
    pools: Mapping[str, Array],
    rng: np.random.Generator,
    n_seeds: int,
    shifts: Mapping[str, float],
    options: Mapping[str, str] | None = None,
) -> Standing:
    """A variant that is RoPE but for `shifts`, with values for n_seeds seeds. options: beside its pe."""
    variant = complete({"pe": f"own{n_seeds}"}) | {**(options or {})}
    made = Standing(the_set.name, the_set.size, the_set.hash, variant, the_set.rate)
    made.made = {seed: {} for seed in range(1, n_seeds + 1)}
    for column in (column for column in the_set.columns if column.name in pools):
        values = rng.choice(pools[column.name], n_seeds) + shifts.get(column.name, 0.0)
        first, _, second = column.number.partition(" - ")
        less = made.numbers.get((column.part, second), dict.fromkeys(made.made, 0.0))
        made.numbers[column.part, first] = {seed: float(values[seed - 1]) + less[seed] for seed in made.made}
    return made


def boards(
    the_set: StandardSet,
    rng: np.random.Generator,
    shifts: Mapping[str, float],
    *,
    n: int = BOARDS,
    n_seeds: int = SEEDS,
    n_variants: int = FEW,
    tune: bool = False,
) -> list[list[dict[str, str]]]:
    """The verdicts by column of the variants of each of n boards, whose variants share RoPE's runs."""
    columns = [column for column in the_set.columns if column.better != "none"]
    pools = {column.name: pool_of(column, the_set.like) for column in columns}
    tuned = {column.name: pool_of(column, the_set.like_tuned) for column in columns} if tune else {}

    def new(shifts: Mapping[str, float]) -> Standing:
        first = drawn(the_set, pools, rng, n_seeds, shifts)
        if not tune:
            return first
        other = drawn(the_set, tuned, rng, n_seeds, shifts, {RATE: f"{the_set.tuned_rate:g}"})
        return at_better_rate({one.name: one for one in (first, other)}, [first.name], the_set, [1])[first.name]

    found = []
    for _ in range(n):
        rope = new({})
        some = [compared(new(shifts), rope, the_set) for _ in range(n_variants)]
        found.append([{record["metric"]: record["verdict"] for record in records} for records in some])
    return found


def found_share(the_set: StandardSet, rng: np.random.Generator, name: str, effect: float, **more: int) -> float:
    """How often variants that differ from RoPE by an effect in one number are called better or worse in it."""
    some = boards(the_set, rng, {name: effect}, **more)
    return float(np.mean([verdicts[name] in (BETTER, WORSE) for board in some for verdicts in board]))


def false_shares(the_set: StandardSet, rng: np.random.Generator, **more: int) -> tuple[float, float]:
    """How often a variant that is RoPE is better or worse in some number, and any of a board of such variants."""
    some = boards(the_set, rng, {}, **more)
    false = [[bool({BETTER, WORSE} & {*verdicts.values()}) for verdicts in board] for board in some]
    return float(np.mean(false)), float(np.mean([any(board) for board in false]))


def row(column: Column, the_set: StandardSet, shares: Mapping[float, float]) -> str:
    cells = ", ".join(f"{effect:+.2f}: {share:.0%}" for effect, share in shares.items())
    return f"| {column.name} | {np.sqrt(usual_variance(column, the_set.like)[0]):.3f} | {cells} |"


def main() -> None:
    the_set, rng = read_set(SET, "default", None), np.random.default_rng(0)
    one, _ = false_shares(the_set, rng, n=4 * BOARDS)
    _, board = false_shares(the_set, rng, n=BOARDS // 3, n_variants=VARIANTS)
    single, _ = false_shares(the_set, rng, n=4 * BOARDS, n_seeds=1)
    tuned = [false_shares(the_set, rng, n=4 * BOARDS, n_seeds=n, tune=True)[0] for n in (SEEDS, 1)]
    print(f"A variant that is RoPE is called better or worse in some number in {one:.1%} of all cases,")
    print(f"with a single seed in {single:.0%}; with tune=true in {tuned[0]:.1%} and {tuned[1]:.0%};")
    print(f"on a board of {VARIANTS} such variants at least one is in {board:.0%}.")
    shares = [found_share(the_set, rng, "loss", -0.03, n_seeds=n) for n in (1, 5, 10)]
    found = [found_share(the_set, rng, "loss", effect, tune=True) for effect in (-0.05, -0.1)]
    print(f"With tune=true 0.05 and 0.1 nats of loss are found in {found[0]:.0%} and {found[1]:.0%}.")
    print(f"0.03 nats of loss are found with 1, 5 and 10 seeds in {', '.join(f'{one:.0%}' for one in shares)}.\n")
    print("| number | spread | difference: found |\n|---|---|---|")
    for column in (column for column in the_set.columns if column.name in EFFECTS):
        shares = {e: found_share(the_set, rng, column.name, e) for e in EFFECTS[column.name]}
        print(row(column, the_set, shares))


if __name__ == "__main__":
    main()
