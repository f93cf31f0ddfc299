"""The pictures of a probe, in the layout of arXiv:2410.06205: frequencies downwards from the fastest.

Shapes: L layers, H heads, T tokens, P pairs, D distances.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundround.loading.patterns import runs_of
from roundround.probing.layout import KINDS, Layout, same, stacked
from roundround.probing.probe import Probe
from roundround.probing.prompt import PromptRecord
from roundround.probing.rows import BANDS, PLACES
from roundround.report.figures import (
    PLACE_COLOURS,
    number_columns,
    save,
    save_drawing,
    set_title,
    subplots,
)
from roundround.report.probe_tables import ROTATED, shown_wavelength, standing_out
from roundround.support.panels import Curve, Drawing, Mark, Panel

HEAT = "YlGnBu"
SIGNED = "cividis_r"  # light below 0 and dark above, in grey too
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "")  # of the places, so that they can be told apart in grey
HEADS_DRAWN = 1  # of each label, token by token
SHARES_WRITTEN = 20  # heads in a row, up to which their shares fit into the picture
FEW, FAR = 0.01, 3.0  # of the norms may lie beyond the darkest colour, where they are this many times larger
TICKS = 6  # distances along an axis
KINDS_NAMED = 2  # layouts whose wavelengths fit side by side
LAYERS_NAMED = 4


def draw_all(seen: Probe, prompt: PromptRecord, folder: Path) -> list[Path]:
    """Every picture of a probe; returns the paths."""
    paths = draw_plane(seen, folder)
    for name, draw in pictures(seen).items():
        paths += save(draw(seen), folder, name)
    return paths + (draw_prompt(prompt, heads_drawn(seen), seen, folder) if seen.rows is not None else [])


def pictures(seen: Probe) -> dict[str, Callable[[Probe], Any]]:
    """What draws each picture that a probe has without a prompt, by name."""
    of_rows = {"labels": draw_labels, "logits_by_frequency": draw_split, "without_a_band": draw_without}
    return (of_rows if seen.rows is not None else {}) | {"norms": draw_layers, "heads": draw_heads}


def heads_drawn(seen: Probe) -> list[tuple[int, int, str]]:
    """Layer, head and label of those that are drawn one by one."""
    return [(layer, head, label) for layer, head, label, _ in standing_out(seen, HEADS_DRAWN)]


def heat_map(figure: Any, axis: Any, values: Tensor, *, label: str, **options: Any) -> None:
    """A heat map with its colour bar; rows downwards."""
    image = axis.imshow(values.numpy(), aspect="auto", interpolation="nearest", **{"cmap": HEAT, **options})
    beyond = "max" if "vmax" in options and bool((values > options["vmax"]).any()) else "neither"
    figure.colorbar(image, ax=axis, label=label, fraction=0.05, extend=beyond)


def darkest(norms: Tensor) -> float:
    """The norm from which on all are drawn alike, so that a few pairs far above all others do not hide them.

    The largest, if FEW of them are not more than FAR times below it.
    """
    known = norms[~norms.isnan()]
    largest, most = float(known.max()), float(known.quantile(1 - FEW))
    return most if most * FAR < largest else largest


def context_note(seen: Probe) -> str:
    windows = sorted({context for context in seen.contexts() if context < seen.train_length})
    window = f", or the {' or '.join(f'{n:,}' for n in windows)} that the layer sees" if windows else ""
    return f"below the dashed line a pair turns less than once within {seen.train_length:,} tokens{window}"


def of_layer(seen: Probe, layer: int) -> tuple[list[Layout], list[int]]:
    """The pairs of one layer and the tokens that it sees."""
    return [seen.layouts[layer]], [seen.contexts()[layer]]


def name_places(figure: Any, counts: Mapping[str, int] | None = None, *, hatched: bool = False) -> None:
    """The legend of the places that weight goes to, with the number of heads of each label."""
    from matplotlib.patches import Patch

    names = [place if counts is None else f"{place}: {counts.get(place, 0):,} heads" for place in PLACES]
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name)
        for colour, hatch, name in zip(PLACE_COLOURS, HATCHES if hatched else ("",) * len(names), names, strict=True)
    ]
    figure.legend(handles=handles, frameon=False, loc="outside right center", fontsize="small")


def draw_layers(seen: Probe) -> Any:
    """Figures 3, 10 and 13: mean norm of every pair in every layer, over heads and tokens."""
    figure, axes = subplots(1, 3, figsize=(14, 4.2))
    for axis, kind in zip(axes, KINDS, strict=True):
        by_layer = [norm_HP.mean(0) for norm_HP in seen.norms.mean(kind, "norm")]
        heat_map(figure, axis, stacked(by_layer).T, label="mean norm", vmin=0, vmax=darkest(stacked(by_layer)))
        axis.set(title=f"{kind} norms")
        number_columns(axis, len(by_layer), "layer")
        n_pairs = max(len(norm_P) for norm_P in by_layer)
        if kind in ROTATED:
            pairs = [pair for pair, _ in seen.strongest_pairs(kind)]
            name_pairs(axis, n_pairs, seen.layouts, seen.contexts(), max(pairs, key=pairs.count))
        else:
            name_pairs(axis, n_pairs, [], [])
    read = f"{seen.n_texts:,} texts, {seen.n_tokens:,} tokens"
    set_title(figure, f"{seen.name}: norms of 2-D chunks, {read}; {context_note(seen)}")
    return figure


def draw_heads(seen: Probe) -> Any:
    """Figures 4 and 11: mean norm of every pair in every head of the first, the middle and the last layer."""
    layers = sorted({0, len(seen.layouts) // 2, len(seen.layouts) - 1})
    figure, axes = subplots(2, len(layers), figsize=(4.4 * len(layers), 7), squeeze=False)
    for row, kind in enumerate(("query", "key")):
        norms = seen.norms.mean(kind, "norm")
        for axis, layer in zip(axes[row], layers, strict=True):
            heat_map(figure, axis, norms[layer].T, label="mean norm", vmin=0)
            axis.set(title=f"{seen.layer_name(layer)}, {kind} norms")
            number_columns(axis, len(norms[layer]), "head" if kind == "query" else "key head")
            strongest = seen.strongest_pairs(kind)[layer][0]
            name_pairs(axis, norms[layer].shape[1], *of_layer(seen, layer), strongest)
    set_title(figure, f"{seen.name}: norms of 2-D chunks by head; {context_note(seen)}")
    return figure


def draw_plane(seen: Probe, folder: Path) -> list[Path]:
    """Each kind of layer as a point: how many of its pairs rotate, and how slow the slowest of them is."""
    layers_at: dict[tuple[float, float, str], list[int]] = {}
    for layer, layout in enumerate(seen.layouts):
        slowest = max((layout.wavelength(pair) for pair in range(layout.n_pairs)), key=lambda n: (n < math.inf, n))
        kind = seen.kinds[layer] if seen.kinds else seen.name
        layers_at.setdefault((layout.n_rotated / layout.n_pairs, slowest, kind), []).append(layer)
    curves = []
    for number, ((share, slowest, kind), layers) in enumerate(layers_at.items()):
        what = f"{kind}: {runs_of(layers)}, " + (f"{slowest:,.0f} tokens" if share else "nothing rotates")
        curves.append(Curve(what, [share], [slowest if share else 2 * math.pi], points=True, style=number))
    context = Mark("the training context", seen.train_length, seen.train_length, axis="y")
    panel = Panel("share of pairs that rotate", "slowest wavelength (tokens)", curves, "y", marks=[context])
    title = f"{seen.name}: its kinds of layers on the plane of rotary ladders"
    return save_drawing(Drawing("plane", title, [panel]), folder)


def draw_labels(seen: Probe) -> Any:
    """Every head's label as a colour, the stronger the larger the share of its weight there."""
    from matplotlib.colors import to_rgb

    labels = seen.labels()
    n_heads = max(len(heads) for heads in labels)
    picture = torch.ones(len(labels), n_heads, 3)
    for layer, heads in enumerate(labels):
        for head, (label, score) in enumerate(heads):
            colour = torch.tensor(to_rgb(PLACE_COLOURS[PLACES.index(label)]))
            picture[layer, head] = 1 - (0.3 + 0.7 * score) * (1 - colour)
    figure, axis = subplots(figsize=(min(12, 4 + 0.45 * n_heads), min(12, max(2.6, 1.6 + 0.3 * len(labels)))))
    axis.imshow(picture.clamp(0, 1).numpy(), aspect="auto", interpolation="nearest")
    for layer, heads in enumerate(labels if n_heads <= SHARES_WRITTEN else []):
        for head, (label, score) in enumerate(heads):
            axis.text(head, layer, f"{label}\n{score:.2f}", ha="center", va="center", fontsize=5, linespacing=0.9)
    number_columns(axis, n_heads, "head")
    axis.set(ylabel="layer", yticks=range(0, len(labels), 1 + len(labels) // 17))
    set_title(figure, f"{seen.name}: where each head's weight goes, and the share that goes there")
    name_places(figure, Counter(label for heads in labels for label, _ in heads))
    return figure


def draw_split(seen: Probe) -> Any:
    """What every pair adds to the logit at every distance, on average, for one head of each label."""
    assert seen.rows is not None
    heads, split, distances = heads_drawn(seen), seen.rows.split(), seen.rows.distances
    figure, axes = subplots(1, len(heads), figsize=(max(6, 4.2 * len(heads)), 4), squeeze=False)
    for axis, (layer, head, label) in zip(axes[0], heads, strict=True):
        values_PD = split[layer][head]
        reached = ~values_PD.isnan().any(0)
        most = float(values_PD[:, reached].abs().max())
        heat_map(figure, axis, values_PD[:, reached], label="mean logit (nats)", cmap=SIGNED, vmin=-most, vmax=most)
        shown = [d for d, there in zip(distances, reached.tolist(), strict=True) if there]
        ticks = range(0, len(shown), -(-len(shown) // TICKS))
        axis.set(xticks=list(ticks), xticklabels=[str(shown[i]) for i in ticks], xlabel="distance (tokens)")
        axis.set_title(f"{seen.layer_name(layer)}, head {head}: {label}", fontsize="medium")
        strongest = int(values_PD[:, reached].abs().amax(1).argmax())
        name_pairs(axis, len(values_PD), *of_layer(seen, layer), strongest)
    set_title(figure, f"{seen.name}: what each frequency adds to the logit; {context_note(seen)}")
    return figure


def draw_without(seen: Probe) -> Any:
    """What is left of a head's pattern when a quarter of its pairs is taken out of its logits."""
    assert seen.rows is not None
    heads, places = heads_drawn(seen), {band: seen.rows.places(band) for band in BANDS}
    figure, axes = subplots(1, len(heads), figsize=(1.6 + max(4, 3.1 * len(heads)), 3.6), squeeze=False, sharey=True)
    for axis, (layer, head, label) in zip(axes[0], heads, strict=True):
        shares_B7 = torch.stack([places[band][layer][head] for band in BANDS])
        below = torch.zeros(len(BANDS))
        for number, (colour, hatch) in enumerate(zip(PLACE_COLOURS, HATCHES, strict=True)):
            drawn = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3, "width": 0.8}
            axis.bar(range(len(BANDS)), shares_B7[:, number].numpy(), bottom=below.numpy(), **drawn)
            below = below + shares_B7[:, number].float()
        axis.set_xticks(range(len(BANDS)), ["all", *BANDS[1:]], rotation=40, ha="right", fontsize="small")
        axis.set_title(f"{seen.layer_name(layer)}, head {head}: {label}", fontsize="medium")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("share of weight")
    name_places(figure, hatched=True)
    set_title(figure, f"{seen.name}: the same heads without a quarter of their pairs")
    return figure


def draw_prompt(prompt: PromptRecord, heads: Sequence[tuple[int, int, str]], seen: Probe, folder: Path) -> list[Path]:
    """Figures 5 to 7 and 12 to 18: chunk norms of each token, weights and logits of one head of each label."""
    n = len(prompt.words)
    figure, axes = subplots(len(heads), 4, figsize=(max(18, 4 + 0.62 * n), 3.6 * len(heads)), squeeze=False)
    words = [word.strip() or repr(word)[1:-1].strip() or "_" for word in prompt.words]  # a space would not be seen
    for row, (layer, head, label) in zip(axes, heads, strict=True):
        record = prompt.layers[layer]
        key_head = head * len(record.key_norms) // len(record.query_norms)
        heat_map(figure, row[0], record.query_norms[head].T, label="query norm", vmin=0)
        heat_map(figure, row[1], record.key_norms[key_head].T, label="key norm", vmin=0)
        heat_map(figure, row[2], record.weights[head], label="weight", vmin=0, vmax=1)
        most = float(record.logits[head].nan_to_num().abs().max()) or 1.0
        heat_map(figure, row[3], record.logits[head], label="logit", cmap=SIGNED, vmin=-most, vmax=most)
        for axis, what in zip(row, ("query norms", "key norms", "weights", "logits"), strict=True):
            axis.set_xticks(range(n), words, rotation=90, fontsize=7)
            axis.set_title(f"{seen.layer_name(layer)}, head {head} ({label}): {what}", fontsize="medium", loc="left")
        for axis, norms_TP in ((row[0], record.query_norms[head]), (row[1], record.key_norms[key_head])):
            strongest = int(norms_TP.square().sum(0).argmax())
            name_pairs(axis, norms_TP.shape[1], *of_layer(seen, layer), strongest)
        for axis in row[2:]:
            axis.set_yticks(range(n), words, fontsize=7)
            axis.set(xlabel="key", ylabel="query")
    set_title(figure, f"{seen.name}: one prompt, token by token; {context_note(seen)}")
    return save(figure, folder, "prompt")


# -- the axis of channel pairs


def name_pairs(
    axis: Any, n_pairs: int, layouts: Sequence[Layout], contexts: Sequence[int], strongest: int | None = None
) -> None:
    """Pairs down the axis with their wavelengths, the strongest among them; dashed where the context ends.

    layouts, contexts: the pairs of each column and the tokens that it sees, or one of both for all; none for vectors to
    which RoPE is not applied. Where columns differ, the wavelengths of both kinds stand side by side.
    """
    ticks = {0, n_pairs - 1, *range(0, n_pairs, max(1, n_pairs // 4))}
    if strongest is not None:
        ticks = {tick for tick in ticks if abs(tick - strongest) >= n_pairs / 16} | {strongest}
    kinds = kinds_of(layouts)
    if not 1 <= len(kinds) <= KINDS_NAMED:
        axis.set(yticks=sorted(ticks), ylabel="pair")
    else:
        names = [
            f"{tick}: " + " | ".join(wavelength_if_any(layouts[columns[0]], tick) for columns in kinds)
            for tick in sorted(ticks)
        ]
        axis.set_yticks(sorted(ticks), names, fontsize="small")
        others = "".join(f" | {in_layers(columns)}" for columns in kinds[1:])
        axis.set_ylabel(f"pair: wavelength (tokens){others}")
    draw_context(axis, layouts, contexts)


def wavelength_if_any(layout: Layout, pair: int) -> str:
    """Tokens; `-` where the heads of this layout are too small to have the pair."""
    return shown_wavelength(layout, pair) if pair < layout.n_pairs else "-"


def kinds_of(layouts: Sequence[Layout]) -> list[list[int]]:
    """The columns whose pairs rotate alike, those of the most frequent layout first; without those that do not."""
    kinds: list[list[int]] = []
    for column, layout in enumerate(layouts):
        alike = [columns for columns in kinds if same(layouts[columns[0]], layout)]
        if alike:
            alike[0].append(column)
        elif layout.n_rotated:
            kinds.append([column])
    return sorted(kinds, key=len, reverse=True)


def in_layers(columns: Sequence[int]) -> str:
    """`layers 5, 11, 17`, the first few of them."""
    more = ", ..." if len(columns) > LAYERS_NAMED else ""
    return f"layers {', '.join(map(str, columns[:LAYERS_NAMED]))}{more}"


def draw_context(axis: Any, layouts: Sequence[Layout], contexts: Sequence[int]) -> None:
    """A dashed line below the slowest pair that turns at least once within the context, in every column."""
    left, right = axis.get_xlim()
    for column, (layout, context) in enumerate(zip(layouts, contexts, strict=True)):
        ends = (left, right) if len(layouts) == 1 else (column - 0.5, column + 0.5)
        longer = [layout.wavelength(pair) > context for pair in range(layout.n_pairs)]
        for pair in range(1, layout.n_pairs):
            if longer[pair] != longer[pair - 1]:
                axis.plot(ends, (pair - 0.5,) * 2, color="black", linestyle="--", linewidth=0.8)
    axis.set_xlim(left, right)
