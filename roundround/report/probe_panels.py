"""The panels of a probe that records tell: perplexity without frequencies, entropy when asked for the maximum.

The files that `probe` leaves and its page draw the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from roundround.report.eval_panels import BEFORE, MOST_HEADS, by_layer, by_place, mean_of
from roundround.report.numbers import number
from roundround.report.tables import Record
from roundround.support.panels import Curve, Panel, numbers


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
