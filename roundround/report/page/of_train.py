"""The page of a training run: its losses step by step, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundround.analysis.past_run import PastRun
from roundround.report.numbers import number
from roundround.report.page.charts import Chart, Series
from roundround.report.page.sources import Record, RunFiles
from roundround.report.page.view import Section, View
from roundround.report.tables import tables_of

MOST_POINTS = 300  # of a line; more logged steps are averaged
Points = list[tuple[float, float | None]]


def view(files: RunFiles, records: list[Record]) -> View:
    """Loss and held-out loss, of a task what is right, learning rate, gradient norm and speed; results as tables."""
    lines = files.metrics()
    curves = [losses(lines), shares(lines), *others(lines)]
    results = [
        r | {"value": "never left"} if r["metric"] == "plateau" and number(r["value"]) is None else r for r in records
    ]
    return View(
        [Section("Curves", charts=curves), Section("Results", tables=tables_of(results))], scope=scope(files.run)
    )


def losses(lines: Sequence[Record]) -> Chart:
    """The loss of the batches and the held-out loss."""
    of_batches, band, note = thinned(values(lines, "loss"))
    held_out = values(lines, "held_out_nats_per_token")
    series = [
        Series("training loss", of_batches, band, style=0),
        Series("held-out loss", thinned(held_out)[0], style=1),
    ]
    return Chart("Loss", series, "step", "nats per token", log_x=False, note=note)


def shares(lines: Sequence[Record]) -> Chart:
    """Of a task: which share of the validation examples, and of their scored tokens, is right."""
    names = ("exact match", "token accuracy")
    found = [values(lines, f"held_out_{name.replace(' ', '_')}") for name in names]
    series = [
        Series(name, thinned(points)[0], style=n) for n, (name, points) in enumerate(zip(names, found, strict=True))
    ]
    return Chart("Right answers", series, "step", "share of validation", limits=(0.0, 1.0))


def others(lines: Sequence[Record]) -> list[Chart]:
    """A small chart for each other number that was logged."""
    labels = {
        "lr": ("Learning rate", "learning rate"),
        "grad_norm": ("Gradient norm, before clipping", "norm"),
        "tokens_per_second": ("Speed", "tokens per second"),
    }
    charts = []
    for name, (title, label) in labels.items():
        points, band, note = thinned(values(lines, name))
        charts.append(Chart(title, [Series(label, points, band)], "step", label, limits=(0.0, None), note=note))
    return charts


def values(lines: Sequence[Record], name: str) -> Points:
    """(step, value) of the lines that have this number; None for one that is not finite."""
    return [(float(line["step"]), number(line[name])) for line in lines if name in line]


def thinned(points: Points) -> tuple[Points, list[tuple[float, float] | None], str]:
    """At most MOST_POINTS points: means of equally many, with the least and the largest as a band, and what was done.

    Where one of them is no number, their mean is none either.
    """
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return points, [], ""
    means: Points = []
    band: list[tuple[float, float] | None] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        ys = [y for _, y in part if y is not None]
        whole = len(ys) == len(part)
        means.append((part[len(part) // 2][0], sum(ys) / len(ys) if whole else None))
        band.append((min(ys), max(ys)) if whole else None)
    return means, band, f"Each point is the mean of {size} logged steps; the band goes from the least to the largest."


def scope(run: PastRun) -> list[str]:
    """What the held-out loss is taken over."""
    config, data = run.manifest["config"], run.manifest["data"] or {}
    if run.learns_a_task:
        return [*scope_of_task(run), *as_softmax(run)]
    lines, length = [], config["model"].get("train_length")
    held_out, wanted = number(data.get("held_out_tokens")), number(config.get("validation_tokens"))
    if held_out is not None and wanted is not None:
        lines.append(
            f"Held-out loss: over {min(held_out, wanted):,.0f} of {held_out:,.0f} held-out tokens, in windows of the "
            f"training context length, {said(length)} tokens; the best checkpoint is the one where it is least."
        )
    if number(data.get("training_tokens")) is not None:
        lines.append(f"Trained on a corpus of {said(data['training_tokens'])} tokens.")
    return lines + as_softmax(run)


def scope_of_task(run: PastRun) -> list[str]:
    """Which examples there were, and what the held-out numbers are taken over."""
    data, lengths = run.manifest["data"] or {}, run.train_lengths
    lines, n_validated, n = [], number(data.get("validation_examples")), number(data.get("train_examples"))
    if n_validated is not None:
        n_distinct = number(data.get("distinct_validation_examples"))
        same = "" if n_distinct in (None, n_validated) else f" ({n_distinct:,.0f} distinct)"
        lines.append(
            f"Held-out numbers: over {n_validated:,.0f} validation examples{same}, of which only scored tokens count; "
            "the best checkpoint is the one with most exact matches, among equals that of the lowest loss."
        )
    if lengths is not None:
        examples = "new examples in every batch" if n is None else f"{n:,.0f} examples"
        context = said(run.manifest["config"]["model"].get("train_length"))
        what = f"{run.choices.get('data', 'a task')}: {examples}"
        lines.append(f"Trained on {what}, of length {lengths[0]:,} to {lengths[1]:,}, up to {context} tokens.")
    return lines


def as_softmax(run: PastRun) -> list[str]:
    if run.manifest.get("trains_as_softmax") and run.choices.get("softmax") != "softmax":
        return ["While training, this normaliser is the plain softmax; it differs at inference."]
    return []


def said(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
