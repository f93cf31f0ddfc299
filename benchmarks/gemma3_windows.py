"""The intervals of docs/results/gemma3.md: python benchmarks/gemma3_windows.py MODEL TEXT BOOK FOLDER [PART ...]

MODEL: google/gemma-3-270m or a folder. TEXT, BOOK: files of running text, many articles and one long text. Each PART
writes FOLDER/PART.csv:

    short, long   where norms are and where weight goes: 10 quotations; 20 windows of 2,048 tokens
    curve         the loss with slow or fast pairs at rest, in global layers or in all: 1,024, 8,192 and 32,768 tokens
    distance      the weight of an induction head on what it looks for, by the distance between the two copies
    temperature   the loss with the adaptive temperature, by length
    lists         the entropy of the last row behind ever more numbers whose largest is asked for

Texts are the units. Each is read by itself; the mean over texts has Student's interval, and a number that is computed
of all texts together has the jackknife's (each text left out in turn, n - 1 degrees of freedom). Counts of heads have
none: `low` and `high` are then the least and the most that come of leaving out a text, and `interval` says so. The
column `texts` has what an interval is computed from: the value of each text, for the jackknife the pseudo-value
(n times the number less n - 1 times the number without the text), for counts the number without the text.
Shapes: N texts, L layers, H heads, P pairs, T tokens, Q queries, K keys.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from roundround.asking.loaded_model import makers_of
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.probing.ablation import parse_band, without
from roundround.probing.layout import KINDS, PairNorms
from roundround.probing.probe import Probe, observe
from roundround.probing.probed_model import filled_up, watching
from roundround.probing.rows import BANDS, N_ELEMENTS, PLACES, RowStatistics, last_row_entropy
from roundround.probing.texts import maximum_prompt, texts_of
from roundround.report.drawing.figures import save_drawing
from roundround.softmax.base import AttentionSoftmax
from roundround.support.panels import Curve, Drawing, Mark, Panel

LENGTH, N_WINDOWS = 2048, 20
# of `curve`: windows by their length, and which frequencies rest in which layers
CURVE: dict[int, tuple[int, list[tuple[str, str]]]] = {
    1024: (40, [(word, "all") for word in ("lowest:0.25", "lowest:0.375", "lowest:0.5", "highest:0.125")]),
    8192: (6, [(f"lowest:{share}", "global") for share in (0.25, 0.375, 0.5)] + [("lowest:0.375", "all")]),
    32768: (4, [(f"lowest:{share}", "global") for share in (0.25, 0.375)]),
}
SCORED = (512, 2048, 8192)  # tokens that `temperature` reads at once
BLOCK, N_BLOCKS = 8192, 5  # its units: the same tokens at every length
HEAD = (5, 1)  # the induction head
N_LISTS, GLOBAL = 8, (5, 11, 17)  # lists of each length; global layers
COPIED = 64  # random tokens that come twice
IDS = (1000, 50_000)  # from which tokens are drawn: words and parts of words
DISTANCES = {64: 8, 256: 8, 1024: 8, 4096: 8, 8192: 6, 16384: 4, 32768: 4, 49152: 4}  # tokens apart, and how many texts
AT_REST = ("lowest:0.25", "lowest:0.375", "lowest:0.5")
SINGLE = {"previous": ((2, 3), (4, 1), (8, 2), (10, 1)), "diagonal": ((8, 0), (17, 1)), "sink": ((5, 1),)}
KINDS_OF_LAYERS = {"full": "global", "sliding": "local"}

Record = dict[str, Any]
Opened = Callable[..., AbstractContextManager[ProbedHuggingFaceModel]]  # with a normaliser in place of its own


# -- intervals


def mean_with_ends(values_N: list[float]) -> Record:
    """The mean over texts with Student's 95 % interval."""
    mean, half = float(np.mean(values_N)), half_width(values_N)
    return with_ends(mean, mean - half, mean + half, "t", values_N)


def half_width(values_N: list[float]) -> float:
    """Of Student's 95 % interval of the mean."""
    return float(stats.t.ppf(0.975, len(values_N) - 1) * stats.sem(values_N))


def with_ends(value: float, low: float, high: float, interval: str, texts: list[float]) -> Record:
    return {"value": value, "low": low, "high": high, "interval": interval, "n": len(texts), "texts": texts}


def jackknifed(whole: float, without_each_N: list[float], *, count: bool) -> Record:
    """A number of all texts together, by what it is without each of them."""
    if count:
        return with_ends(whole, min(without_each_N), max(without_each_N), "one text less", without_each_N)
    n = len(without_each_N)
    pseudo_N = [n * whole - (n - 1) * other for other in without_each_N]
    half = half_width(pseudo_N)
    return with_ends(whole, whole - half, whole + half, "jackknife", pseudo_N)


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
        norms.sums = [weighted(sums, weights_N) for sums in self.norms]
        for own, count in zip(self.n_tokens, counts_N, strict=True):
            for which, n in own.items():
                norms.n_tokens[which] += n * int(count)
        rows.sums = [weighted(sums, weights_N) for sums in self.rows]
        if self.first.rows is not None:
            rows.distances = self.first.rows.distances[: rows.sums[0]["n_by_distance"].shape[-1]]
        return replace(self.first, norms=norms, rows=rows)


def stacked(of_texts: Sequence[dict[Any, Tensor]]) -> dict[Any, Tensor]:
    """[N, ...] under each name; of sums by distance those distances that the shortest text has."""
    least = {
        name: min(sums[name].shape[-1] for sums in of_texts) if of_texts[0][name].ndim else 0 for name in of_texts[0]
    }
    return {
        name: torch.stack([sums[name][..., :n] if n else sums[name] for sums in of_texts]) for name, n in least.items()
    }


def weighted(sums: dict[Any, Tensor], weights_N: Tensor) -> dict[Any, Tensor]:
    return {name: torch.tensordot(weights_N, values.double(), 1) for name, values in sums.items()}


def kinds_of(seen: Probe) -> dict[str, list[int]]:
    """Layers by kind, and all of them."""
    names = [KINDS_OF_LAYERS[kind] for kind in seen.kinds]
    return {"all": [*range(len(names))]} | {
        kind: [n for n, own in enumerate(names) if own == kind] for kind in dict.fromkeys(names)
    }


def products_of_norms(seen: Probe) -> list[Tensor]:
    """What can reach a logit: mean query norm times mean key norm, [H, P] of each layer, which has one key head."""
    query, key = (seen.norms.mean(kind, "norm", first_token=False) for kind in ("query", "key"))
    return [q_HP * k_1P for q_HP, k_1P in zip(query, key, strict=True)]


def counts(seen: Probe) -> dict[tuple[str, str], float]:
    """How many heads there are of a sort, by name and by the kind of their layers."""
    assert seen.rows is not None
    labels, places = seen.labels(), {band: seen.rows.places(band) for band in BANDS}
    products, sink = products_of_norms(seen), PLACES.index("sink")
    found: dict[tuple[str, str], float] = {}
    for where, layers in kinds_of(seen).items():
        own = [label for layer in layers for label, _ in labels[layer]]
        found |= {(f"heads labelled {place}", where): float(own.count(place)) for place in PLACES}
        pairs = torch.cat([products[layer].argmax(-1) for layer in layers])
        for first, last in ((70, 79), (85, 88)):
            found[f"heads strongest on pairs {first} to {last}", where] = float(
                ((pairs >= first) & (pairs <= last)).sum()
            )
        resting = [
            (layer, head) for layer in layers for head, (label, _) in enumerate(labels[layer]) if label == "sink"
        ]
        for band in BANDS[1:]:
            left = [float(places[band][a][b, sink]) < float(places["none"][a][b, sink]) / 2 for a, b in resting]
            found[f"sinks below half without the {band} quarter", where] = float(sum(left))
    return found


def measures(seen: Probe) -> dict[tuple[str, str], float]:
    """Shares and logits, and what a quarter of the pairs changes of them: by name and by layers or head."""
    assert seen.rows is not None
    places, spread = {band: seen.rows.places(band) for band in BANDS}, seen.rows.per_row("logit_spread")
    by_pair, distances = seen.rows.split(), seen.rows.distances
    products = products_of_norms(seen)
    found: dict[tuple[str, str], float] = {}
    for where, layers in kinds_of(seen).items():
        for kind in KINDS:
            found[f"{kind} share of the slowest quarter", where] = float(
                seen.norms.share_of_slowest(kind)[layers].mean()
            )
        product = [products[layer] for layer in layers]
        quarters = torch.stack([torch.stack([q.sum() for q in p.chunk(4, -1)]) / p.sum() for p in product]).mean(0)
        for name, share in zip(BANDS[1:], quarters.tolist(), strict=True):
            found[f"product of norms in the {name} quarter", where] = share
        spread_H = torch.cat([spread[layer] for layer in layers])
        found["logit spread, mean of heads", where] = float(spread_H.mean())
        found["logit spread, sd over heads", where] = float(spread_H.std())
        diffuse = {band: torch.cat([places[band][layer][:, -1] for layer in layers]).mean() for band in BANDS}
        found["diffuse", where] = float(diffuse["none"])
        for band in BANDS[1:]:
            found[f"diffuse: change without the {band} quarter", where] = float(diffuse[band] - diffuse["none"])
        for name, first, last in (("slow", 64, 96), ("slowest", 96, 128)):
            logit = {
                distance: float(torch.stack([by_pair[layer][:, first:last, at].sum(1) for layer in layers]).mean())
                for at, distance in enumerate(distances)
                if distance in (0, 2, 32, 64, 128, 256, 384, 1024)
            }
            found |= {(f"logit of the {name} quarter: {d} less 0", where): logit[d] - logit[0] for d in logit if d}
            found[f"logit of the {name} quarter: 0", where] = logit[0]
    for place, heads in SINGLE.items():
        for layer, head in heads:
            share = {band: float(places[band][layer][head, PLACES.index(place)]) for band in BANDS}
            found[place, f"{layer}.{head}"] = share["none"]
            for band in BANDS[1:]:
                found[f"{place}: change without the {band} quarter", f"{layer}.{head}"] = share[band] - share["none"]
    return found


def short(opened: Opened, stream: Sequence[int], book: Sequence[int]) -> Iterator[Record]:
    with opened() as probed:
        yield from of_texts(probed, [probed.tokens(text) for text in texts_of("shakespeare")])


def long(opened: Opened, stream: Sequence[int], book: Sequence[int]) -> Iterator[Record]:
    with opened() as probed:
        yield from of_texts(probed, cut(probed, stream, LENGTH, N_WINDOWS))


def of_texts(probed: ProbedHuggingFaceModel, texts: Sequence[list[int]]) -> Iterator[Record]:
    """`measures` and `counts` with their intervals, and the shares of every head by place."""
    sums, n = Sums([observe(probed, [text], entropy=False) for text in texts]), len(texts)
    whole = sums.drawn([1] * n)
    less = [sums.drawn([int(own != left_out) for own in range(n)]) for left_out in range(n)]
    for measure in (measures, counts):
        others = [measure(seen) for seen in less]
        for (name, where), value in measure(whole).items():
            if math.isnan(value):  # a distance beyond the window
                continue
            ends = jackknifed(value, [one[name, where] for one in others], count=measure is counts)
            yield {"measure": name, "where": where} | ends
    labels = [seen.labels() for seen in less]
    shares = torch.stack([torch.stack(seen.rows.places()) for seen in less if seen.rows is not None])  # [N, L, H, 7]
    assert whole.rows is not None
    for layer, (places_H7, labelled) in enumerate(zip(whole.rows.places(), whole.labels(), strict=True)):
        for head, (shares_7, (label, _)) in enumerate(zip(places_H7.tolist(), labelled, strict=True)):
            alike = sum(one[layer][head][0] == label for one in labels)
            own = {"where": f"{layer}.{head}", "label": label}
            yield {"measure": "sets of one text less with this label", **own, "value": float(alike), "n": n}
            for place, share, others in zip(PLACES, shares_7, shares[:, layer, head].T.tolist(), strict=True):
                yield {"measure": f"share on {place}", **own} | jackknifed(share, others, count=False)


# -- losses


def token_loss(probed: ProbedHuggingFaceModel, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Nats of every token but the first."""
    tokens_1T = torch.tensor([tokens])
    with torch.no_grad():
        return probed.token_loss(tokens_1T[:, :-1], tokens_1T[:, 1:])[0].double().numpy()


def curve(opened: Opened, stream: Sequence[int], book: Sequence[int]) -> Iterator[Record]:
    """The loss of windows with frequencies at rest minus that with all, by the tokens before the target."""
    with opened() as probed:
        own = probed.tables()
        slowest = max(range(len(own)), key=lambda n: -float(own[n].min()))  # the global layers' table
        for length, (n_windows, bands) in CURVE.items():
            texts = cut(probed, stream if length <= BLOCK else book, length, n_windows)
            plain = [token_loss(probed, text) for text in texts]
            edges = [0, *(edge for edge in (128, 512, 2048, 8192) if edge < length), length]
            spans = [(0, length), *pairwise(edges)]
            for first, last in spans:
                at: Record = {"length": length, "first": first, "last": last, "band": "none", "layers": ""}
                yield at | mean_with_ends([float(loss[first:last].mean()) for loss in plain])
            for word, where in bands:
                rests = [where == "all" or n == slowest for n in range(len(own))]
                band = [parse_band(word)]
                tables = [without(table, band) if rest else table for table, rest in zip(own, rests, strict=True)]
                with probed.with_frequencies(tables):
                    rested = [token_loss(probed, text) for text in texts]
                for first, last in spans:
                    change = [float((a - b)[first:last].mean()) for a, b in zip(rested, plain, strict=True)]
                    at = {"length": length, "first": first, "last": last, "band": word, "layers": where}
                    yield at | mean_with_ends(change)


def temperature(opened: Opened, stream: Sequence[int], book: Sequence[int]) -> Iterator[Record]:
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


def lists(opened: Opened, stream: Sequence[int], book: Sequence[int]) -> Iterator[Record]:
    """Nats, the mean over the heads of the first layer and of the global ones, and of HEAD."""
    with opened() as probed:
        for n in N_ELEMENTS:
            prompts = [probed.tokens(maximum_prompt(n, seed)) for seed in range(N_LISTS)]
            found = [last_row_entropy(probed, prompt) for prompt in prompts]
            of_lists = {
                "layer 0": [float(layers[0].mean()) for layers in found],
                "global layers": [float(torch.cat([layers[layer] for layer in GLOBAL]).mean()) for layers in found],
                f"{HEAD[0]}.{HEAD[1]}": [float(layers[HEAD[0]][HEAD[1]]) for layers in found],
            }
            for where, entropies in of_lists.items():
                yield {"numbers": n, "where": where} | mean_with_ends(entropies)


# -- one head by distance


class Seen(Exception):
    """The layer has been called: the ones behind it are not needed."""


def last_rows(
    probed: ProbedHuggingFaceModel, tokens: Sequence[int], n_rows: int, heads: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], tuple[Tensor, Tensor, float]]:
    """The queries [Q, C] of each head's last rows, all its keys [K, C], and the scale of their products."""
    found: dict[tuple[int, int], tuple[Tensor, Tensor, float]] = {}

    def take(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        q, k = qkv[:2]
        for layer, head in (own for own in heads if own[0] == softmax.shape.layer):
            group = head * k.shape[1] // q.shape[1]
            found[layer, head] = q[0, head, -n_rows:].clone(), k[0, group].clone(), options["scale"]
        if len(found) == len(heads):
            raise Seen

    try:
        with torch.no_grad(), watching(probed.normalisers, take):
            probed.hidden(filled_up([tokens]), torch.arange(len(tokens))[None])
    except Seen:
        pass
    return found


def distance(opened: Opened, stream: Sequence[int], book: Sequence[int]) -> Iterator[Record]:
    """The weight on what came after the first copy, from the second, with slow pairs turning and at rest."""
    with opened() as probed:
        own = probed.tables()
        slowest = max(range(len(own)), key=lambda n: -float(own[n].min()))
        resting = {word: without(own[slowest], [parse_band(word)]) for word in AT_REST}
        for apart, n_texts in DISTANCES.items():
            found = {
                word: [looked_up(probed, apart, seed, own, slowest, table) for seed in range(n_texts)]
                for word, table in {"none": own[slowest], **resting}.items()
            }
            for word, texts in found.items():
                for name in texts[0]:
                    at = {"distance": apart, "at rest": word, "measure": name}
                    yield at | mean_with_ends([text[name] for text in texts])
                    if word != "none":
                        change = [a[name] - b[name] for a, b in zip(texts, found["none"], strict=True)]
                        yield at | {"measure": f"{name}, change"} | mean_with_ends(change)


def looked_up(
    probed: ProbedHuggingFaceModel, apart: int, seed: int, own: Sequence[Tensor], changed: int, table: Tensor
) -> dict[str, float]:
    """Means over the rows of the second copy, of random tokens of which none stands between the copies too."""
    assert probed.first_token is not None
    generator = torch.Generator().manual_seed(seed)
    copied = torch.randint(*IDS, (COPIED,), generator=generator).tolist()
    others = (token for token in torch.randint(*IDS, (2 * apart,), generator=generator).tolist() if token not in copied)
    tokens = [probed.first_token, *copied, *islice(others, apart - COPIED), *copied]
    with probed.with_frequencies([table if n == changed else kept for n, kept in enumerate(own)]):
        q, k, scale = last_rows(probed, tokens, COPIED, [HEAD])[HEAD]
    rows = torch.arange(len(tokens) - COPIED, len(tokens) - 1)  # behind the last another token comes
    seen = torch.arange(len(tokens)) <= rows[:, None]
    logits = (q[:-1] @ k.T * scale).masked_fill(~seen, -torch.inf)
    alpha, target = logits.softmax(-1), (rows - apart + 1)[:, None]
    seen[:, 0] = False
    mean = logits.masked_fill(~seen, 0.0).sum(-1) / seen.sum(-1)
    return {
        "target": float(alpha.gather(-1, target).mean()),
        "first token": float(alpha[:, 0].mean()),
        "logit over the mean": float((logits.gather(-1, target)[:, 0] - mean).mean()),
    }


def draw_distance(path: Path) -> None:
    """The weights in distance.csv, beside it."""
    with path.open() as file:
        found = list(csv.DictReader(file))
    panels = []
    for measure, label in (("target", "weight on what is looked up"), ("first token", "weight on the first token")):
        curves = []
        for word in ("none", *AT_REST):
            rows = [row for row in found if (row["at rest"], row["measure"]) == (word, measure)]
            x, y, low, high = ([float(row[name]) for row in rows] for name in ("distance", "value", "low", "high"))
            share = word.removeprefix("lowest:")
            name = "all pairs turn" if word == "none" else f"the slowest {share} of the pairs at rest"
            curves.append(Curve(name, x, y, low=low, high=high))
        marks = [Mark("trained context", 32768, 32768)]
        ticks = [64, 256, 1024, 4096, 16384, 49152]
        panels.append(Panel("tokens apart", label, curves, "x", marks=marks, possible=(0, 1), x_ticks=ticks))
    title = f"Head {HEAD[0]}.{HEAD[1]} of Gemma 3 270M, {COPIED} random tokens that come twice"
    save_drawing(Drawing("distance", title, panels), path.parent, kinds=["svg"])


# -- running


def cut(probed: ProbedHuggingFaceModel, stream: Sequence[int], length: int, n: int | None = None) -> list[list[int]]:
    """Windows of a stream of tokens, each behind the model's first token: n spread over it, or all that are whole."""
    first = [] if probed.first_token is None else [probed.first_token]
    step = length if n is None else len(stream) // n
    assert step >= length, f"{len(stream):,} tokens are too few for {n} windows of {length:,}"
    return [[*first, *stream[i * step : i * step + length]] for i in range(n or len(stream) // length)]


PARTS = {part.__name__: part for part in (short, long, curve, distance, temperature, lists)}


def write(path: Path, records: Sequence[Record]) -> None:
    columns = list(dict.fromkeys(name for record in records for name in record))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: as_written(x) for name, x in record.items()} for record in records)


def as_written(x: Any) -> Any:
    if isinstance(x, list):
        return " ".join(map(as_written, x))
    return f"{x:.5g}" if isinstance(x, float) else x


def main(path: str, text: str, book: str, folder: str, *parts: str) -> None:
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(path)
    streams = [
        tokenizer(Path(name).read_text(encoding="utf-8"), add_special_tokens=False, verbose=False).input_ids
        for name in (text, book)
    ]

    @contextmanager
    def opened(softmax: str | None = None) -> Iterator[ProbedHuggingFaceModel]:
        make_softmax = None if softmax is None else makers_of(softmax, None, {})[0]
        with installed(model, make_softmax):
            yield ProbedHuggingFaceModel(Path(path).name, model, tokenizer)

    for part in parts or PARTS:
        began = time.monotonic()
        records: list[Record] = []
        for record in PARTS[part](opened, *streams):
            records.append(record)
            write(Path(folder) / f"{part}.csv", records)  # each time: some parts take hours
        if part == "distance":
            draw_distance(Path(folder) / "distance.csv")
        print(f"{part}: {len(records)} numbers, {(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main(*sys.argv[1:])
