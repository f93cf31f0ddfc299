"""The panels and the page of a probe, of an ablation of frequencies, and of a test that asks for a list's maximum.

The files that `probe` writes and its page draw the same panels. If the norms, the logits or the attention weights of
all heads are too large for a page, the page has them only for the heads that stand out most.

Shapes: L layers, H heads, K key heads, P pairs of channels, D distances, T tokens.

Tested by tests/probing/test_probe_figures.py and tests/report/test_page.py.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.report.drawing.tables import Record, Table, number, tables_of
from roundround.report.eval_panels import BEFORE, MOST_HEADS, by_layer, by_place, curve_by_place, mean_of
from roundround.report.page.view import RunFiles, Section, View, scaled, short, shown_word
from roundround.support.panels import Curve, Panel, numbers

ROOM = 800_000  # most characters of each part of the page's data that is stored by head
WITHOUT = "places_without_"
FIRST = "_without_first"
SHARE = "share_on_"
MEASURES = ("entropy", "largest_weight", "logit_spread", "gap_counting", "collapsed")
CHANGE = "change"  # the share of the weight that moves when frequencies are set to zero
NONE = "none"  # the `ablate` of measurements before frequencies are set to zero
LETTERS = {"diagonal": "D", "previous": "P", "sink": "K", "offset": "O", "semantic": "S", "local": "L", "diffuse": "-"}
MEANINGS = {
    "diagonal": "attends to the token itself",
    "previous": "attends to the token before",
    "sink": "attends to the text's first token, or another that most rows prefer",
    "offset": "attends to one other fixed distance, of 2 to 32 tokens",
    "semantic": "attends to a single token at no fixed distance",
    "local": "attends to the token itself and the seven before",
    "diffuse": "spreads its weight",
}
NARROW = 6  # with at most so many heads in a row, the details of a head fit beside the map
DENSE = 16  # with more heads in a row, a cell has room for one letter


def kept_panels(records: Sequence[Record]) -> list[Panel]:
    """Perplexity against the fraction of RoPE's frequencies that is kept; the other frequencies are set to zero.

    In one panel the lowest frequencies are set to zero, in the other the highest. Each line covers the targets in one
    range of positions; a target's position is the number of tokens before it.
    """
    panels = []
    for end, other in (("lowest", "fastest"), ("highest", "slowest")):
        lines: dict[str, list[tuple[float, float | None]]] = {}
        for record in records:
            kept = number(record.get("kept"))
            if kept is not None and record.get("end", end) == end:
                name = "all"
                if "first_position" in record:
                    name = "{first_position:,}-{last_position:,} tokens before ({targets:,} targets)".format(**record)
                lines.setdefault(name, []).append((kept, number(record["value"])))
        curves = [
            Curve(name, [x for x, _ in points], numbers(y for _, y in points))
            for name, points in ((name, sorted(points, key=lambda point: point[0])) for name, points in lines.items())
        ]
        panels.append(
            Panel(
                f"fraction kept, from the {other}", "perplexity", curves, "y", f"The {end} frequencies set to zero",
                reversed_x=True, widened=True,
            )
        )  # fmt: skip
    return panels


def maximum_panels(records: Sequence[Record]) -> list[Panel]:
    """Figure 3 of arXiv:2410.01104: for each layer, the entropy of the last row against the length of the list.

    The model is asked for the maximum of the list.
    """
    layers = by_layer(records, "entropy", "n")
    sizes = sorted({n for by_n in layers.values() for n in by_n})
    uniform = Curve("uniform: ln n", sizes, [math.log(n) for n in sizes], style=1)
    panels = []
    for layer, by_n in sorted(layers.items()):
        n_heads = min(map(len, by_n.values()))
        heads = [Curve("each head", list(by_n), [values[head] for values in by_n.values()], reference=True)
                 for head in range(n_heads if n_heads <= MOST_HEADS else 0)]  # fmt: skip
        curves = [*heads, mean_of("mean over heads, from the lowest to the highest", by_n, 0), uniform]
        panels.append(
            Panel(
                "listed numbers", "entropy of the last row (nats)", curves, "x", f"Layer {layer}",
                possible=(0.0, None), whole=True, x_ticks=sizes,
            )
        )  # fmt: skip
    return panels


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """The page of a probe of any of the three kinds; sections without records are empty."""
    heads, metrics = heads_of(records), dict.fromkeys(record["metric"] for record in records)
    places = [name.removeprefix(SHARE) for name in metrics if name.startswith(SHARE)]  # in the order of the arrays too
    sections, data = [], None
    if heads:
        ordered = standing_out(heads, places)
        first = max(ordered, key=lambda head: head.measures.get("change", 0.0))  # the first where nothing was ablated
        data = arrays_for_script(files, ordered, places) | {"places": places, "first": first.name, "heads": {}}
        for head in heads:  # 6 digits: rounding to 3 and then to the map's 2 decimals would give wrong shares
            own = {"label": head.label, "share": short(head.share, 6)}
            data["heads"][head.name] = own | {name: short(value) for name, value in head.measures.items()}
        sections.append(explorer(heads, places, first, without=len(data["shares"][first.name]) > 1))
    about_lists = "Entropy of the last row when asked for the largest of a list; the band spans the heads."
    asked = Section("Asked for the maximum", panels=maximum_panels(records), note=about_lists)
    sections += [ablation(records), asked]
    rest = [record for record in records if "head" not in record or not heads]
    tables, scripts = tables_of(rest, folded=True), ("draw.js", "probe.js") if heads else ()
    note = "The measurements of each head are in the table of heads above and in results.json." if heads else ""
    facts = files.run.manifest["facts"]
    scope = [f"Taken over {facts['texts']:,} texts with {facts['tokens']:,} tokens in all."] if "texts" in facts else []
    if heads:
        scope.append(
            "Shares are means over sampled rows with at least four tokens before them. Largest weights, logit spreads, "
            "gap counting numbers (1 / mean of 1 / Lambda) and shares of collapsed rows are means over all sampled "
            "rows; entropies are means over all rows, or over the sample if the normaliser has no fused form."
        )
    return View([*sections, Section("Numbers", tables=tables, note=note)], scope, data, scripts)


def explorer(heads: Sequence[ProbedHead], places: Sequence[str], first: ProbedHead, *, without: bool) -> Section:
    """The map of all heads, the details of a chosen head, and the table of heads.

    without: whether the page has shares without a band of frequencies too.
    """
    n_layers, n_heads = 1 + max(h.layer for h in heads), 1 + max(h.head for h in heads)
    grid: list[list[ProbedHead | None]] = [[None] * n_heads for _ in range(n_layers)]
    for head in heads:
        grid[head.layer][head.head] = head
    counts = Counter(head.label for head in heads)
    measures = [name for name in (*MEASURES, CHANGE) if any(name in head.measures for head in heads)]
    legend = [
        {"place": place, "letter": LETTERS.get(place, "?"), "meaning": MEANINGS.get(place, ""), "n": counts[place]}
        for place in places
    ]
    values = {
        "grid": grid,
        "legend": legend,
        "letters": LETTERS,
        "classes": {place: f"p{number}" for number, place in enumerate(places)},
        "dense": n_heads > DENSE,
        "narrow": n_heads <= NARROW,
        "measures": measures,
        "first": first.name,
        "changed": CHANGE in measures,
        "without": without,
    }
    return Section("Heads", part="probe.html.j2", values=values, tables=[table_of(heads, measures)])


def table_of(heads: Sequence[ProbedHead], measures: Sequence[str]) -> Table:
    rows = [[h.layer, h.head, h.label, h.share, *(h.measures.get(m) for m in measures)] for h in heads]
    note = "share: the share of the head's weight at the label's place; entropy in nats"
    note += "; change: share of the weight that moves to another place" if CHANGE in measures else ""
    return Table("heads", ["layer", "head", "label", "share", *measures], rows, note=note, folded=True, short=True)


def ablation(records: Sequence[Record]) -> Section:
    """Perplexity when some frequencies are set to zero.

    The x axis is the number of tokens before a target, or the fraction of frequencies kept.
    """
    found = [r for r in records if r["metric"] == "perplexity" and "ablate" in r]
    title = "Frequencies set to zero"
    if not found:
        return Section(title)
    lines: dict[str, list[tuple[float, Record]]] = {}
    for middle, record in by_place(found):
        lines.setdefault(str(record["ablate"]), []).append((middle, record))
    curves = [
        curve_by_place("all frequencies" if ablate == NONE else f"without {ablate}", points)
        for ablate, points in lines.items()
    ]
    by_tokens = Panel(BEFORE, "perplexity", curves, "xy", "Perplexity by the tokens before the target")
    swept = any("kept" in record for record in found)
    n_targets = next((number(r.get("targets")) for r in found if "first_position" not in r), None)
    note = "" if n_targets is None else f"{n_targets:,.0f} targets in all; a range of fewer than 100 is not reliable."
    return Section(title, panels=kept_panels(found) if swept else [by_tokens], note=note)


# -- what the script of the page reads


def arrays_for_script(files: RunFiles, heads: Sequence[ProbedHead], places: Sequence[str]) -> dict[str, Any]:
    """The data that the page's script reads.

    heads: the most important head first. If a page has no room for all heads, the last are left out.
    """
    probe = files.arrays("probe.safetensors", lambda key: "square" not in key)
    prompt = files.arrays("prompt.safetensors", lambda key: key == "weights")
    norms = {kind: probe[f"{kind}_norm"] for kind in ("query", "key", "value") if f"{kind}_norm" in probe}
    found: dict[str, Any] = {"overview": {kind: overview(norms_LHP) for kind, norms_LHP in norms.items()}}
    found["shares"] = {h.name: shares_of(probe, h, places) for h in heads}
    if "key" in norms:
        found["keys"] = keys_of(probe)
    if "frequencies" in probe:
        found["frequencies"] = [[short(float(g), 7) for g in g_P] for g_P in probe["frequencies"]]
    if "distances" in probe:
        found["distances"] = [int(d) for d in probe["distances"].tolist()]
    found["parts"] = {}
    for name, title, arrays, key, numbers_of in (
        ("norms", "norms of queries", probe, "query_norm", norms_of),
        ("logits", "logits by frequency", probe, "logit_by_pair", logits_of),
        ("prompt", "attention on the prompt", prompt, "weights", weights_of),
    ):
        known = heads if key in arrays else []
        most = max(1, ROOM // len(json.dumps(numbers_of(arrays, known[0])))) if known else 0
        found["parts"][name] = {head.name: numbers_of(arrays, head) for head in known[:most]}
        if len(known) > most:
            files.remarks.append(
                f"{title}: shown for the {most:,} heads of {len(known):,} that stand out most (each label's largest "
                "shares in turn), because a page has no room for more; the run's arrays have all heads"
            )
    if found["parts"]["prompt"]:
        found["words"] = list(map(shown_word, json.loads(files.about("prompt.safetensors")["words"])))
    return found


def norms_of(probe: dict[str, NDArray[Any]], head: ProbedHead) -> dict[str, Any]:
    """The mean query norm of each pair of channels: over all tokens, and over all but the first token of each text."""
    return {
        name: scaled(there(probe[name][head.layer, head.head]))
        for name in ("query_norm", f"query_norm{FIRST}")
        if name in probe
    }


def keys_of(probe: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """The mean key norms of the pairs, as [layer][key head], and the number of query heads of each layer (`n_heads`).

    Query head h reads key head floor(h K / H).
    """
    found: dict[str, Any] = {}
    for name in ("key_norm", f"key_norm{FIRST}"):
        by_layer = [heads_KP[~np.isnan(heads_KP).all(-1)] for heads_KP in probe[name]]
        found[name] = [[scaled(there(norms_P)) for norms_P in heads_KP] for heads_KP in by_layer]
    return found | {"n_heads": (~np.isnan(probe["query_norm"]).all(-1)).sum(1).tolist()}


def there(values_P: NDArray[Any]) -> NDArray[Any]:
    """The values without the NaN at the end, which pad a layer that has fewer pairs than another."""
    known = np.flatnonzero(~np.isnan(values_P))
    return values_P[: known[-1] + 1] if len(known) else values_P[:0]


def logits_of(probe: dict[str, NDArray[Any]], head: ProbedHead) -> dict[str, Any]:
    """The contribution of each pair (row) to the logit at each distance (column) that occurred."""
    values_PD = probe["logit_by_pair"][head.layer, head.head]
    pairs = ~np.isnan(values_PD).all(-1)
    reached = ~np.isnan(values_PD[pairs]).any(0) if pairs.any() else np.zeros(values_PD.shape[1], bool)
    kept = values_PD[pairs][:, reached]
    return {"columns": np.flatnonzero(reached).tolist(), "rows": len(kept), **scaled(kept)}


def weights_of(prompt: dict[str, NDArray[Any]], head: ProbedHead) -> list[int]:
    """Weights of the prompt in thousandths, the lower triangle row by row."""
    weights_TT = np.nan_to_num(prompt["weights"][head.layer, head.head].astype(np.float64))
    steps: list[int] = np.rint(1000 * weights_TT[np.tril_indices(len(weights_TT))]).astype(int).tolist()
    return steps


def shares_of(probe: dict[str, NDArray[Any]], head: ProbedHead, places: Sequence[str]) -> dict[str, list[int]]:
    """{`all` or `without <band>`: the share of a head's weight at each of the `places`, in thousandths}.

    `all`: the shares with all frequencies. `without <band>`: the shares if the frequencies of the band are set to zero.
    """
    rows = {band: [round(1000 * of.get(place, 0.0)) for place in places] for band, of in head.shares.items()}
    for name in ("fastest", "fast", "slow", "slowest"):
        key = f"{WITHOUT}{name}"
        if key in probe:
            rows[name] = [round(1000 * share) for share in np.nan_to_num(probe[key][head.layer, head.head]).tolist()]
    return {("all" if band == NONE else f"without {band}"): values for band, values in rows.items()}


def overview(norms_LHP: NDArray[Any]) -> dict[str, Any]:
    """Mean norm over heads: rows are layers, columns pairs."""
    means_LP = np.ma.masked_invalid(norms_LHP).mean(1).filled(np.nan)  # a layer may have fewer heads or pairs
    return {"rows": means_LP.shape[0], "columns": means_LP.shape[1], **scaled(means_LP)}


# -- what the records say


@dataclass
class ProbedHead:
    """A head of the probed model and the numbers measured on it.

    A place is a group of keys, such as `previous` (the token before). label: the place after which the head is named.
    share: the share of the head's weight at this place. shares: the shares of weight at all places, {band of
    frequencies set to zero: {place: share}}. measures: the other numbers, {name: value}.
    """

    layer: int
    head: int
    label: str = ""
    share: float = 0.0
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"


def heads_of(records: Sequence[Record]) -> list[ProbedHead]:
    """Every head whose shares of weight were recorded, layer by layer."""
    found: dict[tuple[int, int], ProbedHead] = {}
    for record in records:
        if "head" not in record or "n" in record:
            continue
        layer, head, metric = record["layer"], record["head"], record["metric"]
        here = found.setdefault((layer, head), ProbedHead(layer, head))
        if metric == "label":
            here.label, here.share = record["value"], record["share"]
        elif (measured := number(record["value"])) is None:
            continue
        elif metric.startswith(SHARE):
            here.shares.setdefault(record.get("ablate", NONE), {})[metric.removeprefix(SHARE)] = measured
        elif metric in MEASURES:
            here.measures[metric] = measured
    heads = [found[key] for key in sorted(found) if found[key].shares]
    for one in heads:
        if not one.label:  # an ablation records shares alone, before and after
            (before, after) = one.shares.values()
            one.label = max(before, key=before.__getitem__)
            one.share = before[one.label]
            one.measures[CHANGE] = sum(abs(after.get(place, 0.0) - share) for place, share in before.items()) / 2
    return heads


def standing_out(heads: Sequence[ProbedHead], places: Sequence[str]) -> list[ProbedHead]:
    """The heads in the order of a page: each label's head with the largest share, then each label's second head, ..."""
    by_label = [sorted((h for h in heads if h.label == place), key=lambda h: -h.share) for place in places]
    return [head for turn in zip_longest(*by_label) for head in turn if head is not None]
