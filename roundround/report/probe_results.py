"""The results of a probe and of its ablations: records, tables, and pictures.

Pictures have the layout of arXiv:2410.06205: the vertical axis lists frequencies, the fastest at the top.

Shapes: L layers, H heads, T tokens, P pairs of channels, D distances.

Tested by tests/probing/test_probe.py and tests/probing/test_probe_figures.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table
from torch import Tensor

from roundround.config.verb import FigureStyle
from roundround.model.scoring import FEWEST, PositionLoss, bins, n_targets
from roundround.probing.ablation import FEW, mark
from roundround.probing.dispersion import OF_GAPS
from roundround.probing.layout import KINDS, Layout, same, stacked
from roundround.probing.probe import Probe
from roundround.probing.rows import BANDS, PLACES, PromptRecord
from roundround.report.drawing.figures import (
    INK,
    PLACE_COLOURS,
    SCREEN,
    SIGNED,
    Sizes,
    add_heat,
    finish,
    number_columns,
    save,
    save_drawing,
    styled,
    subplots,
)
from roundround.report.drawing.tables import fixed
from roundround.report.probe_panels import LETTERS
from roundround.support.console import print_status, print_table
from roundround.support.panels import Curve, Drawing, Mark, Panel
from roundround.trained.patterns import runs_of, without_attention

HEADS_SHOWN = 3  # of each label, in a table
ROTATED = ("query", "key")  # kinds of vectors to which RoPE is applied
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "")  # of the places, so that they differ in grey too
HEADS_DRAWN = 1  # of each label, token by token
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # ticks of the share of pairs that rotate
BEYOND, FAR = 0.01, 3.0  # the share of the norms that may exceed the darkest colour, and the ratio from which they do
TICKS = 6  # distances along an axis
KINDS_NAMED = 2  # at most so many layouts have their wavelengths side by side on an axis
LAYERS_NAMED = 4


def shares(seen: Probe) -> dict[str, float]:
    """The mean over layers of the share of the squared norm in the slowest quarter of the pairs.

    It is 0.25 if all pairs have the same norm. Empty if no layer rotates at known frequencies.
    """
    if not seen.rotates:
        return {}
    return {f"{kind}_share_of_slowest_quarter": float(seen.norms.share_of_slowest(kind).mean()) for kind in KINDS}


def records(seen: Probe) -> list[dict[str, Any]]:
    """Records of each layer and of each head.

    The records of a layer are the share of the slowest quarter of pairs in the squared norm of queries and of keys, the
    strongest pair, and the norms of its rotated and its unrotated pairs. The records of a head are its label, the share
    of its weight on each kind of key (the first token, the row's own, the one before, ...), its entropy, its largest
    weight, its logit spread, its gap counting number, its share of collapsed rows, and the share of the rotated pairs
    in its logits. A layer without attention has its kind.
    """
    found: list[dict[str, Any]] = [
        {"metric": "kind_of_layer", "layer": layer, "value": kind} for layer, kind in seen.others.items()
    ]
    for part, kind, norms in norms_of_parts(seen):
        found += [
            {"metric": "norm", "part": part, "kind": kind, "layer": layer, "value": value}
            for layer, value in zip(seen.layers, norms, strict=True)
            if value
        ]
    if seen.rows is not None and any(layout.is_mixed for layout in seen.layouts):
        shares = by_head("rotated_share_of_logits", seen.layers, seen.rows.rotated_shares())
        found += [record for record in shares if not math.isnan(record["value"])]
    for kind in KINDS if seen.rotates else ():
        for first_token in (True, False):
            values = seen.norms.share_of_slowest(kind, first_token=first_token).tolist()
            where = {"kind": kind, "first_token": first_token}
            found += [
                {"metric": "share_of_slowest_quarter", **where, "layer": layer, "value": value}
                for layer, value in zip(seen.layers, values, strict=True)
            ]
    for kind in ROTATED if seen.rotates else ():
        for layer, layout, (pair, share) in zip(seen.layers, seen.layouts, seen.strongest_pairs(kind), strict=True):
            found += [
                {"metric": f"{name}_of_strongest_pair", "kind": kind, "layer": layer, "pair": pair, "value": value}
                for name, value in (("share", share), ("wavelength", layout.wavelength(pair)))
            ]
    if seen.rows is not None:
        for name in ("largest_weight", "logit_spread", *OF_GAPS, *(() if seen.entropies else ("entropy",))):
            found += by_head(name, seen.layers, seen.rows.per_row(name))
        found += by_place(seen.layers, seen.rows.places())
        for layer, heads in enumerate(seen.labels()):
            found += [
                {"metric": "label", "layer": layer, "head": head, "share": share, "value": label}
                for head, (label, share) in enumerate(heads)
            ]
    if seen.entropies is not None:
        found += by_head("entropy", seen.layers, seen.entropies)
    return found


def norms_of_parts(seen: Probe) -> list[tuple[str, str, list[float]]]:
    """(part, kind, the norm of the part in each layer) for the pairs that rotate and those that do not.

    The norm is 0 in a layer without such pairs.
    """
    rotating = [layout.frequencies_P > 0 for layout in seen.layouts]
    parts = (("rotated", rotating), ("unrotated", [~rotating_P for rotating_P in rotating]))
    return [(part, kind, seen.norms.norms_of(kind, pairs)) for part, pairs in parts for kind in ROTATED]


def by_head(metric: str, numbers: Sequence[int], layers: Sequence[Tensor]) -> list[dict[str, Any]]:
    """A record of each head's value. numbers: the number of each layer. layers: for each layer, its values, [H]."""
    return [
        {"metric": metric, "layer": layer, "head": head, "value": value}
        for layer, values_H in zip(numbers, layers, strict=True)
        for head, value in enumerate(values_H.tolist())
    ]


def by_place(numbers: Sequence[int], layers: Sequence[Tensor]) -> list[dict[str, Any]]:
    """A record of each head's share of weight on each of the 7 places.

    numbers: the number of each layer. layers: for each layer, its shares, [H, 7].
    """
    return [
        record
        for column, place in enumerate(PLACES)
        for record in by_head(f"share_on_{place}", numbers, [places_H7[:, column] for places_H7 in layers])
    ]


def standing_out(seen: Probe, n: int = HEADS_DRAWN) -> list[tuple[int, int, str, float]]:
    """(layer, head, label, score) of the `n` heads with the highest scores for each label, in the order of PLACES."""
    heads = [
        (layer, head, label, score)
        for layer, labelled in enumerate(seen.labels())
        for head, (label, score) in enumerate(labelled)
    ]
    best = []
    for place in PLACES:
        best += sorted((h for h in heads if h[2] == place), key=lambda h: -h[3])[:n]
    return best


def show(seen: Probe) -> None:
    """Print tables to standard error.

    The first has each layer's share of squared norm in the slowest quarter of the pairs, the last the heads that stand
    out. Another compares the pairs that rotate with the pairs that do not, if a layer has both.
    """
    if seen.others:
        print_status(without_attention(seen.others))
    if seen.rotates:
        show_frequencies(seen)
    else:
        print_status(
            f"{seen.name} rotates no channels at known frequencies; left out: shares of the slowest quarter, strongest "
            "pairs and their wavelengths, shares without a quarter of the pairs, and the pictures plane, "
            "logits_by_frequency and without_a_band"
        )
    if any(layout.is_mixed for layout in seen.layouts):
        show_parts(seen)
    if seen.rows is not None:
        labels = [label for heads in seen.labels() for label, _ in heads]
        print_table(head_table(seen), "heads: " + ", ".join(f"{labels.count(place)} {place}" for place in PLACES))


def show_parts(seen: Probe) -> None:
    """Print the norms of rotated and unrotated pairs, and the share of the rotated pairs in the logits."""
    norms = {(part, kind): values for part, kind, values in norms_of_parts(seen)}
    table = Table("layer", "pairs", *ROTATED, "share of logits", title=f"{seen.name}: rotated and unrotated pairs")
    table.caption = (
        "query, key: root mean square norm of a head's rotated and unrotated channels; share of logits: of the rotated "
        "channels in the variance of a row's logits over its keys, mean over heads"
    )
    for place, (layer, layout) in enumerate(zip(seen.layers, seen.layouts, strict=True)):
        if layout.is_mixed:
            both = (f"{norms['rotated', k][place]:.2f}, {norms['unrotated', k][place]:.2f}" for k in ROTATED)
            share = "" if seen.rows is None else f"{float(seen.rows.rotated_shares()[place].mean()):.2f}"
            table.add_row(str(layer), f"{layout.n_rotated}, {layout.n_pairs - layout.n_rotated}", *both, share)
    print_table(table)


def show_frequencies(seen: Probe) -> None:
    """Print each layer's share of squared norm in the slowest quarter of the pairs, and how many pairs rotate."""
    title = f"{seen.name}: share of squared norm in the slowest quarter"
    table = Table("layer", *KINDS, "rotated pairs", title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    with_first = {kind: seen.norms.share_of_slowest(kind).tolist() for kind in KINDS}
    without = {kind: seen.norms.share_of_slowest(kind, first_token=False).tolist() for kind in KINDS}
    for place, (layer, layout) in enumerate(zip(seen.layers, seen.layouts, strict=True)):
        cells = [f"{with_first[kind][place]:.2f} ({without[kind][place]:.2f})" for kind in KINDS]
        name = " ".join([str(layer), *seen.kinds[place : place + 1]])
        table.add_row(name, *cells, f"{layout.n_rotated}/{layout.n_pairs} {layout.pairing}")
    table.caption = "uniform use would be 0.25; the numbers in brackets leave out the first token of each text"
    print_table(table)


def shown_wavelength(layout: Layout, pair: int) -> str:
    """The pair's wavelength in tokens, or `still` if it does not rotate."""
    return f"{layout.wavelength(pair):,.0f}" if layout.frequencies_P[pair] > 0 else "still"


def head_table(seen: Probe) -> Table:
    """A table of the heads that stand out, with the weight at the label's place and the pair of largest query norm.

    The weight is given with all pairs, without the slowest quarter of the pairs, and without the fastest quarter.
    """
    assert seen.rows is not None
    by_frequency = ("-slow", "-fast", "pair", "wave", "norm") if seen.rotates else ()
    columns = ("label", "head", "share", *by_frequency, "entropy", "top", "spread", "Lambda", "coll.")
    table = Table(*columns, title="heads that stand out", box=None, padding=(0, 1, 0, 0))
    about = (
        "-slow, -fast: the same share without the slowest or fastest quarter of the pairs; pair: the pair with the "
        f"largest query norm; wave: its wavelength in tokens (training context {seen.train_length:,}); "
    )
    table.caption = (
        f"head: layer.head; share: share of the weight at the label's place; {about if seen.rotates else ''}entropy in "
        "nats; top: largest weight; spread: spread of the logits; Lambda: gap counting number; coll.: share of "
        "collapsed rows"
    )
    query_norms, offsets = seen.norms.mean("query", "norm"), seen.rows.offsets()
    entropies = seen.entropies or seen.rows.per_row("entropy")
    names = ("largest_weight", "logit_spread", *OF_GAPS)
    weights, spreads, lambdas, collapsed = (seen.rows.per_row(name) for name in names)
    for layer, head, label, score in standing_out(seen, HEADS_SHOWN):
        place = seen.layers.index(layer)
        pair = int(query_norms[place][head].argmax())
        cells = [f"{float(seen.rows.share_at(label, band)[place][head]):.2f}" for band in ("slowest", "fastest")]
        cells += [
            str(pair),
            shown_wavelength(seen.layouts[place], pair),
            f"{float(query_norms[place][head, pair]):.1f}",
        ]
        table.add_row(
            f"{label} {int(offsets[place][head])}" if label == "offset" else label,
            f"{layer}.{head}",
            f"{score:.2f}",
            *(cells if seen.rotates else ()),
            f"{float(entropies[place][head]):.2f}",
            f"{float(weights[place][head]):.2f}",
            f"{float(spreads[place][head]):.1f}",
            f"{float(lambdas[place][head]):.2f}",
            f"{float(collapsed[place][head]):.2f}",
        )
    return table


def alignments(prompt: PromptRecord, seen: Probe) -> list[dict[str, Any]]:
    """The content of alignment.json: Tables 3 to 5 of arXiv:2410.06205, for heads labelled `diagonal` or `previous`.

    Only the HEADS_SHOWN heads with the highest scores for each label are used.
    """
    return [
        {"layer": layer, "head": head, "label": label, "tokens": prompt.words, **prompt.alignment(layer, head)}
        for layer, head, label, _ in standing_out(seen, HEADS_SHOWN)
        if label in ("diagonal", "previous")
    ]


# -- a question about the maximum


def show_maximum(numbers: Sequence[int], entropies: Mapping[int, Sequence[Tensor]]) -> None:
    """Print the range of the heads' entropies for each list length, in at most six evenly spaced layers."""
    shown = sorted({round(i * (len(numbers) - 1) / 5) for i in range(6)})
    columns = ("listed", *(f"layer {numbers[place]}" for place in shown))
    table = Table(*columns, title="entropy of the last row, nats", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for n, layers in entropies.items():
        cells = [f"{float(layers[place].min()):.2f}-{float(layers[place].max()):.2f}" for place in shown]
        table.add_row(f"{n:,}", *cells)
    print_table(table)


# -- what changes when frequencies are set to zero


def records_of_loss(loss: PositionLoss, **common: Any) -> list[dict[str, Any]]:
    """A record of the perplexity over all targets, and a record for the targets in each range of positions."""
    found = [{"metric": "perplexity", **common, "targets": n_targets(loss), "value": loss.perplexity()}]
    for first, last in bins(loss):
        where = {"first_position": first, "last_position": last - 1, "targets": n_targets(loss, first, last)}
        found.append({"metric": "perplexity", **common, **where, "value": loss.perplexity(first, last)})
    return found


def show_losses(losses: Mapping[str, PositionLoss]) -> None:
    """Print a table of perplexity, with a row for each loss and a column for each range of target positions.

    losses: {name: loss}, the unchanged model first.
    """
    before = next(iter(losses.values()))
    ranges: dict[str, tuple[int, int | None]] = {"all": (0, None)}
    ranges |= {f"{a:,}-{b - 1:,}": (a, b) for a, b in bins(before)}
    caption = f"{FEW} fewer than {FEWEST} targets" if mark(before) else None
    title = "perplexity, by the number of tokens before the target"
    table = Table("frequencies set to zero", *ranges, title=title, caption=caption)
    table.add_row("targets", *(f"{n_targets(before, *ends):,}" for ends in ranges.values()), end_section=True)
    for name, loss in losses.items():
        table.add_row(name, *(f"{fixed(loss.perplexity(*ends), 3)}{mark(loss, *ends)}" for ends in ranges.values()))
    print_table(table)


# -- pictures


def draw_all(seen: Probe, prompt: PromptRecord, folder: Path, style: FigureStyle = SCREEN) -> list[Path]:
    """Draw every picture of a probe into files; returns the paths."""
    paths = draw_plane(seen, folder, style) if seen.rotates else []
    with styled(style) as sizes:
        for name, draw in pictures(seen).items():
            paths += save(draw(seen, sizes), folder, name)
        return paths + (draw_prompt(prompt, seen, folder, sizes) if seen.rows is not None else [])


def pictures(seen: Probe) -> dict[str, Callable[[Probe, Sizes], Any]]:
    """{name of a picture: the function that draws it}, for all pictures that do not show a prompt."""
    of_rows = {"labels": draw_labels}
    if seen.rotates:
        of_rows |= {"logits_by_frequency": draw_split, "without_a_band": draw_without}
    return (of_rows if seen.rows is not None else {}) | {"norms": draw_layers, "heads": draw_heads}


def panels_for(n: int, sizes: Sizes, most: int = 3, **options: Any) -> tuple[Any, list[Any], float]:
    """A figure with n panels, at most `most` side by side; returns it, its axes and the width of a panel in inches."""
    n_columns = min(n, most)
    n_rows = -(-n // n_columns)
    width = sizes.widths[n_columns - 1]
    figure, grid = subplots(n_rows, n_columns, figsize=(width, sizes.height * n_rows), squeeze=False, **options)
    for axis in grid.flat[n:]:
        axis.set_visible(False)
    return figure, list(grid.flat[:n]), width / n_columns


def darkest(norms: Tensor) -> float:
    """The norm that gets the darkest colour, chosen so that a few far larger norms do not hide the others.

    It is the largest norm or, if this exceeds FAR times the (1 - BEYOND) quantile, that quantile.
    """
    known = norms[~norms.isnan()]
    largest, most = float(known.max()), float(known.quantile(1 - BEYOND))
    return most if most * FAR < largest else largest


def context_note(seen: Probe) -> str:
    """The note about the dashed line of a picture: below it, a pair turns less than once within the context."""
    if not seen.rotates:
        return ""
    windows = sorted({context for context in seen.contexts() if context < seen.train_length})
    window = f", or the {' or '.join(f'{n:,}' for n in windows)} that the layer sees" if windows else ""
    return f"Below the dashed line a pair turns less than once within {seen.train_length:,} tokens{window}."


def of_layer(seen: Probe, layer: int) -> tuple[list[Layout], list[int]]:
    """The layout of one layer's pairs, and the layer's context in tokens: two lists of one item, for `name_pairs`."""
    place = seen.layers.index(layer)
    return [seen.layouts[place]], [seen.contexts()[place]]


def draw_layers(seen: Probe, sizes: Sizes) -> Any:
    """Figures 3, 10 and 13 of arXiv:2410.06205: the mean norm, over heads and tokens, of every pair in every layer."""
    figure, axes, _ = panels_for(len(KINDS), sizes)
    for axis, kind in zip(axes, KINDS, strict=True):
        by_layer = [norm_HP.mean(0) for norm_HP in seen.norms.mean(kind, "norm")]
        norms_LP = stacked(by_layer, seen.layers)
        add_heat(axis, norms_LP.T.numpy(), "mean norm", vmin=0, vmax=darkest(norms_LP))
        axis.set(title=f"{kind} norms")
        number_columns(axis, len(norms_LP), "layer")
        n_pairs = max(len(norm_P) for norm_P in by_layer)
        if kind in ROTATED:
            pairs = [pair for pair, _ in seen.strongest_pairs(kind)]
            name_pairs(axis, n_pairs, seen.layouts, seen.contexts(), max(pairs, key=pairs.count))
        else:
            name_pairs(axis, n_pairs, [], [])
    note = f"{seen.n_texts:,} texts, {seen.n_tokens:,} tokens. {context_note(seen)}"
    finish(figure, sizes, f"{seen.name}: norms of 2-D chunks", note)
    return figure


def draw_heads(seen: Probe, sizes: Sizes) -> Any:
    """Figures 4 and 11 of arXiv:2410.06205: the mean norm of every pair in every head of three layers.

    These are the first, the middle and the last layer.
    """
    places = sorted({0, len(seen.layouts) // 2, len(seen.layouts) - 1})
    figure, axes, _ = panels_for(2 * len(places), sizes, most=len(places))
    panels = [(kind, place) for kind in ("query", "key") for place in places]
    for axis, (kind, place) in zip(axes, panels, strict=True):
        norms_HP, layer = seen.norms.mean(kind, "norm")[place], seen.layers[place]
        add_heat(axis, norms_HP.T.numpy(), "mean norm", vmin=0)
        axis.set(title=f"{seen.layer_name(layer)}, {kind} norms")
        number_columns(axis, len(norms_HP), "head" if kind == "query" else "key head")
        name_pairs(axis, norms_HP.shape[1], *of_layer(seen, layer), seen.strongest_pairs(kind)[place][0])
    finish(figure, sizes, f"{seen.name}: norms of 2-D chunks by head", context_note(seen))
    return figure


def draw_plane(seen: Probe, folder: Path, style: FigureStyle = SCREEN) -> list[Path]:
    """Draw each kind of layer as a point: the share of its pairs that rotate, and the wavelength of the slowest."""
    layers_at: dict[tuple[float, float, str], list[int]] = {}
    for place, (layer, layout) in enumerate(zip(seen.layers, seen.layouts, strict=True)):
        slowest = max((layout.wavelength(pair) for pair in range(layout.n_pairs)), key=lambda n: (n < math.inf, n))
        kind = seen.kinds[place] if seen.kinds else seen.name
        layers_at.setdefault((layout.n_rotated / layout.n_pairs, slowest, kind), []).append(layer)
    curves = []
    for number, ((share, slowest, kind), layers) in enumerate(layers_at.items()):
        what = f"{kind}: {runs_of(layers)}, " + (f"{slowest:,.0f} tokens" if share else "nothing rotates")
        curves.append(Curve(what, [share], [slowest if share else 2 * math.pi], points=True, style=number))
    panel = Panel(
        "share of pairs that rotate", "slowest wavelength (tokens)", curves, "y", x_ticks=SHARES,
        marks=[Mark("the training context", seen.train_length, seen.train_length, axis="y")],
    )  # fmt: skip
    return save_drawing(Drawing("plane", f"{seen.name}: its kinds of layers", [panel]), folder, style)


def draw_labels(seen: Probe, sizes: Sizes) -> Any:
    """Every head's label as a colour and a letter; the more weight at the label's place, the stronger the colour."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    labels = seen.labels()
    n_heads = max(len(heads) for heads in labels)
    picture = torch.ones(len(labels), n_heads, 3)
    for layer, heads in enumerate(labels):
        for head, (label, score) in enumerate(heads):
            colour = torch.tensor(to_rgb(PLACE_COLOURS[PLACES.index(label)]))
            picture[layer, head] = 1 - (0.2 + 0.5 * score) * (1 - colour)  # letters can be read on it
    letter = 0.6 * sizes.small / 72
    width = next((w for w in sizes.widths if n_heads * 9 * letter < w - 0.8), sizes.widths[-1])
    room = (width - 0.8) / n_heads / letter  # for letters in a cell
    height = 0.8 + len(labels) * (2.8 if room >= 4 else 1.6) * sizes.small / 72
    figure, axis = subplots(figsize=(width, height))
    axis.imshow(picture.numpy(), aspect="auto", interpolation="nearest")
    for layer, heads in enumerate(labels):
        for head, (label, score) in enumerate(heads):
            words = LETTERS[label] if room < 9 else label
            text = words if room < 4 else f"{words}\n{score:.2f}"
            axis.text(head, layer, text, ha="center", va="center", fontsize=sizes.small, linespacing=1, color=INK)
    number_columns(axis, n_heads, "head")
    axis.set(ylabel="layer", yticks=range(0, len(labels), 1 + len(labels) // 17))
    counts = Counter(label for heads in labels for label, _ in heads)
    there = [place for place in PLACES if counts[place]]
    names = [f"{LETTERS[p]}: " * (room < 9) + f"{p}, {counts[p]:,} head{'s' * (counts[p] > 1)}" for p in there]
    handles = [Patch(facecolor=PLACE_COLOURS[PLACES.index(place)]) for place in there]
    note = "The stronger the colour, the larger the share of its weight that goes there."
    title = f"{seen.name}: where each head's weight goes"
    finish(figure, sizes, title, note, dict(zip(names, handles, strict=True)))
    return figure


def draw_split(seen: Probe, sizes: Sizes) -> Any:
    """The mean contribution of every pair to the logit at every distance, for one head of each label."""
    assert seen.rows is not None
    heads, split, distances = standing_out(seen), seen.rows.split(), seen.rows.distances
    figure, axes, _ = panels_for(len(heads), sizes)
    for axis, (layer, head, label, _) in zip(axes, heads, strict=True):
        values_PD = split[seen.layers.index(layer)][head]
        reached = ~values_PD.isnan().any(0)
        most = float(values_PD[:, reached].abs().max())
        add_heat(axis, values_PD[:, reached].numpy(), "mean logit (nats)", colours=SIGNED, vmin=-most, vmax=most)
        shown = [d for d, there in zip(distances, reached.tolist(), strict=True) if there]
        ticks = range(0, len(shown), -(-len(shown) // TICKS))
        axis.set(xticks=list(ticks), xticklabels=[f"{shown[i]:,}" for i in ticks], xlabel="distance (tokens)")
        axis.set_title(f"{seen.layer_name(layer)}, head {head}: {label}")
        name_pairs(axis, len(values_PD), *of_layer(seen, layer), int(values_PD[:, reached].abs().amax(1).argmax()))
    finish(figure, sizes, f"{seen.name}: what each frequency adds to the logit", context_note(seen))
    return figure


def draw_without(seen: Probe, sizes: Sizes) -> Any:
    """Where a head's weight goes when a quarter of its pairs is left out of its logits."""
    from matplotlib.patches import Patch

    assert seen.rows is not None
    heads, places = standing_out(seen), {band: seen.rows.places(band) for band in BANDS}
    figure, axes, _ = panels_for(len(heads), sizes, sharey=True)
    for axis, (layer, head, label, _) in zip(axes, heads, strict=True):
        shares_B7 = torch.stack([places[band][seen.layers.index(layer)][head] for band in BANDS])
        below = torch.zeros(len(BANDS))
        for number, (colour, hatch) in enumerate(zip(PLACE_COLOURS, HATCHES, strict=True)):
            drawn = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3, "width": 0.8}
            axis.bar(range(len(BANDS)), shares_B7[:, number].numpy(), bottom=below.numpy(), **drawn)
            below = below + shares_B7[:, number].float()
        axis.set_xticks(range(len(BANDS)), ["none", *BANDS[1:]], rotation=40, ha="right", rotation_mode="anchor")
        axis.set(xlabel="pairs left out", ylabel="share of weight", ylim=(0, 1))
        axis.label_outer(remove_inner_ticks=True)
        axis.set_title(f"{seen.layer_name(layer)}, head {head}: {label}")
        axis.spines[["top", "right"]].set_visible(False)
    looks = zip(PLACES, PLACE_COLOURS, HATCHES, strict=True)
    legend = {place: Patch(facecolor=colour, hatch=hatch, edgecolor="white") for place, colour, hatch in looks}
    finish(figure, sizes, f"{seen.name}: heads without a quarter of their pairs", handles=legend)
    return figure


def draw_prompt(prompt: PromptRecord, seen: Probe, folder: Path, sizes: Sizes) -> list[Path]:
    """Figures 5 to 7 and 12 to 18 of arXiv:2410.06205, for one head of each label.

    They show the norms of the 2-D chunks of each token, the attention weights and the logits.
    """
    n, heads = len(prompt.words), standing_out(seen)
    figure, axes, width = panels_for(4 * len(heads), sizes, most=2)
    side = n * 1.35 * sizes.small / 72  # inches that a panel needs to label every word
    if sizes.titled:
        width = max(width, side + 1.1)
    figure.set_size_inches(2 * width, 2 * len(heads) * max(sizes.height, width - 0.3))
    told = range(0, n, max(1, math.ceil(side / (width - 1.1))))  # a paper's column has no room for all words
    words = [prompt.words[i].strip() or repr(prompt.words[i])[1:-1].strip() or "_" for i in told]  # not a blank
    for number, (layer, head, label, _) in enumerate(heads):
        row = axes[4 * number : 4 * number + 4]
        record = prompt.layers[layer]
        key_head = head * len(record.key_norms) // len(record.query_norms)
        add_heat(row[0], record.query_norms[head].T.numpy(), "query norm", vmin=0)
        add_heat(row[1], record.key_norms[key_head].T.numpy(), "key norm", vmin=0)
        add_heat(row[2], record.weights[head].numpy(), "weight", vmin=0, vmax=1)
        most = float(record.logits[head].nan_to_num().abs().max()) or 1.0
        add_heat(row[3], record.logits[head].numpy(), "logit (nats)", colours=SIGNED, vmin=-most, vmax=most)
        for axis, what in zip(row, ("query norms", "key norms", "weights", "logits"), strict=True):
            axis.set_xticks(told, words, rotation=90)
            axis.set_title(f"{seen.layer_name(layer)}, head {head} ({label}): {what}", loc="left")
            axis.set_xlabel("token")
        for axis, norms_TP in ((row[0], record.query_norms[head]), (row[1], record.key_norms[key_head])):
            name_pairs(axis, norms_TP.shape[1], *of_layer(seen, layer), int(norms_TP.square().sum(0).argmax()))
        for axis in row[2:]:
            axis.set_yticks(told, words)
            axis.set(xlabel="key", ylabel="query")
    finish(figure, sizes, f"{seen.name}: one prompt, token by token", context_note(seen))
    return save(figure, folder, "prompt")


# -- the axis of channel pairs


def name_pairs(
    axis: Any, n_pairs: int, layouts: Sequence[Layout], contexts: Sequence[int], strongest: int | None = None
) -> None:
    """Label the vertical axis with pairs and their wavelengths; below a dashed line, wavelengths exceed the context.

    layouts: the layout of the pairs in each column. contexts: the context in tokens for each column. Both lists have
    only one item if all columns are alike, and no item if RoPE is not applied to the vectors. If the columns have two
    kinds of layout, a label has the wavelengths of both. strongest: a pair that always gets a label.
    """
    ticks = {0, n_pairs - 1, *range(0, n_pairs, max(1, n_pairs // 4))}
    if strongest is not None:
        ticks = {tick for tick in ticks if abs(tick - strongest) >= n_pairs / 16} | {strongest}
    kinds: list[list[int]] = []  # the columns by equal rotations, without the columns that do not rotate
    for column, layout in enumerate(layouts):
        alike = [columns for columns in kinds if same(layouts[columns[0]], layout)]
        if alike:
            alike[0].append(column)
        elif layout.n_rotated:
            kinds.append([column])
    kinds.sort(key=len, reverse=True)
    if not 1 <= len(kinds) <= KINDS_NAMED:
        axis.set(yticks=sorted(ticks), ylabel="pair")
    else:
        first = [layouts[columns[0]] for columns in kinds]
        names = [  # `-` if the heads of a layout are too small to have the pair
            f"{tick}: " + " | ".join(shown_wavelength(kind, tick) if tick < kind.n_pairs else "-" for kind in first)
            for tick in sorted(ticks)
        ]
        axis.set_yticks(sorted(ticks), names)
        others = ""
        for columns in kinds[1:]:  # `layers 5, 11, 17`, the first few of them
            more = ", ..." if len(columns) > LAYERS_NAMED else ""
            others += f" | layers {', '.join(map(str, columns[:LAYERS_NAMED]))}{more}"
        axis.set_ylabel(f"pair: wavelength (tokens){others}")
    left, right = axis.get_xlim()
    for column, (layout, context) in enumerate(zip(layouts, contexts, strict=True)):
        ends = (left, right) if len(layouts) == 1 else (column - 0.5, column + 0.5)
        longer = [layout.wavelength(pair) > context for pair in range(layout.n_pairs)]
        for pair in range(1, layout.n_pairs):
            if longer[pair] != longer[pair - 1]:
                axis.plot(ends, (pair - 0.5,) * 2, color="black", linestyle="--", linewidth=0.8)
    axis.set_xlim(left, right)
