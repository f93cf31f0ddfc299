"""The panels of a comparison, and its page: quality against context length, two settings crossed, training curves.

Both are made of the records of `results.json` and of what `comparison.json` says (`comparison_tables.py`), when
`compare` ends and when a page is made. Lines differ in marker and dashes as well as in colour, so that a print without
colour can be read. Bands are 95 % t intervals over seeds.

Tested by tests/analysis/test_compare_command.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.analysis.comparison import format_setting, format_settings, order, place_of
from roundround.analysis.past_run import direction, is_share
from roundround.analysis.standings import SIGNIFICANT
from roundround.config.verb import FigureStyle
from roundround.report.comparison_tables import by_metric, sheet
from roundround.report.drawing.figures import figure_of, save
from roundround.report.drawing.style import Sizes, styled
from roundround.report.drawing.tables import Record, Table, decimals_of, fixed, in_words, number, text_of
from roundround.report.eval_panels import marks_of
from roundround.report.findings import findings
from roundround.report.page.view import RunFiles, Section, View
from roundround.support.errors import escaped
from roundround.support.panels import Curve, Drawing, HeatMap, Mark, Panel, numbers

AXES = {
    "distance": "distance (tokens)", "length": "context length (tokens)", "n": "items",
    "prefix": "tokens of text before the sentence",
}  # fmt: skip
CROWDED = 5  # lines; more are split into panels where there is a second setting
LINES, PANELS, FEW_PANELS = 8, 6, 2  # in a file; of more panels than that the first few
ON_A_PAGE = 8  # panels of a section
CELLS = 8  # on a side of a matrix
MANY = 32  # cells of a matrix; of larger ones only the means are written, at the first and the last place
NARROW = 4  # times from the first tick to the last: more are on a logarithmic axis


def draw(records: Sequence[Record], about: Mapping[str, Any], folder: Path, style: FigureStyle) -> list[str]:
    """Draw what the comparison has into files; the names of the figures."""
    drawn = drawings(records, about)
    with styled(style) as sizes:
        for drawing in drawn:
            save(picture_of(drawing, sizes), folder, drawing.name, ("svg", "pdf"))
    return [drawing.name for drawing in drawn]


def picture_of(drawing: Drawing, sizes: Sizes) -> Any:
    """The drawing as a figure, with as many panels and lines as can be read in one."""
    panels, n_more = cut(drawing.panels)
    note = f"{n_more:,} more settings are not drawn." if n_more else drawing.note
    alike = all(isinstance(panel, Panel) for panel in panels)
    return figure_of(replace(drawing, panels=panels, note=note), sizes, alike=alike)


def cut(panels: Sequence[Panel | HeatMap]) -> tuple[list[Panel | HeatMap], int]:
    """As many panels and lines as can be read in a file; how many lines are left out."""
    found = [
        replace(panel, curves=lines_of(panel)[:LINES] + [curve for curve in panel.curves if curve.reference])
        if isinstance(panel, Panel)
        else panel
        for panel in panels[: PANELS if len(panels) <= PANELS else FEW_PANELS]
    ]
    n_drawn, n_lines = (sum(len(lines_of(p)) for p in some if isinstance(p, Panel)) for some in (found, panels))
    return found, n_lines - n_drawn


def lines_of(panel: Panel) -> list[Curve]:
    """Its settings; the line of the baseline is a reference."""
    return [curve for curve in panel.curves if not curve.reference]


def drawings(records: Sequence[Record], about: Mapping[str, Any]) -> list[Drawing]:
    """Quality against context length and its differences to the baseline, two settings crossed, training curves."""
    found: list[Drawing] = []
    for title, rows in (telling(records) or telling(records, judged=False)).items():
        name = re.sub(r"[^\w.-]+", "_", title.replace(": ", "_"))
        whole = [row for row in rows if "distance" not in row]
        turns = [row for row in records if row["metric"] == "quarter_turn"]
        for some in (whole, [row for row in rows if "distance" in row]):
            found += by_length(some, about, title, name, turns, differences=False)
            found += by_length(some, about, title, name, turns, differences=True)
        found += matrices(whole, title, f"{name}_matrix") if whole and direction(rows[0]["metric"]) else []
    return found + training_curves(about)


def telling(records: Sequence[Record], *, judged: bool = True) -> dict[str, list[Record]]:
    """The records of the first metric of each verb that measures quality; for a file, of every such metric.

    judged=False: of metrics that do not measure quality, such as a wavelength. Training has none where models were
    evaluated: its held-out loss is in the training curves.
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
    turns: Sequence[Record],
    *,
    differences: bool,
) -> list[Drawing]:
    """Quality against context length (or distance, or items), where several were measured; or its differences.

    turns: for each setting whose pairs all rotate, the distance at which the slowest has turned by pi / 2.
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
        note = "Means over the seeds that both have, of this minus the baseline; the band is their 95 % interval."
    of_task = about.get("of_tasks") is True
    options: dict[str, Any] = {
        "log": ("x" if ticks[-1] > NARROW * ticks[0] > 0 else "") + ("y" if wide and not share else ""),
        "note": note,
        "marks": marks_of(about.get("train_lengths")) if key == "length" or (of_task and key == "distance") else [],
        "possible": (-1.0 if differences else 0.0, 1.0) if share else (None, None) if differences else (0.0, None),
        "whole": share and not differences,
        "x_ticks": ticks,
    }
    turn = "a quarter turn of the slowest pair"
    own = [({**row["settings"], **place_of(row)}, Mark(turn, row["mean"], row["mean"])) for row in turns]
    labels = ("length" if (of_task or share) and key == "length" else AXES[key], label)  # a task may count symbols
    panels = panels_of(curves, title, labels, own if key == "distance" else (), **options)
    return [Drawing(f"{name}_by_{key}", title, panels, str(rows[0].get("verb") or ""))]


def panels_of(
    curves: Sequence[tuple[dict[str, Any], Curve]],
    title: str,
    labels: tuple[str, str],
    own_marks: Sequence[tuple[dict[str, Any], Mark]] = (),
    **options: Any,
) -> list[Panel]:
    """One panel, or one for each value of all settings but the first where one would be crowded, numbers by their size.

    A curve that has a name belongs to all; one of the same name looks the same in all panels. own_marks: marks of some
    settings.
    """
    common = [curve for _, curve in curves if curve.name]
    own = [(settings, curve) for settings, curve in curves if not curve.name]
    keys = list(dict.fromkeys(key for settings, _ in own for key in settings))
    apart = keys[1:] if len(own) > CROWDED else []
    panels: dict[str, list[Curve]] = {}
    names: dict[str, int] = {}
    marks: dict[str, list[Mark]] = {}
    places: dict[str, list[float]] = {}
    for settings, curve in own:
        panel = format_settings({key: settings.get(key) for key in apart}) if apart else title
        marks[panel] = [*options.get("marks", [])]
        places[panel] = [number(settings.get(key)) or 0 for key in apart]
        for its, mark in own_marks:
            if all(its.get(key) == settings.get(key) for key in apart):
                rest = format_settings({key: value for key, value in its.items() if key not in apart})
                marks[panel].append(replace(mark, name=f"{rest}: {mark.name}"))
        name = format_settings({key: value for key, value in settings.items() if key not in apart})
        style = names.setdefault(name, len(names))
        panels.setdefault(panel, []).append(replace(curve, name=name, style=style))
    return [
        Panel(*labels, [*panels[panel], *common], title=panel, **{**options, "marks": marks[panel]})
        for panel in sorted(panels, key=places.__getitem__)
    ]


def training_curves(about: Mapping[str, Any]) -> list[Drawing]:
    """Held-out loss by training tokens, means over seeds."""
    curves, metric = [], ""
    for curve in about.get("curves", []):
        if len(curve["tokens"]) > 1:
            ends = (curve["low"] or (), curve["high"] or ())  # one seed has none
            tokens, mean, low, high = (numbers(map(number, x)) for x in (curve["tokens"], curve["mean"], *ends))
            curves.append((curve["settings"], Curve("", tokens, mean, low=low, high=high)))
            metric = curve["metric"]
    label = {"held_out_nats_per_token": "held-out loss (nats per token)"}.get(metric, in_words(metric))
    note = "Means over the seeds; the band is the 95 % interval of the mean."
    panels = panels_of(curves, "training", ("training tokens", label), note=note, possible=(0.0, None))
    return [Drawing("training_curves", "training", panels, "Training curves")] if panels else []


def matrices(rows: Sequence[Record], title: str, name: str) -> list[Drawing]:
    """The first setting that varies against the others: a matrix for each of a few places."""
    keys = list(rows[0]["settings"])
    if len(keys) < 2:
        return []
    places: dict[str, list[Record]] = {}
    for row in rows:
        places.setdefault(format_settings(place_of(row)) if place_of(row) else "", []).append(row)
    all_down = sorted({row["settings"][keys[0]] for row in rows}, key=order)
    all_across = list(dict.fromkeys(tuple(row["settings"].get(key) for key in keys[1:]) for row in rows))
    down, across = all_down[:CELLS], all_across[:CELLS]
    if len(down) < 2 or len(across) < 2:
        return []
    small = len(down) * len(across) <= MANY
    most = min(PANELS if small else FEW_PANELS, len(places))
    panels = []
    for n in np.unique(np.linspace(0, len(places) - 1, most).round().astype(int)):
        place, some = list(places.items())[n]
        by_cell = {(row["settings"][keys[0]], tuple(row["settings"].get(k) for k in keys[1:])): row for row in some}
        cells = [[by_cell.get((a, b)) for b in across] for a in down]
        panels.append(
            HeatMap(
                darkness(cells, rows[0]["metric"]), escaped(", ".join(keys[1:])), keys[0], title=place or title,
                x_names=[", ".join(map(format_setting, values)) for values in across],
                y_names=[format_setting(value) for value in down], texts=texts_of(cells, halves=small),
            )
        )  # fmt: skip
    marked = any((row.get("p_holm") or 1.0) < SIGNIFICANT for row in rows)
    star = f" * p (Holm) < {SIGNIFICANT} against the baseline." if marked else ""
    half = " and half of its 95 % interval" if small else ""
    n_more = len(all_down) * len(all_across) - len(down) * len(across)
    left = f" {n_more:,} more cells are not drawn." if n_more else ""
    note = f"Mean{half} over seeds; the stronger the colour, the better.{star}{left}"
    return [Drawing(name, title, panels, "Two settings crossed", note)]


def darkness(cells: Sequence[Sequence[Record | None]], metric: str) -> NDArray[np.float64]:
    """From 0 to 1; for a share the share itself, so that panels can be compared. NaN where there is no number."""
    means = np.array([numbers(None if row is None else number(row["mean"]) for row in line) for line in cells])
    if np.isnan(means).all():
        return means
    if is_share(metric) and np.nanmin(means) >= 0 and np.nanmax(means) <= 1:
        return means if direction(metric) > 0 else 1 - means
    ranked = -direction(metric) * (np.log(means) if np.nanmin(means) > 0 else means)
    low, high = np.nanmin(ranked), np.nanmax(ranked)
    return np.where(np.isnan(ranked), np.nan, 1 - (ranked - low) / (high - low if high > low else 1))


def texts_of(cells: Sequence[Sequence[Record | None]], *, halves: bool) -> list[list[str]]:
    """The numbers inside, starred where they differ from the baseline."""
    known = [row for line in cells for row in line if row is not None]
    half_of = {id(row): row["high"] - row["mean"] for row in known if row.get("high") is not None}
    digits = decimals_of([row["mean"] for row in known], half_of.values())

    def words(row: Record | None) -> str:
        if row is None:
            return "-"
        star = "*" if (row.get("p_holm") or 1.0) < SIGNIFICANT else ""
        half = f"\n±{fixed(half_of[id(row)], digits)}" if halves and id(row) in half_of else ""
        return f"{fixed(row['mean'], digits)}{star}{half}"

    return [[words(row) for row in line] for line in cells]


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """Findings first, then remarks: these say what the numbers do not support."""
    about = files.json("comparison.json") or {}
    files.remarks += about.get("remarks", [])
    sections: dict[str, Section] = {}
    for title, rows in by_metric(records).items():
        verb = str(rows[0].get("verb") or "")
        section = sections.setdefault(verb, Section(verb or "Measurements"))
        section.tables.append(sheet(title, rows, folded=bool(section.tables), note=note_of(rows)))
    for drawing in drawings(records, about):
        section = sections.setdefault(drawing.section, Section(drawing.section))
        section.panels = [*section.panels, *drawing.panels]
        if drawing.section == "Two settings crossed":
            section.note = f"{drawing.title}. {drawing.note}"
    for section in sections.values():
        if len(section.panels) > ON_A_PAGE:
            drawn = f"{ON_A_PAGE} of {len(section.panels):,} panels are drawn"
            files.remarks.append(f"{section.title}: {drawn}; compare fewer settings for others")
            section.panels = section.panels[:ON_A_PAGE]
    return View([*sections.values(), which_runs(about)], scope(about), findings=findings(telling(records)))


def note_of(rows: Sequence[Record]) -> str:
    compared = sorted({format_settings(row["baseline"]) for row in rows if isinstance(row.get("baseline"), dict)})
    if not compared:
        return ""
    named = f"baseline {compared[0]}" if len(compared) == 1 else f"{len(compared)} baselines, such as {compared[0]}"
    return f"difference: to the baseline, paired by seed, with its 95 % interval; {named}"


def which_runs(about: Mapping[str, Any]) -> Section:
    """The directories behind each setting, and the runs that were left out with the reason."""
    rows = [
        [text_of(group["verb"]), format_settings(group["settings"]), text_of(group["seeds"]), text_of(group["runs"])]
        for group in about.get("groups", [])
    ]
    tables = [Table("runs of each setting", ["verb", "settings", "seeds", "runs"], rows, folded=True)] if rows else []
    skipped = [[left_out["run"], left_out["why"]] for left_out in about.get("skipped", [])]
    if skipped:
        tables.append(Table("runs left out", ["run", "why"], skipped, folded=len(skipped) > 20))
    return Section("Which runs", tables=tables)


def scope(about: Mapping[str, Any]) -> list[str]:
    lines = []
    if about.get("settings"):
        varied = "; ".join(f"{key}: {text_of(values)}" for key, values in about["settings"].items())
        lines.append(f"Settings that vary: {varied}.")
    if about.get("baseline"):
        lines.append(f"Compared with the baseline {', '.join(about['baseline'])}.")
    if about:
        lines.append(
            "The same numbers for other programs: comparison.csv, comparison.md and comparison.tex beside this page."
        )
    return lines
