"""The table, the panels and the page of an evaluation. A `ResultKind` describes how one kind of result is shown.

Everything is made from the records of `results.json`, when `eval` ends and when a page is made.

Tested by tests/training/test_eval.py, tests/training/test_task_runs.py, tests/training/test_pair_runs.py and
tests/asking/test_harness.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roundround.report.drawing.tables import Cell, Record, Table, fixed, in_words, number, shown, tables_of, text_of
from roundround.report.page.view import RunFiles, Section, View
from roundround.support.panels import Curve, Drawing, Mark, Panel, numbers

DISPERSION = {  # metric: label
    "entropy": "entropy of a row (nats)",
    "largest_weight": "largest weight of a row",
    "logit_spread": "logit spread (nats)",
    "gap_counting": "gap counting number Lambda",
    "collapsed": "share of collapsed rows",
}
WITH_INTERVAL = ("exact_match", "token_accuracy", "string_match", "output_match")
ANSWERS = (*WITH_INTERVAL, "error_rate", "nats_per_token")  # of a task, at each length
PARTS = {"depth": "depth (0: the beginning)", "distance": "distance (tokens)"}  # of a task, whose examples say where
OF_A_PART = {"first_position", "layer", "task", "phenomenon", *PARTS}  # fields of a record of only a part of the data
THREE_DECIMALS = {*WITH_INTERVAL, "accuracy", "accuracy_change"}  # other numbers have four
FEW = 100  # examples: the interval of a share near one half is then 10 percentage points to either side
MOST_HEADS = 16  # of a layer, each with a line of its own
MOST_LAYERS = 8
TOKENS = "context length (tokens)"
BEFORE = "tokens before the target, plus 1"
Lengths = tuple[int, int] | None  # the shortest and the longest in training; None if they are not known
Rows = Mapping[Any, Mapping[Any, Record]]


@dataclass(frozen=True, kw_only=True)
class ResultKind:
    """How a terminal, a figure and a page show one kind of result.

    along: the record field, such as the length, whose values are the rows of the table and the x axis of the panels.
    headline: the metric that is copied into the manifest. logged: the metrics that are written to metrics.jsonl. first:
    the heading of the table's first column. columns: {metric: heading}. counts: {record field that holds a count:
    heading}. figure: the name of the files with the drawing. title: the heading above the panels on a page. panels: the
    function that makes the panels from the records. scope: the function that makes sentences about the amount of data.
    """

    along: str = "length"
    headline: str
    logged: Collection[str]
    first: str = "length"
    columns: Mapping[str, str]
    counts: Mapping[str, str] = field(default_factory=dict)
    figure: str
    title: str
    panels: Callable[[Sequence[Record], Lengths], list[Panel]]
    scope: Callable[[Sequence[Record], Lengths], list[str]]

    def drawing(self, records: Sequence[Record], trained: Lengths, title: str = "", note: str = "") -> Drawing:
        """The panels as a drawing, in which curves with the same name look alike."""
        return Drawing(self.figure, title, self.panels(records, trained), note=note)

    def table(self, records: Sequence[Record], trained: Lengths, title: str) -> Table:
        """A row for each value of `along`; lengths that occurred in training have a star."""
        rows = at_each(records, self.along)
        columns = {name: words for name, words in self.columns.items() if any(name in row for row in rows.values())}

        def name(value: int) -> str:
            return f"{value:,}" + " *" * (trained is not None and trained[0] <= value <= trained[1])

        return grid(title, self.first, rows, columns, self.counts, name)


def kind_of(records: Sequence[Record]) -> ResultKind:
    """The kind of result in the records of a run. Results of EleutherAI's harness have no `ResultKind`."""
    if any("prefix" in record and record["metric"] == "accuracy" for record in records):
        return PAIRS
    return TASK if any(record["metric"] == "exact_match" for record in records) else TEXT


def at_each(records: Iterable[Record], along: str) -> dict[Any, dict[str, Record]]:
    """{value of the field `along`: {metric: record}} in ascending order.

    Records of only a part of the data, such as one layer or one phenomenon, are left out.
    """
    found: dict[Any, dict[str, Record]] = {}
    for record in records:
        if number(record.get(along)) is not None and not OF_A_PART & record.keys():
            found.setdefault(record[along], {})[record["metric"]] = record
    return dict(sorted(found.items()))


def crossed(records: Iterable[Record], metric: str, down: str, across: str) -> dict[Any, dict[Any, Record]]:
    """{value of the field `down`: {value of the field `across`: record}} for one metric."""
    found: dict[Any, dict[Any, Record]] = {}
    for record in records:
        if record["metric"] == metric and down in record:
            found.setdefault(record[down], {})[record[across]] = record
    return found


def in_brackets(record: Record) -> str:
    """A number, followed by its interval in brackets if it has one."""
    sign, decimals = "+" * (record["metric"] == "accuracy_change"), 3 if record["metric"] in THREE_DECIMALS else 4
    interval = f" [{record['low']:{sign}.3f}, {record['high']:{sign}.3f}]" if "low" in record else ""
    return f"{fixed(record['value'], decimals, sign)}{interval}"


def grid(
    title: str,
    first: str,
    rows: Rows,
    columns: Mapping[Any, str],
    counts: Mapping[str, str],
    name: Callable[[Any], str] = str,
    cell: Callable[[Record], str] = in_brackets,
) -> Table:
    """A table with a row for each value in `rows`, {value: {metric: record}}; a cell without a record is empty.

    columns: {metric: heading}. counts: {record field that holds a count: heading}; all records of a row have the same
    count. name: the function that turns a value into text. cell: the function that turns a record into text.
    """
    found = []
    for value, row in rows.items():
        beside = [next(iter(row.values()))[key] for key in counts]
        cells = [Cell(cell(row[key]), number(row[key]["value"])) if key in row else "" for key in columns]
        found.append([Cell(name(value), number(value)), *beside, *cells])
    return Table(title, [first, *counts.values(), *columns.values()], found, names=1)


# -- panels


def marks_of(trained: Lengths) -> list[Mark]:
    if trained is None:
        return []
    return [Mark("training context length" if trained[0] == trained[1] else "lengths in training", *trained)]


def along(name: str, records: Sequence[Record], x: str = "length", style: int | None = None) -> Curve:
    """The curve of the records' values against their field `x`, with a band where records have an interval."""
    y, low, high = (numbers(number(record.get(key)) for record in records) for key in ("value", "low", "high"))
    return Curve(name, [float(record[x]) for record in records], y, low=low, high=high, style=style)


def curve_of(records: Iterable[Record], metric: str, name: str, x: str = "length", style: int | None = None) -> Curve:
    """The curve of one metric against the field `x`. Records of only a part of the data are left out."""
    return along(name, [row[metric] for row in at_each(records, x).values() if metric in row], x, style)


def by_length(records: Sequence[Record], trained: Lengths) -> Panel:
    """Perplexity against the context length.

    A second curve also counts the separator tokens. It is left out if it equals the first.
    """
    names = {"perplexity": "perplexity", "perplexity_with_joints": "with separators"}
    curves = [curve_of(records, metric, name) for metric, name in names.items()]
    alike = np.array_equal(curves[0].y, curves[1].y)
    return Panel(
        TOKENS, "held-out perplexity", curves[:1] if alike else curves, "x", "Perplexity by context length",
        marks=marks_of(trained), possible=(1.0, None), widened=True, x_ticks=sorted(at_each(records, "length")),
    )  # fmt: skip


def by_position(records: Sequence[Record], trained: Lengths) -> Panel:
    """Loss against the position in the window, with a line for each context length."""
    lines: dict[float, list[tuple[float, Record]]] = {}
    for middle, record in by_place(r for r in records if r["metric"] == "nats_per_token"):
        lines.setdefault(number(record.get("length")) or 0.0, []).append((middle, record))
    curves = [curve_by_place(f"context {length:,.0f}", points) for length, points in sorted(lines.items())]
    return Panel(
        BEFORE, "loss (nats per token)", curves, "x", "Loss by position in the window", marks=marks_of(trained),
        note="A point is the mean over a range of positions, at its middle.", possible=(0.0, None), widened=True,
    )  # fmt: skip


def by_place(records: Iterable[Record]) -> list[tuple[float, Record]]:
    """(middle, record) for each record of a range of positions. `middle`: the middle of the range on a log axis."""
    found = []
    for record in records:
        first, last = (number(record.get(key)) for key in ("first_position", "last_position"))
        if first is not None and last is not None:
            found.append((math.sqrt((first + 1) * (last + 1)), record))
    return found


def curve_by_place(name: str, points: Sequence[tuple[float, Record]]) -> Curve:
    return Curve(name, [x for x, _ in points], numbers(number(record["value"]) for _, record in points))


def of_task(records: Sequence[Record], trained: Lengths) -> list[Panel]:
    """A panel of right answers and a panel of loss, both against the length; then the panels of `right_by_part`.

    A panel without records is left out.
    """
    right = [curve_of(records, name, in_words(name), style=n) for n, name in enumerate(WITH_INTERVAL)]
    note = "The bands are 95 % intervals over distinct examples."
    if trained is not None:
        note += f" Lengths {trained[0]:,} to {trained[1]:,} were in training."
    lengths = sorted(at_each(records, "length"))
    options: dict[str, Any] = {"log": "x", "marks": marks_of(trained), "whole": True, "x_ticks": lengths}
    loss = [curve_of(records, "nats_per_token", "loss")]
    panels = [
        Panel(
            "length", "share right", right, title="Right answers by length", note=note, possible=(0.0, 1.0), **options
        ),
        Panel("length", "nats per scored token", loss, title="Loss by length", possible=(0.0, None), **options),
        *(right_by_part(records, part, trained) for part in PARTS),
    ]
    return [panel for panel in panels if panel.drawn]


def right_by_part(records: Sequence[Record], part: str, trained: Lengths) -> Panel:
    """The share of right examples against the depth or the distance of the answer, with a line for each length.

    On the axis of distances, a mark shows over how many tokens RoPE's slowest pair of channels makes a quarter turn.
    There is no mark if some pair of channels does not rotate.
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


def of_pairs(records: Sequence[Record], trained: Lengths) -> list[Panel]:
    """Two panels: the mean accuracy against the length of the prefix, and the accuracy of each phenomenon.

    The first panel is left out if all prefixes have the same length. The phenomena are sorted by their accuracy after
    the shortest prefix. For this accuracy, a band shows the 95 % interval over the pairs of the phenomenon.
    """
    prefixes = sorted(at_each(records, "prefix"))
    by_prefix = crossed((r for r in records if "phenomenon" in r), "accuracy", "prefix", "phenomenon")
    first = by_prefix[min(by_prefix)]
    order = sorted(first, key=lambda name: number(first[name]["value"]) or 0.0)
    curves = []
    for prefix, own in sorted(by_prefix.items()):
        ranked = [own[name] | {"rank": rank} for rank, name in enumerate(order, 1)]
        here = along(f"behind {prefix:,} tokens", ranked, "rank")
        curves.append(here if own is first else Curve(here.name, here.x, here.y, points=True))
    by_rank = Panel(
        "phenomena, by their accuracy", "share right", [*curves, chance(1, len(order))],
        title="Right sentences by phenomenon", possible=(0.0, 1.0), whole=True,
        note="The table names the phenomena; the band is the 95 % interval over the pairs of each.",
    )  # fmt: skip
    if len(prefixes) < 2:
        return [by_rank]
    far = Panel(
        "tokens of text before the sentence", "share right",
        [curve_of(records, "accuracy", "all phenomena", "prefix"), chance(prefixes[0], prefixes[-1])],
        title="Right sentences by distance", possible=(0.0, 1.0), x_ticks=prefixes,
        note="The mean over phenomena; the band is its 95 % interval, for which each phenomenon counts once.",
    )  # fmt: skip
    return [far, by_rank]


def chance(start: float, end: float) -> Curve:
    return Curve("chance", [start, end], [0.5, 0.5], reference=True)


def dispersion(records: Sequence[Record], x_label: str) -> list[Panel]:
    """A panel for each measure of dispersion, with the length on the x axis.

    Each line is the mean over the heads of one layer. At most MOST_LAYERS evenly spaced layers are drawn.
    """
    panels = []
    for metric, label in DISPERSION.items():
        layers = by_layer(records, metric, "length")
        drawn = sorted(layers.items())[:: -(-len(layers) // MOST_LAYERS)] if layers else []
        curves = [mean_of(f"layer {layer}", heads, style) for style, (layer, heads) in enumerate(drawn)]
        ticks = sorted({length for heads in layers.values() for length in heads})
        most = 1.0 if metric in ("largest_weight", "collapsed") else None
        panels.append(Panel(x_label, label, curves, "x", label.capitalize(), possible=(0.0, most), x_ticks=ticks))
    return panels


def by_layer(records: Sequence[Record], metric: str, x: str) -> dict[int, dict[float, list[float]]]:
    """{layer: {x: the values of a metric for all heads}}."""
    found: dict[int, dict[float, list[float]]] = {}
    for record in records:
        place, value = number(record.get(x)), number(record["value"])
        if record["metric"] == metric and isinstance(record.get("layer"), int) and place and value is not None:
            found.setdefault(record["layer"], {}).setdefault(place, []).append(value)
    return found


def mean_of(name: str, by_x: dict[float, list[float]], style: int) -> Curve:
    """The curve of the mean over heads at each x, with a band from the least to the largest value of a head."""
    items = sorted(by_x.items())
    return Curve(
        name,
        [x for x, _ in items],
        [sum(values) / len(values) for _, values in items],
        low=[min(values) for _, values in items],
        high=[max(values) for _, values in items],
        style=style,
    )


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """The panels and the table of the records, then all records."""
    if any("lm_eval" in record for record in records):
        return View([Section("Results", tables=[table_of_harness(records)])], scope_of_harness(records))
    trained = None if files.run.measured is None else files.run.measured.train_lengths
    kind = kind_of(records)
    note = "A line is the mean over a layer's heads; the band goes from their lowest to their highest."
    tables = [kind.table(records, trained, kind.title), *tables_of(records, folded=True)]
    sections = [
        Section(kind.title, panels=kind.drawing(records, trained).panels),
        Section("Dispersion", panels=dispersion(records, TOKENS if kind is TEXT else "length"), note=note),
        Section("Results", tables=tables),
    ]
    return View(sections, kind.scope(records, trained))


def scope_of_text(records: Sequence[Record], trained: Lengths) -> list[str]:
    """Sentences that say how many targets were scored, and how the text was read."""
    one: Record = records[0] if records else {}
    n_targets = sorted({number(r["value"]) or 0.0 for r in records if r["metric"] == "scored_targets"})
    counts = ", ".join(f"{count:,.0f}" for count in n_targets)
    spelled = {None: "", "read": "that token"}.get(one.get("special_tokens"), "plain characters")
    lines = [
        f"Scored targets: {counts} at each context length." if counts else "",
        f"Documents are joined by {one['joining_token']}, which is not scored." if one.get("joining_token") else "",
        "Documents in a window do not see each other." if any(r.get("separate_documents") for r in records) else "",
        f"Text that spells a special token is read as {spelled}." if spelled else "",
        f"The model was trained on contexts of {trained[1]:,} tokens (*)." if trained else "",
    ]
    lengths_of: dict[Any, dict[str, None]] = {}
    for found in records:
        if isinstance(found.get("length"), int):
            lengths_of.setdefault(found.get("first_token"), {})[f"{found['length']:,}"] = None
    for first, lengths in lengths_of.items():
        begin = "anywhere in the text" if first is None else f"with {first}"
        lines.append(f"Windows begin {begin} at {', '.join(lengths)}.")
    return list(filter(None, lines))


def scope_of_task(records: Sequence[Record], trained: Lengths) -> list[str]:
    """Sentences that say how many examples there were, and which lengths training had."""
    records = [r for r in records if r["metric"] in ANSWERS and not OF_A_PART & r.keys()]
    counts = sorted({f"{count:,.0f}" for r in records if (count := number(r.get("examples"))) is not None})
    low, high = trained or (0, 0)
    few = [n for r in records if (n := number(r.get("distinct"))) is not None and n < (number(r.get("examples")) or 0)]
    lines = [
        f"Test examples: {', '.join(counts)} at each length; intervals of 95 %." if counts else "",
        f"Some examples were sampled more than once, and count once in the intervals: at least {min(few):,.0f} are "
        "distinct."
        if few
        else "",
        "Scored on the text that the model writes." if any(r.get("by") == "generation" for r in records) else "",
        f"Lengths in training: {low:,} to {high:,} (*)." if trained else "",
    ]
    return list(filter(None, lines))


def scope_of_pairs(records: Sequence[Record], trained: Lengths) -> list[str]:
    """A sentence that says how many pairs there were."""
    record = next(iter(at_each(records, "prefix").values()))["accuracy"]
    sample = ", a sample" if record.get("sample") else ""
    return [f"{record['pairs']:,} pairs of {record['phenomena']:,} phenomena{sample}; chance is 0.5."]


# -- tasks of EleutherAI's harness


def label(record: Record) -> str:
    """The name of a number in the headline: its task, its metric, and its filter if it has one."""
    return "_".join(filter(None, (record["task"], record["metric"], record.get("filter"))))


def table_of_harness(records: Sequence[Record], title: str = "tasks of lm_eval") -> Table:
    """A row for each number."""
    rows = []
    for r in records:
        n, of = r.get("examples"), r.get("of")
        counted = f"{n:,}" if n is not None else ""
        counted += f" of {of:,}" if of not in (None, n) else ""
        counted += " (few)" if n is not None and n < FEW else ""
        between = "" if r.get("low") is None else f" [{shown(r['low'])}, {shown(r['high'])}]"
        value = Cell(f"{shown(r['value'])}{between}", number(r["value"]))
        metric = " ".join(filter(None, (r["metric"], r.get("filter"))))
        rows.append([r["task"], text_of(r.get("version")), r.get("shots"), metric, value, Cell(counted, n)])
    return Table(title, ["task", "version", "shots", "metric", "value", "examples"], rows)


def scope_of_harness(records: Sequence[Record]) -> list[str]:
    """Lines about the versions of lm_eval and of its tasks, about the context, and about the intervals."""
    one = records[0] if records else {}
    versions = ", ".join(f"{r['task']} {text_of(r.get('version'))}" for r in {r["task"]: r for r in records}.values())
    begin = "no token before it" if one.get("first_token") is None else f"{one['first_token']} before it"
    return [
        f"lm_eval {one.get('lm_eval')}, task versions: {versions}",
        f"a context of at most {one.get('length'):,} tokens, {begin}",
        "95 % intervals from the harness' standard error over examples; none if all examples have the same score",
    ]


# -- the kinds

TEXT = ResultKind(
    headline="perplexity",
    logged=("perplexity", "nats_per_token", "nats_per_byte", "perplexity_with_joints", "share_of_loss_at_joints"),
    first="context",
    columns={
        "perplexity": "perplexity",
        "nats_per_token": "nats per token",
        "nats_per_byte": "nats per byte",
        "perplexity_with_joints": "with separators",
    },
    figure="perplexity",
    title="Perplexity",
    panels=lambda records, trained: [by_length(records, trained), by_position(records, trained)],
    scope=scope_of_text,
)
TASK = ResultKind(
    headline="exact_match",
    logged=ANSWERS,
    columns={
        "exact_match": "exact match",
        "output_match": "output match",
        "string_match": "string match",
        "token_accuracy": "token accuracy",
        "nats_per_token": "nats per target",
    },
    counts={"context": "tokens", "distinct": "distinct examples"},
    figure="accuracy",
    title="Right answers",
    panels=of_task,
    scope=scope_of_task,
)
PAIRS = ResultKind(
    along="prefix",
    headline="accuracy",
    logged=("accuracy",),
    first="prefix",
    columns={"accuracy": "accuracy", "accuracy_change": "change from the first"},
    figure="accuracy",
    title="Right sentences",
    panels=of_pairs,
    scope=scope_of_pairs,
)
