"""What an evaluation says of dispersion: records, a table, a figure and a warning.

`contexts` has the tokens of each length, where a length is that of a task and counts something else.

Shapes: L layers, H heads, N bins of rows by their number of visible keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from roundround.probing.dispersion import MEASURES, Dispersion
from roundround.report.figures import GREY, SHADE, colour_map, save, set_title, subplots
from roundround.support.console import print_status, print_table
from roundround.support.files import write_json


def records(
    by_length: Mapping[int, Dispersion], common: dict[str, Any], contexts: Mapping[int, int] | None = None
) -> list[dict[str, Any]]:
    """One record for each measure, layer, head and length."""
    found = []
    for length, dispersion in by_length.items():
        context = {} if contexts is None else {"context": contexts[length]}
        for name in MEASURES:
            for layer, heads in enumerate(dispersion.means_LH(name).tolist()):
                for head, value in enumerate(heads):
                    where = {"length": length, **context, "layer": layer, "head": head}
                    found.append({"metric": name, **common, **where, "value": value})
    return found


def by_visible_keys(by_length: Mapping[int, Dispersion]) -> dict[str, Any]:
    """Every measure as [layer][head][bin] for each context length, with the largest n and the rows of each bin."""
    return {
        str(length): {
            "largest_n": dispersion.largest_n,
            "rows": dispersion.n_rows_LN[0].long().tolist(),
            **{name: dispersion.means_LHN(name).nan_to_num(0.0).tolist() for name in MEASURES},
        }
        for length, dispersion in by_length.items()
    }


def leave(
    by_length: Mapping[int, Dispersion],
    directory: Path,
    *,
    title: str,
    on_output: bool,
    contexts: Mapping[int, int] | None = None,
) -> None:
    """Keep dispersion by the number of visible keys, draw the longest context and show the table."""
    write_json(directory / "dispersion.json", by_visible_keys(by_length))
    longest = max(by_length)
    context = longest if contexts is None else contexts[longest]
    draw(by_length[longest], context=context, title=title, folder=directory / "figures")
    name = "context" if contexts is None else "length"
    shown = table(by_length, name=name, title="dispersion: the lowest and the highest head of each layer")
    print_table(shown, on_output=on_output)
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
        for layer in range(len(share_LH)):
            cells = [extremes(values_LH[layer].tolist(), form) for values_LH, form in columns]
            shown.add_row("" if layer else f"{length:,}", str(layer), *cells)
    return shown


def extremes(values: list[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low}-{high}"


def warning(dispersion: Dispersion, context: int) -> str | None:
    """A line where most rows of a context lie outside the polynomial's active range; None elsewhere."""
    n_rows_LN = dispersion.n_rows_LN
    weights_L = n_rows_LN.sum(-1)
    inside = float((dispersion.means_LH("in_active_range").mean(-1) * weights_L).sum() / weights_L.sum())
    if inside >= 0.5:
        return None
    reach = dispersion.active_range()
    where = "it never exceeds 1" if reach is None else f"it exceeds 1 only from {reach[0]:.2f} to {reach[1]:.2f} nats"
    return (
        f"at context {context:,}, {1 - inside:.0%} of the rows have an entropy at which the adaptive temperature's "
        f"polynomial does nothing ({where}); softmax.coefficients=[...] takes one of your own"
    )


def draw(dispersion: Dispersion, *, context: int, title: str, folder: Path) -> list[Path]:
    """Save `folder/dispersion` as svg, pdf and png: each head against the keys it sees, and the lemma."""
    from matplotlib.lines import Line2D

    figure, axes = subplots(1, 3, figsize=(13.5, 3.8))
    n = [*dispersion.largest_n[:-1], min(dispersion.largest_n[-1], context)]
    panels = [
        ("entropy", "entropy of a row (nats)", ("entropy_bound", torch.amin)),
        ("largest_weight", "largest weight of a row", ("largest_weight_bound", torch.amax)),
        ("logit_spread", "logit spread (nats)", None),
    ]
    n_layers = len(dispersion.n_rows_LN)
    colours = colour_map("viridis")([0.5] if n_layers == 1 else [0.9 * i / (n_layers - 1) for i in range(n_layers)])
    for axis, (name, label, bound) in zip(axes, panels, strict=True):
        for layer, heads_HN in enumerate(dispersion.means_LHN(name)):
            axis.plot(n, heads_HN.T.numpy(), color=colours[layer], linewidth=1)
        if bound is not None:
            measure, loosest = bound
            axis.plot(n, loosest(dispersion.means_LHN(measure), (0, 1)).numpy(), color="black", linestyle=":", lw=1.2)
        axis.set(xscale="log", xlabel="visible keys n", ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
    entropy, largest, _ = axes
    ln_n = dispersion.means_LHN("ln_n")[0, 0].numpy()
    entropy.plot(n, ln_n, color=GREY, linestyle="--", linewidth=1.2)
    reach = dispersion.active_range()
    if reach is not None:
        entropy.axhspan(*reach, color=SHADE, zorder=0)
        middle = (reach[0] + min(reach[1], float(ln_n[-1]))) / 2
        entropy.annotate("polynomial acts", (n[0], middle), color=GREY, fontsize="small", va="center")
    largest.set(yscale="log")
    largest.plot(n, [1 / x for x in n], color=GREY, linestyle="--", linewidth=1.2)
    shown = range(n_layers) if n_layers <= 8 else (0, n_layers // 2, n_layers - 1)
    lines = [Line2D([], [], color=colours[layer], label=f"layer {layer}") for layer in shown]
    lines += [
        Line2D([], [], color=GREY, linestyle="--", label="uniform: ln n, 1 / n"),
        Line2D([], [], color="black", linestyle=":", label="Lemma 2.1, widest head"),
    ]
    figure.legend(handles=lines, frameon=False, fontsize="small", loc="outside right center")
    set_title(figure, f"{title}, context {context:,}: every head, rows by the number of keys they see")
    return save(figure, folder, "dispersion")
