"""What tasks of EleutherAI's harness say of a model: its numbers as records, a table, and over what they were taken.

Tested by tests/asking/test_harness.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import rich.table

from roundround.analysis.intervals import error_widths
from roundround.report.drawing.numbers import number, shown, text_of
from roundround.report.drawing.tables import Record, Table
from roundround.report.page.view import Section, View

SHARES = {"acc", "acc_norm", "acc_bytes", "acc_all", "exact_match", "f1"}  # lie between 0 and 1
FEW = 100  # examples: a share near one half is known to 10 %


def records(found: Mapping[str, Any], common: Mapping[str, Any]) -> list[Record]:
    """A record for each number of each task and group, in the harness' own names.

    Its interval of 95 % is Student's, of the harness' standard error, a share's within 0 and 1; there is none where the
    error is 0, as it is where all examples are alike.
    """
    made = []
    for task, numbers in found["results"].items():
        n, of = numbers.get("sample_len"), found["n-samples"].get(task, {}).get("original")
        where = {
            "task": task,
            "version": found["versions"].get(task),
            "shots": found["n-shot"].get(task),
            "examples": n,
            "of": of,
        }
        for key, value in numbers.items():
            metric, comma, name = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            record = {"metric": metric, **common, **where, "value": float(value)}
            record |= {} if name == "none" else {"filter": name}
            stderr = number(numbers.get(f"{metric}_stderr,{name}"))
            if stderr and n is not None and n > 1 and math.isfinite(stderr):
                half = error_widths(n) * stderr
                low, high = (0.0, 1.0) if metric in SHARES and 0 <= value <= 1 else (-math.inf, math.inf)
                record |= {"stderr": stderr, "low": max(low, value - half), "high": min(high, value + half)}
            made.append(record)
    return made


def label(record: Record) -> str:
    """What the headline calls a number: task, metric, and the filter where there is one."""
    return "_".join(filter(None, (record["task"], record["metric"], record.get("filter"))))


def counted(record: Record) -> str:
    """The examples of a record: how many of how many, and whether they are few."""
    n, of = record.get("examples"), record.get("of")
    text = f"{n:,}" if n is not None else ""
    text += f" of {of:,}" if of not in (None, n) else ""
    return f"{text} (few)" if n is not None and n < FEW else text


def rows(records: Sequence[Record]) -> list[list[Any]]:
    """Task, version, shots, metric, value, low, high and examples of each record."""
    made = []
    for r in records:
        metric = " ".join(filter(None, (r["metric"], r.get("filter"))))
        place = [r.get(name) for name in ("task", "version", "shots")]
        made.append([*place, metric, r["value"], r.get("low"), r.get("high"), counted(r)])
    return made


def table(records: Sequence[Record], *, title: str) -> rich.table.Table:
    """A row for each number."""
    made = rich.table.Table("task", "version", "shots", "metric", "value", "examples", title=title)
    for task, version, shots, metric, value, low, high, n in rows(records):
        between = "" if low is None else f" [{shown(low)}, {shown(high)}]"
        made.add_row(str(task), text_of(version), shown(shots), metric, f"{shown(value)}{between}", n)
    return made


def scope(records: Sequence[Record], *, n_cut: int | None = None, n_read: int | None = None) -> list[str]:
    """Over what the numbers were taken, in lines. n_cut: texts of `n_read` that were longer than the context."""
    one = records[0] if records else {}
    versions = ", ".join(f"{r['task']} {text_of(r.get('version'))}" for r in {r["task"]: r for r in records}.values())
    begin = "nothing in front" if one.get("first_token") is None else f"{one['first_token']} in front"
    lines = [f"lm_eval {one.get('lm_eval')}, task versions: {versions}"]
    context = f"a context of at most {one.get('length'):,} tokens, {begin}"
    if n_read is not None:
        context += f"; of {n_cut:,} of {n_read:,} texts the beginning was cut off" if n_cut else "; no text was cut"
    lines.append(context)
    lines.append("intervals of 95 % by the harness' standard error over examples; none where all of them are alike")
    if any((r.get("examples") or FEW) < FEW for r in records):
        lines.append(f"(few): less than {FEW} examples, which tell little")
    return lines


def view(records: Sequence[Record]) -> View:
    """The page of such an evaluation."""
    columns = ["task", "version", "shots", "metric", "value", "low", "high", "examples"]
    found = Table("tasks of lm_eval", columns, rows(records), note="low, high: 95 % by the harness' standard error")
    return View([Section("Results", tables=[found])], scope(records))
