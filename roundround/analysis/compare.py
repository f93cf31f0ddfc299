"""Runs compared with statistics: `rr.compare` in Python, and what `roundround compare` calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from roundround.analysis import measurement_files
from roundround.analysis.choosing import directories_of_all
from roundround.analysis.comparison import Comparison, comparison_of
from roundround.analysis.filters import Filters, filters_of, is_one_of
from roundround.analysis.past_run import PastRun, past_run
from roundround.analysis.remarks import remarks_of
from roundround.analysis.trials import COMPARED, PLACES, LongTable, table_of
from roundround.support.errors import UserError, nearest


def compare(
    paths: str | Path | Sequence[str | Path],
    *,
    baseline: str | Sequence[str] = (),
    metric: str | Sequence[str] = (),
    where: Mapping[str, str] | None = None,
    outputs: str = "outputs",
) -> Comparison:
    """Compare runs: means over seeds with 95 % t intervals, and differences to a baseline, paired by seed.

    paths: run directories, sweeps, folders of runs, patterns, `last`, `last~3` (under `outputs`), and csv or jsonl
    files of settings, seed, metric, length, value. baseline: `pe=rope` pairs each run with the one that differs in pe
    alone; `["pe=rope", "softmax=softmax"]` is one cell for all; `none` for none; without one, the plain attention where
    it is among the runs. metric: those to compare; all without one. where: filters on the runs, as `roundround runs`
    takes them, and on places, such as {"verb": "eval", "pe": "rope,nope", "length": "512"}.

    `.table` has a row for each metric, place (context length, task) and setting, `.data_frame()` the same as a pandas
    DataFrame, `.remarks` what a reader has to know. Raises UserError where nothing can be compared.
    """
    words = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    baseline, metric = ([given] if isinstance(given, str) else given for given in (baseline, metric))
    table = long_table(words, where or {}, outputs)
    comparison = comparison_of(table, baseline, metric)
    comparison.remarks = [*table.remarks, *remarks_of(comparison)]
    return comparison


def long_table(words: Sequence[str], where: Mapping[str, str], outputs: str) -> LongTable:
    """The trials of runs and files. UserError where there is none."""
    files = [Path(word) for word in words if Path(word).suffix in measurement_files.ENDINGS and Path(word).is_file()]
    others = [word for word in words if Path(word) not in files]
    places = {key: text.split(",") for key, text in where.items() if key in PLACES}
    filters = filters_of({key: text for key, text in where.items() if key not in PLACES})
    table = LongTable()
    if others or not files:
        runs, damaged = chosen(directories_of_all(others, outputs, *COMPARED), filters)
        table = table_of(runs)
        table.skipped[:0] = damaged
    for file in files:
        if filters.asked:
            raise UserError(f"{min(filters.asked)}= chooses among runs, and {file} holds none")
        table.trials += [trial for trial in measurement_files.trials_of(file) if filters.admit(trial.settings)]
    filters.check()
    if places and table.trials:
        keep_places(table, places)
    if not table.trials:
        what = (
            f"{len(table.skipped):,} named, such as {': '.join(table.skipped[0])}" if table.skipped else "none chosen"
        )
        raise UserError(f"no finished run has results to compare ({what})")
    return table


def keep_places(table: LongTable, places: Mapping[str, Sequence[str]]) -> None:
    """Keep the numbers that were taken at these places. UserError where none was."""
    for key, wanted in places.items():
        found: set[str] = set()
        for trial in table.trials:
            here = {cell: dict(cell[1]).get(key) for cell in trial.numbers}
            found |= {str(value) for value in here.values() if value is not None}
            trial.numbers = {cell: value for cell, value in trial.numbers.items() if is_one_of(here[cell], wanted)}
        table.trials = [trial for trial in table.trials if trial.numbers]
        if not table.trials:
            raise UserError(f"nothing was measured at {key}={','.join(wanted)}{nearest(','.join(wanted), found)}")


def chosen(directories: Sequence[Path], filters: Filters) -> tuple[list[PastRun], list[tuple[str, str]]]:
    """The runs that pass the filters, and why others cannot be read."""
    runs, damaged = [], []
    for directory in directories:
        try:
            run = past_run(directory)
        except UserError as error:
            damaged.append((str(directory), str(error)))
            continue
        if filters.take(run):
            runs.append(run)
    return runs, damaged
