"""The results of a probe and of its ablations as records and tables; figures are in `probe_figures.py`.

Shapes: L layers, H heads, P pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from torch import Tensor

from roundround.model.scoring import PositionLoss
from roundround.probing.ablation import FEW, FEWEST, Band, bins, mark, n_targets
from roundround.probing.layout import KINDS, Layout
from roundround.probing.probe import Probe
from roundround.probing.prompt import PromptRecord
from roundround.probing.rows import PLACES
from roundround.report.drawing.numbers import fixed
from roundround.support.console import print_table
from roundround.support.files import write_json

HEADS_SHOWN = 3  # of each label
ROTATED = ("query", "key")  # kinds of vectors to which RoPE is applied


def shares(seen: Probe) -> dict[str, float]:
    """Share of the squared norm in the slowest quarter of the pairs, over all layers; 0.25 is uniform."""
    return {f"{kind}_share_of_slowest_quarter": float(seen.norms.share_of_slowest(kind).mean()) for kind in KINDS}


def records(seen: Probe) -> list[dict[str, Any]]:
    """One record for each layer's shares, each head's label, place, entropy, largest weight and logit spread."""
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        for first_token in (True, False):
            values = seen.norms.share_of_slowest(kind, first_token=first_token).tolist()
            where = {"kind": kind, "first_token": first_token}
            found += [
                {"metric": "share_of_slowest_quarter", **where, "layer": layer, "value": value}
                for layer, value in zip(seen.layers, values, strict=True)
            ]
    for kind in ROTATED:
        for layer, layout, (pair, share) in zip(seen.layers, seen.layouts, seen.strongest_pairs(kind), strict=True):
            measured = {"share": share, "wavelength": layout.wavelength(pair)}
            found += [
                {"metric": f"{name}_of_strongest_pair", "kind": kind, "layer": layer, "pair": pair, "value": value}
                for name, value in measured.items()
            ]
    if seen.rows is not None:
        for name in ("largest_weight", "logit_spread", *(() if seen.entropies else ("entropy",))):
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


def by_head(metric: str, numbers: Sequence[int], layers: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Each head's value in the layers with these numbers."""
    return [
        {"metric": metric, "layer": layer, "head": head, "value": value}
        for layer, values_H in zip(numbers, layers, strict=True)
        for head, value in enumerate(values_H.tolist())
    ]


def by_place(numbers: Sequence[int], layers: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Each head's shares [H, 7] of its weight, place by place."""
    return [
        record
        for column, place in enumerate(PLACES)
        for record in by_head(f"share_on_{place}", numbers, [places_H7[:, column] for places_H7 in layers])
    ]


def standing_out(seen: Probe, n: int = HEADS_SHOWN) -> list[tuple[int, int, str, float]]:
    """(layer, head, label, score) of the `n` heads with the highest score of each label, in the order of PLACES."""
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
    """The tables on standard error."""
    print_table(share_table(seen), pair_table(seen))
    if seen.rows is not None:
        labels = [label for heads in seen.labels() for label, _ in heads]
        print_table(head_table(seen), "heads: " + ", ".join(f"{labels.count(place)} {place}" for place in PLACES))


def share_table(seen: Probe) -> Table:
    """Share of squared norm in the slowest quarter of the pairs, by layer, with and without the first token."""
    title = f"{seen.name}: share of squared norm in the slowest quarter"
    table = Table("layer", *KINDS, "rotated pairs", title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    with_first = {kind: seen.norms.share_of_slowest(kind).tolist() for kind in KINDS}
    without = {kind: seen.norms.share_of_slowest(kind, first_token=False).tolist() for kind in KINDS}
    for place, (layer, layout) in enumerate(zip(seen.layers, seen.layouts, strict=True)):
        cells = [f"{with_first[kind][place]:.2f} ({without[kind][place]:.2f})" for kind in KINDS]
        name = " ".join([str(layer), *seen.kinds[place : place + 1]])
        table.add_row(name, *cells, f"{layout.n_rotated}/{layout.n_pairs} {layout.pairing}")
    table.caption = "uniform is 0.25; in brackets without the first token of each text"
    return table


def pair_table(seen: Probe) -> Table:
    """The strongest pair of each layer's queries and keys, and how far it turns within the training context."""
    title = f"{seen.name}: strongest pair; training context {seen.train_length:,} tokens"
    columns = ("layer", *(f"{kind}: pair, wavelength, share" for kind in ROTATED))
    table = Table(*columns, title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    strongest = {kind: seen.strongest_pairs(kind) for kind in ROTATED}
    for place, (layer, layout) in enumerate(zip(seen.layers, seen.layouts, strict=True)):
        found = [strongest[kind][place] for kind in ROTATED]
        cells = [f"{pair:3d}  {shown_wavelength(layout, pair):>10}  {share:.2f}" for pair, share in found]
        table.add_row(str(layer), *cells)
    table.caption = "wavelength: tokens until the pair has turned once; share of the squared norm"
    return table


def shown_wavelength(layout: Layout, pair: int) -> str:
    """Tokens, or that the pair does not rotate."""
    return f"{layout.wavelength(pair):,.0f}" if layout.frequencies_P[pair] > 0 else "still"


def head_table(seen: Probe) -> Table:
    """The heads that stand out: where their weight goes, with and without a band, and which pair is strongest."""
    assert seen.rows is not None
    columns = ("label", "head", "share", "-slow", "-fast", "pair", "wave", "norm", "entropy", "top", "spread")
    table = Table(*columns, title="heads that stand out", box=None, padding=(0, 1, 0, 0))
    table.caption = (
        "head: layer.head; share: of the weight at the label's place; -slow, -fast: "
        "without the slowest or fastest quarter of the pairs; pair: with the largest "
        f"query norm; wave: its wavelength in tokens (training context {seen.train_length:,}); "
        "entropy in nats; top: largest weight; spread: of the logits"
    )
    query_norms, offsets = seen.norms.mean("query", "norm"), seen.rows.offsets()
    entropies = seen.entropies or seen.rows.per_row("entropy")
    weights, spreads = seen.rows.per_row("largest_weight"), seen.rows.per_row("logit_spread")
    for layer, head, label, score in standing_out(seen):
        place = seen.layers.index(layer)
        pair = int(query_norms[place][head].argmax())
        numbers = [
            score,
            *(float(seen.rows.share_at(label, band)[place][head]) for band in ("slowest", "fastest")),
        ]
        table.add_row(
            f"{label} {int(offsets[place][head])}" if label == "offset" else label,
            f"{layer}.{head}",
            *(f"{number:.2f}" for number in numbers),
            str(pair),
            shown_wavelength(seen.layouts[place], pair),
            f"{float(query_norms[place][head, pair]):.1f}",
            f"{float(entropies[place][head]):.2f}",
            f"{float(weights[place][head]):.2f}",
            f"{float(spreads[place][head]):.1f}",
        )
    return table


def write_alignment(prompt: PromptRecord, seen: Probe, path: Path) -> None:
    """Tables 3 to 5 of arXiv:2410.06205 for the heads that stand out at one place: `alignment.json`."""
    if seen.rows is None:
        return
    heads = [(layer, head, label) for layer, head, label, _ in standing_out(seen) if label in ("diagonal", "previous")]
    tables = [
        {"layer": layer, "head": head, "label": label, "tokens": prompt.words, **prompt.alignment(layer, head)}
        for layer, head, label in heads
    ]
    write_json(path, tables)


# -- a question about the maximum


def show_maximum(numbers: Sequence[int], entropies: Mapping[int, Sequence[Tensor]]) -> None:
    shown = spread(len(numbers))
    columns = ("listed", *(f"layer {numbers[place]}" for place in shown))
    table = Table(*columns, title="entropy of the last row, nats", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for n, layers in entropies.items():
        cells = [f"{float(layers[place].min()):.2f}-{float(layers[place].max()):.2f}" for place in shown]
        table.add_row(f"{n:,}", *cells)
    print_table(table)


def spread(n_layers: int) -> list[int]:
    """The places of at most six layers, spread over all."""
    return sorted({round(i * (n_layers - 1) / 5) for i in range(6)})


# -- what changes when frequencies are set to zero


def records_of_loss(loss: PositionLoss, **common: Any) -> list[dict[str, Any]]:
    """Perplexity of all targets, and by the number of tokens before them."""
    found = [{"metric": "perplexity", **common, "targets": n_targets(loss), "value": loss.perplexity()}]
    for first, last in bins(loss):
        where = {"first_position": first, "last_position": last - 1, "targets": n_targets(loss, first, last)}
        found.append({"metric": "perplexity", **common, **where, "value": loss.perplexity(first, last)})
    return found


def records_of_change(seen: Probe, changed: Probe, name: str) -> list[dict[str, Any]]:
    """Every head's label and the share of its weight there, before and after."""
    assert seen.rows is not None
    assert changed.rows is not None
    each = (("none", seen.rows.places()), (name, changed.rows.places()))
    return [{**record, "ablate": ablate} for ablate, layers in each for record in by_place(seen.layers, layers)]


def show_ablation(before: PositionLoss, after: PositionLoss, probed: str, bands: str) -> None:
    """Perplexity before and after, by context length."""
    title = f"{probed}: frequencies set to zero"
    table = Table("tokens before the target", "targets", "perplexity", f"without {bands}", title=title)
    for name, where in ranges(before):
        values = (f"{fixed(loss.perplexity(*where), 3)}{mark(loss, *where)}" for loss in (before, after))
        table.add_row(name, f"{n_targets(before, *where):,}", *values)
    table.caption = caption(before)
    print_table(table)


def ranges(loss: PositionLoss) -> list[tuple[str, tuple[int, int | None]]]:
    """All targets, and each range of the number of tokens before them, with its name."""
    return [*((f"{a:,}-{b - 1:,}", (a, b)) for a, b in bins(loss)), ("all", (0, None))]


def caption(loss: PositionLoss) -> str | None:
    return f"{FEW} fewer than {FEWEST} targets" if mark(loss) else None


def show_change(seen: Probe, changed: Probe) -> None:
    """The heads whose pattern changed most."""
    assert seen.rows is not None
    assert changed.rows is not None
    heads = Table("layer", "head", "before", "after", title="heads whose pattern changes most")
    pairs = zip(seen.layers, seen.rows.places(), changed.rows.places(), strict=True)
    moved = [
        (float((after_7 - before_7).abs().sum()) / 2, layer, head, before_7, after_7)
        for layer, before_H7, after_H7 in pairs
        for head, (before_7, after_7) in enumerate(zip(before_H7, after_H7, strict=True))
    ]
    for _, layer, head, before_7, after_7 in sorted(moved, key=lambda m: -m[0])[:8]:
        heads.add_row(str(layer), str(head), in_words(before_7), in_words(after_7))
    print_table(heads)


def in_words(shares_7: Tensor) -> str:
    """`previous 0.64, sink 0.20`: the two largest shares."""
    order = shares_7.argsort(descending=True)[:2].tolist()
    return ", ".join(f"{PLACES[i]} {float(shares_7[i]):.2f}" for i in order)


def records_of_curve(
    before: PositionLoss, bands: Sequence[Band], losses: Sequence[PositionLoss], common: dict[str, Any]
) -> list[dict[str, Any]]:
    found = records_of_loss(before, **common, ablate="none", kept=1.0)
    for band, loss in zip(bands, losses, strict=True):
        found += records_of_loss(loss, **common, ablate=str(band), end=band.end, kept=1 - band.fraction)
    return found


def show_curve(before: PositionLoss, bands: Sequence[Band], losses: Sequence[PositionLoss]) -> None:
    *bins, (_, everything) = ranges(before)
    columns = [("all", everything), *bins]
    title = "perplexity, by the number of tokens before the target"
    table = Table("frequencies set to zero", *(name for name, _ in columns), title=title, caption=caption(before))
    table.add_row("targets", *(f"{n_targets(before, *where):,}" for _, where in columns), end_section=True)
    for name, loss in [("none", before), *((str(band), loss) for band, loss in zip(bands, losses, strict=True))]:
        table.add_row(name, *(f"{fixed(loss.perplexity(*where), 3)}{mark(loss, *where)}" for _, where in columns))
    print_table(table)
