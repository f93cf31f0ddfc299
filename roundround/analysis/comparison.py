"""What a comparison consists of: settings with the replicates behind them, a row for each number, training curves.

Tested by tests/analysis/test_compare.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from roundround.analysis.intervals import half_width
from roundround.analysis.load import GROUPS, Replicate
from roundround.analysis.past_run import PastRun, is_same
from roundround.records.directories import METRICS
from roundround.support.errors import UserError

MEMORY = {"peak_resident_bytes": "resident_bytes", "peak_device_bytes": "device_bytes"}  # by the name in a manifest
HELD_OUT = "held_out_nats_per_token"
POINTS = 200  # of a curve; a figure shows no more
ROWS_SHOWN = 20  # in a notebook
NOT_SHOWN = ["verb", "values", "seeds", "n_pairs", "p_is_bound", "tokens_per_second", *MEMORY]  # there


def order(value: Any) -> tuple[Any, ...]:
    """A key that sorts numbers by size, then texts, then what is not there."""
    if value is None:
        return (2, "")
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def counted(n: int, what: str) -> str:
    """A number of things, such as `1 run` or `2 runs`."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def format_settings(settings: Mapping[str, Any]) -> str:
    """Settings as one reads them: pe=rope, softmax=null."""
    return ", ".join(f"{key}={format_setting(value)}" for key, value in settings.items()) or "all runs"


def format_setting(value: Any) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def as_typed(where: Mapping[str, object] | None) -> dict[str, str]:
    """Filters as they are typed: {"seed": 1, "pe": ["rope", "nope"]} is seed=1 and pe=rope,nope."""
    if not isinstance(where, Mapping | None):
        raise UserError(f'where={where!r} must be filters by name, such as {{"pe": "rope"}}')
    given = {key: value if isinstance(value, list | tuple) else [value] for key, value in (where or {}).items()}
    return {key: ",".join(map(format_setting, values)) for key, values in given.items()}


@dataclass(eq=False, repr=False)
class Group:
    """The replicates of one setting. settings: those that vary among the replicates of its verb.

    replaced: (earlier replicate, later replicate) of the same seed whose numbers differ; the later one's are taken.
    """

    verb: str | None
    settings: dict[str, Any]
    replicates: list[Replicate] = field(default_factory=list)
    replaced: list[tuple[Replicate, Replicate]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.verb} of {self.name}: {len(self.replicates)} replicates"

    @cached_property
    def name(self) -> str:
        return format_settings(self.settings)

    @property
    def seeds(self) -> list[Any]:
        return sorted({replicate.seed for replicate in self.replicates}, key=order)

    @property
    def sources(self) -> list[PastRun]:
        """The runs that made the models, each once; of several with one seed the last that counts."""
        by_start = sorted(self.replicates, key=lambda one: (one.started is not None, one.started))
        runs = {one.seed: one.source for one in by_start}.values()
        return list({run.directory: run for run in runs if run is not None}.values())

    @cached_property
    def learns_a_task(self) -> bool:
        """Whether a length is the task's own, which counts what its paper counts, and not tokens."""
        return any(run.learns_a_task for run in self.sources)

    @cached_property
    def tokens_per_second(self) -> float | None:
        """Of training, the mean over the models."""
        speeds = [run.tokens_per_second for run in self.sources if run.tokens_per_second is not None]
        return float(np.mean(speeds)) if speeds else None

    @cached_property
    def peak_memory(self) -> dict[str, int | None]:
        """The most memory that one of the runs took, in bytes, by the names of MEMORY."""
        peaks = [run.manifest.get("peak_memory") or {} for run in self.sources]
        known = {name: [peak[key] for peak in peaks if peak.get(key) is not None] for name, key in MEMORY.items()}
        return {name: max(some, default=None) for name, some in known.items()}


def varying(replicates: Iterable[Replicate]) -> tuple[list[str], dict[str, list[str]]]:
    """The settings that tell replicates apart; and for each that others determine, as pe does pe.theta, those."""
    all_settings = [replicate.settings for replicate in replicates]

    def n_distinct(*keys: str) -> int:
        return len({tuple(settings.get(key) for key in keys) for settings in all_settings})

    keys = [key for key in {key for settings in all_settings for key in settings} if n_distinct(key) > 1]
    kept: list[str] = []
    following: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: (GROUPS.index(key) if key in GROUPS else len(GROUPS), key)):
        if not kept or n_distinct(*kept, key) > n_distinct(*kept):
            kept.append(key)
        else:
            following[key] = [name for name in kept if n_distinct(name, key) == n_distinct(name)] or list(kept)
    return kept, following


def values_of(groups: Iterable[Group]) -> dict[str, list[Any]]:
    """The settings that vary, each with its values in order."""
    found: dict[str, set[Any]] = {}
    for group in groups:
        for key, value in group.settings.items():
            found.setdefault(key, set()).add(value)
    return {key: sorted(some, key=order) for key, some in found.items()}


def choices(groups: Iterable[Group]) -> str:
    """What varies among groups, with the values, in words."""
    listed = [f"{key} ({', '.join(map(format_setting, values))})" for key, values in values_of(groups).items()]
    return f"the settings that vary are {', '.join(listed)}" if listed else "no setting varies among these runs"


@dataclass(eq=False, repr=False)
class Row:
    """A metric for one setting: mean over its seeds, and the difference to the baseline, paired by seed.

    coordinates: where it was measured, such as {"length": 512}. low, high and their like bound 95 % t intervals. None:
    there is no such number.
    """

    metric: str
    coordinates: dict[str, Any]
    group: Group
    seeds: list[Any]
    values: list[float]
    baseline: Group | None
    mean: float
    low: float | None
    high: float | None
    pairs: list[tuple[float, float]] = field(default_factory=list)  # of this setting and of the baseline, by seed
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    p_is_bound: bool = False  # of both

    def __repr__(self) -> str:
        place = format_settings({**self.coordinates, **self.settings})
        return f"{self.metric} at {place}: {self.mean:.6g} over {self.n_seeds} seeds"

    @property
    def verb(self) -> str | None:
        return self.group.verb

    @property
    def settings(self) -> dict[str, Any]:
        return self.group.settings

    @property
    def n_seeds(self) -> int:
        return len(self.values)

    def record(self) -> dict[str, Any]:
        """The row as `results.json` has it; report/comparison_tables.py explains the fields."""
        return {
            "metric": self.metric,
            "verb": self.verb,
            **self.coordinates,
            "settings": self.settings,
            "mean": self.mean,
            "low": self.low,
            "high": self.high,
            "n_seeds": self.n_seeds,
            "seeds": self.seeds,
            "values": self.values,
            "baseline": None if self.baseline is None else self.baseline.settings,
            "n_pairs": len(self.pairs),
            "difference": self.difference,
            "difference_low": self.difference_low,
            "difference_high": self.difference_high,
            "p": self.p,
            "p_holm": self.p_holm,
            "p_is_bound": self.p_is_bound,
            "tokens_per_second": self.group.tokens_per_second,
            **self.group.peak_memory,
        }


@dataclass(frozen=True)
class Baseline:
    """The settings of a baseline as they were typed. of_verb: where nobody asked for it, which of them a verb has."""

    wanted: Mapping[str, str]
    of_verb: Mapping[str | None, Collection[str]] | None = None

    @property
    def taken(self) -> bool:
        """Whether nobody asked for it."""
        return self.of_verb is not None

    def keys(self, verb: str | None) -> Collection[str]:
        """The settings that a group of the verb is asked for."""
        return self.wanted.keys() if self.of_verb is None else self.of_verb.get(verb, ())

    def __str__(self) -> str:
        return ", ".join(self.words)

    @property
    def words(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.wanted.items()]

    def is_met(self, group: Group) -> bool:
        """Whether a group has all of its settings, those that do not vary included."""
        settings, keys = group.replicates[0].settings, self.keys(group.verb)
        return bool(keys) and all(is_same(settings.get(key), self.wanted[key]) for key in keys)


@dataclass(eq=False, repr=False)
class Comparison:
    """Runs compared. settings: those that vary, each with its values. table: a row for each metric, length and setting.

    groups: the settings with the runs behind them. numbers: those that count, with the columns group (which of the
    groups), metric, coordinates, seed, value. baseline: what was asked for, or taken; None for none. remarks: what a
    reader has to know. skipped: (run directory, why) of runs that are not in the numbers.
    """

    settings: dict[str, list[Any]]
    groups: list[Group]
    numbers: DataFrame
    table: list[Row]
    baseline: Baseline | None
    remarks: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def of_tasks(self) -> bool:
        """Whether a length is that of a task, which counts what its paper counts, and not tokens."""
        return any(group.learns_a_task for group in self.groups)

    def records(self) -> list[dict[str, Any]]:
        """The rows as `results.json` has them."""
        return [row.record() for row in self.table]

    def __repr__(self) -> str:
        runs = {replicate.origin for group in self.groups for replicate in group.replicates}
        sizes = {"run": runs, "setting": self.groups, "metric": {row.metric for row in self.table}, "row": self.table}
        baseline = "no baseline" if self.baseline is None else f"baseline {self.baseline}"
        counts = ", ".join(counted(len(some), what) for what, some in sizes.items())
        return f"comparison of {counts}; {choices(self.groups)}; {baseline}"

    def _repr_html_(self) -> str:
        """What it is about and its first rows, as a notebook shows it; `data_frame()` has all."""
        frame = self.data_frame().drop(columns=NOT_SHOWN, errors="ignore").dropna(axis="columns", how="all")
        left = len(frame) - ROWS_SHOWN
        lines = [repr(self), *([f"{counted(left, 'more row')} in .data_frame()"] if left > 0 else [])]
        lines += [f"{counted(len(self.remarks), 'remark')} in .remarks"] if self.remarks else []
        table = frame.head(ROWS_SHOWN).to_html(index=False, float_format=lambda value: f"{value:.4g}", na_rep="")
        return f"<p>{escape(lines[0])}</p>{table}<p>{escape('; '.join(lines[1:]))}</p>"

    def data_frame(self) -> DataFrame:
        """The rows as a DataFrame of pandas, with a column for each setting that varies and for each coordinate."""
        names = [None if row.baseline is None else row.baseline.name for row in self.table]
        rows = []
        for row, name in zip(self.table, names, strict=True):
            record = row.record() | {"baseline": name}
            settings = {f"settings.{key}" if key in record else key: value for key, value in row.settings.items()}
            rows.append(settings | record)
        return DataFrame(rows).drop(columns="settings")


# -- training curves


def training_curves(groups: Sequence[Group]) -> tuple[list[dict[str, Any]], list[str]]:
    """The curves of the settings of training runs, else of those that made the models; and what could not be read.

    A curve is a record as comparison.json has it: held-out loss by training tokens, the mean over the seeds with its
    95 % interval. Where several settings of a look at models share their training, the first has its curve.
    """
    curves: list[dict[str, Any]] = []
    damaged: list[str] = []
    drawn: set[Path] = set()
    for group in [group for group in groups if group.verb == "train"] or groups:
        runs = [run for run in group.sources if run.verb == "train"]
        if {run.directory for run in runs} <= drawn:
            continue
        drawn |= {run.directory for run in runs}
        losses = [held_out_loss(run, damaged) for run in runs]
        by_seed = DataFrame({n: loss for n, loss in enumerate(losses) if loss}).dropna().sort_index()  # what all have
        if len(by_seed):
            steps = list(range(0, len(by_seed), -(-len(by_seed) // POINTS)))
            some = by_seed.iloc[steps if steps[-1] == len(by_seed) - 1 else [*steps, -1]]
            values_SP = some.to_numpy(np.float64).T
            mean, half = values_SP.mean(0), half_width(values_SP)
            sure = len(values_SP) > 1
            curves.append(
                {
                    "settings": group.settings,
                    "metric": HELD_OUT,
                    "tokens": some.index.to_numpy(np.float64).tolist(),
                    "mean": mean.tolist(),
                    "low": (mean - half).tolist() if sure else None,
                    "high": (mean + half).tolist() if sure else None,
                    "n_seeds": len(values_SP),
                }
            )
    return curves, damaged


def held_out_loss(run: PastRun, damaged: list[str]) -> dict[int, float]:
    """Held-out loss by tokens of training. What is wrong with the file is added to `damaged`."""
    path = run.directory / METRICS
    try:
        lines, n_damaged = run.metrics()
    except UserError as error:
        damaged.append(f"{error}: no training curve of this run")
        return {}
    if not lines and not path.exists():
        damaged.append(f"{path} is not there: no training curve of this run")
    if n_damaged:
        damaged.append(f"{path} has {n_damaged} damaged line{'s' * (n_damaged != 1)}, passed over")
    per_step = [run.settings.get(key) for key in ("batch_size", "model.train_length")]
    tokens = int(np.prod(per_step)) if all(isinstance(n, int) for n in per_step) else 1  # type: ignore[arg-type]
    return {line["step"] * tokens: float(loss) for line in lines if isinstance(loss := line.get(HELD_OUT), int | float)}
