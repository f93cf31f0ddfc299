"""The panels and the page of a training run: its losses step by step, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from roundround.report.drawing.tables import Record, Table, in_words, number, shown, tables_of
from roundround.report.page.view import RunFiles, Section, View, html
from roundround.support.files import write_atomically
from roundround.support.panels import Curve, Panel, numbers

MOST_POINTS = 300  # of a curve; if more steps were logged, neighbours are averaged
ACROSS = "step"
OTHERS = {  # {another logged number: (title, label)}
    "lr": ("Learning rate", "learning rate"),
    "grad_norm": ("Gradient norm, before clipping", "norm"),
    "tokens_per_second": ("Speed", "tokens per second"),
}
OF_ATTENTION = {  # {a number that is logged for each layer: (title, label, possible values)}
    "attention_entropy": ("Entropy of attention", "nats", (0.0, None)),
    "attention_entropy_share": ("Entropy, as a share of the largest possible", "share of ln n", (0.0, 1.0)),
    "largest_logit": ("Largest logit", "logit", (None, None)),
    "logit_spread": ("Largest less smallest logit of a row", "difference", (0.0, None)),
    "first_token_share": ("Weight on the first token", "share", (0.0, 1.0)),
    "previous_token_share": ("Weight on the token before", "share", (0.0, 1.0)),
    "diagonal_share": ("Weight on the token itself", "share", (0.0, 1.0)),
    "mean_distance": ("Mean distance of attention", "tokens", (0.0, None)),
    "query_share_of_slowest_quarter": ("Queries: slowest quarter of the pairs", "share of squared norm", (0.0, 1.0)),
    "key_share_of_slowest_quarter": ("Keys: slowest quarter of the pairs", "share of squared norm", (0.0, 1.0)),
    "query_norms": ("Norms of queries at the last step", "mean norm", (0.0, None)),
    "key_norms": ("Norms of keys at the last step", "mean norm", (0.0, None)),
}
PAIRINGS = {"": "", "_half_split": ", half-split pairs", "_interleaved": ", interleaved pairs"}  # the end of a name
MOST_LAYERS = 8  # in a panel; of more layers, some are drawn, evenly spread


def view(files: RunFiles, records: list[Record]) -> View:
    """Loss, held-out loss, right answers of a task, learning rate, gradient norm and speed; then results as tables."""
    curves = Section("Curves", panels=panels(files.run.metrics()))
    attention = Section("Attention", panels=attention_panels(files.run.metrics()))
    return View([curves, attention, Section("Results", tables=tables_of(records))], scope=scope(files.run.manifest))


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


def attention_panels(lines: Sequence[Record]) -> list[Panel]:
    """A panel for each number of attention, with a curve for each layer, from lines of metrics.jsonl or of a watch.

    Norms by pair are those of the last line. A watch that cannot tell the pairing of channels has numbers of both.
    """
    panels = list[Panel]()
    named = {key: key.rpartition("_layer_") for line in lines for key in line}
    for (name, (title, label, possible)), (pairing, how) in product(OF_ATTENTION.items(), PAIRINGS.items()):
        found = {int(layer): key for key, (measure, _, layer) in named.items() if measure == name + pairing}
        apart = -(-len(found) // MOST_LAYERS) or 1
        drawn = [(f"layer {layer}", found[layer]) for layer in sorted(found)[::apart]]
        if by_pair := name.endswith("norms"):
            last = {key: line[key] for line in lines for _, key in drawn if key in line}
            curves = [Curve(words, range(len(last[key])), last[key]) for words, key in drawn]
        else:
            curves = [logged(lines, key, words)[0] for words, key in drawn]
        note = f"One of every {apart} layers." if apart > 1 else ""
        across = "pair of channels, the fastest first" if by_pair else ACROSS
        panels.append(Panel(across, label, curves, title=title + how, note=note, possible=possible))
    return panels


def write_page_of_watch(records: Sequence[Record], layers: Sequence[str], path: Path) -> None:
    """Write the page of a watch: its curves, and the names of its layers."""
    table = Table("Module of each layer", ["layer", "module"], [list(pair) for pair in enumerate(layers)])
    values: dict[str, Any] = {
        "title": "Attention while a model trains",
        "subject": f"{len(layers)} layers, steps {records[0]['step']:,} to {records[-1]['step']:,}",
        "status": "done",
        "scope": ["Each number is that of a few rows of one text of the step's batch, over all heads of a layer."],
        "data": None,
        "settings": Table("", [], []),
        **dict.fromkeys(("findings", "remarks", "headline", "config", "common", "commands", "facts"), ()),
    }
    sections = [Section("Attention", panels=attention_panels(records)), Section("Layers", tables=[table])]
    write_atomically(path, html(values, sections))


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
