"""How often `bench history=` keeps a variant that is no better, and one that is: simulated searches.

    python benchmarks/history_power.py        # ten seconds; the tables of docs/howto/search.md

A difference is a variant's luck minus the baseline's, which all tries with the same seeds share. Over seeds it varies
by 0.0137 nats, as the stored variants do without the two that vary most, or by the bound that the set states.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from roundround.analysis.intervals import e_needed, e_value
from roundround.analysis.standings import format_variant, paired, read_set, stored

Array = NDArray[np.float64]

V2 = read_set("v2", "default", None)
assert V2.decides is not None
COLUMN, SPREAD, EFFECTS = V2.decides
USUAL = 0.0137
SEARCHES, TRIES = 1_000, 200
NEEDED = np.array([e_needed(number + 1, 0) for number in range(TRIES)])  # before anything is kept


def main() -> None:
    rng = np.random.default_rng(0)
    print(f"{SEARCHES:,} searches of {TRIES} variants that are no better: the share of the searches that keep one\n")
    print("| tries | differences vary by 0.0137 | by 0.025, the bound |\n|---|---|---|")
    for name, kept in {
        "the same 3 seeds": kept_of_nothing,
        "3 seeds of their own": partial(kept_of_nothing, own_seeds=True),
        "the same 3 seeds, each try a small change of the best so far": kept_of_a_climb,
        "the same 10 seeds, each try a small change of the best so far": partial(kept_of_a_climb, n_seeds=10),
    }.items():
        print(f"| {name} | {kept(rng, USUAL):.1%} | {kept(rng, SPREAD):.1%} |")
    print(f"\nTries with the differences of stored variants around their mean, 3 seeds: {kept_of_stored(rng):.1%}")
    print("\nOne better variant: how often it is kept as the first, the 20th and the 200th try\n")
    seeds = (3, 5, 10, 20)
    print(f"| better by | {' | '.join(f'{n} seeds' for n in seeds)} |\n|---|{'---|' * len(seeds)}")
    for effect in EFFECTS:
        cells = [" / ".join(f"{share:.2f}" for share in power(rng, effect, n)) for n in seeds]
        print(f"| {effect} nats | {' | '.join(cells)} |")


def luck(rng: np.random.Generator, sigma: float, *shape: int) -> Array:
    """The luck of a model: half the variance of a difference between two."""
    return sigma / math.sqrt(2) * rng.standard_normal(shape)


def kept_of_nothing(
    rng: np.random.Generator, sigma: float, *, own_seeds: bool = False, n_seeds: int = 3, searches: int = SEARCHES
) -> float:
    """The share of searches that keep a variant although none is better."""
    baseline = luck(rng, sigma, n_seeds, searches, TRIES if own_seeds else 1)
    values = e_value(baseline - luck(rng, sigma, n_seeds, searches, TRIES), SPREAD, EFFECTS)
    return float((values >= NEEDED).any(-1).mean())


def kept_of_a_climb(
    rng: np.random.Generator, sigma: float, *, same: float = 0.9, n_seeds: int = 3, searches: int = SEARCHES
) -> float:
    """The same, where each try is a small change of the luckiest so far: the correlation of their luck is `same`."""
    baseline, best = luck(rng, sigma, n_seeds, searches), luck(rng, sigma, n_seeds, searches)
    kept = e_value(baseline - best, SPREAD, EFFECTS) >= NEEDED[0]
    for needed in NEEDED[1:]:
        new = same * best + math.sqrt(1 - same**2) * luck(rng, sigma, n_seeds, searches)
        kept |= e_value(baseline - new, SPREAD, EFFECTS) >= needed
        best = np.where(new.mean(0) < best.mean(0), new, best)
    return float(kept.mean())


def kept_of_stored(rng: np.random.Generator, *, searches: int = SEARCHES) -> float:
    """The same, where a try has a stored variant's differences around their mean, as wide as its standard deviation."""
    found = stored("v2", "default")
    [base] = [standing for standing in found if format_variant(standing.variant) == "rope"]
    residuals = [np.array(paired(standing, base, COLUMN)) for standing in found if len(standing.made) == 3]
    wide = np.array([math.sqrt(3 / 2) * (own - own.mean()) for own in residuals])  # [variant, seed]
    drawn = wide[rng.integers(len(wide), size=(searches, TRIES))]
    signs = rng.choice([-1.0, 1.0], size=(searches, TRIES, 3))
    values = e_value(np.moveaxis(drawn * signs, -1, 0), SPREAD, EFFECTS)
    return float((values >= NEEDED).any(-1).mean())


def power(rng: np.random.Generator, effect: float, n_seeds: int, *, draws: int = 10_000) -> list[float]:
    """How often a variant that is better by `effect` is kept as the first, the 20th and the 200th try."""
    values = e_value(effect + USUAL * rng.standard_normal((n_seeds, draws)), SPREAD, EFFECTS)
    return [float((values >= NEEDED[number - 1]).mean()) for number in (1, 20, 200)]


if __name__ == "__main__":
    main()
