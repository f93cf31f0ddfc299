"""The panels and the page of a training run: its losses step by step, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roundround.report.drawing.tables import Record, in_words, number, shown, tables_of
from roundround.report.page.view import RunFiles, Section, View
from roundround.support.panels import Curve, Panel, numbers

MOST_POINTS = 300  # of a curve; if more steps were logged, neighbours are averaged
ACROSS = "step"
OTHERS = {  # {another logged number: (title, label)}
    "lr": ("Learning rate", "learning rate"),
    "grad_norm": ("Gradient norm, before clipping", "norm"),
    "tokens_per_second": ("Speed", "tokens per second"),
}


def view(files: RunFiles, records: list[Record]) -> View:
    """Loss, held-out loss, right answers of a task, learning rate, gradient norm and speed; then results as tables."""
    curves = Section("Curves", panels=panels(files.run.metrics()))
    return View([curves, Section("Results", tables=tables_of(records))], scope=scope(files.run.manifest))


def panels(lines: Sequence[Record]) -> list[Panel]:
    """The panels of a training run, from the lines of metrics.jsonl."""
    of_batches, note = logged(lines, "loss", "training loss")
    held_out, _ = logged(lines, "held_out_nats_per_token", "held-out loss")
    right = [logged(lines, f"held_out_{name}", in_words(name))[0] for name in ("exact_match", "token_accuracy")]
    found = [
        Panel(ACROSS, "loss (nats per token)", [of_batches, held_out], title="Loss", note=note, possible=(0.0, None)),
        Panel(ACROSS, "share of validation", right, title="Right answers", possible=(0.0, 1.0), whole=True),
    ]
    for name, (title, label) in OTHERS.items():
        curve, note = logged(lines, name, label)
        found.append(Panel(ACROSS, label, [curve], title=title, note=note, possible=(0.0, None), whole=True))
    return found


def logged(lines: Sequence[Record], name: str, words: str, **look: Any) -> tuple[Curve, str]:
    """The curve of a logged number against the training step, and a note about the points of the curve.

    If more than MOST_POINTS lines have the number, the lines are divided into groups of equal size. A point is then the
    mean of a group, and a band goes from the least to the largest value of the group; the note says so. The mean of a
    group with a missing value is NaN. lines: the lines of metrics.jsonl.
    """
    there = [line for line in lines if name in line]
    steps, values = numbers(float(line["step"]) for line in there), numbers(number(line[name]) for line in there)
    size = -(-len(there) // MOST_POINTS)
    if size <= 1:
        return Curve(words, steps, values, **look), ""
    starts = np.arange(0, len(there), size)
    counts = np.diff([*starts, len(there)])
    mean = np.add.reduceat(values, starts) / counts
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    note = f"Each point is the mean of {size} logged steps; the band goes from the least to the largest."
    return Curve(words, steps[starts + counts // 2], mean, low=low, high=high, **look), note


def scope(manifest: dict[str, Any]) -> list[str]:
    """Sentences that say on what the model was trained, and on what the held-out numbers were measured."""
    config, data, choices = manifest["config"], manifest["data"] or {}, manifest.get("choices", {})
    as_softmax = manifest.get("trains_as_softmax") and choices.get("softmax") != "softmax"
    lines = [
        *(scope_of_task if "train_examples" in data else scope_of_text)(config, data, choices),
        "In training this normaliser acts as the plain softmax; it differs only at inference." if as_softmax else "",
    ]
    return list(filter(None, lines))


def scope_of_text(config: dict[str, Any], data: dict[str, Any], choices: dict[str, str]) -> list[str]:
    held_out, wanted = number(data.get("held_out_tokens")), number(config.get("validation_tokens"))
    n_tokens, context = number(data.get("training_tokens")), shown(config["model"].get("train_length"))
    return [
        f"Held-out loss: over {min(held_out, wanted):,.0f} of {held_out:,.0f} held-out tokens, in windows of the "
        f"training context length, {context} tokens; the best checkpoint is the one with the lowest held-out loss."
        if held_out is not None and wanted is not None
        else "",
        f"Trained on a corpus of {shown(data['training_tokens'])} tokens." if n_tokens is not None else "",
    ]


def scope_of_task(config: dict[str, Any], data: dict[str, Any], choices: dict[str, str]) -> list[str]:
    n, n_validated, n_distinct = (
        number(data.get(f"{name}_examples")) for name in ("train", "validation", "distinct_validation")
    )
    lengths, context = data.get("train_lengths"), shown(config["model"].get("train_length"))
    same = "" if n_distinct in (None, n_validated) else f" ({n_distinct:,.0f} distinct)"
    examples = "new examples in every batch" if n is None else f"{n:,.0f} examples"
    what = f"{choices.get('data', 'a task')}: {examples}"
    return [
        f"Held-out numbers are over {n_validated:,.0f} validation examples{same}; only their scored tokens count. The "
        "best checkpoint is the one with the most exact matches, and among equals the one with the lowest loss."
        if n_validated is not None
        else "",
        f"Trained on {what}, of length {lengths[0]:,} to {lengths[1]:,}, up to {context} tokens." if lengths else "",
    ]
