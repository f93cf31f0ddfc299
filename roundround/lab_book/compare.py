"""Runs compared with statistics: `rr.compare` in Python, and what `roundround compare` calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from roundround.errors import UserError
from roundround.lab_book import measurement_files
from roundround.lab_book.choosing import directories_of_all
from roundround.lab_book.comparison import Comparison, comparison_of
from roundround.lab_book.filters import filters_of
from roundround.lab_book.past_run import PastRun, past_run
from roundround.lab_book.remarks import remarks_of
from roundround.lab_book.trials import COMPARED, LongTable, table_of


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
    takes them, such as {"verb": "eval", "pe": "rope,nope"}.

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
    table = LongTable()
    if others or not files:
        runs, damaged = chosen(directories_of_all(others, outputs, *COMPARED), where)
        table = table_of(runs)
        table.skipped[:0] = damaged
    for file in files:
        table.trials += measurement_files.trials_of(file)
    if not table.trials:
        what = (
            f"{len(table.skipped):,} named, such as {': '.join(table.skipped[0])}" if table.skipped else "none chosen"
        )
        raise UserError(f"no finished run has results to compare ({what})")
    return table


def chosen(directories: Sequence[Path], where: Mapping[str, str]) -> tuple[list[PastRun], list[tuple[str, str]]]:
    """The runs that pass the filters, and why others cannot be read."""
    filters = filters_of(where)
    runs, damaged = [], []
    for directory in directories:
        try:
            run = past_run(directory)
        except UserError as error:
            damaged.append((str(directory), str(error)))
            continue
        if filters.take(run):
            runs.append(run)
    filters.check()
    return runs, damaged
