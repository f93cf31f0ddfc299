"""What an evaluation says: its numbers at each context length, as records and a table, and over what they are taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from roundround.data.tokens import TokenData
from roundround.model.scoring import PositionLoss
from roundround.probing.buckets import n_targets
from roundround.report.perplexity import position_bins


def scored_bytes(losses: Mapping[int, PositionLoss], data: TokenData) -> int:
    """UTF-8 bytes of the text that was scored, the same at every length."""
    loss = next(iter(losses.values()))
    return data.bytes_of_targets(loss.n_scored)


def values(loss: PositionLoss, n_bytes: int) -> dict[str, float]:
    """The loss of the text in three units, and what the joints between documents would make of it."""
    return {
        "perplexity": loss.perplexity(),
        "nats_per_token": loss.token_loss(),
        "nats_per_byte": loss.token_loss() * loss.n_targets / n_bytes,
        "perplexity_with_joints": loss.perplexity_with_joints(),
        "share_of_loss_at_joints": loss.share_at_joints(),
    }


def records(losses: Mapping[int, PositionLoss], n_bytes: int, common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A record for each number and context length, and one for the loss in each range of positions."""
    found: list[dict[str, Any]] = []
    for length, loss in losses.items():
        where = {**common, "length": length}
        found += [{"metric": name, **where, "value": value} for name, value in values(loss, n_bytes).items()]
        found += [{"metric": "scored_targets", **where, "value": loss.n_targets}]
        for a, b in position_bins(loss):
            place = {"first_position": a, "last_position": b - 1, "targets": n_targets(loss, a, b)}
            found.append({"metric": "nats_per_token", **where, **place, "value": loss.token_loss(a, b)})
    return found


def table(by_length: Mapping[int, Mapping[str, float]], *, train_length: int, title: str) -> Table:
    """A row for each context length; the training context length has a star."""
    shown = Table("context", "perplexity", "nats per token", "nats per byte", "with joints", title=title)
    for length, found in by_length.items():
        mark = " *" if length == train_length else ""
        names = ("perplexity", "nats_per_token", "nats_per_byte", "perplexity_with_joints")
        shown.add_row(f"{length:,}{mark}", *(f"{found[name]:.4f}" for name in names))
    return shown


def scope(losses: Mapping[int, PositionLoss], data: TokenData, *, separate_documents: bool) -> list[str]:
    """What the numbers were taken over, in lines."""
    longest = max(losses)
    loss, n_documents = losses[longest], data.n_held_out_documents
    part = "" if loss.n_scored == len(data.held_out) - 1 else "the beginning of "
    lines = [
        f"the same {loss.n_targets:,} targets ({scored_bytes(losses, data):,} bytes) at each length: {part}"
        f"{n_documents:,} held-out documents of {n_documents + data.n_train_documents:,}; "
        f"* is the training context length"
    ]
    if loss.n_joints:
        each, share = loss.joint_sum / loss.n_joints, loss.share_at_joints()
        lines.append(
            f"documents are joined by {data.joining_token}, which is no target: its {loss.n_joints:,} places cost "
            f"{each:.2f} nats each at {longest:,}, {share:.1%} of the loss with them"
        )
    if separate_documents:
        return [*lines, "documents in a window do not see each other, and positions begin at 0 in each"]
    short = data.about_documents("held_out", longest)
    return lines if short is None else [*lines, short]
