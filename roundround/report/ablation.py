"""What changes when frequencies are set to zero: records and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from torch import Tensor

from roundround.model.scoring import PositionLoss
from roundround.probing.ablation import FEW, FEWEST, Band, context_bins, mark, n_targets
from roundround.probing.probe import Probe
from roundround.probing.rows import PLACES
from roundround.report.numbers import fixed
from roundround.report.probe_tables import by_head
from roundround.support.console import print_table


def records_of_loss(loss: PositionLoss, **common: Any) -> list[dict[str, Any]]:
    """Perplexity of all targets, and by the number of tokens before them."""
    found = [{"metric": "perplexity", **common, "targets": n_targets(loss), "value": loss.perplexity()}]
    for first, last in context_bins(loss):
        where = {"first_position": first, "last_position": last - 1, "targets": n_targets(loss, first, last)}
        found.append({"metric": "perplexity", **common, **where, "value": loss.perplexity(first, last)})
    return found


def records_of_ablation(
    before: PositionLoss, after: PositionLoss, name: str, common: dict[str, Any]
) -> list[dict[str, Any]]:
    return records_of_loss(before, **common, ablate="none") + records_of_loss(after, **common, ablate=name)


def records_of_change(seen: Probe, changed: Probe, name: str) -> list[dict[str, Any]]:
    """Every head's label and the share of its weight there, before and after."""
    found = []
    for ablate, probe in (("none", seen), (name, changed)):
        assert probe.rows is not None
        for number, place in enumerate(PLACES):
            shares_of = [places_H7[:, number] for places_H7 in probe.rows.places()]
            found += [{**record, "ablate": ablate} for record in by_head(f"share_on_{place}", shares_of)]
    return found


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
    return [*((f"{a:,}-{b - 1:,}", (a, b)) for a, b in context_bins(loss)), ("all", (0, None))]


def caption(loss: PositionLoss) -> str | None:
    return f"{FEW} fewer than {FEWEST} targets" if mark(loss) else None


def show_change(seen: Probe, changed: Probe) -> None:
    """The heads whose pattern changed most."""
    assert seen.rows is not None
    assert changed.rows is not None
    heads = Table("layer", "head", "before", "after", title="heads whose pattern changes most")
    pairs = zip(seen.rows.places(), changed.rows.places(), strict=True)
    moved = [
        (float((after_7 - before_7).abs().sum()) / 2, layer, head, before_7, after_7)
        for layer, (before_H7, after_H7) in enumerate(pairs)
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
