"""Training curves of the settings that are compared: means over seeds, with intervals, thinned."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.analysis.groups import Group, words
from roundround.analysis.intervals import half_width
from roundround.analysis.past_run import PastRun
from roundround.runs.leftovers import METRICS
from roundround.support.errors import one_line
from roundround.support.files import parse_json, read_text

Array = NDArray[np.float64]

HELD_OUT = "held_out_nats_per_token"
POINTS = 200  # of a curve; a figure shows no more


@dataclass(frozen=True, eq=False)
class Curve:
    """The held-out loss of a setting by training tokens, [P]: mean over its seeds, and half of the 95 % interval.

    half: NaN where there is one seed.
    """

    settings: dict[str, Any]
    n_seeds: int
    tokens: Array
    mean: Array
    half: Array

    @property
    def name(self) -> str:
        return words(self.settings)

    def record(self) -> dict[str, Any]:
        """As comparison.json has it."""
        sure = self.n_seeds > 1
        return {
            "settings": self.settings,
            "metric": HELD_OUT,
            "tokens": self.tokens.tolist(),
            "mean": self.mean.tolist(),
            "low": (self.mean - self.half).tolist() if sure else None,
            "high": (self.mean + self.half).tolist() if sure else None,
            "n_seeds": self.n_seeds,
        }


def training_curves(groups: Sequence[Group]) -> tuple[list[Curve], list[str]]:
    """The curves of the settings of training runs, else of those that made the models; and what could not be read.

    Where several settings of a look at models share their training, the first has its curve.
    """
    chosen = [group for group in groups if group.verb == "train"] or list(groups)
    curves: list[Curve] = []
    damaged: list[str] = []
    drawn: set[Path] = set()
    for group in chosen:
        runs = [run for run in group.sources if run.verb == "train"]
        if not runs or {run.directory for run in runs} <= drawn:
            continue
        drawn |= {run.directory for run in runs}
        found = []
        for run in runs:
            points, fault = points_of(run)
            if fault is not None:
                damaged.append(fault)
            if points:
                found.append(points)
        if found:
            curves.append(curve_of(group.settings, found))
    return [curve for curve in curves if len(curve.tokens)], damaged


def points_of(run: PastRun) -> tuple[dict[int, float], str | None]:
    """Held-out loss by tokens of training; and what is wrong with the file, in words. A torn line is passed over."""
    path = run.directory / METRICS
    points: dict[int, float] = {}
    try:
        lines = [line for line in read_text(path).split("\n") if line]
    except FileNotFoundError:
        return points, f"{path} is not there: no training curve of this run"
    except (OSError, ValueError) as error:
        return points, f"{path} cannot be read ({one_line(error)}): no training curve of this run"
    per_step = [run.settings.get(key) for key in ("batch_size", "model.train_length")]
    tokens = int(np.prod(per_step)) if all(isinstance(n, int) for n in per_step) else 1  # type: ignore[arg-type]
    torn = 0
    for line in lines:
        if not (line.startswith("{") and line.endswith("}")):
            torn += 1
        elif HELD_OUT in line:
            with suppress(ValueError):
                record = parse_json(line)
                if isinstance(record.get("step"), int) and isinstance(record.get(HELD_OUT), int | float | str):
                    if not isinstance(record[HELD_OUT], str):  # the name of a number that is not finite
                        points[record["step"] * tokens] = float(record[HELD_OUT])
                    continue
            torn += 1
    return points, f"{path} has {torn} damaged line{'s' * (torn != 1)}, passed over" if torn else None


def curve_of(settings: dict[str, Any], found: Sequence[dict[int, float]]) -> Curve:
    """The mean of the points that all seeds have."""
    shared = sorted(set.intersection(*(set(points) for points in found)))
    steps = shared[:: max(1, -(-len(shared) // POINTS))]
    if shared and steps[-1] != shared[-1]:
        steps.append(shared[-1])
    values_SP = np.array([[points[step] for step in steps] for points in found], dtype=np.float64)
    half = half_width(values_SP)
    return Curve(settings, len(found), np.array(steps, dtype=np.float64), values_SP.mean(0), half)
