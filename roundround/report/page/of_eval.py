"""The page of an evaluation: perplexity by context length, loss by position, dispersion where it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from roundround.report.numbers import number
from roundround.report.page.charts import N_STYLES, Chart, Series
from roundround.report.page.sources import Record, RunFiles
from roundround.report.page.view import Section, View
from roundround.report.tables import Table, tables_of

DISPERSION = {  # metric: label, whether the axis is logarithmic
    "entropy": ("entropy of a row (nats)", False),
    "largest_weight": ("largest weight of a row", False),
    "logit_spread": ("logit spread (nats)", False),
}
WITH_INTERVAL = ("exact_match", "token_accuracy", "output_match")
ANSWERS = (*WITH_INTERVAL, "error_rate", "nats_per_token")  # of a task, at each length
MOST_HEADS = 16  # of a layer, each with a line of its own
Points = list[tuple[float, float | None]]


def view(files: RunFiles, records: list[Record]) -> View:
    """Charts of the records, then the records as tables."""
    of_task = any(record["metric"] == "exact_match" for record in records)
    charts = [by_length(records), by_position(records)]
    if of_task:
        charts = [right_by_length(files, records), loss_by_length(records)]
    heads = dispersion(records, "length" if of_task else "context length (tokens)")
    title = "Right answers" if of_task else "Perplexity"
    sections = [Section(title, charts=charts)]
    if heads:
        note = "A line for each head, or for the mean of a layer's heads where there are many; of many layers some."
        sections.append(Section("Dispersion", charts=heads, note=note))
    tables = ([answers(records)] if of_task else []) + tables_of([r for r in records if not (of_task and is_answer(r))])
    for table in tables[1:]:
        table.folded = len(table.rows) > 20
    return View(
        [*sections, Section("Results", tables=tables)],
        scope=scope_of_task(files, records) if of_task else scope(records),
    )


def whole(records: Sequence[Record], metric: str) -> Points:
    """(context length, value) of a metric of all targets."""
    found = [r for r in records if r["metric"] == metric and "first_position" not in r and number(r.get("length"))]
    return [(float(r["length"]), number(r["value"])) for r in found]


def by_length(records: Sequence[Record]) -> Chart:
    """Perplexity against the context length."""
    points = whole(records, "perplexity")
    series = [
        Series("perplexity", points, style=0),
        Series("with joints", whole(records, "perplexity_with_joints"), style=1),
    ]
    ticks = [x for x, _ in points]
    return Chart(
        "Perplexity by context length", series, "context length (tokens)", "perplexity", log_x=True, x_ticks=ticks
    )


def is_answer(record: Record) -> bool:
    """Whether this is a number of all examples of a length of a task."""
    return record["metric"] in ANSWERS and "layer" not in record and "task" not in record  # a part of the task


def answers(records: Sequence[Record]) -> Table:
    """A row for each length of a task: the shares that are right with their intervals, and the loss."""
    by_length: dict[Any, dict[str, Record]] = {}
    for record in filter(is_answer, records):
        by_length.setdefault(record.get("length"), {})[record["metric"]] = record
    metrics = [metric for metric in ANSWERS if any(metric in found for found in by_length.values())]
    columns = ["length", "tokens", "distinct examples"]
    for metric in metrics:
        columns += [metric, "low", "high"] if metric in WITH_INTERVAL else [metric]
    rows = []
    for length, found in by_length.items():
        one = next(iter(found.values()))
        row = [length, one.get("context"), one.get("distinct")]
        for metric in metrics:
            fields = ("value", "low", "high") if metric in WITH_INTERVAL else ("value",)
            row += [found.get(metric, {}).get(name) for name in fields]
        rows.append(row)
    return Table("right answers by length", columns, rows, note="low, high: 95 % interval over distinct examples")


def right_by_length(files: RunFiles, records: Sequence[Record]) -> Chart:
    """Of a task: which share of the examples, and of their scored tokens, is right at each length."""
    series = []
    for style, metric in enumerate(WITH_INTERVAL):
        found = [r for r in records if r["metric"] == metric and is_answer(r) and number(r.get("length"))]
        points = [(float(r["length"]), number(r["value"])) for r in found]
        series.append(Series(metric.replace("_", " "), points, [interval(r) for r in found], style))
    ticks = sorted({x for line in series for x, _ in line.points})
    note = "The bands are 95 % intervals over distinct examples."
    trained = trained_lengths(files)
    if trained is not None:
        note += f" Lengths {trained[0]:,} to {trained[1]:,} were in training."
    return Chart(
        "Right answers by length",
        series,
        "length",
        "share right",
        log_x=True,
        x_ticks=ticks,
        note=note,
        limits=(0.0, 1.0),
    )


def interval(record: Record) -> tuple[float, float] | None:
    low, high = number(record.get("low")), number(record.get("high"))
    return None if low is None or high is None else (low, high)


def loss_by_length(records: Sequence[Record]) -> Chart:
    points = whole([r for r in records if is_answer(r)], "nats_per_token")
    ticks = [x for x, _ in points]
    series = [Series("loss", points)]
    return Chart(
        "Loss by length", series, "length", "nats per scored token", log_x=True, x_ticks=ticks, limits=(0.0, None)
    )


def by_position(records: Sequence[Record]) -> Chart:
    """Loss against the place in the window, a line for each context length."""
    lines: dict[float, Points] = {}
    for record in records:
        length, first, last = (number(record.get(key)) for key in ("length", "first_position", "last_position"))
        if record["metric"] == "nats_per_token" and length and first is not None and last is not None:
            middle = math.sqrt((first + 1) * (last + 1))
            lines.setdefault(length, []).append((middle, number(record["value"])))
    series = [
        Series(f"context {length:,.0f}", points, style=style)
        for style, (length, points) in enumerate(sorted(lines.items()))
    ]
    note = "Each point is the mean over a range of places, drawn in its middle."
    labels = ("tokens before the target, plus 1", "nats per token")
    return Chart("Loss by position in the window", series, *labels, log_x=True, note=note)


def dispersion(records: Sequence[Record], x_label: str) -> list[Chart]:
    """Each measure of dispersion against the length, a line for each layer."""
    charts = []
    for metric, (label, log) in DISPERSION.items():
        found: dict[int, dict[float, list[float]]] = {}
        for record in records:
            length, value = number(record.get("length")), number(record["value"])
            if record["metric"] == metric and isinstance(record.get("layer"), int) and length and value is not None:
                found.setdefault(record["layer"], {}).setdefault(length, []).append(value)
        drawn = sorted(found.items())[:: -(-len(found) // N_STYLES)] if found else []
        series = [line for style, (layer, heads) in enumerate(drawn) for line in lines_of(layer, heads, style)]
        ticks = sorted({length for heads in found.values() for length in heads})
        charts.append(Chart(label.capitalize(), series, x_label, label, log_x=True, log_y=log, x_ticks=ticks))
    return charts


def lines_of(layer: int, by_length: dict[float, list[float]], style: int) -> list[Series]:
    """A line for each head of a layer; their mean where there are many."""
    items = sorted(by_length.items())
    n_heads = min(len(values) for _, values in items)
    if n_heads > MOST_HEADS:
        return [line_of(f"layer {layer}", by_length, style)]
    return [Series(f"layer {layer}", [(x, values[head]) for x, values in items], (), style) for head in range(n_heads)]


def line_of(name: str, by_x: dict[float, list[float]], style: int) -> Series:
    """The mean over heads at each x, with the lowest and the highest as a band."""
    items = sorted(by_x.items())
    points = [(x, sum(values) / len(values)) for x, values in items]
    return Series(name, points, [(min(values), max(values)) for _, values in items], style)


def scope(records: Sequence[Record]) -> list[str]:
    """Over how many targets, and how the text was read."""
    counts = [number(r["value"]) for r in records if r["metric"] == "scored_targets"]
    n_targets = sorted({f"{count:,.0f}" for count in counts if count is not None})
    lines = [f"Scored targets: {', '.join(n_targets)} at each context length."] if n_targets else []
    if records:
        lines += reading(records)
    return lines


def scope_of_task(files: RunFiles, records: Sequence[Record]) -> list[str]:
    """How many examples there were, and which lengths training had."""
    records = [r for r in records if is_answer(r)]
    counts = sorted({f"{count:,.0f}" for r in records if (count := number(r.get("examples"))) is not None})
    lines = [f"Test examples: {', '.join(counts)} at each length."] if counts else []
    trained = trained_lengths(files)
    few = [n for r in records if (n := number(r.get("distinct"))) is not None and n < (number(r.get("examples")) or 0)]
    if few:
        lines.append(f"Some were drawn again, and count once in the intervals: {min(few):,.0f} are distinct at least.")
    return lines if trained is None else [*lines, f"Training had lengths {trained[0]:,} to {trained[1]:,}."]


def trained_lengths(files: RunFiles) -> tuple[int, int] | None:
    trained = files.run.measured
    return None if trained is None else trained.train_lengths


def reading(records: Sequence[Record]) -> list[str]:
    lines, record = [], records[0]
    if record.get("joining_token") is not None:
        lines.append(f"Documents are joined by {record['joining_token']}, which is no target.")
    if record.get("separate_documents"):
        lines.append("Documents in a window do not see each other.")
    if record.get("special_tokens") is not None:
        spelled = "that token" if record["special_tokens"] == "read" else "plain characters"
        lines.append(f"Text that spells a special token is {spelled}.")
    lengths_of: dict[Any, set[int]] = {}
    for found in records:
        if isinstance(found.get("length"), int):
            lengths_of.setdefault(found.get("first_token"), set()).add(found["length"])
    for first, lengths in lengths_of.items():
        where = "" if len(lengths_of) == 1 else f" at {', '.join(f'{length:,}' for length in sorted(lengths))}"
        lines.append(f"Windows begin {'with ' + str(first) if first is not None else 'anywhere in the text'}{where}.")
    return lines
