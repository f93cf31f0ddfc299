"""The tables and the figure of docs/results/induction_heads.md: python -m results.induction_heads draws the figure.

Shapes: S texts.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import cache

import numpy as np

from results.stored import DOCS, Array, family
from roundround.analysis.intervals import half_width
from roundround.report.drawing.figures import save_drawing
from roundround.support.panels import Curve, Drawing, Panel

NAMES = {"gemma-3-270m": "Gemma 3 270M", "smollm2-135m-instruct": "SmolLM2-135M"}
SHORT, NEAR, REST, HOLDS = 129, 64, 0.375, 0.5  # HOLDS: nats by which a gap that holds may fall
Head = tuple[str, str]  # model, layer and head
Key = tuple[str, int, int, float]  # head, length, distance, share at rest


@cache
def stored(model: str) -> dict[Key, dict[str, Array]]:
    """Each measure over the texts."""
    found: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (DOCS / "induction_heads" / f"{model}.csv").open() as file:
        for row in csv.DictReader(file):
            settings = row["head"], int(row["length"]), int(row["distance"]), float(row["at_rest"])
            for measure in ("gap", "over_first", "weight", "odds"):
                found[settings][measure].append(float(row[measure]))
    return {key: {name: np.array(own) for name, own in measures.items()} for key, measures in found.items()}


@cache
def weights(model: str) -> dict[str, tuple[float, str]]:
    """The weight by which heads are chosen, and the window of the layer, of every head."""
    with (DOCS / "induction_heads" / f"{model}_heads.csv").open() as file:
        return {row["head"]: (float(row["value"]), row["window"]) for row in csv.DictReader(file)}


def heads() -> list[Head]:
    return [(model, head) for model in NAMES for head in dict.fromkeys(key[0] for key in stored(model))]


def length(model: str) -> int:
    return max(key[1] for key in stored(model))


def distances(model: str) -> list[int]:
    return sorted({key[2] for key in stored(model) if key[1] != SHORT})


def values(own: Head, measure: str, distance: int, rest: float = 0.0, *, short: bool = False) -> Array:
    """[S]; of the short text those texts that the long one has too."""
    model, head = own
    found = stored(model)[head, SHORT if short else length(model), distance, rest][measure]
    return found[: len(stored(model)[head, length(model), distance, rest][measure])]


def fall(own: Head, measure: str = "gap", rest: float = 0.0) -> Array:
    """Far less near by, in the same text: [S]."""
    return values(own, measure, distances(own[0])[-1], rest) - values(own, measure, NEAR, rest)


def parts(own: Head) -> tuple[Array, Array]:
    """Odds that are lost by more keys, and by distance: [S] each."""
    return values(own, "odds", NEAR, short=True) - values(own, "odds", NEAR), -fall(own, "odds")


def contrasts() -> dict[str, dict[Head, tuple[Array, Array]]]:
    """The three of the rule: two sides of each paired difference."""
    every = heads()
    return {
        "falls": {own: (fall(own), np.zeros_like(fall(own))) for own in every},
        "less at rest": {own: (fall(own, rest=REST), fall(own)) for own in every},
        "distance less keys": {own: (parts(own)[1], parts(own)[0]) for own in every},
    }


def told(name: str) -> dict[Head, tuple[Array, float]]:
    """Each difference [S] of a contrast and its p after Holm."""
    pairs = contrasts()[name]
    return {own: (pairs[own][0] - pairs[own][1], p) for own, p in family(pairs).items()}


def verdict(own: Head) -> str:
    """By the page's rule."""
    (falls, p_falls), (less, p_less) = told("falls")[own], told("less at rest")[own]
    signs = [float(np.sign(x.mean())) * (p < 0.05) for x, p in ((-falls, p_falls), (less, p_less))]
    if min(signs) > 0:
        return "confirms"
    holds = falls.mean() - half_width(falls) > -HOLDS
    return "contradicts" if min(signs) < 0 or holds else "no clear difference"


def mostly(own: Head) -> str:
    difference, p = told("distance less keys")[own]
    return "both" if p >= 0.05 else "distance" if difference.mean() > 0 else "dispersion"


def interval(values_S: Array, digits: int = 2, sign: str = "+") -> str:
    middle, half = float(values_S.mean()), float(half_width(values_S))
    return f"{middle:{sign}.{digits}f} ({middle - half:{sign}.{digits}f} to {middle + half:{sign}.{digits}f})"


def change(own: Head, distance: int) -> Array:
    """The gap with three eighths at rest less that with all turning: [S]."""
    return values(own, "gap", distance, REST) - values(own, "gap", distance)


def row(own: Head) -> str:
    far, less = distances(own[0])[-1], told("less at rest")[own][0]
    weights = (values(own, "weight", far, rest) for rest in (0.0, REST))
    cells = [f"{NAMES[own[0]]} {own[1]}", *map(interval, (fall(own), less, *parts(own)))]
    return f"| {' | '.join([*cells, *(f'{w.mean():.2f}' for w in weights)])} |"


def draw() -> None:
    """The gap by distance: heads of a model with all pairs turning and, beside them, with three eighths at rest."""
    panels = []
    for model, name in NAMES.items():
        some, at = [own for own in heads() if own[0] == model], distances(model)
        gaps = {(own, rest): [values(own, "gap", d, rest) for d in at] for own in some for rest in (0.0, REST)}
        ends = [x.mean() + sign * half_width(x) for of_head in gaps.values() for x in of_head for sign in (-1, 1)]
        for rest, words in ((0.0, "all pairs turn"), (REST, "three eighths at rest")):
            curves = []
            for own in some:
                middle, half = (np.array([f(x) for x in gaps[own, rest]]) for f in (np.mean, half_width))
                curves.append(Curve(own[1], at, middle, low=middle - half, high=middle + half))
            title, possible = f"{name}, {words}", (float(min(ends)), float(max(ends)))
            panels.append(
                Panel("tokens apart", "gap (nats)", curves, "x", title, possible=possible, whole=True, x_ticks=at)
            )
    title = "The target's logit less the largest other, by distance in one text"
    save_drawing(Drawing("gap_by_distance", title, panels), DOCS / "induction_heads", kinds=["svg"])


TABLES = {
    "induction_gaps": lambda: [row(own) for own in heads()],
}

if __name__ == "__main__":
    draw()
