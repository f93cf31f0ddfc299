"""The panels of a probe that records tell, and its page: a map of its heads to be explored, perplexity without
frequencies, entropy when asked for the maximum.

The files that `probe` leaves and its page draw the same panels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from roundround.report.drawing.numbers import number
from roundround.report.drawing.tables import Record, Table, tables_of
from roundround.report.eval_panels import BEFORE, MOST_HEADS, by_layer, by_place, mean_of
from roundround.report.page.heads import (
    LETTERS,
    MEANINGS,
    MEASURES,
    Head,
    arrays_for_script,
    heads_of,
    places_of,
    short,
    standing_out,
)
from roundround.report.page.view import RunFiles, Section, View
from roundround.support.panels import Curve, Panel, numbers

MOST_CELLS = 10_000  # of the map
NARROW = 6  # heads in a row, up to which what is shown of a head has room beside the map
DENSE = 16  # heads in a row, from which on a cell has room for one letter


def kept_panels(records: Sequence[Record]) -> list[Panel]:
    """Perplexity against the fraction of frequencies kept, from both ends, a line for each range of tokens before."""
    panels = []
    for end, other in (("lowest", "fastest"), ("highest", "slowest")):
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for record in records:
            kept = number(record.get("kept"))
            if kept is not None and record.get("end", end) == end:
                lines.setdefault(range_of(record), []).append((kept, number(record["value"])))
        curves = [
            Curve(name, [x for x, _ in points], numbers(y for _, y in points))
            for name, points in ((name, sorted(points, key=lambda point: point[0])) for name, points in lines.items())
        ]
        x_label, title = f"fraction kept, from the {other}", f"The {end} frequencies set to zero"
        panels.append(Panel(x_label, "perplexity", curves, "y", title, reversed_x=True, widened=True))
    return panels


def range_of(record: Record) -> str:
    """The tokens before the targets of a record, with their number."""
    first, last, n = (number(record.get(key)) for key in ("first_position", "last_position", "targets"))
    if first is None or last is None:
        return "all"
    return f"{first:,.0f}-{last:,.0f} tokens before" + ("" if n is None else f" ({n:,.0f} targets)")


def ablated_panel(records: Sequence[Record]) -> Panel:
    """Perplexity against the tokens before the target, with all frequencies and without some."""
    lines: dict[str, list[tuple[float, Record]]] = {}
    for middle, record in by_place(records):
        lines.setdefault(str(record["ablate"]), []).append((middle, record))
    curves = []
    for ablate, points in lines.items():
        name = "all frequencies" if ablate == "none" else f"without {ablate}"
        curves.append(Curve(name, [x for x, _ in points], numbers(number(record["value"]) for _, record in points)))
    return Panel(BEFORE, "perplexity", curves, "xy", "Perplexity by the tokens before the target")


def maximum_panels(records: Sequence[Record]) -> list[Panel]:
    """Figure 3 of arXiv:2410.01104: entropy of the last row against the number of listed elements, a panel a layer."""
    layers = by_layer(records, "entropy", "n")
    sizes = sorted({n for by_n in layers.values() for n in by_n})
    uniform = Curve("uniform: ln n", sizes, [math.log(n) for n in sizes], style=1)
    panels = []
    for layer, by_n in sorted(layers.items()):
        n_heads = min(map(len, by_n.values()))
        heads = [Curve("each head", list(by_n), [values[head] for values in by_n.values()], reference=True)
                 for head in range(n_heads if n_heads <= MOST_HEADS else 0)]  # fmt: skip
        curves = [*heads, mean_of("mean over heads, from the lowest to the highest", by_n, 0), uniform]
        label, title = "entropy of the last row (nats)", f"Layer {layer}"
        panels.append(
            Panel("listed numbers", label, curves, "x", title, possible=(0.0, None), whole=True, x_ticks=sizes)
        )
    return panels


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """Whatever of the three kinds of probe the records are of."""
    heads, places = heads_of(records), places_of(records)
    sections, data = [], None
    if heads:
        ordered = standing_out(heads, places)
        first = max(ordered, key=lambda head: head.change() or 0.0)  # the first of all where nothing was ablated
        data = arrays_for_script(files, ordered, places) | about_heads(heads, places, first)
        sections.append(explorer(heads, places, first))
    about_lists = "Entropy of the last row when asked for the largest of a list; the band spans the heads."
    asked = Section("Asked for the maximum", panels=maximum_panels(records), note=about_lists)
    sections += [ablation(records), asked]
    rest = [record for record in records if "head" not in record or not heads]
    tables, scripts = tables_of(rest, folded=True), ("draw.js", "probe.js") if heads else ()
    note = "What is measured of each head stands in the table of heads above and in results.json." if heads else ""
    return View([*sections, Section("Numbers", tables=tables, note=note)], scope(files, heads), data, scripts)


def about_heads(heads: Sequence[Head], places: Sequence[str], first: Head) -> dict[str, Any]:
    """Labels, shares and measures by head for the script, and which head is shown first."""
    return {
        "places": list(places),
        "first": first.name,
        "heads": {
            h.name: {
                "label": h.place(),
                "share": short(
                    h.share(), 6
                ),  # the map shows two decimals: rounded to three before, some would be wrong
                **{name: short(value) for name, value in h.measures.items()},
                **({"change": short(change)} if (change := h.change()) is not None else {}),
            }
            for h in heads
        },
    }


def explorer(heads: Sequence[Head], places: Sequence[str], first: Head) -> Section:
    """The map of all heads, what is shown of a chosen one, and the table of heads."""
    n_layers, n_heads = 1 + max(h.layer for h in heads), 1 + max(h.head for h in heads)
    if n_layers * n_heads > MOST_CELLS:
        raise ValueError(f"heads up to {n_layers - 1:,}.{n_heads - 1:,} are more than a map has room for")
    grid: list[list[Head | None]] = [[None] * n_heads for _ in range(n_layers)]
    for head in heads:
        grid[head.layer][head.head] = head
    counts = Counter(head.place() for head in heads)
    measures = [name for name in MEASURES if any(name in head.measures for head in heads)]
    changed = any(head.change() is not None for head in heads)
    legend = [
        {"place": place, "letter": LETTERS.get(place, "?"), "meaning": MEANINGS.get(place, ""), "n": counts[place]}
        for place in places
    ]
    values = {
        "grid": grid,
        "legend": legend,
        "letters": LETTERS,
        "classes": {place: f"p{number}" for number, place in enumerate(places)},
        "dense": n_heads > DENSE,
        "narrow": n_heads <= NARROW,
        "measures": measures + (["change"] if changed else []),
        "first": first.name,
        "changed": changed,
        "labelled": any(head.label is not None for head in heads),
    }
    return Section("Heads", part="probe.html.j2", values=values, tables=[table_of(heads, measures, changed)])


def table_of(heads: Sequence[Head], measures: Sequence[str], changed: bool) -> Table:
    columns = ["layer", "head", "label", "share", *measures, *(["change"] if changed else [])]
    rows = [
        [
            h.layer,
            h.head,
            h.place(),
            h.share(),
            *(h.measures.get(m) for m in measures),
            *([h.change()] if changed else []),
        ]
        for h in heads
    ]
    recorded = all(head.behind_label is not None for head in heads)
    of_local = "on the token itself and the seven before" if recorded else "at diagonal, previous and local together"
    note = f"share: of the weight, behind the label (local: {of_local}); entropy in nats"
    note += "; change: of the weight, that goes elsewhere" if changed else ""
    return Table("heads", columns, rows, note=note, folded=True, short=True)


def ablation(records: Sequence[Record]) -> Section:
    """Perplexity with frequencies set to zero: by the tokens before a target, or along the fraction that is kept."""
    found = [r for r in records if r["metric"] == "perplexity" and "ablate" in r]
    title = "Frequencies set to zero"
    if not found:
        return Section(title)
    swept = any("kept" in record for record in found)
    n_targets = next((number(r.get("targets")) for r in found if "first_position" not in r), None)
    note = "" if n_targets is None else f"{n_targets:,.0f} targets in all; a range of fewer than 100 says little."
    return Section(title, panels=kept_panels(found) if swept else [ablated_panel(found)], note=note)


def scope(files: RunFiles, heads: Sequence[Head]) -> list[str]:
    facts = files.run.manifest["facts"]
    texts, tokens = facts.get("texts"), facts.get("tokens")
    lines = []
    if isinstance(texts, int) and isinstance(tokens, int):
        lines.append(f"Taken over {texts:,} texts with {tokens:,} tokens in all.")
    if heads:
        lines.append(
            "Shares, largest weights and logit spreads are means over sampled rows with at least four tokens before "
            "them; entropies over all rows, or over the sample where the normaliser has no fused form."
        )
    return lines
