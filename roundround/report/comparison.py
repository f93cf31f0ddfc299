"""A comparison as tables, figures and a page, and its files for other programs.

`results.json` is a flat list with a record for each metric, each combination of settings, and each place:

    metric        the name of the number, such as perplexity
    verb          the verb that measured it: train, eval, probe, max-retrieval; null if read from a csv file
    length, ...   the place: the fields that locate the measurement, such as context length, n, task, layer, head
    settings      {"pe": "rope", "softmax": "softmax"}: the values of the settings that vary; a value is null if the run
                  does not have the setting
    mean, low, high, n_seeds    the mean over the seeds, the ends of the mean's 95 % t interval (null for one seed), the
                                number of seeds
    seeds, values               the seeds in order, and the measured value of each seed
    baseline                    the settings of the baseline; null if there is no baseline, or if the record itself is
                                the baseline's
    n_pairs                     the number of seeds that these settings and the baseline have in common; differences
                                are paired by seed
    difference, difference_low, difference_high    the difference from the baseline, as a mean over the common seeds,
                                and the ends of its 95 % t interval
    p, p_holm                   p of the paired t-test, and p after Holm's correction over all settings that are
                                compared with a baseline for this metric and place; the correction also counts
                                settings with a single seed, which have no p
    p_is_bound                  true if p and p_holm are upper bounds, because the difference is the same in every seed
                                and not 0; p is then the p of a sign test, 2^(1 - n_pairs). If all differences are 0,
                                p is 1
    value                       the mean again, because every record of a results.json has a value
    tokens_per_second           speed of training, the mean over the seeds; null if not known
    peak_resident_bytes, peak_device_bytes    the peak memory of training, the largest over the seeds; null if not
                                recorded

Every record has all of these fields; a number that does not exist is null. `comparison.json` holds the rest:

    settings   {"pe": ["nope", "rope"], ...}: the settings that vary and their values, in the order of the tables
    baseline   ["pe=rope"]: the baseline that was given or chosen; [] if there is none
    remarks    warnings for the reader: few seeds, differences that make runs incomparable, missing runs
    skipped    [{"run": DIR, "why": "failed: ..."}]: runs that were named and are not in the numbers
    groups     [{"verb", "settings", "seeds", "runs"}]: the run directories of each setting, or the csv file
    of_tasks   true if lengths are sizes of a task, counted as in its paper; false if they are tokens
    train_lengths  [512, 512]: the shortest and longest length in training if all models share them, else null
    curves     [{"settings", "metric", "tokens", "mean", "low", "high", "n_seeds"}]: training curves, thinned
    figures    names of the figures in figures/, without .svg and .pdf

`comparison.csv` holds the records of `results.json`; `comparison.md` and `comparison.tex` hold the tables for people.

Lines of a figure differ in marker and dashes as well as in colour, so that they can be read without colour. Bands are
95 % t intervals over seeds.

Tested by tests/analysis/test_compare_command.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from roundround.analysis.comparison import Comparison, format_setting, format_settings, order, place_of
from roundround.analysis.past_run import direction, is_share
from roundround.analysis.standings import SIGNIFICANT
from roundround.config.verb import FigureStyle
from roundround.report.drawing.figures import Sizes, figure_of, save, styled
from roundround.report.drawing.tables import (
    Cell,
    Record,
    Table,
    decimals_of,
    filled,
    fixed,
    in_words,
    number,
    shown_bytes,
    shown_p,
    text_of,
)
from roundround.report.eval_panels import marks_of
from roundround.report.findings import findings
from roundround.report.page.view import RunFiles, Section, View
from roundround.support.errors import escaped
from roundround.support.panels import Curve, Drawing, HeatMap, Panel, numbers

FINE = {"layer", "head", "first_position", "last_position", "kind", "first_token", "pair"}  # fields of detailed records
MOST_ROWS = 120  # of all tables together; comparison.csv has all
A_SCREEN = 12  # the same on a terminal
TO_LEAVE = ("memory", "pairs", "seeds", "95 % interval", "p (Holm)", "p")  # columns to drop if a terminal is narrow
AXES = {
    "distance": "distance (tokens)", "length": "context length (tokens)", "n": "items",
    "prefix": "tokens of text before the sentence",
}  # fmt: skip
CROWDED = 5  # lines; more are split into panels if there is a second setting
LINES, PANELS, FEW_PANELS = 8, 6, 2  # most lines in a panel, most panels in a file; of more panels, FEW_PANELS stay
ON_A_PAGE = 8  # panels of a section
CELLS = 8  # most rows and columns of a matrix
NARROW = 4  # if last tick / first tick is larger, the axis is logarithmic


def summary(found: Comparison, curves: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of comparison.json, except the names of the figures."""
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


def what_differs(found: Comparison) -> list[Table]:
    """A table of the settings in which two runs differ; none if there are more or fewer than two runs."""
    models = {model.origin: model for group in found.groups for model in group.models}
    settings = [model.settings | {"seed": model.seed} for model in models.values()]
    if len(models) != 2:
        return []
    first, second = settings
    keys = sorted(key for key in first | second if first.get(key) != second.get(key))
    rows = [[Cell(key), format_cell(first.get(key)), format_cell(second.get(key))] for key in keys]
    names = ["/".join(Path(origin).parts[-2:]) for origin in models]
    return [Table("what differs", ["setting", *names], rows, names=1)] if rows else []


def by_metric(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each metric of each verb, by the title of their table."""
    found: dict[str, list[Record]] = {}
    for record in records:
        verb, metric = record.get("verb"), record["metric"]
        found.setdefault(f"{verb}: {metric}" if verb else metric, []).append(record)
    return found


def sheets(records: Sequence[Record], most_rows: int = MOST_ROWS) -> tuple[list[Table], list[str]]:
    """The tables for people, with at most `most_rows` rows; the names of metrics that are wholly or partly left out.

    The tables leave out metrics that do not measure quality if their verb also has metrics of quality, metrics with the
    same value everywhere, and records of single layers, heads or positions. If a metric has only records of single
    layers, heads or positions, the first of these records are shown, as many as there is room for.
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
    """The cell for the value of a setting or of a place field."""
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
    """The records of results.json, a line each; settings as `pe=rope, softmax=softmax`, seeds separated by spaces."""

    def in_a_cell(value: Any) -> Any:
        if isinstance(value, dict | list):
            value = format_settings(value) if isinstance(value, dict) else " ".join(map(str, value))
        return escaped(value) if isinstance(value, str) else value

    rows = [{name: in_a_cell(value) for name, value in record.items()} for record in records]
    first = ["metric", "verb", *dict.fromkeys(name for record in records for name in place_of(record)), "settings"]
    table = DataFrame(rows, dtype=object)  # keeps integers
    return str(table[[*first, *table.columns.difference(first, sort=False)]].to_csv(index=False, lineterminator="\n"))


# -- figures


def draw(records: Sequence[Record], about: Mapping[str, Any], folder: Path, style: FigureStyle) -> list[str]:
    """Draw the figures of a comparison into files; returns their names."""
    drawn = drawings(records, about)
    with styled(style) as sizes:
        for drawing in drawn:
            save(picture_of(drawing, sizes), folder, drawing.name, ("svg", "pdf"))
    return [drawing.name for drawing in drawn]


def picture_of(drawing: Drawing, sizes: Sizes) -> Any:
    """The drawing as a figure. Panels and lines beyond the number that can be read in one figure are left out."""
    panels, n_more = cut(drawing.panels)
    note = f"{n_more:,} more settings are not plotted." if n_more else drawing.note
    alike = all(isinstance(panel, Panel) for panel in panels)
    return figure_of(replace(drawing, panels=panels, note=note), sizes, alike=alike)


def cut(panels: Sequence[Panel | HeatMap]) -> tuple[list[Panel | HeatMap], int]:
    """The first panels and lines, as many as can be read in one figure, and the number of lines that are left out."""
    found = list(panels[: PANELS if len(panels) <= PANELS else FEW_PANELS])
    n_lines = sum(len(panel.curves) for panel in panels if isinstance(panel, Panel))
    for n, panel in enumerate(found):
        if isinstance(panel, Panel):  # the line of the baseline stays
            own = [curve for curve in panel.curves if not curve.reference][:LINES]
            found[n] = replace(panel, curves=own + [curve for curve in panel.curves if curve.reference])
    return found, n_lines - sum(len(panel.curves) for panel in found if isinstance(panel, Panel))


def drawings(records: Sequence[Record], about: Mapping[str, Any]) -> list[Drawing]:
    """All drawings: quality and its difference from the baseline, both against length, distance or items; matrices of
    quality by settings; and training curves.
    """
    found: list[Drawing] = []
    for title, rows in (telling(records) or telling(records, judged=False)).items():
        name = re.sub(r"[^\w.-]+", "_", title.replace(": ", "_"))
        whole = [row for row in rows if "distance" not in row]
        for some in (whole, [row for row in rows if "distance" in row]):
            found += by_length(some, about, title, name, differences=False)
            found += by_length(some, about, title, name, differences=True)
        found += matrices(whole, title, f"{name}_matrix") if whole and direction(rows[0]["metric"]) else []
    return found + training_curves(about)


def telling(records: Sequence[Record], *, judged: bool = True) -> dict[str, list[Record]]:
    """The records to draw, by title: each verb's first metric of quality, and all metrics of quality from a csv file.

    judged: whether to choose metrics of quality; if False, the metrics that do not measure quality, such as a
    wavelength, are chosen instead. If models were also evaluated, the metrics of training are left out, because the
    training curves show the held-out loss.
    """
    chosen: dict[str, list[Record]] = {}
    evaluated = any(record.get("verb") == "eval" for record in records)
    for title, rows in by_metric(records).items():
        verb = rows[0].get("verb")
        first = verb is None or all(other[0].get("verb") != verb for other in chosen.values())
        coarse = [row for row in rows if set(place_of(row)) <= {*AXES, "task", "depth", "texts"}]
        if coarse and first and (direction(rows[0]["metric"]) != 0) == judged and not (verb == "train" and evaluated):
            chosen[title] = coarse
    return chosen


def by_length(
    rows: Sequence[Record],
    about: Mapping[str, Any],
    title: str,
    name: str,
    *,
    differences: bool,
) -> list[Drawing]:
    """The drawing of a metric, or of its differences from the baseline, against context length, distance or items.

    The list is empty unless the metric was measured at several lengths, distances or numbers of items.
    """
    key = next((key for key in AXES if len({number(row.get(key)) for row in rows} - {None}) > 1), None)
    fields = ("difference", "difference_low", "difference_high") if differences else ("mean", "low", "high")
    rows = [
        row for row in rows if key is not None and number(row.get(key)) is not None and row.get(fields[0]) is not None
    ]
    if key is None or not rows:
        return []
    lines: dict[str, tuple[dict[str, Any], list[Record]]] = {}
    for row in rows:
        rest = {**row["settings"], **{name: value for name, value in place_of(row).items() if name != key}}
        lines.setdefault(text_of(rest), (rest, []))[1].append(row)
    curves = []
    for settings, some in lines.values():
        some = sorted(some, key=lambda row: order(row[key]))
        middle, low, high = (numbers(number(row.get(field)) for row in some) for field in fields)
        curves.append((settings, Curve("", [row[key] for row in some], middle, low=low, high=high)))
    ticks = sorted({row[key] for row in rows})
    label = in_words(rows[0]["metric"])
    means = np.concatenate([curve.y for _, curve in curves])
    share = is_share(label) and np.nanmax(np.abs(means)) <= 1
    wide = not differences and np.nanmin(means) > 0 and np.nanmax(means) / 8 > np.nanmin(means)
    note = "Means over the seeds; the band is the 95 % interval of the mean."
    if differences:
        label, name, title = f"difference of {label}", f"{name}_difference", f"{title}: difference to the baseline"
        curves.append(({}, Curve("baseline", ticks, [0.0] * len(ticks), reference=True)))
        note = "Means over the common seeds of the difference from the baseline; the band is their 95 % interval."
    of_task = about.get("of_tasks") is True
    options: dict[str, Any] = {
        "log": ("x" if ticks[-1] > NARROW * ticks[0] > 0 else "") + ("y" if wide and not share else ""),
        "note": note,
        "marks": marks_of(about.get("train_lengths")) if key == "length" or (of_task and key == "distance") else [],
        "possible": (-1.0 if differences else 0.0, 1.0) if share else (None, None) if differences else (0.0, None),
        "whole": share and not differences,
        "x_ticks": ticks,
    }
    labels = ("length" if (of_task or share) and key == "length" else AXES[key], label)  # a task may count symbols
    panels = panels_of(curves, title, labels, **options)
    return [Drawing(f"{name}_by_{key}", title, panels, str(rows[0].get("verb") or ""))]


def panels_of(
    curves: Sequence[tuple[dict[str, Any], Curve]], title: str, labels: tuple[str, str], **options: Any
) -> list[Panel]:
    """One panel with all curves, or several panels if a single panel would be crowded.

    If there are several panels, each has the curves of all values of the first setting, for one combination of values
    of the other settings. Curves that already have a name, such as the baseline, are drawn in every panel. A value of
    the first setting looks the same in all panels.
    """
    common = [curve for _, curve in curves if curve.name]
    own = [(settings, curve) for settings, curve in curves if not curve.name]
    keys = list(dict.fromkeys(key for settings, _ in own for key in settings))
    apart = keys[1:] if len(own) > CROWDED else []
    panels: dict[str, list[Curve]] = {}
    names: dict[str, int] = {}
    places: dict[str, list[float]] = {}
    for settings, curve in own:
        panel = format_settings({key: settings.get(key) for key in apart}) if apart else title
        places[panel] = [number(settings.get(key)) or 0 for key in apart]
        name = format_settings({key: value for key, value in settings.items() if key not in apart})
        style = names.setdefault(name, len(names))
        panels.setdefault(panel, []).append(replace(curve, name=name, style=style))
    return [
        Panel(*labels, [*panels[panel], *common], title=panel, **options)
        for panel in sorted(panels, key=places.__getitem__)
    ]


def training_curves(about: Mapping[str, Any]) -> list[Drawing]:
    """Held-out loss against training tokens, means over seeds."""
    curves = []
    for curve in about.get("curves", []):
        if len(curve["tokens"]) > 1:
            tokens, mean, low, high = (numbers(curve[key] or ()) for key in ("tokens", "mean", "low", "high"))
            curves.append((curve["settings"], Curve("", tokens, mean, low=low, high=high)))  # one seed has no ends
    note = "Means over the seeds; the band is the 95 % interval of the mean."
    labels = ("training tokens", "held-out loss (nats per token)")
    panels = panels_of(curves, "training", labels, note=note, possible=(0.0, None))
    return [Drawing("training_curves", "training", panels, "Training curves")] if panels else []


def matrices(rows: Sequence[Record], title: str, name: str) -> list[Drawing]:
    """A drawing with matrices of a metric; the list is empty if a matrix would have fewer than two rows or columns.

    A matrix has a row for each value of the first setting, and a column for each combination of values of the other
    settings. There is one matrix for each place of the measurement, such as a length, but at most PANELS matrices.
    """
    keys = list(rows[0]["settings"])
    down = sorted({row["settings"][keys[0]] for row in rows}, key=order)[:CELLS] if keys else []
    across = list(dict.fromkeys(tuple(row["settings"].get(key) for key in keys[1:]) for row in rows))[:CELLS]
    if len(down) < 2 or len(across) < 2:
        return []
    places: dict[str, dict[tuple[Any, ...], Record]] = {}
    for row in rows:
        cell = tuple(row["settings"].get(key) for key in keys)
        places.setdefault(format_settings(place_of(row)) if place_of(row) else "", {})[cell] = row
    panels = []
    for n in np.unique(np.linspace(0, len(places) - 1, min(PANELS, len(places))).round().astype(int)):
        place, by_cell = list(places.items())[n]
        cells = [[by_cell.get((a, *b)) for b in across] for a in down]
        digits = decimals_of([row["mean"] for line in cells for row in line if row], ())
        texts = [
            ["-" if row is None else f"{fixed(row['mean'], digits)}{star_of(row)}" for row in line] for line in cells
        ]
        panels.append(
            HeatMap(
                darkness(cells, rows[0]["metric"]), escaped(", ".join(keys[1:])), keys[0], title=place or title,
                x_names=[", ".join(map(format_setting, values)) for values in across],
                y_names=[format_setting(value) for value in down], texts=texts,
            )
        )  # fmt: skip
    star = f" * p (Holm) < {SIGNIFICANT} against the baseline." if any(map(star_of, rows)) else ""
    note = f"Mean over seeds, for at most {CELLS} x {CELLS} settings; the stronger the colour, the better.{star}"
    return [Drawing(name, title, panels, "Two settings crossed", note)]


def star_of(row: Record) -> str:
    p = number(row.get("p_holm"))
    return "*" if p is not None and p < SIGNIFICANT else ""


def darkness(cells: Sequence[Sequence[Record | None]], metric: str) -> NDArray[np.float64]:
    """The darkness of each cell, from 0 to 1: a better number is darker; a cell without a number has NaN.

    If the metric is a share, the share itself is the darkness (1 - share if less is better), so that panels can be
    compared.
    """
    means = np.array([numbers(None if row is None else number(row["mean"]) for row in line) for line in cells])
    if np.isnan(means).all():
        return means
    if is_share(metric) and np.nanmin(means) >= 0 and np.nanmax(means) <= 1:
        return means if direction(metric) > 0 else 1 - means
    ranked = -direction(metric) * (np.log(means) if np.nanmin(means) > 0 else means)
    low, high = np.nanmin(ranked), np.nanmax(ranked)
    return np.where(np.isnan(ranked), np.nan, 1 - (ranked - low) / (high - low if high > low else 1))


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """The page: first the findings, then the remarks, which say which conclusions the numbers do not support."""
    about = files.json("comparison.json") or {}
    files.remarks += about.get("remarks", [])
    sections = sections_of(records, about, files.remarks)
    lines = [f"{key}: {text_of(values)}" for key, values in about.get("settings", {}).items()]
    scope = [f"Settings that vary: {'; '.join(lines)}."] if lines else []
    if about.get("baseline"):
        scope.append(f"Differences are to the baseline {', '.join(about['baseline'])}, paired by seed.")
    scope.append(
        "The same numbers for other programs: comparison.csv, comparison.md and comparison.tex beside this page."
    )
    rows = [
        [text_of(group["verb"]), format_settings(group["settings"]), text_of(group["seeds"]), text_of(group["runs"])]
        for group in about.get("groups", [])
    ]
    skipped = [[left_out["run"], left_out["why"]] for left_out in about.get("skipped", [])]
    tables = [
        Table("runs of each setting", ["verb", "settings", "seeds", "runs"], rows, folded=True),
        Table("runs left out", ["run", "why"], skipped, folded=True),
    ]
    which_runs = Section("Which runs", tables=[table for table in tables if table.rows])
    return View([*sections, which_runs], scope, findings=findings(telling(records)))


def sections_of(records: Sequence[Record], about: Mapping[str, Any], remarks: list[str]) -> list[Section]:
    """A section for each verb with its tables and panels; appends to `remarks` if panels are left out."""
    sections: dict[str, Section] = {}
    for title, rows in by_metric(records).items():
        verb = str(rows[0].get("verb") or "")
        section = sections.setdefault(verb, Section(verb or "Measurements"))
        section.tables.append(sheet(in_words(title), rows, folded=bool(section.tables)))
    for drawing in drawings(records, about):
        section = sections.setdefault(drawing.section, Section(drawing.section))
        section.panels = [*section.panels, *drawing.panels]
        if drawing.section == "Two settings crossed":
            section.note = f"{drawing.title}. {drawing.note}"
    for section in sections.values():
        if len(section.panels) > ON_A_PAGE:
            drawn = f"{ON_A_PAGE} of {len(section.panels):,} panels are plotted"
            remarks.append(f"{section.title}: {drawn}; compare fewer settings to see the others")
            section.panels = section.panels[:ON_A_PAGE]
    return list(sections.values())
