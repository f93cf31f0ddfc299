"""What an evaluation says of dispersion: records, a table, a figure and a warning.

`contexts` has the tokens of each length, where a length is that of a task and counts something else.

Shapes: L layers, H heads, N bins of rows by their number of visible keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from roundround.probing.dispersion import MEASURES, Dispersion
from roundround.report.drawing.figures import save_drawing
from roundround.report.eval_panels import DISPERSION, MOST_LAYERS
from roundround.support.console import print_status, print_table
from roundround.support.files import write_json
from roundround.support.panels import Curve, Drawing, Mark, Panel
from roundround.verbs.eval import EvalConfig


def records(
    by_length: Mapping[int, Dispersion], common: dict[str, Any], contexts: Mapping[int, int] | None = None
) -> list[dict[str, Any]]:
    """One record for each measure, layer, head and length."""
    found = []
    for length, dispersion in by_length.items():
        context = {} if contexts is None else {"context": contexts[length]}
        for name in MEASURES:
            for layer, heads in zip(dispersion.layers, dispersion.means_LH(name).tolist(), strict=True):
                for head, value in enumerate(heads):
                    where = {"length": length, **context, "layer": layer, "head": head}
                    found.append({"metric": name, **common, **where, "value": value})
    return found


def numbers_or_none(x_N: Tensor) -> list[float | None]:
    return [None if math.isnan(x) else x for x in x_N.tolist()]


def by_visible_keys(by_length: Mapping[int, Dispersion]) -> dict[str, Any]:
    """Every measure as [layer][head][bin] for each context length, None where there are no rows; and their numbers.

    layers: which of the model's layers these are.
    """
    return {
        str(length): {
            "layers": list(dispersion.layers),
            "largest_n": dispersion.largest_n,
            "rows": dispersion.n_rows_LN.long().tolist(),
            **{
                name: [[numbers_or_none(x_N) for x_N in x_HN] for x_HN in dispersion.means_LHN(name)]
                for name in MEASURES
            },
        }
        for length, dispersion in by_length.items()
    }


def leave(
    by_length: Mapping[int, Dispersion],
    directory: Path,
    config: EvalConfig,
    *,
    title: str,
    contexts: Mapping[int, int] | None = None,
) -> None:
    """Keep dispersion by the number of visible keys, draw the longest context and show the table."""
    write_json(directory / "dispersion.json", by_visible_keys(by_length))
    longest = max(by_length)
    context = longest if contexts is None else contexts[longest]
    save_drawing(drawing(by_length[longest], context=context, title=title), directory / "figures", config.figures)
    name = "context" if contexts is None else "length"
    shown = table(by_length, name=name, title="dispersion: the lowest and the highest head of each layer")
    print_table(shown, on_output=config.table == "stdout")
    line = warning(by_length[longest], context)
    if line is not None:
        print_status(line)


def table(by_length: Mapping[int, Dispersion], *, name: str, title: str) -> Table:
    """A row for each length, which is called `name`, and layer: the smallest and the largest mean of a head."""
    heads = ("entropy", "of ln n", "top weight", "logit spread", "active rows")
    shown = Table(name, "layer", *heads, title=title)
    for length, dispersion in by_length.items():
        means = {name: dispersion.means_LH(name) for name in MEASURES}
        share_LH = means["entropy"] / means["ln_n"].clamp(min=1e-9)
        columns = [
            (means["entropy"], "{:.2f}"),
            (share_LH, "{:.0%}"),
            (means["largest_weight"], "{:.2f}"),
            (means["logit_spread"], "{:.1f}"),
            (means["in_active_range"], "{:.0%}"),
        ]
        for place, layer in enumerate(dispersion.layers):
            cells = [extremes(values_LH[place].tolist(), form) for values_LH, form in columns]
            shown.add_row("" if place else f"{length:,}", str(layer), *cells)
    return shown


def extremes(values: list[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low}-{high}"


def warning(dispersion: Dispersion, context: int) -> str | None:
    """A line where most rows of a context lie outside the polynomial's active range; None elsewhere."""
    weights_L = dispersion.n_rows_LN.sum(-1)
    inside = float((dispersion.means_LH("in_active_range").mean(-1) * weights_L).sum() / weights_L.sum())
    if inside >= 0.5:
        return None
    reach = dispersion.active_range()
    where = "it never exceeds 1" if reach is None else f"it exceeds 1 only from {reach[0]:.2f} to {reach[1]:.2f} nats"
    return (
        f"at context {context:,}, {1 - inside:.0%} of the rows have an entropy at which the adaptive temperature's "
        f"polynomial does nothing ({where}); softmax.coefficients=[...] takes one of your own"
    )


def drawing(dispersion: Dispersion, *, context: int, title: str) -> Drawing:
    """Each head against the number of keys it sees, beside Lemma 2.1 of the widest head and what is uniform."""
    n = [*dispersion.largest_n[:-1], min(dispersion.largest_n[-1], context)]
    n_layers = len(dispersion.layers)
    places = range(n_layers) if n_layers <= MOST_LAYERS else (0, n_layers // 2, n_layers - 1)
    reach = dispersion.active_range()
    acts = [] if reach is None else [Mark("the temperature's polynomial acts", *reach, axis="y")]
    ln_n = dispersion.means_LHN("ln_n")[dispersion.n_rows_LN.argmax(0), 0, torch.arange(len(n))]  # of a layer with rows
    widest = {  # of the layers that have rows there
        "entropy": dispersion.means_LHN("entropy_bound").nan_to_num(torch.inf).amin((0, 1)),
        "largest_weight": dispersion.means_LHN("largest_weight_bound").nan_to_num(-torch.inf).amax((0, 1)),
    }
    uniform: dict[str, Any] = {"entropy": ln_n, "largest_weight": [1 / x for x in n]}
    note = f"Every head at context {context:,}, rows by the number of keys that they see."
    panels = []
    for name, label in DISPERSION.items():
        curves = [
            Curve(f"layer {dispersion.layers[place]}", n, heads_N, style=style)
            for style, place in enumerate(places)
            for heads_N in dispersion.means_LHN(name)[place]
        ]
        if name in uniform:
            curves += [
                Curve("uniform: ln n, 1 / n", n, uniform[name], reference=True),
                Curve("Lemma 2.1, widest head", n, widest[name], points=True),
            ]
        log = "xy" if name == "largest_weight" else "x"
        panels.append(Panel("visible keys n", label, curves, log, marks=acts if name == "entropy" else []))
    return Drawing("dispersion", title, panels, note=note)
