"""The page of a comparison: what a reader has to know, means with intervals by setting, tables of differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundround.analysis.past_run import is_share
from roundround.report.numbers import shown_p
from roundround.report.page.charts import N_STYLES, Chart, Series
from roundround.report.page.figures import figures_of
from roundround.report.page.numbers import text_of
from roundround.report.page.sources import Record, RunFiles, number
from roundround.report.page.tables import Table, in_words
from roundround.report.page.view import Section, View

X_AXES = {"length": "context length (tokens)", "n": "items"}
COLUMNS = {  # field: what the table calls it
    "mean": "mean", "low": "low", "high": "high", "n_seeds": "seeds", "difference": "difference",
    "difference_low": "its low", "difference_high": "its high", "n_pairs": "pairs", "p": "p", "p_holm": "p (Holm)",
    "tokens_per_second": "tokens per second", "peak_resident_bytes": "peak memory (bytes)",
    "peak_device_bytes": "peak device memory (bytes)",
}  # fmt: skip
P_VALUES = ("p", "p_holm")
NOT_PLACES = {*COLUMNS, "p_is_bound", "metric", "verb", "settings", "seeds", "values", "baseline", "value"}


def view(files: RunFiles, records: list[Record]) -> View:
    """Remarks first: they say what the numbers do not support."""
    about = files.json("comparison.json")
    about = about if isinstance(about, dict) else {}
    files.remarks += [str(remark) for remark in listed(about, "remarks")]
    records = [record for record in records if isinstance(record.get("settings"), dict)]
    by_metric: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        by_metric.setdefault((str(record.get("verb") or ""), record["metric"]), []).append(record)
    x_axes = {**X_AXES, "length": "length"} if about.get("of_tasks") is True else X_AXES
    sections = [section_of(verb, records, x_axes) for verb, records in by_verb(by_metric).items()]
    sections.append(Section("Training curves", charts=[curves_of(listed(about, "curves"))]))
    drawn = [figure for figure in figures_of(files) if figure.name.endswith("matrix")]
    sections += [Section("Two settings crossed", figures=drawn), which_runs(about)]
    return View(sections, scope(about))


def listed(about: dict[str, Any], name: str) -> list[Any]:
    """The list of this name in comparison.json; empty where there is none."""
    value = about.get(name)
    return value if isinstance(value, list) else []


def by_verb(by_metric: dict[tuple[str, str], list[Record]]) -> dict[str, dict[str, list[Record]]]:
    found: dict[str, dict[str, list[Record]]] = {}
    for (verb, metric), records in by_metric.items():
        found.setdefault(verb, {})[metric] = records
    return found


def section_of(verb: str, metrics: dict[str, list[Record]], x_axes: dict[str, str]) -> Section:
    """Charts of the verb's first metric, and a table of each."""
    first, *_ = metrics.items()
    tables = [table_of(metric, records) for metric, records in metrics.items()]
    for table in tables[1:]:
        table.folded = True
    return Section(verb or "Measurements", charts=charts_of(*first, x_axes), tables=tables)


def named(settings: dict[str, Any], without: Sequence[str] = ()) -> str:
    return ", ".join(f"{key}={text_of(value)}" for key, value in settings.items() if key not in without) or "all"


def charts_of(metric: str, records: Sequence[Record], x_axes: dict[str, str]) -> list[Chart]:
    """The metric against context length or items, a line for each setting; many lines are put into panels."""
    axis = next((name for name in x_axes if len({number(record.get(name)) for record in records} - {None}) > 1), None)
    if axis is None:
        return []
    lines: dict[str, list[Record]] = {}
    for record in records:
        lines.setdefault(named(record["settings"]), []).append(record)
    split = panel_key(records) if len(lines) > N_STYLES else None
    panels: dict[str, dict[str, list[Record]]] = {}
    for line in lines.values():
        settings = line[0]["settings"]
        title = in_words(metric) if split is None else f"{split}={text_of(settings.get(split))}"
        panels.setdefault(title, {})[named(settings, [] if split is None else [split])] = line
    labelled = axis, x_axes[axis]
    charts = [chart_of(title, panel, labelled, metric) for title, panel in panels.items()]
    charts += [chart_of(title, panel, labelled, metric, differences=True) for title, panel in panels.items()]
    return charts


def panel_key(records: Sequence[Record]) -> str | None:
    """Of several settings the one with the fewest values, by which lines are put into panels."""
    values: dict[str, set[str]] = {}
    for record in records:
        for key, value in record["settings"].items():
            values.setdefault(key, set()).add(text_of(value))
    several = [key for key, found in values.items() if len(found) > 1]
    return min(several, key=lambda key: len(values[key])) if len(several) > 1 else None


def chart_of(
    title: str, lines: dict[str, list[Record]], axis: tuple[str, str], metric: str, *, differences: bool = False
) -> Chart:
    """Means with their intervals, or the differences to the baseline with theirs, narrower where seeds agree.

    axis: the field of the records along which they stand, and what it is called.
    """
    fields = ("difference", "difference_low", "difference_high") if differences else ("mean", "low", "high")
    drawn = enumerate(lines.items())
    series = [series_of(name, records, axis[0], style, fields) for style, (name, records) in drawn]
    series = [line for line in series if any(y is not None for _, y in line.points)]
    ticks = sorted({x for line in series for x, _ in line.points})
    note = "Means over the seeds; the band is the 95 % interval of the mean."
    label = in_words(metric)
    if differences and series:
        title, label = f"{title}: difference to the baseline", f"difference of {label}"
        series.append(Series("baseline", [(x, 0.0) for x in ticks], reference=True))
        note = "Means over the seeds that both have, of this minus the baseline; the band is their 95 % interval."
    limits = (0.0, 1.0) if not differences and are_shares(metric, series) else (None, None)
    return Chart(title, series, axis[1], label, log_x=True, x_ticks=ticks, note=note, limits=limits)


def are_shares(metric: str, series: Sequence[Series]) -> bool:
    """Whether an axis from 0 to 1 is right; intervals of few seeds reach beyond."""
    return is_share(metric) and all(y is None or 0 <= y <= 1 for line in series for _, y in line.points)


def series_of(name: str, records: Sequence[Record], axis: str, style: int, fields: tuple[str, str, str]) -> Series:
    """A number at each place with its interval. Of several measurements at one place the first."""
    found: dict[float, Record] = {}
    for record in records:
        x = number(record.get(axis))
        if x is not None:
            found.setdefault(x, record)
    middle, *edges = fields
    points = [(x, number(found[x].get(middle))) for x in sorted(found)]
    return Series(name, points, [interval(found[x], *edges) for x in sorted(found)], style)


def interval(record: Record, lower: str = "low", upper: str = "high") -> tuple[float, float] | None:
    low, high = number(record.get(lower)), number(record.get(upper))
    return None if low is None or high is None else (low, high)


def table_of(metric: str, records: Sequence[Record]) -> Table:
    """A row for each setting and place: the mean, the difference to the baseline, and what it cost."""
    keys = list(dict.fromkeys(key for record in records for key in record["settings"]))
    places = list(dict.fromkeys(name for record in records for name in record if name not in NOT_PLACES))
    places = [name for name in places if len({text_of(record.get(name)) for record in records}) > 1]
    numbers = [name for name in COLUMNS if any(record.get(name) is not None for record in records)]
    rows = [
        [
            *(None if record["settings"].get(key) is None else text_of(record["settings"][key]) for key in keys),
            *(record.get(name) for name in places),
            *(bounded(record, name) for name in numbers),
        ]
        for record in records
    ]
    compared = [record["baseline"] for record in records if isinstance(record.get("baseline"), dict)]
    with_what = sorted({named(settings) for settings in compared})
    note = (
        f"difference: to the baseline, paired by seed, with its 95 % interval; {baselines(with_what)}"
        if compared
        else ""
    )
    return Table(in_words(metric), [*keys, *places, *(COLUMNS[name] for name in numbers)], rows, note=note)


def bounded(record: Record, name: str) -> Any:
    """A number of a record; a p-value that is an upper bound as it is read."""
    value, is_bound = record.get(name), name in P_VALUES and record.get("p_is_bound") is True
    return shown_p(number(value), is_bound) if is_bound else value


def baselines(names: Sequence[str]) -> str:
    return f"baseline {names[0]}" if len(names) == 1 else f"{len(names)} baselines, such as {names[0]}"


def curves_of(curves: Sequence[Any]) -> Chart:
    """Training curves: means over seeds by tokens seen."""
    found: dict[str, list[dict[str, Any]]] = {}
    for curve in curves:
        if isinstance(curve, dict) and isinstance(curve.get("settings"), dict):
            found.setdefault(str(curve.get("metric")), []).append(curve)
    metric = max(found, key=lambda name: ("held" in name, len(found[name])), default="")
    series = []
    for style, curve in enumerate(found.get(metric, [])):
        tokens, means, lows, highs = (listed(curve, name) for name in ("tokens", "mean", "low", "high"))
        points = [(x, number(y)) for token, y in zip(tokens, means, strict=False) if (x := number(token)) is not None]
        band = [interval({"low": low, "high": high}) for low, high in zip(lows, highs, strict=False)]
        series.append(Series(named(curve["settings"]), points, band, style))
    series = [line for line in series if len(line.points) > 1]
    note = "Means over the seeds; the band is the 95 % interval of the mean."
    return Chart(in_words(metric), series, "tokens seen", in_words(metric), note=note)


def which_runs(about: dict[str, Any]) -> Section:
    """The directories behind each setting, and the runs that were left out with the reason."""
    groups = [group for group in listed(about, "groups") if isinstance(group, dict)]
    rows = [
        [text_of(group.get("verb")), named(group["settings"]), text_of(group.get("seeds")), text_of(group.get("runs"))]
        for group in groups
        if isinstance(group.get("settings"), dict)
    ]
    tables = [Table("runs of each setting", ["verb", "settings", "seeds", "runs"], rows, folded=True)] if rows else []
    skipped = [[text_of(s.get("run")), text_of(s.get("why"))] for s in listed(about, "skipped") if isinstance(s, dict)]
    if skipped:
        tables.append(Table("runs left out", ["run", "why"], skipped, folded=len(skipped) > 20))
    return Section("Which runs", tables=tables)


def scope(about: dict[str, Any]) -> list[str]:
    settings = about.get("settings")
    lines = []
    if isinstance(settings, dict) and settings:
        lines.append("Settings that vary: " + "; ".join(f"{key}: {text_of(v)}" for key, v in settings.items()) + ".")
    if listed(about, "baseline"):
        lines.append(f"Compared with the baseline {', '.join(map(str, listed(about, 'baseline')))}.")
    if about:
        lines.append(
            "The same numbers for other programs: comparison.csv, comparison.md and comparison.tex beside this page."
        )
    return lines
