"""What the records and the arrays of a probe say of every head: its label, how sharp it is, what the script reads.

Shapes: L layers, H heads, K key heads, P pairs, D distances, T tokens. A part that is too large for a page is kept for
the heads that stand out most.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.report.drawing.numbers import number
from roundround.report.drawing.tables import Record
from roundround.report.page.view import RunFiles
from roundround.support.errors import escaped

ROOM = 800_000  # characters of each part of what is kept by head
STEPS = 999  # of an integer that stands for a share of the largest value
WITHOUT = "places_without_"
FIRST = "_without_first"
SHARE = "share_on_"
MEASURES = ("entropy", "largest_weight", "logit_spread")
BEFORE = "none"  # the `ablate` of what is measured before frequencies are set to zero
LETTERS = {"diagonal": "D", "previous": "P", "sink": "K", "offset": "O", "semantic": "S", "local": "L", "diffuse": "-"}
NEIGHBOURHOOD = ("diagonal", "previous", "local")
MEANINGS = {
    "diagonal": "looks at the token itself",
    "previous": "looks at the token before",
    "sink": "looks at the text's first token, or another that most rows prefer",
    "offset": "looks at one other fixed distance, of 2 to 32 tokens",
    "semantic": "looks at a single token at no fixed distance",
    "local": "looks at the token itself and the seven before",
    "diffuse": "spreads its weight",
}


def arrays_for_script(files: RunFiles, heads: Sequence[Head], places: Sequence[str]) -> dict[str, Any]:
    """What the page's script reads; `heads` with those first that are kept where not all fit."""
    probe = files.arrays("probe.safetensors", lambda key: "square" not in key)
    prompt = files.arrays("prompt.safetensors", lambda key: key == "weights")
    found = of_all_heads(probe, heads, places) | {"parts": {}}
    for name, title, arrays, key, numbers_of in (
        ("norms", "norms of queries", probe, "query_norm", norms_of),
        ("logits", "logits by frequency", probe, "logit_by_pair", logits_of),
        ("prompt", "attention on the prompt", prompt, "weights", weights_of),
    ):
        known = [head for head in heads if fits(arrays, key, head)]
        most = max(1, ROOM // len(json.dumps(numbers_of(arrays, known[0])))) if known else 0
        found["parts"][name] = {head.name: numbers_of(arrays, head) for head in known[:most]}
        if len(known) > most:
            files.remarks.append(
                f"{title}: shown for the {most:,} heads of {len(known):,} that stand out most (each label's largest "
                "shares in turn), because a page has no room for more; the arrays of the run have all"
            )
    if found["parts"]["prompt"]:
        words = [shown_word(word) for word in files.words("prompt.safetensors")]
        n_tokens = prompt["weights"].shape[-1]
        found["words"] = words if len(words) == n_tokens else [str(place) for place in range(n_tokens)]
    return found


def of_all_heads(probe: dict[str, NDArray[Any]], heads: Sequence[Head], places: Sequence[str]) -> dict[str, Any]:
    """What is small enough to be there for every head."""
    norms = {kind: probe[f"{kind}_norm"] for kind in ("query", "key", "value") if f"{kind}_norm" in probe}
    found: dict[str, Any] = {"overview": {kind: overview(norms_LHP) for kind, norms_LHP in norms.items()}}
    found["shares"] = {h.name: shares_of(probe, h, places) for h in heads}
    if "key" in norms:
        found["keys"] = keys_of(probe)
    if "frequencies" in probe:
        found["frequencies"] = [[short(float(g), 4) for g in g_P] for g_P in probe["frequencies"]]
    if "distances" in probe:
        found["distances"] = [int(d) for d in probe["distances"].tolist()]
    return found


def fits(arrays: dict[str, NDArray[Any]], name: str, head: Head) -> bool:
    """Whether an array knows this head."""
    return name in arrays and head.layer < arrays[name].shape[0] and head.head < arrays[name].shape[1]


def norms_of(probe: dict[str, NDArray[Any]], head: Head) -> dict[str, Any]:
    """Mean query norm of each pair, with and without the first token of each text."""
    names = [name for name in ("query_norm", f"query_norm{FIRST}") if fits(probe, name, head)]
    return {name: scaled(there(probe[name][head.layer, head.head])) for name in names}


def keys_of(probe: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Mean key norm of each pair by layer and key head; a query head h of H reads key head h K / H."""
    found: dict[str, Any] = {}
    for name in ("key_norm", f"key_norm{FIRST}"):
        by_layer = [heads_KP[~np.isnan(heads_KP).all(-1)] for heads_KP in probe[name]]
        found[name] = [[scaled(there(norms_P)) for norms_P in heads_KP] for heads_KP in by_layer]
    return found | {"n_heads": (~np.isnan(probe["query_norm"]).all(-1)).sum(1).tolist()}


def there(values_P: NDArray[Any]) -> NDArray[Any]:
    """Without the padding at the end of a smaller layer."""
    known = np.flatnonzero(~np.isnan(values_P))
    return values_P[: known[-1] + 1] if len(known) else values_P[:0]


def logits_of(probe: dict[str, NDArray[Any]], head: Head) -> dict[str, Any]:
    """What each pair adds to the logit at each distance that was reached: rows are pairs."""
    values_PD = probe["logit_by_pair"][head.layer, head.head]
    pairs = ~np.isnan(values_PD).all(-1)
    reached = ~np.isnan(values_PD[pairs]).any(0) if pairs.any() else np.zeros(values_PD.shape[1], bool)
    kept = values_PD[pairs][:, reached]
    return {"columns": np.flatnonzero(reached).tolist(), "rows": len(kept), **scaled(kept)}


def weights_of(prompt: dict[str, NDArray[Any]], head: Head) -> list[int]:
    """Weights of the prompt in thousandths, the lower triangle row by row."""
    weights_TT = np.nan_to_num(prompt["weights"][head.layer, head.head].astype(np.float64))
    steps: list[int] = np.rint(1000 * weights_TT[np.tril_indices(len(weights_TT))]).astype(int).tolist()
    return steps


def shares_of(probe: dict[str, NDArray[Any]], head: Head, places: Sequence[str]) -> dict[str, list[int]]:
    """Thousandths of the weight at each place, with all frequencies and without some."""
    rows = {band: [round(1000 * of.get(place, 0.0)) for place in places] for band, of in head.shares.items()}
    for name in ("fastest", "fast", "slow", "slowest"):
        key = f"{WITHOUT}{name}"
        if fits(probe, key, head) and probe[key].shape[2] == len(places):
            rows[name] = [round(1000 * share) for share in np.nan_to_num(probe[key][head.layer, head.head]).tolist()]
    return {("all" if band == BEFORE else f"without {band}"): values for band, values in rows.items()}


def overview(norms_LHP: NDArray[Any]) -> dict[str, Any]:
    """Mean norm over heads: rows are layers, columns pairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of layers that have fewer pairs
        means_LP = np.nanmean(norms_LHP, axis=1)
    return {"rows": means_LP.shape[0], "columns": means_LP.shape[1], **scaled(means_LP)}


def shown_word(word: str) -> str:
    """A token as the page shows it: a space or nothing would not be seen."""
    return escaped(word.strip()) or (escaped(word.replace(" ", "_")) or "_")


# -- numbers as a page carries them


def short(value: float, digits: int = 3) -> float | int | None:
    """A number with this many significant digits; None for one that is not finite."""
    if not math.isfinite(value):
        return None
    found = float(f"{value:.{digits - 1}e}")
    if math.isinf(found):  # the largest floats, rounded up
        return value
    return int(found) if found == int(found) and abs(found) < 1e15 else found


def scaled(values: NDArray[Any]) -> dict[str, Any]:
    """A flat list of integers from -STEPS to STEPS, which stand for shares of `largest`; None for no number."""
    flat = values.astype(np.float64).ravel()
    finite = np.isfinite(flat)
    largest = float(np.abs(flat[finite]).max()) if finite.any() else 0.0
    steps = np.rint(np.where(finite, flat, 0) / (largest or 1.0) * STEPS).astype(int).tolist()
    return {
        "largest": short(largest, 4),
        "steps": [step if there else None for step, there in zip(steps, finite.tolist(), strict=True)],
    }


# -- what the records say


@dataclass
class Head:
    """A head: its label, the share of its weight at each place (by band that is set to zero), and its measures."""

    layer: int
    head: int
    label: str | None = None
    behind_label: float | None = None
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"

    def place(self) -> str:
        """Its label; of a run that has none the place of the largest share."""
        before = self.shares.get(BEFORE, {})
        return self.label or (max(before, key=lambda place: before[place]) if before else "")

    def share(self) -> float:
        """The weight behind its label; where it was not recorded, that at the label's place, of a local head less."""
        if self.behind_label is not None:
            return self.behind_label
        before = self.shares.get(BEFORE, {})
        return sum(before.get(place, 0.0) for place in (NEIGHBOURHOOD if self.place() == "local" else [self.place()]))

    def change(self) -> float | None:
        """The share of the weight that goes elsewhere with the frequencies set to zero; None where none were."""
        bands = [band for band in self.shares if band != BEFORE]
        if not bands or BEFORE not in self.shares:
            return None
        before, after = self.shares[BEFORE], self.shares[bands[-1]]
        return sum(abs(after.get(place, 0.0) - share) for place, share in before.items()) / 2


def places_of(records: Sequence[Record]) -> list[str]:
    """The places of the records, in their order, which is that of the arrays too."""
    return list(dict.fromkeys(r["metric"].removeprefix(SHARE) for r in records if r["metric"].startswith(SHARE)))


def heads_of(records: Sequence[Record]) -> list[Head]:
    """Every head of which the records know where its weight goes, layer by layer."""
    found: dict[tuple[int, int], Head] = {}
    for record in records:
        layer, head = record.get("layer"), record.get("head")
        if not isinstance(layer, int) or not isinstance(head, int) or min(layer, head) < 0 or "n" in record:
            continue
        here, metric, value = found.setdefault((layer, head), Head(layer, head)), record["metric"], record["value"]
        if metric == "label":
            here.label, here.behind_label = str(value), number(record.get("share"))
        elif (measured := number(value)) is None:
            continue
        elif metric.startswith(SHARE):
            here.shares.setdefault(str(record.get("ablate", BEFORE)), {})[metric.removeprefix(SHARE)] = measured
        elif metric in MEASURES:
            here.measures[metric] = measured
    return [found[key] for key in sorted(found) if found[key].shares]


def standing_out(heads: Sequence[Head], places: Sequence[str]) -> list[Head]:
    """The heads in the order in which a page shows them: of each label in turn the one with the largest share left."""
    by_label = [sorted((h for h in heads if h.place() == place), key=lambda h: -h.share()) for place in places]
    return [head for turn in zip_longest(*by_label) for head in turn if head is not None]
