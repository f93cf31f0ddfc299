"""A comparison as text: tables for a terminal, Markdown, LaTeX and its page; and what it leaves for other programs.

`results.json` is a flat list, a record for each metric, place and setting that was measured:

    metric        the name of the number, such as perplexity
    verb          what measured it: train, eval, probe, max-retrieval; null where it was read from a csv or jsonl file
    length, ...   the place: context length, n, task, texts, layer, head, ... whichever the measurement has
    settings      {"pe": "rope", "softmax": "softmax"}: the values of the settings that vary, null where there is none
    mean, low, high, n_seeds    mean over the seeds and its 95 % t interval (null for one seed)
    seeds, values               the seeds in order, and the number of each
    baseline                    the settings that this record is compared with; null where with none, or with itself
    n_pairs                     the seeds that both have, whose differences are taken
    difference, difference_low, difference_high    mean of (this - baseline) over these seeds, and its 95 % t interval
    p, p_holm                   of the paired t-test; the same corrected over all settings that are compared with a
                                baseline at this metric and place, those without a p (one seed) included
    p_is_bound                  true where both are upper bounds: the difference is the same in every seed and not 0,
                                and p is 2^(1 - n_pairs), of the signs alone (where it is 0 in every seed, p is 1)
    value                       the mean again: every record of a results.json has a value
    tokens_per_second           of training, the mean over the seeds; null where it is not known
    peak_resident_bytes, peak_device_bytes    the largest over the seeds of the training run; null where not recorded

Every record has all of these fields; a number that does not exist is null. `comparison.json` says the rest once:

    settings   {"pe": ["nope", "rope"], ...}: the settings that vary and their values, in the order of the tables
    baseline   ["pe=rope"]: what was asked for or taken, [] for none
    remarks    sentences that a reader has to know: few seeds, what makes runs incomparable, what is missing
    skipped    [{"run": DIR, "why": "failed: ..."}]: runs that were named and are not in the numbers
    groups     [{"verb", "settings", "seeds", "runs"}]: the directories (or the file) behind each setting
    of_tasks   true where lengths are those of tasks, which count what their papers count; else they are tokens
    train_lengths  [512, 512]: the shortest and longest of training, where all models share them; else null
    curves     [{"settings", "metric", "tokens", "mean", "low", "high", "n_seeds"}]: training curves, thinned
    figures    names of the figures in figures/, without .svg and .pdf

`comparison.csv` holds the records of `results.json`, `comparison.md` and `comparison.tex` the tables for people.

Tested by tests/analysis/test_compare_command.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pandas import DataFrame

from roundround.analysis.comparison import Comparison, format_setting, format_settings, place_of
from roundround.analysis.past_run import direction
from roundround.report.drawing.tables import (
    Cell,
    Record,
    Table,
    decimals_of,
    filled,
    fixed,
    number,
    shown_bytes,
    shown_p,
)
from roundround.support.errors import escaped

FINE = {"layer", "head", "first_position", "last_position", "kind", "first_token", "pair"}  # places of detail
MOST_ROWS = 120  # of all tables together; comparison.csv has all
A_SCREEN = 12  # the same on a terminal
TO_LEAVE = ("memory", "pairs", "seeds", "95 % interval", "p (Holm)", "p")  # columns, where a terminal is narrow


def summary(found: Comparison, curves: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What comparison.json says, but for the names of the figures."""
    sources = [run for group in found.groups for run in group.sources]
    lengths = {run.train_lengths for run in sources}
    return {
        "settings": found.settings,
        "baseline": found.baseline,
        "remarks": found.remarks,
        "skipped": [{"run": run, "why": why} for run, why in found.skipped],
        "groups": [
            {
                "verb": group.verb,
                "settings": group.settings,
                "seeds": group.seeds,
                "runs": list(dict.fromkeys(model.origin for model in group.models)),
            }
            for group in found.groups
        ],
        "of_tasks": any(run.learns_a_task for run in sources),
        "train_lengths": lengths.pop() if len(lengths) == 1 else None,
        "curves": list(curves),
    }


# -- tables


def by_metric(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each metric of each verb, by what the tables call it."""
    found: dict[str, list[Record]] = {}
    for record in records:
        verb, metric = record.get("verb"), record["metric"]
        found.setdefault(f"{verb}: {metric}" if verb else metric, []).append(record)
    return found


def sheets(records: Sequence[Record], most_rows: int = MOST_ROWS) -> tuple[list[Table], list[str]]:
    """The tables to read, and the metrics that they leave out: by layer and head, and what is too much to read.

    Where a verb measures quality, its other metrics are left out, and so are numbers that are the same everywhere.
    Metrics that are only measured in detail are shown as far as there is room.
    """
    judged = {record.get("verb") for record in records if direction(record["metric"])}
    metrics = by_metric(records)
    found: list[Table] = []
    left_out: list[str] = []
    n_rows = 0
    for name, rows in metrics.items():
        chosen = [row for row in rows if not set(place_of(row)) & FINE] or rows
        same = len({value for row in rows for value in row["values"]}) == 1 and len(metrics) > 1
        beside = rows[0].get("verb") in judged and not direction(rows[0]["metric"])
        if same or beside or (n_rows + len(chosen) > most_rows and found):
            left_out.append(name)
            continue
        found.append(sheet(name, chosen[:most_rows]))
        n_rows += len(chosen)
        if len(chosen) < len(rows) or len(chosen) > most_rows:
            left_out.append(f"more of {name}")
    return found, left_out


def sheet(title: str, rows: Sequence[Record], **options: Any) -> Table:
    """The records of one metric, a row for each place and setting; empty columns are left out."""

    def found(*names: str) -> list[list[float | None]]:
        return [[number(row.get(name)) for name in names] for row in rows]

    def decimals(name: str, low: str, high: str) -> int:
        halves = [(b - a) / 2 for a, b in found(low, high) if a is not None and b is not None]
        return decimals_of([value for (value,) in found(name) if value is not None], halves)

    def column(name: str, digits: int, sign: str = "") -> list[Cell]:
        return [Cell("" if x is None else fixed(x, digits, sign), x) for (x,) in found(name)]

    def interval(low: str, high: str, digits: int, sign: str = "") -> list[Cell]:
        return [Cell(" to ".join(fixed(x, digits, sign) for x in ends if x is not None)) for ends in found(low, high)]

    def p_values(name: str) -> list[Cell]:
        bound = [row.get("p_is_bound") is True for row in rows]
        return [Cell(shown_p(p, b), None if b else p) for (p,), b in zip(found(name), bound, strict=True)]

    of_means = decimals("mean", "low", "high")
    of_differences = decimals("difference", "difference_low", "difference_high")
    places = dict.fromkeys(name for row in rows for name in place_of(row))
    settings = dict.fromkeys(name for row in rows for name in row["settings"])
    names = [
        *((name, [format_cell(row.get(name, "")) for row in rows]) for name in places),
        *((name, [format_cell(row["settings"].get(name, "")) for row in rows]) for name in settings),
    ]
    fewer = any(row.get("n_pairs") and row["n_pairs"] != row.get("n_seeds") for row in rows)
    peaks = [on_device or resident for on_device, resident in found("peak_device_bytes", "peak_resident_bytes")]
    measured = [
        ("mean", column("mean", of_means)),
        ("95 % interval", interval("low", "high", of_means)),
        ("seeds", column("n_seeds", 0)),
        ("difference", column("difference", of_differences, "+")),
        ("interval of difference", interval("difference_low", "difference_high", of_differences, "+")),
        ("pairs", column("n_pairs", 0) if fewer else []),
        ("p", p_values("p")),
        ("p (Holm)", [] if found("p_holm") == found("p") else p_values("p_holm")),
        ("memory", [Cell("" if n is None else shown_bytes(n), n) for n in peaks]),
    ]
    n_names = sum(any(text.text for text in cells) for _, cells in names)
    return filled(title, [*names, *measured], names=n_names, **options)


def format_cell(value: Any) -> Cell:
    """The value of a setting or a place."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return Cell(f"{value:,}" if whole else format_setting(value), value if number(value) is not None else None)


def markdown(sentences: Iterable[str], found: Iterable[Table], remarks: Sequence[str]) -> str:
    first = [f"{escaped(sentence)}\n" for sentence in sentences]
    listed = ["".join(f"- {escaped(remark)}\n" for remark in remarks)] if remarks else []
    return "\n".join([*first, *(table.markdown() for table in found), *listed])


def latex(sentences: Iterable[str], found: Iterable[Table], remarks: Iterable[str]) -> str:
    first, last = ("".join(f"% {escaped(line)}\n" for line in some) for some in (sentences, remarks))
    return "\n".join(["% \\usepackage{booktabs}\n", first, *(table.latex() for table in found), last])


def as_csv(records: Sequence[Record]) -> str:
    """The records of results.json, a line each; settings as pe=rope, softmax=softmax, seeds apart by spaces."""
    rows = []
    for record in records:
        baseline = record["baseline"]
        words = {
            "settings": format_settings(record["settings"]),
            "baseline": None if baseline is None else format_settings(baseline),
        }
        row = record | words | {k: " ".join(map(str, v)) for k, v in record.items() if isinstance(v, list)}
        odd = {key: escaped(v) for key, v in row.items() if isinstance(v, str) and not v.isprintable()}
        rows.append(row | odd)
    table = DataFrame(rows, dtype=object)  # integers stay such
    first = ["metric", "verb", *dict.fromkeys(name for record in records for name in place_of(record)), "settings"]
    text: str = table[[*first, *table.columns.difference(first, sort=False)]].to_csv(index=False, lineterminator="\n")
    return text


def as_json(records: Sequence[Record]) -> str:
    return json.dumps(records, indent=2, default=str) + "\n"
