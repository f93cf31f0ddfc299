"""What an evaluation says: its numbers at each context length, as records and a table, and over what they are taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from roundround.asking.reader import Reader
from roundround.model.decoder import Decoder
from roundround.model.scoring import PositionLoss
from roundround.probing.ablation import Range, merged, n_targets
from roundround.probing.dispersion import Dispersion
from roundround.report import dispersion_tables
from roundround.report.drawing.numbers import fixed

STRANGE_JOINT = 5  # times the mean loss: an even guess among 50,000 tokens is 3 times that of a good model


def values(loss: PositionLoss, n_bytes: int) -> dict[str, float]:
    """The loss of the text in three units, and what the joints between documents would make of it."""
    return {
        "perplexity": loss.perplexity(),
        "nats_per_token": loss.token_loss(),
        "nats_per_byte": loss.token_loss() * loss.n_targets / n_bytes if n_bytes else math.nan,
        "perplexity_with_joints": loss.perplexity_with_joints(),
        "share_of_loss_at_joints": loss.share_at_joints(),
    }


def records(
    losses: Mapping[int, PositionLoss], n_bytes: Mapping[int, int], common: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A record for each number and context length, and one for the loss in each range of positions."""
    found: list[dict[str, Any]] = []
    for length, loss in losses.items():
        where = {**common, "length": length}
        found += [{"metric": name, **where, "value": value} for name, value in values(loss, n_bytes[length]).items()]
        found += [{"metric": "scored_targets", **where, "value": loss.n_targets}]
        for a, b in position_bins(loss):
            place = {"first_position": a, "last_position": b - 1, "targets": n_targets(loss, a, b)}
            found.append({"metric": "nats_per_token", **where, **place, "value": loss.token_loss(a, b)})
    return found


def all_records(
    reader: Reader,
    first_tokens: Mapping[int, int | None],
    losses: Mapping[int, PositionLoss],
    dispersions: Mapping[int, Dispersion],
    common: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """`records` and those of the dispersions, each with how the text was read. common: more fields of all of them."""
    common, words = {**common, **reader.reading(), "stride": reader.stride}, first_words(reader, first_tokens)
    n_bytes = {length: reader.scored_bytes(first) for length, first in first_tokens.items()}
    found = [*records(losses, n_bytes, common), *dispersion_tables.records(dispersions, common)]
    return [{**record, "first_token": words[record["length"]]} for record in found]


def first_words(reader: Reader, first_tokens: Mapping[int, int | None]) -> dict[int, str | None]:
    """The token in front of the windows of each length, as it is written."""
    written = reader.data.tokenizer.id_to_token
    return {length: None if token is None else written(token) for length, token in first_tokens.items()}


def position_bins(loss: PositionLoss) -> list[Range]:
    """Ranges [a, b) of positions, 0..1, 1..2, 2..4, 4..8, ... up to the length; those with few targets are merged."""
    edges = [0, 1]
    while edges[-1] < len(loss.sum_T):
        edges.append(min(2 * edges[-1], len(loss.sum_T)))
    return merged(list(itertools.pairwise(edges)), loss)


def table(by_length: Mapping[int, Mapping[str, float]], *, train_length: int, title: str) -> Table:
    """A row for each context length; the training context length has a star."""
    shown = Table("context", "perplexity", "nats per token", "nats per byte", "with joints", title=title)
    for length, found in by_length.items():
        mark = " *" if length == train_length else ""
        names = ("perplexity", "nats_per_token", "nats_per_byte", "perplexity_with_joints")
        shown.add_row(f"{length:,}{mark}", *(fixed(found[name], 4) for name in names))
    return shown


def scope(
    losses: Mapping[int, PositionLoss],
    n_bytes: Mapping[int, int],
    first_words: Mapping[int, str | None],
    reader: Reader,
) -> list[str]:
    """What the numbers were taken over, and how the text was read, in lines.

    n_bytes, first_words: of each length, the bytes scored and the token in front of every window.
    """
    longest, data = max(losses), reader.data
    loss, n, n_others = losses[longest], data.n_held_out_documents, data.n_train_documents
    targets = f"{loss.n_targets:,} targets ({n_bytes[longest]:,} bytes)"
    every = f"the same {targets} at each length" if len(losses) > 1 else targets
    part = "" if reader.n_tokens == len(data.held_out) else "the beginning of "
    documents = f"{n:,} held-out documents of {n + n_others:,}" if n_others else f"{n:,} documents"
    lines = [
        f"{every}: {part}{documents}",
        *about_joints(loss, longest, reader),
    ]
    if reader.separate_documents:
        lines.append(
            "documents are read one by one, each from its beginning"
            if reader.one_by_one
            else "documents in a window do not see each other, and positions begin at 0 in each"
        )
    elif (short := data.about_documents("held_out", longest)) is not None:
        lines.append(short)
    return lines if isinstance(reader.model, Decoder) else [*lines, *about_tokens(first_words, reader)]


def about_joints(loss: PositionLoss, length: int, reader: Reader) -> list[str]:
    """What the tokens cost that join documents, and where that is more than a model would pay that knows joints."""
    if not loss.n_joints:
        return []
    each, mean, joint = loss.joint_sum / loss.n_joints, loss.token_loss(), reader.data.joining_token
    lines = [
        f"documents are joined by {joint}, which is no target: its {loss.n_joints:,} places cost "
        f"{each:.2f} nats each at {length:,}, {loss.share_at_joints():.1%} of the loss with them"
    ]
    if each > STRANGE_JOINT * mean:
        apart = "; data=... data.separate_documents=true scores documents one by one"
        way_out = "" if isinstance(reader.model, Decoder) else apart
        lines.append(
            f"a joint costs {each / mean:.1f} times as much as a target, more than {STRANGE_JOINT}: the model may have "
            f"been trained on single documents{way_out}"
        )
    return lines


def about_tokens(first_words: Mapping[int, str | None], reader: Reader) -> list[str]:
    """What stands in front of the windows of a pretrained model, and how it reads text that spells a special token."""
    lengths_of: dict[str | None, list[str]] = {}
    for length, word in first_words.items():
        lengths_of.setdefault(word, []).append(f"{length:,}")
    begin = [f"{word or 'nothing'} in front at {', '.join(lengths)}" for word, lengths in lengths_of.items()]
    unscored = "; the first token of a document is no target" if reader.one_by_one and None in lengths_of else ""
    spelled = (
        "plain characters"
        if reader.reading()["special_tokens"] == "plain"
        else "that token, as tokenizer(text) reads it (model.special_tokens=plain: characters)"
    )
    return [
        f"windows have {' and '.join(begin)}{unscored}",
        f"text that spells a special token is {spelled}",
    ]
