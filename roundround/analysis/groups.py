"""Which settings vary among trials, and the trials of each setting over all seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from roundround.analysis.past_run import PastRun
from roundround.analysis.trials import GROUPS, Cell, Trial, tokens_per_second

MEMORY = {"peak_resident_bytes": "resident_bytes", "peak_device_bytes": "device_bytes"}  # by the name in a manifest


@dataclass(eq=False)
class Group:
    """The trials of one setting. settings: those that vary among the trials of its verb.

    numbers: by metric and place, then by seed. replaced: (earlier trial, later trial) of the same seed whose numbers
    differ; the later one's are taken.
    """

    verb: str | None
    settings: dict[str, Any]
    trials: list[Trial] = field(default_factory=list)
    numbers: dict[Cell, dict[Any, float]] = field(default_factory=dict)
    replaced: list[tuple[Trial, Trial]] = field(default_factory=list)

    @cached_property
    def name(self) -> str:
        return words(self.settings)

    @property
    def seeds(self) -> list[Any]:
        return sorted({trial.seed for trial in self.trials}, key=order)

    @property
    def sources(self) -> list[PastRun]:
        """The runs that made the models, each once."""
        return list({run.directory: run for run in (trial.source for trial in self.trials) if run is not None}.values())

    @cached_property
    def learns_a_task(self) -> bool:
        """Whether a length is the task's own, which counts what its paper counts, and not tokens."""
        return any(run.learns_a_task for run in self.sources)

    @cached_property
    def tokens_per_second(self) -> float | None:
        """Of training, the mean over the models."""
        speeds = [speed for speed in map(tokens_per_second, self.sources) if speed is not None]
        return float(np.mean(speeds)) if speeds else None

    @cached_property
    def peak_memory(self) -> dict[str, int | None]:
        """The most memory that one of the runs took, in bytes, by the names of MEMORY."""
        peaks = [run.manifest.get("peak_memory") or {} for run in self.sources]
        known = {name: [peak[key] for peak in peaks if peak.get(key) is not None] for name, key in MEMORY.items()}
        return {name: max(some, default=None) for name, some in known.items()}

    def gather(self) -> None:
        """Put the numbers of the trials together, the one that started last winning at each seed and place."""
        taken: dict[tuple[Cell, Any], Trial] = {}
        pairs: dict[tuple[int, int], tuple[Trial, Trial]] = {}
        for trial in sorted(self.trials, key=lambda trial: (trial.started is not None, trial.started)):
            for cell, value in trial.numbers.items():
                by_seed = self.numbers.setdefault(cell, {})
                if by_seed.get(trial.seed, value) != value:
                    earlier = taken[cell, trial.seed]
                    pairs[id(earlier), id(trial)] = earlier, trial
                by_seed[trial.seed] = value
                taken[cell, trial.seed] = trial
        self.replaced = list(pairs.values())


def groups_of(trials: Sequence[Trial]) -> list[Group]:
    """The groups of the trials of one verb, in the order of the values of their settings."""
    keys, _ = varying(trials)
    groups: dict[tuple[Any, ...], Group] = {}
    for trial in trials:
        values = tuple(trial.settings.get(key) for key in keys)
        group = groups.setdefault(values, Group(trial.verb, dict(zip(keys, values, strict=True))))
        group.trials.append(trial)
    for group in groups.values():
        group.gather()
    return [groups[values] for values in sorted(groups, key=lambda values: [order(value) for value in values])]


def varying(trials: Sequence[Trial]) -> tuple[list[str], dict[str, list[str]]]:
    """The settings that tell trials apart; and those that follow them, such as pe.theta pe: each with what it follows.

    A setting follows others where they determine its value.
    """
    every = dict.fromkeys(key for trial in trials for key in trial.settings)
    keys = [key for key in every if len({trial.settings.get(key) for trial in trials}) > 1]
    keys.sort(key=lambda key: (GROUPS.index(key) if key in GROUPS else len(GROUPS), key))
    kept: list[str] = []
    following: dict[str, list[str]] = {}
    labels: list[tuple[Any, ...]] = [()] * len(trials)
    for key in keys:
        values = [trial.settings.get(key) for trial in trials]
        finer = [(*label, value) for label, value in zip(labels, values, strict=True)]
        if len(set(finer)) > len(set(labels)):
            kept.append(key)
            labels = finer
        else:
            following[key] = [name for name in kept if determines(trials, name, key)] or list(kept)
    return kept, following


def determines(trials: Iterable[Trial], name: str, key: str) -> bool:
    """Whether every value of one setting goes with one value of another."""
    found: dict[Any, Any] = {}
    return all(found.setdefault(t.settings.get(name), t.settings.get(key)) == t.settings.get(key) for t in trials)


def order(value: Any) -> tuple[Any, ...]:
    """A key that sorts numbers by size, then texts, then what is not there."""
    if value is None:
        return (2, "")
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def words(settings: dict[str, Any]) -> str:
    """Settings as one reads them: pe=rope, softmax=null."""
    return ", ".join(f"{key}={shown(value)}" for key, value in settings.items()) or "all runs"


def shown(value: Any) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
