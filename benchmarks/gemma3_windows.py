"""The intervals of docs/results/gemma3.md: python benchmarks/gemma3_windows.py MODEL TEXT FOLDER [PART ...]

MODEL: google/gemma-3-270m or a folder. TEXT: a file of running text. Each PART writes FOLDER/PART.csv:

    short, long   where norms are and where weight goes: 10 quotations; 20 windows of 2,048 tokens
    curve         the loss with frequencies of the global layers, or of all, at rest: windows of 8,192 and 32,768 tokens
    distance      the weight of an induction head on what it looks for, by the distance between the two copies
    temperature   the loss with the adaptive temperature, by length

Texts are the units of every interval: each is read by itself, and a number is taken again over DRAWS draws of as many
texts, with replacement; an interval holds the middle 95 % of what comes of it (percentile bootstrap).
Shapes: N texts, L layers, H heads, P pairs, T tokens, Q queries, K keys.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from roundround.loading.given import makers_of
from roundround.loading.load import ProbedHuggingFaceModel
from roundround.loading.patching.attention import installed
from roundround.probing.ablation import parse_band, without
from roundround.probing.layout import KINDS, PairNorms
from roundround.probing.probe import Probe, observe
from roundround.probing.probed_model import filled_up, watching
from roundround.probing.rows import BANDS, PLACES, RowStatistics
from roundround.probing.texts import texts_of
from roundround.softmax.base import AttentionSoftmax

DRAWS = 2000
LENGTH, N_WINDOWS = 2048, 20
LONG = {8192: 6, 32768: 2}  # windows of so many tokens for `curve`
CURVE = {
    8192: ("lowest:0.25", "lowest:0.375", "lowest:0.5", "highest:0.125"),
    32768: ("lowest:0.375", "lowest:0.5"),
}
EVERYWHERE = {8192: ("lowest:0.375",), 32768: ()}  # also in local layers
SCORED = (512, 2048, 8192)  # tokens that `temperature` reads at once
BLOCK, N_BLOCKS = 8192, 5  # its units: the same tokens at every length
HEAD = (5, 1)  # the induction head
COPIED = 64  # random tokens that come twice
IDS = (1000, 50_000)  # from which tokens are drawn: words and parts of words
DISTANCES = {64: 8, 256: 8, 1024: 8, 4096: 8, 8192: 4, 16384: 4, 32768: 4, 49152: 2}  # tokens apart, and how many texts
PREVIOUS, DIAGONAL = ((2, 3), (4, 1), (8, 2), (10, 1)), ((8, 0), (17, 1))

Record = dict[str, Any]
Opened = Callable[..., AbstractContextManager[ProbedHuggingFaceModel]]  # with a normaliser in place of its own


# -- intervals


def drawn(n: int) -> NDArray[np.int64]:
    """How often each of n texts is in each draw, [DRAWS, n]."""
    return np.random.default_rng(0).multinomial(n, [1 / n] * n, size=DRAWS)


def ends(values: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    low, high = np.nanquantile(values, [0.025, 0.975])
    return {"low": float(low), "high": float(high)}


def mean_with_ends(values_N: Sequence[float]) -> Record:
    found = np.asarray(values_N, dtype=float)
    return {"value": float(found.mean()), **ends(drawn(len(found)) @ found / len(found)), "n": len(found)}


# -- where norms are and where weight goes


class Sums:
    """The sums of several probes, one a text, of which any draw is a probe again."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.first = probes[0]
        self.n_tokens = [probe.norms.n_tokens for probe in probes]
        self.norms = [stacked(layers) for layers in zip(*(probe.norms.sums for probe in probes), strict=True)]
        rows = [probe.rows for probe in probes if probe.rows is not None]
        self.rows = [stacked(layers) for layers in zip(*(own.sums for own in rows), strict=True)]

    def drawn(self, counts_N: Sequence[int] | NDArray[np.int64]) -> Probe:
        """The probe of the texts, each so many times."""
        weights_N = torch.as_tensor(np.asarray(counts_N), dtype=torch.float64)
        norms, rows = PairNorms(len(self.norms)), RowStatistics(len(self.rows), 0)
        norms.layouts = self.first.norms.layouts
        norms.sums = [weighted(sums, weights_N) for sums in self.norms]
        for own, count in zip(self.n_tokens, counts_N, strict=True):
            for which, n in own.items():
                norms.n_tokens[which] += n * int(count)
        rows.sums = [weighted(sums, weights_N) for sums in self.rows]
        if self.first.rows is not None:
            rows.distances = self.first.rows.distances
        return replace(self.first, norms=norms, rows=rows)


def stacked(of_texts: Sequence[dict[Any, Tensor]]) -> dict[Any, Tensor]:
    """[N, ...] under each name, but for sums whose shapes depend on the length of a text."""
    shapes = {name: {sums[name].shape for sums in of_texts} for name in of_texts[0]}
    return {name: torch.stack([sums[name] for sums in of_texts]) for name, found in shapes.items() if len(found) == 1}


def weighted(sums: dict[Any, Tensor], weights_N: Tensor) -> dict[Any, Tensor]:
    return {name: torch.tensordot(weights_N, values.double(), 1) for name, values in sums.items()}


def measures(seen: Probe) -> dict[tuple[str, str], float]:
    """What the page says of a set of texts, by name and by where: all layers, one kind of them, or a head."""
    assert seen.rows is not None
    kinds = {"all": range(len(seen.kinds))} | {
        kind: [n for n, own in enumerate(seen.kinds) if own == kind] for kind in dict.fromkeys(seen.kinds)
    }
    found: dict[tuple[str, str], float] = {}
    for kind in KINDS:
        share_L = seen.norms.share_of_slowest(kind)
        for where, layers in kinds.items():
            found[f"{kind} share of the slowest quarter", where] = float(share_L[list(layers)].mean())
    labels, places = seen.labels(), {band: seen.rows.places(band) for band in BANDS}
    spread, strongest = seen.rows.per_row("logit_spread"), seen.norms.mean("query", "square")
    for where, layers in kinds.items():
        own = [label for layer in layers for label, _ in labels[layer]]
        found |= {(f"heads labelled {place}", where): float(own.count(place)) for place in PLACES}
        pairs = torch.cat([strongest[layer].argmax(-1) for layer in layers])
        found["heads strongest on pairs 70 to 79", where] = float(((pairs >= 70) & (pairs <= 79)).sum())
        found["heads strongest on pairs 85 to 88", where] = float(((pairs >= 85) & (pairs <= 88)).sum())
        spread_H = torch.cat([spread[layer] for layer in layers])
        found["logit spread, mean", where], found["logit spread, sd", where] = (
            float(spread_H.mean()),
            float(spread_H.std()),
        )
        resting = [
            (layer, head) for layer in layers for head, (label, _) in enumerate(labels[layer]) if label == "sink"
        ]
        for band in BANDS[1:]:
            left = [float(places[band][a][b, 2]) < float(places["none"][a][b, 2]) / 2 for a, b in resting]
            found[f"sinks below half without the {band} quarter", where] = float(sum(left))
        for band in BANDS:
            diffuse = torch.cat([places[band][layer][:, PLACES.index("diffuse")] for layer in layers])
            found[f"diffuse share without {band}", where] = float(diffuse.mean())
    for place, heads in (("previous", PREVIOUS), ("diagonal", DIAGONAL)):
        for layer, head in heads:
            for band in BANDS:
                share = float(places[band][layer][head, PLACES.index(place)])
                found[f"{place} share without {band}", f"{layer}.{head}"] = share
    if "logit_by_pair" in seen.rows.sums[0]:
        by_pair = seen.rows.split()
        for distance in (0, 64, 128, 256, 384, 1024):
            at = seen.rows.distances.index(distance)
            for where, layers in kinds.items():
                for name, first, last in (("slow", 64, 96), ("slowest", 96, 128)):
                    part = torch.stack([by_pair[layer][:, first:last, at].sum(1) for layer in layers])
                    found[f"logit of the {name} quarter at {distance}", where] = float(part.mean())
    return found


def short(opened: Opened, stream: Sequence[int]) -> Iterator[Record]:
    with opened() as probed:
        yield from windows(probed, [probed.tokens(text) for text in texts_of("shakespeare")])


def long(opened: Opened, stream: Sequence[int]) -> Iterator[Record]:
    with opened() as probed:
        yield from windows(probed, cut(probed, stream, LENGTH, N_WINDOWS))


def windows(probed: ProbedHuggingFaceModel, texts: Sequence[list[int]]) -> Iterator[Record]:
    """`measures` with intervals, and the shares of every head by place."""
    sums = Sums([observe(probed, [text], entropy=False) for text in texts])
    whole = sums.drawn([1] * len(texts))
    again = [sums.drawn(counts) for counts in drawn(len(texts))]
    measured = [measures(seen) for seen in again]
    for key, value in measures(whole).items():
        yield {
            "measure": key[0],
            "where": key[1],
            "value": value,
            **ends([one[key] for one in measured]),
            "n": len(texts),
        }
    assert whole.rows is not None
    shares = [torch.stack(seen.rows.places()) for seen in again if seen.rows is not None]
    low, high = np.quantile(torch.stack(shares).numpy(), [0.025, 0.975], axis=0)
    for layer, (places_H7, labelled) in enumerate(zip(whole.rows.places(), whole.labels(), strict=True)):
        for head, (shares_7, (label, _)) in enumerate(zip(places_H7.tolist(), labelled, strict=True)):
            alike = sum(seen.labels()[layer][head][0] == label for seen in again[:100])
            yield {"measure": "draws with this label", "where": f"{layer}.{head}", "label": label, "value": alike / 100}
            for n, (place, share) in enumerate(zip(PLACES, shares_7, strict=True)):
                interval = {"low": float(low[layer, head, n]), "high": float(high[layer, head, n])}
                yield {"measure": f"share on {place}", "where": f"{layer}.{head}", "value": share, **interval}


# -- losses


def token_loss(probed: ProbedHuggingFaceModel, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Nats of every token but the first."""
    tokens_1T = torch.tensor([tokens])
    with torch.no_grad():
        return probed.token_loss(tokens_1T[:, :-1], tokens_1T[:, 1:])[0].double().numpy()


def curve(opened: Opened, stream: Sequence[int]) -> Iterator[Record]:
    """The loss of windows with frequencies at rest minus that with all, by the tokens before the target."""
    with opened() as probed:
        yield from of_curve(probed, stream)


def of_curve(probed: ProbedHuggingFaceModel, stream: Sequence[int]) -> Iterator[Record]:
    own = probed.tables()
    slowest = max(range(len(own)), key=lambda n: -float(own[n].min()))  # the global layers' table
    for length, n_windows in LONG.items():
        texts = cut(probed, stream, length, n_windows)
        plain = [token_loss(probed, text) for text in texts]
        edges = [0, *(edge for edge in (512, 2048, 8192) if edge < length), length]
        spans = [(0, length), *pairwise(edges)]
        for first, last in spans:
            losses = [float(loss[first:last].mean()) for loss in plain]
            yield {"length": length, "first": first, "last": last, "band": "none", **mean_with_ends(losses)}
        asked = [("global", word) for word in CURVE[length]] + [("all", word) for word in EVERYWHERE[length]]
        for where, word in asked:
            band = [parse_band(word)]
            rests = [where == "all" or n == slowest for n in range(len(own))]
            tables = [without(table, band) if rest else table for table, rest in zip(own, rests, strict=True)]
            with probed.with_frequencies(tables):
                rested = [token_loss(probed, text) for text in texts]
            for first, last in spans:
                change = [float((a - b)[first:last].mean()) for a, b in zip(rested, plain, strict=True)]
                at = {"length": length, "first": first, "last": last, "band": word, "layers": where}
                yield at | mean_with_ends(change)


def temperature(opened: Opened, stream: Sequence[int]) -> Iterator[Record]:
    """The loss with the adaptive temperature minus that without, the same tokens in windows of several lengths."""
    losses: dict[str | None, list[list[float]]] = {}
    for name in (None, "adaptive_temperature"):
        with opened(name) as probed:
            blocks = [text[1:] for text in cut(probed, stream, BLOCK, N_BLOCKS)]
            losses[name] = [
                [
                    float(np.mean([token_loss(probed, text).mean() for text in cut(probed, block, length)]))
                    for block in blocks
                ]
                for length in SCORED
            ]
    for length, plain, adaptive in zip(SCORED, *losses.values(), strict=True):
        yield {"length": length, "softmax": "softmax", **mean_with_ends(plain)}
        change = [a - b for a, b in zip(adaptive, plain, strict=True)]
        yield {"length": length, "softmax": "adaptive_temperature minus softmax", **mean_with_ends(change)}


# -- one head by distance


class Seen(Exception):
    """The layer has been called: the ones behind it are not needed."""


def last_rows(probed: ProbedHuggingFaceModel, tokens: Sequence[int], n_rows: int) -> tuple[Tensor, Tensor, float]:
    """Of HEAD the queries [Q, C] of the last rows, all keys [K, C], and the scale of their products."""
    found: list[tuple[Tensor, Tensor, float]] = []

    def take(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        if softmax.shape.layer == HEAD[0]:
            q, k = qkv[:2]
            group = HEAD[1] * k.shape[1] // q.shape[1]
            found.append((q[0, HEAD[1], -n_rows:].clone(), k[0, group].clone(), options["scale"]))
            raise Seen

    try:
        with torch.no_grad(), watching(probed.normalisers, take):
            probed.hidden(filled_up([tokens]), torch.arange(len(tokens))[None])
    except Seen:
        pass
    return found[0]


def distance(opened: Opened, stream: Sequence[int]) -> Iterator[Record]:
    """The weight on what came after the first copy, from the second, with slow pairs turning and at rest."""
    with opened() as probed:
        yield from of_distance(probed)


def of_distance(probed: ProbedHuggingFaceModel) -> Iterator[Record]:
    own = probed.tables()
    slowest = max(range(len(own)), key=lambda n: -float(own[n].min()))
    assert probed.first_token is not None
    for apart, n_texts in DISTANCES.items():
        for word in ("none", "lowest:0.25", "lowest:0.375", "lowest:0.5"):
            tables = list(own)
            if word != "none":
                tables[slowest] = without(own[slowest], [parse_band(word)])
            weights: dict[str, list[float]] = {"target": [], "first token": [], "logit over the mean": []}
            for seed in range(n_texts):
                generator = torch.Generator().manual_seed(seed)
                copied = torch.randint(*IDS, (COPIED,), generator=generator).tolist()
                between = torch.randint(*IDS, (apart - COPIED,), generator=generator).tolist()
                tokens = [probed.first_token, *copied, *between, *copied]
                with probed.with_frequencies(tables):
                    q, k, scale = last_rows(probed, tokens, COPIED)
                rows = torch.arange(len(tokens) - COPIED, len(tokens) - 1)  # behind the last another token comes
                logits = (q[:-1] @ k.T * scale).masked_fill(torch.arange(len(tokens)) > rows[:, None], -torch.inf)
                target = (rows - apart + 1)[:, None]
                alpha, seen = logits.softmax(-1), logits.isfinite()
                mean = logits.masked_fill(~seen, 0.0).sum(-1) / seen.sum(-1)
                weights["target"].append(float(alpha.gather(-1, target).mean()))
                weights["first token"].append(float(alpha[:, 0].mean()))
                weights["logit over the mean"].append(float((logits.gather(-1, target)[:, 0] - mean).mean()))
            for name, values in weights.items():
                yield {"distance": apart, "at rest": word, "measure": name, **mean_with_ends(values)}


# -- running


def cut(probed: ProbedHuggingFaceModel, stream: Sequence[int], length: int, n: int | None = None) -> list[list[int]]:
    """Windows of a stream of tokens, each behind the model's first token; the first n, or all that are whole."""
    first = [] if probed.first_token is None else [probed.first_token]
    most = len(stream) // length if n is None else n
    return [[*first, *stream[i * length : (i + 1) * length]] for i in range(most)]


PARTS = {part.__name__: part for part in (short, long, curve, distance, temperature)}


def main(path: str, text: str, folder: str, *parts: str) -> None:
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(path)
    stream = tokenizer(Path(text).read_text(encoding="utf-8"), add_special_tokens=False, verbose=False).input_ids

    @contextmanager
    def opened(softmax: str | None = None) -> Iterator[ProbedHuggingFaceModel]:
        make_softmax = None if softmax is None else makers_of(softmax, None, {})[0]
        with installed(model, make_softmax):
            yield ProbedHuggingFaceModel(Path(path).name, model, tokenizer)

    for part in parts or PARTS:
        began = time.monotonic()
        records = list(PARTS[part](opened, stream))
        columns = list(dict.fromkeys(name for record in records for name in record))
        with (Path(folder) / f"{part}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(
                {name: f"{x:.5g}" if isinstance(x, float) else x for name, x in record.items()} for record in records
            )
        print(f"{part}: {len(records)} numbers, {(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main(*sys.argv[1:])
