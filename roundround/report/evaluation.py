"""Turns the measurements of `eval` into records of `results.json`, and shows the dispersion of attention.

Kinds of results: a text, the dispersion of attention, a task, minimal pairs, tasks of EleutherAI's harness;
`eval_panels.py` shows the records. Some tasks do not measure their length in tokens; `contexts` is {length of a task:
number of tokens}.

Shapes of minimal pairs: P phenomena, N pairs in each. Shapes of dispersion: L layers, H heads, N bins; a bin holds the
rows with a similar number of visible keys.

Tested by tests/training/test_eval.py, tests/training/test_task_runs.py, tests/training/test_pair_runs.py,
tests/asking/test_eval_pretrained.py, tests/asking/test_harness.py and tests/probing/test_dispersion.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from roundround.analysis.intervals import error_widths, half_width, wilson
from roundround.asking.reader import Reader
from roundround.model.scoring import AnswerScores, PositionLoss, bins, n_targets
from roundround.probing.dispersion import MEASURES, Dispersion
from roundround.report.drawing.figures import save_drawing
from roundround.report.drawing.tables import Record, number
from roundround.report.eval_panels import DISPERSION, MOST_LAYERS
from roundround.support.console import print_table
from roundround.support.files import write_json
from roundround.support.panels import Curve, Drawing, Mark, Panel
from roundround.verbs.eval import EvalConfig

SHARES = {"acc", "acc_norm", "acc_bytes", "acc_all", "exact_match", "f1"}  # of the harness, between 0 and 1
Interval = tuple[float, float]


# -- text


def records_of_text(
    reader: Reader,
    first_tokens: Mapping[int, int | None],
    losses: Mapping[int, PositionLoss],
    dispersions: Mapping[int, Dispersion],
    common: Mapping[str, Any],
) -> list[Record]:
    """The records for each context length: perplexity and loss, the loss in each range of positions, the dispersion.

    common: the fields that every record gets. The function adds fields that say how the text was read.
    """
    common, words = {**common, **reader.reading(), "stride": reader.stride}, first_words(reader, first_tokens)
    found: list[Record] = []
    for length, loss in losses.items():
        where, n_bytes = {**common, "length": length}, reader.scored_bytes(first_tokens[length])
        values = {
            "perplexity": loss.perplexity(),
            "nats_per_token": loss.token_loss(),
            "nats_per_byte": loss.token_loss() * loss.n_targets / n_bytes if n_bytes else math.nan,
            "perplexity_with_joints": loss.perplexity_with_joints(),
            "share_of_loss_at_joints": loss.share_at_joints(),
            "scored_targets": loss.n_targets,
        }
        found += [{"metric": name, **where, "value": value} for name, value in values.items()]
        for a, b in bins(loss, 1):
            place = {"first_position": a, "last_position": b - 1, "targets": n_targets(loss, a, b)}
            found.append({"metric": "nats_per_token", **where, **place, "value": loss.token_loss(a, b)})
    found += records_of_dispersion(dispersions, common)
    return [{**record, "first_token": words[record["length"]]} for record in found]


def first_words(reader: Reader, first_tokens: Mapping[int, int | None]) -> dict[int, str | None]:
    """{context length: the text of the token with which every window begins, or None if windows begin anywhere}."""
    written = reader.data.tokenizer.id_to_token
    return {length: None if token is None else written(token) for length, token in first_tokens.items()}


# -- a task


def values_of_task(marks: AnswerScores) -> dict[str, float]:
    """{metric: value} of a task. Under teacher forcing, the error rate is added; it is 1 - token accuracy."""
    found = marks.values()
    return found if marks.written else {**found, "error_rate": 1 - found["token_accuracy"]}


def intervals(marks: AnswerScores) -> dict[str, Interval]:
    """{metric: Wilson's 95 % interval} for the shares of right examples and the shares of right tokens.

    The intervals are computed from effective numbers of examples and of tokens. The effective number of tokens is
    small, because the tokens of one example tend to be right or wrong together.
    """
    low, high = token_interval(marks)
    found, n = marks.values(), independent_examples(marks)
    names = [name for name in ("exact_match", "output_match") if name in found]
    wholes: dict[str, Interval] = {name: wilson(found[name] * n, n) for name in names}
    if marks.written:
        return {**wholes, "string_match": (low, high)}
    return {**wholes, "token_accuracy": (low, high), "error_rate": (1 - high, 1 - low)}


def independent_examples(marks: AnswerScores) -> float:
    """The effective number of independent examples: the number of draws, reduced if an example was drawn twice or more.

    It never exceeds the number of distinct examples. Kish 1965, Survey Sampling, section 11.7: (sum of weights)^2 /
    (sum of squared weights).
    """
    return marks["examples"] ** 2 / marks["times_squared"]


def token_interval(marks: AnswerScores) -> Interval:
    """Wilson's interval of the share of right targets, computed from an effective number of targets.

    The effective number is the number of independent targets whose share has the same variance as the actual share. The
    actual share has the variance of a ratio over examples: Cochran 1977, Sampling Techniques, section 2.11. The
    correction for few examples is from Korn and Graubard 1998, Survey Methodology 24:193. If all targets are right, or
    all are wrong, the variance cannot be estimated, and each example counts as one target. The effective number never
    exceeds the number of targets.
    """
    rate, n, n_distinct = marks["hits"] / marks["targets"], independent_examples(marks), marks.n_distinct
    squares = marks["hits_squared"] - 2 * rate * marks["hits_by_targets"] + rate**2 * marks["targets_squared"]
    if n_distinct < 2 or squares <= 1e-9 * marks["targets_squared"]:
        return wilson(rate * n, n)
    variance = squares * n_distinct / (n_distinct - 1) / marks["targets"] ** 2
    surely = (error_widths(10**6) / error_widths(n_distinct)) ** 2
    independent = min(surely * rate * (1 - rate) / variance, n * marks["targets"] / marks["examples"])
    return wilson(rate * independent, independent)


def records_of_task(
    by_length: Mapping[int, AnswerScores], contexts: Mapping[int, int], common: Mapping[str, Any]
) -> list[Record]:
    """A record for each metric and length. A share has an interval. The field `context` is the length in tokens."""
    found = []
    for length, marks in by_length.items():
        where = {
            "length": length,
            "context": contexts[length],
            "examples": marks.n_examples,
            "distinct": marks.n_distinct,
        }
        between = intervals(marks)
        for name, value in values_of_task(marks).items():
            low_high = dict(zip(("low", "high"), between[name], strict=True)) if name in between else {}
            found.append({"metric": name, **common, **where, "value": value, **low_high})
    return found


# -- minimal pairs


PairScores = Mapping[str, NDArray[np.float64]]  # nats of the right and the wrong sentence of each pair [N, 2]


def right_of(scores_N2: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each pair is answered right, [N]: the right sentence is at least as likely as the wrong one.

    Ties count as right, as in lm-eval.
    """
    right_N: NDArray[np.bool_] = scores_N2[:, 0] >= scores_N2[:, 1]
    return right_N


def of_mean(shares_P: NDArray[np.float64]) -> dict[str, float]:
    """The mean over phenomena, with its 95 % interval by Student's t.

    Each phenomenon is one observation, because its pairs tend to be right or wrong together. There is no interval for
    a single phenomenon, nor if all phenomena have the same share of right pairs.
    """
    mean, half = float(shares_P.mean()), float(half_width(shares_P))
    return {"value": mean} | ({"low": mean - half, "high": mean + half} if len(shares_P) > 1 and half > 0 else {})


def records_of_pairs(by_prefix: Mapping[int, PairScores], common: Mapping[str, Any]) -> list[Record]:
    """Records for each prefix: the mean accuracy, the change of the mean, and the accuracy of each phenomenon.

    The change is measured from the shortest prefix. The mean is over phenomena and has the interval of `of_mean`. The
    accuracy of a phenomenon has Wilson's 95 % interval over the pairs of the phenomenon.
    """
    found: list[Record] = []
    shares = {n: np.array([right_of(own).mean() for own in scores.values()]) for n, scores in by_prefix.items()}
    first = min(by_prefix)
    for prefix, scores in by_prefix.items():
        over_all = {**common, "prefix": prefix, "phenomena": len(scores), "pairs": sum(map(len, scores.values()))}
        mean = {name: min(1.0, max(0.0, value)) for name, value in of_mean(shares[prefix]).items()}
        found.append({"metric": "accuracy", **over_all, **mean})
        if prefix != first:
            found.append({"metric": "accuracy_change", **over_all, **of_mean(shares[prefix] - shares[first])})
    for prefix, scores in by_prefix.items():
        for name, own in scores.items():
            right_N = right_of(own)
            low, high = wilson(int(right_N.sum()), len(right_N))
            place = {"prefix": prefix, "phenomenon": name, "pairs": len(right_N)}
            value = float(right_N.mean())
            found.append({"metric": "accuracy", **common, **place, "value": value, "low": low, "high": high})
    return found


# -- tasks of EleutherAI's harness


def records_of_harness(found: Mapping[str, Any], common: Mapping[str, Any]) -> list[Record]:
    """A record for each number of each task and group, under the harness' own names.

    The 95 % interval is Student's, from the harness' standard error; for a share it is clipped to 0 and 1. There is no
    interval if the standard error is 0, for example if all examples have the same score.
    """
    made = []
    for task, numbers in found["results"].items():
        n, of = numbers.get("sample_len"), found["n-samples"].get(task, {}).get("original")
        where = {"task": task, "version": found["versions"].get(task), "shots": found["n-shot"].get(task)}
        for key, value in numbers.items():
            metric, comma, name = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            record = {"metric": metric, **common, **where, "examples": n, "of": of, "value": float(value)}
            record |= {} if name == "none" else {"filter": name}
            stderr = number(numbers.get(f"{metric}_stderr,{name}"))
            if stderr and n is not None and n > 1:
                half = error_widths(n) * stderr
                low, high = (0.0, 1.0) if metric in SHARES and 0 <= value <= 1 else (-math.inf, math.inf)
                record |= {"stderr": stderr, "low": max(low, value - half), "high": min(high, value + half)}
            made.append(record)
    return made


# -- dispersion


def records_of_dispersion(
    by_length: Mapping[int, Dispersion], common: Mapping[str, Any], contexts: Mapping[int, int] | None = None
) -> list[Record]:
    """One record for each measure, layer, head and length."""
    found = []
    for length, dispersion in by_length.items():
        context = {} if contexts is None else {"context": contexts[length]}
        found += [
            {"metric": name, **common, "length": length, **context, "layer": layer, "head": head, "value": value}
            for name in MEASURES
            for layer, n, heads in zip(
                dispersion.layers, dispersion.n_heads, dispersion.means_LH(name).tolist(), strict=True
            )
            for head, value in enumerate(heads[:n])
        ]
    return found


def leave_dispersion(
    by_length: Mapping[int, Dispersion],
    directory: Path,
    config: EvalConfig,
    *,
    title: str,
    contexts: Mapping[int, int] | None = None,
) -> None:
    """Save the dispersion by the number of visible keys, draw it for the longest context, and print its table.

    Does nothing if dispersion was not measured.
    """
    if not by_length:
        return
    found = {}  # every measure as [layer][head][bin]; a bin holds the rows with a similar number of visible keys
    for length, dispersion in by_length.items():
        means = {name: dispersion.means_LHN(name).cpu().numpy() for name in MEASURES}
        found[str(length)] = {
            "layers": list(dispersion.layers),
            "largest_n": dispersion.largest_n,
            "rows": dispersion.n_rows_LN.long().tolist(),
            **{name: np.ma.masked_where(np.isnan(own), own).tolist() for name, own in means.items()},  # masked: None
        }
    write_json(directory / "dispersion.json", found)
    longest = max(by_length)
    context = longest if contexts is None else contexts[longest]
    drawing = drawing_of_dispersion(by_length[longest], context=context, title=title)
    save_drawing(drawing, directory / "figures", config.figures)
    table = table_of_dispersion(by_length, name="context" if contexts is None else "length")
    print_table(table, on_output=config.table == "stdout")


def table_of_dispersion(by_length: Mapping[int, Dispersion], *, name: str) -> Table:
    """A row for each length and layer: the range of each measure over the layer's heads.

    name: the heading of the column of lengths.
    """
    title, heads = "dispersion: the lowest and the highest head of each layer", ("entropy", "of ln n", "top weight")
    shown = Table(name, "layer", *heads, "logit spread", "active rows", "Lambda", "collapsed", title=title)
    for length, dispersion in by_length.items():
        means = {measure: dispersion.means_LH(measure) for measure in MEASURES}
        columns = [
            (means["entropy"], "{:.2f}"),
            (means["entropy"] / means["ln_n"].clamp(min=1e-9), "{:.0%}"),
            (means["largest_weight"], "{:.2f}"),
            (means["logit_spread"], "{:.1f}"),
            (means["in_active_range"], "{:.0%}"),
            (means["gap_counting"], "{:.2f}"),
            (means["collapsed"], "{:.0%}"),
        ]
        for place, (layer, n) in enumerate(zip(dispersion.layers, dispersion.n_heads, strict=True)):
            ends = [(form.format(v[place, :n].min()), form.format(v[place, :n].max())) for v, form in columns]
            cells = [low if low == high else f"{low}-{high}" for low, high in ends]
            shown.add_row("" if place else f"{length:,}", str(layer), *cells)
    return shown


def drawing_of_dispersion(dispersion: Dispersion, *, context: int, title: str) -> Drawing:
    """The dispersion of each head against the number of visible keys.

    For comparison, the panels also show uniform weights, and the bound of Lemma 2.1 (arXiv:2410.01104) for the head
    whose logits spread most widely.
    """
    n = [*dispersion.largest_n[:-1], min(dispersion.largest_n[-1], context)]
    n_layers = len(dispersion.layers)
    places = range(n_layers) if n_layers <= MOST_LAYERS else (0, n_layers // 2, n_layers - 1)
    reach = dispersion.active_range()
    acts = [] if reach is None else [Mark("the temperature's polynomial acts", *reach, axis="y")]
    ln_n = dispersion.means_LHN("ln_n")[dispersion.n_rows_LN.argmax(0), 0, torch.arange(len(n))]  # of a layer with rows
    uniform: dict[str, Any] = {"entropy": ln_n, "largest_weight": [1 / x for x in n]}
    widest = {  # over the layers that have rows in the bin
        "entropy": dispersion.means_LHN("entropy_bound").nan_to_num(torch.inf).amin((0, 1)),
        "largest_weight": dispersion.means_LHN("largest_weight_bound").nan_to_num(-torch.inf).amax((0, 1)),
    }
    panels = []
    for name, label in DISPERSION.items():
        curves = [
            Curve(f"layer {dispersion.layers[place]}", n, heads_N, style=style)
            for style, place in enumerate(places)
            for heads_N in dispersion.means_LHN(name)[place, : dispersion.n_heads[place]]
        ]
        if name in uniform:
            curves.append(Curve("uniform: ln n, 1 / n", n, uniform[name], reference=True))
            curves.append(Curve("Lemma 2.1, widest head", n, widest[name], points=True))
        log = "xy" if name == "largest_weight" else "x"
        panels.append(Panel("visible keys n", label, curves, log, marks=acts if name == "entropy" else []))
    note = f"Every head at context {context:,}; rows are grouped by the number of keys that they see."
    return Drawing("dispersion", title, panels, note=note)
