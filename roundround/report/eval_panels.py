"""The panels of an evaluation, and its page: perplexity and right answers by length, loss by position, dispersion.

Both are made of the records of `results.json`, when `eval` ends and when a page is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from roundround.report import harness, pairs
from roundround.report.drawing.numbers import number
from roundround.report.drawing.tables import Record, Table, in_words, tables_of
from roundround.report.page.view import RunFiles, Section, View
from roundround.support.panels import Curve, Drawing, Mark, Panel, numbers

DISPERSION = {  # metric: label
    "entropy": "entropy of a row (nats)",
    "largest_weight": "largest weight of a row",
    "logit_spread": "logit spread (nats)",
}
WITH_INTERVAL = ("exact_match", "token_accuracy", "string_match", "output_match")
ANSWERS = (*WITH_INTERVAL, "error_rate", "nats_per_token")  # of a task, at each length
PARTS = {"depth": "depth (0: the beginning)", "distance": "distance (tokens)"}  # of a task, whose examples say where
MOST_HEADS = 16  # of a layer, each with a line of its own
MOST_LAYERS = 8
TOKENS = "context length (tokens)"
BEFORE = "tokens before the target, plus 1"
Lengths = tuple[int, int] | None


def drawing(records: Sequence[Record], trained: Lengths, title: str = "", note: str = "") -> Drawing:
    """What an evaluation shows first. trained: the shortest and the longest length of training, where that is known."""
    if any(record["metric"] == "exact_match" for record in records):
        panels = [right_by_length(records, trained), loss_by_length(records, trained)]
        panels += [right_by_part(records, part, trained) for part in PARTS]
        return Drawing("accuracy", title, [panel for panel in panels if panel.drawn], note=note)
    return Drawing("perplexity", title, [by_length(records, trained), by_position(records, trained)], note=note)


def marks_of(trained: Lengths) -> list[Mark]:
    if trained is None:
        return []
    return [Mark("training context length" if trained[0] == trained[1] else "lengths in training", *trained)]


def whole(records: Sequence[Record], metric: str) -> list[Record]:
    """The records of a metric of all targets, by length."""
    found = [r for r in records if r["metric"] == metric and "first_position" not in r and number(r.get("length"))]
    return sorted(found, key=lambda record: record["length"])


def along(name: str, records: Sequence[Record], x: str = "length", style: int | None = None) -> Curve:
    """The values of records along one of their fields, with their intervals where they have some."""
    y, low, high = (numbers(number(record.get(field)) for record in records) for field in ("value", "low", "high"))
    return Curve(name, [float(record[x]) for record in records], y, low=low, high=high, style=style)


def by_length(records: Sequence[Record], trained: Lengths) -> Panel:
    """Perplexity against the context length; with the joints between documents where they change it."""
    found, joined = whole(records, "perplexity"), whole(records, "perplexity_with_joints")
    curves = [along("perplexity", found)]
    if [record["value"] for record in joined] != [record["value"] for record in found]:
        curves.append(along("with joints", joined))
    return Panel(
        TOKENS, "held-out perplexity", curves, "x", "Perplexity by context length", marks=marks_of(trained),
        possible=(1.0, None), widened=True, x_ticks=[record["length"] for record in found],
    )  # fmt: skip


def by_position(records: Sequence[Record], trained: Lengths) -> Panel:
    """Loss against the place in the window, a line for each context length."""
    lines: dict[float, list[tuple[float, Record]]] = {}
    for middle, record in by_place(r for r in records if r["metric"] == "nats_per_token"):
        lines.setdefault(number(record.get("length")) or 0.0, []).append((middle, record))
    curves = [
        Curve(f"context {length:,.0f}", [x for x, _ in points], numbers(number(r["value"]) for _, r in points))
        for length, points in sorted(lines.items())
    ]
    return Panel(
        BEFORE, "loss (nats per token)", curves, "x", "Loss by position in the window", marks=marks_of(trained),
        note="A point is the mean over a range of places, drawn in its middle.", possible=(0.0, None), widened=True,
    )  # fmt: skip


def by_place(records: Iterable[Record]) -> list[tuple[float, Record]]:
    """The records of a range of places in the window, with its middle on a logarithmic axis."""
    found = []
    for record in records:
        first, last = (number(record.get(key)) for key in ("first_position", "last_position"))
        if first is not None and last is not None:
            found.append((math.sqrt((first + 1) * (last + 1)), record))
    return found


def right_by_length(records: Sequence[Record], trained: Lengths) -> Panel:
    """Of a task: which share of the examples, and of their scored tokens, is right at each length."""
    found = [whole([r for r in records if is_answer(r)], metric) for metric in WITH_INTERVAL]
    curves = [
        along(in_words(name), some, style=n) for n, (name, some) in enumerate(zip(WITH_INTERVAL, found, strict=True))
    ]
    note = "The bands are 95 % intervals over distinct examples."
    if trained is not None:
        note += f" Lengths {trained[0]:,} to {trained[1]:,} were in training."
    return Panel(
        "length", "share right", curves, "x", "Right answers by length", note=note, marks=marks_of(trained),
        possible=(0.0, 1.0), whole=True, x_ticks=sorted({r["length"] for some in found for r in some}),
    )  # fmt: skip


def right_by_part(records: Sequence[Record], part: str, trained: Lengths) -> Panel:
    """Of a task whose answer stood at known depths or distances: how many examples are right, a line for each length.

    With distances comes that at which the slowest pair has turned by a quarter, where all pairs rotate.
    """
    found = [r for r in records if r["metric"] == "exact_match" and number(r.get(part)) is not None]
    lengths = sorted({record["length"] for record in found})
    by_part = sorted(found, key=lambda record: record[part])
    curves = [along(f"{n:,}", [r for r in by_part if r["length"] == n], part, style) for style, n in enumerate(lengths)]
    label, log, marks = PARTS[part], "x" if part == "distance" else "", []
    if part == "distance":
        turns = sorted({record["value"] for record in records if record["metric"] == "quarter_turn"})
        marks = [*marks_of(trained), *(Mark("a quarter turn of the slowest pair", value, value) for value in turns)]
    return Panel(
        label, "share right", curves, log, f"Exact match by {part}", possible=(0.0, 1.0), marks=marks,
        whole=True, x_ticks=sorted({record[part] for record in found}),
    )  # fmt: skip


def loss_by_length(records: Sequence[Record], trained: Lengths) -> Panel:
    found = whole([r for r in records if is_answer(r)], "nats_per_token")
    return Panel(
        "length", "nats per scored token", [along("loss", found)], "x", "Loss by length", marks=marks_of(trained),
        possible=(0.0, None), whole=True, x_ticks=[record["length"] for record in found],
    )  # fmt: skip


def dispersion(records: Sequence[Record], x_label: str) -> list[Panel]:
    """Each measure of dispersion against the length, a line for each head or layer."""
    panels = []
    for metric, label in DISPERSION.items():
        layers = by_layer(records, metric, "length")
        drawn = sorted(layers.items())[:: -(-len(layers) // MOST_LAYERS)] if layers else []
        curves = [curve for style, (layer, heads) in enumerate(drawn) for curve in curves_of(layer, heads, style)]
        ticks = sorted({length for heads in layers.values() for length in heads})
        most = 1.0 if metric == "largest_weight" else None
        panels.append(Panel(x_label, label, curves, "x", label.capitalize(), possible=(0.0, most), x_ticks=ticks))
    return panels


def by_layer(records: Sequence[Record], metric: str, x: str) -> dict[int, dict[float, list[float]]]:
    """The values of a metric of all heads of each layer, at each x."""
    found: dict[int, dict[float, list[float]]] = {}
    for record in records:
        place, value = number(record.get(x)), number(record["value"])
        if record["metric"] == metric and isinstance(record.get("layer"), int) and place and value is not None:
            found.setdefault(record["layer"], {}).setdefault(place, []).append(value)
    return found


def curves_of(layer: int, by_x: dict[float, list[float]], style: int) -> list[Curve]:
    """A line for each head of a layer; their mean where there are many."""
    items = sorted(by_x.items())
    n_heads = min(len(values) for _, values in items)
    if n_heads > MOST_HEADS:
        return [mean_of(f"layer {layer}", by_x, style)]
    x = [place for place, _ in items]
    return [Curve(f"layer {layer}", x, [values[head] for _, values in items], style=style) for head in range(n_heads)]


def mean_of(name: str, by_x: dict[float, list[float]], style: int) -> Curve:
    """The mean over heads at each x, with the lowest and the highest as a band."""
    items = sorted(by_x.items())
    low, high = [min(values) for _, values in items], [max(values) for _, values in items]
    mean = [sum(values) / len(values) for _, values in items]
    return Curve(name, [x for x, _ in items], mean, low=low, high=high, style=style)


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """Panels of the records, then the records as tables."""
    if pairs.are_pairs(records):
        return pairs.view(records)
    if any("lm_eval" in record for record in records):
        return harness.view(records)
    of_task = any(record["metric"] == "exact_match" for record in records)
    trained = None if files.run.measured is None else files.run.measured.train_lengths
    title = "Right answers" if of_task else "Perplexity"
    note = "A line for each head, or for the mean of a layer's heads where there are many; of many layers some."
    heads = dispersion(records, "length" if of_task else TOKENS)
    tables = ([answers(records)] if of_task else []) + tables_of([r for r in records if not (of_task and is_answer(r))])
    for table in tables[1:]:
        table.folded = len(table.rows) > 20
    sections = [
        Section(title, panels=drawing(records, trained).panels),
        Section("Dispersion", panels=heads, note=note),
        Section("Results", tables=tables),
    ]
    return View(sections, scope_of_task(records, trained) if of_task else scope(records))


def is_answer(record: Record) -> bool:
    """Whether this is a number of all examples of a length of a task."""
    return record["metric"] in ANSWERS and not {"layer", "task", *PARTS} & record.keys()  # no part of the task


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


def scope(records: Sequence[Record]) -> list[str]:
    """Over how many targets, and how the text was read."""
    counts = [number(r["value"]) for r in records if r["metric"] == "scored_targets"]
    n_targets = sorted({f"{count:,.0f}" for count in counts if count is not None})
    lines = [f"Scored targets: {', '.join(n_targets)} at each context length."] if n_targets else []
    if records:
        lines += reading(records)
    return lines


def scope_of_task(records: Sequence[Record], trained: Lengths) -> list[str]:
    """How many examples there were, and which lengths training had."""
    records = [r for r in records if is_answer(r)]
    counts = sorted({f"{count:,.0f}" for r in records if (count := number(r.get("examples"))) is not None})
    lines = [f"Test examples: {', '.join(counts)} at each length."] if counts else []
    few = [n for r in records if (n := number(r.get("distinct"))) is not None and n < (number(r.get("examples")) or 0)]
    if few:
        lines.append(f"Some were drawn again, and count once in the intervals: {min(few):,.0f} are distinct at least.")
    return lines if trained is None else [*lines, f"Training had lengths {trained[0]:,} to {trained[1]:,}."]


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
