"""Figures and tables of pretrained models. The table `FIGURES` lists them, each with the function that measures it.

Each function runs a probe, reads the probe's run directory, and compares the numbers there with the published ones. The
papers leave some choices open:

- The cells of published heat maps were read off the pictures. arXiv:2410.06205 does not give its texts, and does not
  say whether their first tokens count. It shows 27 of the 28 layers of Gemma 7B. The first layer is one of the 27: the
  mean of its heads in Figure 4 is the first column of Figure 3 (correlation 0.99). So all readings are tried (with and
  without first tokens, without each layer in turn), and the reading that fits best is used. Tolerances are as large as
  the differences between the paper's maps of different texts.
- arXiv:2410.06205 counts heads from 1. The layer that it labels "1" is the first one, because norms of repeated tokens
  are equal in its pictures. The paper does not print its prompt. So patterns are compared with the paper's descriptions
  of them, and norms are averaged over tokens and then compared. Only the norms of the first token, which sees only
  itself, are compared one by one.

Shapes: L layers, H heads, G key heads, T tokens, P pairs, N columns (layers or heads). Smaller layers are padded with
NaN.

Tested by tests/papers/test_papers_models.py.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from roundround.analysis.intervals import welch_width
from roundround.papers.claim import (
    CheckedNumber,
    Figure,
    Finding,
    RunVerb,
    Subject,
    as_printed,
    at_least,
    at_most,
    near,
    shown,
)
from roundround.probing.rows import PLACES, LayerRecord, PromptRecord
from roundround.support.errors import UserError
from roundround.support.panels import Curve, HeatMap, Panel

Array = NDArray[np.float64]


# -- the run directory of a probe, and published maps


@dataclass(frozen=True)
class Probed:
    """The run directory of a probe, and its arrays."""

    directory: Path
    arrays: dict[str, Tensor]

    def by_layer(self, name: str) -> Array:
        """The mean over heads of the norms `name` [L, H or G, P], such as `query_norm`. Layers are columns: [P, L]."""
        return mean(numbers(self.arrays[name]), axis=1).T

    def of_layer(self, name: str, layer: int) -> Array:
        """One layer's part of the norms `name`. Heads are columns: [P, H or G]."""
        return numbers(trimmed(self.arrays[name][layer])).T

    def share(self, label: str) -> Array:
        """The share of each head's weight that goes to `label`, one of PLACES: [L, H]."""
        return numbers(self.arrays["places"])[..., PLACES.index(label)]

    def prompt(self) -> PromptRecord:
        """The prompt that the probe recorded, token by token."""
        path = self.directory / "prompt.safetensors"
        with safe_open(path, framework="pt") as file:
            words = json.loads(file.metadata()["words"])
        arrays = load_file(path)
        layers = {
            layer: LayerRecord(**{name: trimmed(array[layer]) for name, array in arrays.items()})
            for layer in range(len(self.arrays["frequencies"]))
        }
        return PromptRecord(words, layers)


def probed(run: RunVerb, subject: Subject, texts: str = "shakespeare") -> Probed:
    """Probe a model on texts of the package; the probe records the default prompt too."""
    directory = run("probe", *subject.overrides, f"texts={texts}")
    return Probed(directory, load_file(directory / "probe.safetensors"))


def heat_map(name: str) -> Array:
    """The published cells of a figure, such as G7B_Fig3a_query_layer: [rows, columns]."""
    return np.loadtxt(Path(__file__).parent / "published" / f"{name}.csv", delimiter=",", ndmin=2)


def numbers(x: Tensor) -> Array:
    return np.asarray(x.double())


def trimmed(x: Tensor) -> Tensor:
    """One layer's array [heads, ...] without the padding: the heads and the columns that hold only NaN are removed."""
    there = ~x.isnan()
    return x[there.flatten(1).any(1)][..., there.flatten(0, -2).any(0)]


def mean(x: Array, axis: int) -> Array:
    """The mean of the finite numbers along an axis; NaN if there are none."""
    found: Array = np.ma.masked_invalid(x).mean(axis).filled(np.nan)
    return found


def columns(map_PN: Array) -> list[Array]:
    """The columns of a map that are not only NaN, each without its NaN cells."""
    return [column[np.isfinite(column)] for column in map_PN.T if np.isfinite(column).any()]


def slowest_share(map_PN: Array) -> Array:
    """The share of every column's squared norm that lies in the slowest quarter of the pairs: [N]."""
    return np.array([(c[len(c) - round(len(c) / 4) :] ** 2).sum() / (c**2).sum() for c in columns(map_PN)])


def fastest_mean(map_PN: Array) -> Array:
    """The mean norm of every column over the fastest sixteenth of the pairs, but at least over one pair: [N]."""
    return np.array([column[: max(1, len(column) // 16)].mean() for column in columns(map_PN)])


# -- maps beside maps

# Figure 19 (Italian, Chinese, code, sums) differs from Figure 3(a) (English) by up to 0.31 in mean norms and 0.13 in
# the share of the slowest quarter. They correlate by 0.925 to 0.954, but by at most 0.59 if one is shifted by a layer.
NORM_TOLERANCE = 0.35  # of the published mean norm


def best_fit(candidates: Mapping[str, Array], published: Array) -> tuple[str, Array, str]:
    """The name of the map that correlates best with the published one, that map, and a note on the choice.

    If a map has one column more than the published one, it is tried without each of its columns in turn.
    """
    cut = {}
    for name, ours in candidates.items():
        if ours.shape == published.shape:
            cut[name] = ours
        else:
            cut |= {f"{name}, without layer {i}": np.delete(ours, i, axis=1) for i in range(ours.shape[1])}
    best = max(cut, key=lambda name: correlation(cut[name], published))
    return best, cut[best], f"the best of {len(cut)} readings, norms within {NORM_TOLERANCE:.0%}"


def correlation(ours: Array, published: Array) -> float:
    """The correlation between the cells of the two maps; NaN if all cells of a map are equal."""
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(ours.ravel(), published.ravel())[0, 1])


def compare_maps(what: str, ours: Array, published: Array) -> list[CheckedNumber]:
    """Compare two maps of norms: means in bins of frequencies, the mean of `slowest_share`, and the cells.

    The cells are compared only if the maps have the same size.
    """
    n_bins = min(16, *(len(column) for column in columns(ours)))  # of the frequencies, from the fastest
    means = [  # over all columns, in bins of neighbouring pairs, from the fastest
        mean(np.array([[part.mean() for part in np.array_split(c, n_bins)] for c in columns(x)]), 0)
        for x in (ours, published)
    ]
    share, published_share = (float(slowest_share(x).mean()) for x in (ours, published))
    found = [as_printed(f"{what}: share of the slowest quarter", share, published_share, 0.14)]
    found += [
        as_printed(f"{what}: mean norm in part {n} of {n_bins} of the frequencies", a, b, NORM_TOLERANCE * b)
        for n, (a, b) in enumerate(zip(*means, strict=True), 1)
    ]
    if ours.shape == published.shape:
        found.append(near(f"{what}: correlation of the cells", correlation(ours, published), 1.0, 0.1))
    return found


def compare_strongest(what: str, ours_P: Array, published_P: Array) -> list[CheckedNumber]:
    """Compare the strongest pair of a head, counted from 1 as in the paper, and the norm of this pair."""
    pair, most = int(ours_P.argmax()), float(published_P.max())
    strongest = np.flatnonzero(published_P >= 0.8 * most)  # nearly equal pairs, such as 1, 126, 113, 128 in one head
    nearest = int(strongest[np.abs(strongest - pair).argmin()])
    return [
        # the reading of a picture may be wrong by one pair
        near(f"{what}: strongest pair", pair + 1, nearest + 1, 1, int(published_P.argmax()) + 1),
        as_printed(f"{what}: norm of the strongest pair", float(ours_P.max()), most, NORM_TOLERANCE * most),
    ]


def side_by_side(
    what: str, ours: Array, published: Array, columns_are: str, *, titles: tuple[str, str] = ("ours", "published")
) -> dict[str, HeatMap]:
    """The two maps as panels; if they have the same size, they share the colour scale."""
    most = float(max(ours.max(), published.max())) if ours.shape == published.shape else None
    return {
        f"{what}, {title}": HeatMap(values, columns_are, "pair, from the fastest", most, label="mean norm")
        for title, values in zip(titles, (ours, published), strict=True)
    }


# -- norms by layer and by head

PLURALS = {"query": "queries", "key": "keys", "value": "values"}
FAST_HEADS = (4, 7)  # of Figure 4, labelled 5 and 8
GROUP_SIZE = 4  # query heads of Llama 3.1 8B that share a key head


def norms_by_layer(run: RunVerb, subject: Subject, maps: Mapping[str, str], by_text: bool = False) -> Finding:
    """Compare the probed model's maps of norms, which have one column for each layer, with the published maps.

    For the paper's own model, `best_fit` chooses between the maps with and without first tokens. maps: the name of the
    published map for each kind of vector (query, key, value) or, with `by_text`, for each text. With `by_text`, all
    maps show queries, and the probed model's maps of any two texts must be similar.
    """
    seen = {texts: probed(run, subject, texts) for texts in (maps if by_text else ["shakespeare"])}
    comparisons: list[CheckedNumber] = []
    panels: dict[str, HeatMap] = {}
    remarks, shares, chosen = list[str](), [], ""
    for key, name in maps.items():
        what, kind, here = (key, "query", seen[key]) if by_text else (PLURALS[key], key, seen["shakespeare"])
        published, map_PL = heat_map(name), here.by_layer(f"{kind}_norm")
        if subject.is_the_papers:
            readings = {
                "with first tokens": map_PL,
                "without first tokens": here.by_layer(f"{kind}_norm_without_first"),
            }
            fit, map_PL, chosen = best_fit(readings, published)
            remarks.append(f"{'On' if by_text else 'For'} {what} the best fit is: {fit}.")
        ours_L, published_L = fastest_mean(map_PL), fastest_mean(published)
        comparisons += compare_maps(what, map_PL, published)
        comparisons += [  # the fast pairs of the first and the last layer, where the paper finds them in use
            shown(f"{what}: mean norm of the fastest sixteenth, {which} layer", ours_L[end], published_L[end])
            for which, end in (("first", 0), ("last", -1))
        ]
        panels |= side_by_side(what, map_PL, published, "layer")
        shares.append(f"{what} {slowest_share(map_PL).mean():.2f}{f' ({chosen})' if chosen else ''}")
    summary = f"share of the slowest quarter: {', '.join(shares)}"
    if by_text:
        least, published_least = (  # the smallest correlation of two maps
            min(correlation(*pair) for pair in combinations(map(np.nan_to_num, of_texts), 2))
            for of_texts in ([x.by_layer("query_norm") for x in seen.values()], map(heat_map, maps.values()))
        )
        comparisons += [
            near("smallest correlation of two texts' maps", least, 1.0, 0.1),  # the paper's have 0.923 at least
            shown("the same of the paper's maps", published_least, published_least),
        ]
        summary = f"smallest correlation of two texts' maps {least:.2f}{f'; each {chosen}' if chosen else ''}"
    return Finding(comparisons, panels, " ".join(remarks), summary)


def first_layer_norms(run: RunVerb, subject: Subject) -> Finding:
    """Figure 4: the first layer. Two heads stand out at the fast end, the others have one strong slow pair each."""
    seen = probed(run, subject)
    comparisons: list[CheckedNumber] = []
    panels: dict[str, HeatMap] = {}
    for kind, what, name in (("query", "queries", "Fig4a_L1_query_by_head"), ("key", "keys", "Fig4b_L1_key_by_head")):
        map_PH, published = seen.of_layer(f"{kind}_norm", 0), heat_map(name)
        panels |= side_by_side(what, map_PH, published, "head")
        comparisons += compare_maps(what, map_PH, published)
        if subject.is_the_papers:
            labels = [f"{what}, head {head + 1}" for head in range(published.shape[1])]
            comparisons += compare_heads(what, map_PH, published, labels, FAST_HEADS)
    fastest = np.argsort(-fastest_mean(seen.of_layer("query_norm", 0)))[: len(FAST_HEADS)]
    return Finding(comparisons, panels, ours=f"fastest heads, counted from 0: {', '.join(map(str, fastest))}")


def compare_heads(
    what: str, map_PH: Array, published: Array, labels: Sequence[str], fast: Sequence[int]
) -> list[CheckedNumber]:
    """Compare each head's strongest pair with the published one.

    At the fast end, the least norm of the `fast` heads must also exceed the largest norm of the other heads.
    """
    found = [c for i, label in enumerate(labels) for c in compare_strongest(label, map_PH[:, i], published[:, i])]
    fast_H = fastest_mean(map_PH)
    ratio = float(fast_H[list(fast)].min() / np.delete(fast_H, list(fast)).max())
    named = " and ".join(str(head + 1) for head in fast)
    return [*found, at_least(f"{what}: fast norm of head {named}, of the largest of the other heads", ratio, 1.0)]


def last_layer_group(run: RunVerb, subject: Subject) -> Finding:
    """Figure 11: a group of heads in the last layer. Its third head uses fast pairs and attends to the token itself."""
    seen = probed(run, subject)
    map_PH, published = seen.of_layer("query_norm", -1), heat_map("Fig11_llama_L32_group4_query")
    group, remark = list(range(map_PH.shape[1])), ""
    if subject.is_the_papers:  # "group 4", from 1 or from 0, is query heads 12 to 15 or 16 to 19: the better fit
        read = {f"heads {4 * g} to {4 * g + 3}": group[GROUP_SIZE * g : GROUP_SIZE * (g + 1)] for g in (3, 4)}
        name, _, chosen = best_fit({name: map_PH[:, heads] for name, heads in read.items()}, published)
        group, remark = read[name], f"The reading of group 4 that fits best is {name}: {chosen}."
    else:  # the heads that share a key head with the most diagonal one; all if no key head is shared
        size = len(group) // seen.of_layer("key_norm", -1).shape[1]
        if size > 1:
            group = group[int(seen.share("diagonal")[-1][: len(group)].argmax()) // size * size :][:size]
    ours, diagonal_H = map_PH[:, group], seen.share("diagonal")[-1][group]
    heads = f"queries of the heads {group[0]} to {group[-1]}"
    fastest, most_diagonal = int(fastest_mean(ours).argmax()), int(diagonal_H.argmax())
    comparisons = compare_maps(heads, ours, published)
    if subject.is_the_papers:
        labels = [f"head {head + 1} of the group" for head in range(GROUP_SIZE)]
        comparisons += compare_heads(heads, ours, published, labels, (2,))  # labelled 3
    comparisons += [
        shown(f"share of head {head} on the token itself", share) for head, share in zip(group, diagonal_H, strict=True)
    ]
    if subject.is_the_papers:
        comparisons.append(at_least("the fast head is the diagonal one", float(fastest == most_diagonal), 1.0))
    summary = f"head {group[fastest]} is the fast one, head {group[most_diagonal]} the most diagonal"
    return Finding(comparisons, side_by_side(heads, ours, published, "head of the group"), remark, summary)


# -- single heads on one short prompt, token by token

NO_PROMPT = "The paper does not print its prompt; ours is another one with three apostrophes."
OTHER_WORDS = 1.5  # tolerance of a logit for other words: between three words, the cells of Figure 12 differ by 0.7


class NamedHead(NamedTuple):
    """A head of Gemma 7B that the paper names.

    label: the head's name in the paper, which counts from 1. layers: the index of the head's layer, from 0; two
    indices if the label fits two layers. head: the head's index, from 0. pattern: the head's pattern, `diagonal`,
    `previous`, `semantic` or `apostrophe`. queries, keys: the names of the published maps of the head's query norms and
    of its key norms, [P, T], on the paper's prompt.
    """

    label: str
    layers: tuple[int, ...]
    head: int
    pattern: str
    queries: str
    keys: str


DIAGONAL = NamedHead("layer 1, head 5", (0,), 4, "diagonal", "Fig14a_L1H5_query_tok", "Fig14b_L1H5_key_tok")
LATE_DIAGONAL = NamedHead("layer 27, head 8", (26, 27), 7, "diagonal", "Fig6a_L27H8_query_tok", "Fig6b_L27H8_key_tok")
PREVIOUS = NamedHead("layer 1, head 8", (0,), 7, "previous", "Fig16a_L1H8_query_tok", "Fig16b_L1H8_key_tok")
APOSTROPHE = NamedHead("layer 1, head 10", (0,), 9, "apostrophe", "Fig17a_L1H10_query_tok", "Fig17b_L1H10_key_tok")
SEMANTIC = NamedHead("layer 1, head 13", (0,), 12, "semantic", "Fig18a_L1H13_query_tok", "Fig18b_L1H13_key_tok")


class Found(NamedTuple):
    """The head of the probed model that is compared with a NamedHead, and what the head does on the prompt.

    title: a text that names the head and says why it was chosen. words: a text with the head's pattern and the weights
    in `shares`. remark: a text that says which layer the paper's label means; "" if the label fits only one layer.
    shares: the head's mean weights on the tokens that define the pattern, each with a verdict. arrays: the head's
    arrays under their names, which are query_norms and key_norms [T, P], weights and logits [T, T].
    """

    layer: int
    head: int
    prompt: PromptRecord
    title: str
    words: str
    remark: str
    shares: list[CheckedNumber]
    arrays: dict[str, Array]

    @property
    def panel(self) -> dict[str, HeatMap]:
        return {f"weights, {self.title}": HeatMap(self.arrays["weights"], "key", "query", most=1.0, label="weight")}


def find(named: NamedHead, seen: Probed, subject: Subject) -> Found:
    """The head that the paper names; in another model, the head that shows the named head's pattern most strongly."""
    prompt, remark, pattern = seen.prompt(), "", named.pattern
    if pattern == "apostrophe":  # the product of the two weights of this pattern (`compare_pattern`)
        behind, others = apostrophe_rows(prompt.words)
        scores_LH = np.full(seen.arrays["places"].shape[:2], np.nan)
        for layer, record in prompt.layers.items():
            weights_HTT = numbers(record.weights)
            on_it_H, on_first_H = weights_HTT[:, behind, behind - 1].mean(1), weights_HTT[:, others, 0].mean(1)
            scores_LH[layer, : len(on_it_H)] = on_it_H * on_first_H
    else:
        scores_LH = seen.share(pattern)
    if subject.is_the_papers:
        head, why = named.head, "the paper's"
        scores = {layer: float(scores_LH[layer, head]) for layer in named.layers}
        layer = max(scores, key=lambda layer: scores[layer])  # the label may mean two layers
        if len(scores) > 1:
            shares = " and ".join(f"{score:.2f} at {layer}" for layer, score in scores.items())
            remark = f"The label's layer fits best if read as index {layer}, counted from 0: {pattern} {shares}. "
    else:
        if named.layers[0]:  # a late head: only the second half of the layers is searched
            scores_LH[: len(scores_LH) // 2] = np.nan
        layer, head = (int(n) for n in np.unravel_index(np.nanargmax(scores_LH), scores_LH.shape))
        why = f"{pattern} {scores_LH[layer, head]:.2f}, the most of all"
    record, name = prompt.layers[layer], f"layer {layer}, head {head}"
    # arrays of keys belong to the key head that the head uses
    arrays = {of: numbers(x[head * len(x) // len(record.logits)]) for of, x in vars(record).items()}
    compared = compare_pattern(pattern, name, arrays["weights"], prompt.words)
    return Found(
        layer=layer,
        head=head,
        prompt=prompt,
        title=f"{name}: {why}",
        words=f"{pattern}: {', '.join(f'{share.ours:.2f}' for share in compared)} ({name})",
        remark=remark,
        shares=compared,
        arrays=arrays,
    )


def apostrophe_rows(words: list[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows directly behind an apostrophe, and all other rows except the first.

    Raises UserError if no token of the prompt is only an apostrophe.
    """
    behind = np.array([word.strip() in ("'", "\u2019") for word in words[:-1]])
    if not behind.any():
        raise UserError(
            "this model's tokenizer joins the apostrophe of I'm to letters, but the figure needs it as a separate token"
        )
    return np.flatnonzero(behind) + 1, np.flatnonzero(~behind) + 1


def compare_pattern(pattern: str, head: str, weights_TT: Array, words: list[str]) -> list[CheckedNumber]:
    """Judge the mean weight on the tokens that define the pattern, such as the token before. Row 0 does not count."""
    asked = {}
    if pattern in ("diagonal", "semantic"):
        asked["on the token itself"] = np.diag(weights_TT)[1:]
    if pattern in ("previous", "semantic"):
        asked["on the token before"] = np.diag(weights_TT, -1)
    if pattern == "apostrophe":
        behind, others = apostrophe_rows(words)
        asked = {"of rows behind an apostrophe on it": weights_TT[behind, behind - 1],
                 "of other rows on the first token": weights_TT[others, 0]}  # fmt: skip
    # "attends to" is read as a weight of at least 0.5; in Figure 12 the apostrophe head has 0.92 to 0.99
    judged = at_most if pattern == "semantic" else at_least
    return [judged(f"{head}: weight {place}", float(weight_T.mean()), 0.5) for place, weight_T in asked.items()]


def attention_maps(run: RunVerb, subject: Subject, heads: Sequence[NamedHead]) -> Finding:
    """Figures 5 and 7: the attention weights of `heads`."""
    seen = probed(run, subject)
    found = [find(named, seen, subject) for named in heads]
    return Finding(
        ours="; ".join(head.words for head in found),
        comparisons=[share for head in found for share in head.shares],
        panels={title: panel for head in found for title, panel in head.panel.items()},
        remark="".join([*(head.remark for head in found), NO_PROMPT]),
    )


def token_norms(run: RunVerb, subject: Subject, named: NamedHead) -> Finding:
    """Figures 6 and 14 to 18: the norms of a head's pairs, and the head's attention weights."""
    found = find(named, probed(run, subject), subject)
    comparisons, panels = list(found.shares), found.panel
    for kind, name in (("query", named.queries), ("key", named.keys)):
        what, ours, published = PLURALS[kind], found.arrays[f"{kind}_norms"].T, heat_map(name)
        panels |= side_by_side(what, ours, published, "token", titles=(found.title, f"published: {named.label}"))
        if subject.is_the_papers:  # means over all tokens but the first; the first token's whole norm
            ours_P, published_P = ours[:, 1:].mean(1), published[:, 1:].mean(1)
            profile = correlation(ours_P, published_P)
            first, published_first = (float(np.linalg.norm(norms[:, 0])) for norms in (ours, published))
            comparisons += [
                *compare_strongest(what, ours_P, published_P),
                # the mean norms of the heads in Figures 14 to 18 correlate from 0.74 to 0.996 with those of the same
                # heads on other texts, in Figure 4
                near(f"{what}: correlation of the pairs' mean norms", profile, 1.0, 0.3),
                # the norms read off the pictures multiply to 4.06, 8.15 and 4.10, but Tables 3 to 5 print 3.74, 7.91
                # and 3.85: each norm may be 5 % too large, and half precision adds 1 %
                as_printed(f"{what}: norm of the first token", first, published_first, 0.1 * published_first),
            ]
    strongest = ", ".join(str(pair + 1) for pair in np.argsort(-found.arrays["query_norms"].T[:, 1:].mean(1))[:3])
    summary = f"{found.words}; strongest pairs: {strongest}"
    return Finding(comparisons, panels, found.remark + NO_PROMPT, summary)


def apostrophe_logits(run: RunVerb, subject: Subject) -> Finding:
    """Figure 12: in one head, rows behind an apostrophe attend to the apostrophe, all others to the first token."""
    found = find(APOSTROPHE, probed(run, subject), subject)
    logits, published = found.arrays["logits"], heat_map("Fig12_L1H10_logits")
    behind, others = apostrophe_rows(found.prompt.words)  # nanmean: a window hides some tokens
    theirs_behind = np.array([3, 9, 15])  # rows of the figure
    theirs_others = np.setdiff1d(np.arange(1, len(published)), theirs_behind)
    on_it, on_first = (float(np.nanmean(x)) for x in (logits[behind, behind - 1], logits[others, 0]))
    published_on_it, published_on_first = published[theirs_behind, theirs_behind - 1], published[theirs_others, 0]
    seen_TT = np.where(np.tril(np.ones_like(published)) > 0, published, np.nan)  # the picture has -10 elsewhere
    return Finding(
        ours=found.words,
        comparisons=[
            *found.shares,
            # 1 % of the range of the picture's colour bar, and half precision
            as_printed("logit of the first token on itself", logits[0, 0], published[0, 0], 0.25),
            as_printed("mean logit of other rows on the first token", on_first, published_on_first.mean(), OTHER_WORDS),
            as_printed("mean logit on an apostrophe, from behind it", on_it, published_on_it.mean(), OTHER_WORDS),
        ],
        panels={
            f"logits, {found.title}": HeatMap(logits, "key", "query", label="logit (nats)"),
            "logits, published": HeatMap(seen_TT, "key", "query", label="logit (nats)"),
        },
        remark=found.remark + NO_PROMPT,
    )


# -- how large logits are

# Gemma 2B: smallest, largest, mean and standard deviation of max - min of a row's logits, over heads and layers
SPREADS = {"smallest": 2.28, "largest": 14.78, "mean": 5.69, "standard deviation": 2.05}


# by table: the head; for each token, the bound of Cauchy and Schwarz on its logits, its logit on the token itself, and
# its logit on the token before, which the first token does not have
ALIGNMENTS: dict[str, tuple[NamedHead, dict[str, tuple[float, ...]]]] = {
    "rope.table3": (
        DIAGONAL,
        {
            "bound": (3.74, 182.34, 203.65, 483.97, 141.48, 130.71, 168.52, 122.31),
            "diagonal": (3.25, 119.60, 156.93, 383.00, 98.47, 92.15, 137.10, 90.71),
            "previous": (np.nan, -8.45, 76.67, 82.13, 29.01, 45.33, 73.04, 55.25),
        },
    ),
    "rope.table4": (
        LATE_DIAGONAL,
        {
            "bound": (7.91, 64.42, 112.43, 51.97, 52.69, 67.10, 116.41, 67.37),
            "diagonal": (6.05, 55.84, 96.52, 45.75, 44.00, 53.83, 105.47, 57.78),
            "previous": (np.nan, -9.63, 32.51, 29.49, 25.96, 20.08, 19.95, 6.07),
        },
    ),
    "rope.table5": (
        PREVIOUS,
        {
            "bound": (3.85, 76.54, 79.13, 102.41, 61.34, 54.54, 56.62, 57.2),
            "diagonal": (-1.58, 3.29, 5.21, -1.46, 4.23, 4.61, 2.47, 3.08),
            "previous": (np.nan, 31.04, 35.31, 18.91, 19.72, 18.96, 17.46, 13.67),
        },
    ),
}


def alignment(run: RunVerb, subject: Subject, name: str) -> Finding:
    """Tables 3 to 5: a head's logits on the token itself and on the token before, as shares of their bound."""
    named, published = ALIGNMENTS[name]
    found = find(named, probed(run, subject), subject)
    rows = {  # only the tokens that the table has; NaN where a token has no value
        name: np.array([np.nan if value is None else value for value in values[: len(published["bound"])]])
        for name, values in found.prompt.alignment(found.layer, found.head).items()
    }
    bound, of_itself, of_previous = rows["bound"], *shares_of_bound(published)
    diagonal = rows["diagonal"] / bound
    target = of_previous.mean()
    readings = {"t on t - 1": rows["previous"][1:] / bound[1:], "t + 1 on t": rows["next"][1:] / bound[1:]}
    shares = {reading: float(np.nanmean(ratios)) for reading, ratios in readings.items()}
    nearest, other = sorted(shares, key=lambda reading: abs(shares[reading] - target))
    own_bound = float(np.nanmean(rows["previous"][1:] / rows["bound_previous"][1:]))
    comparisons = [
        *[  # the first token sees itself alone in any prompt; tolerance: two roundings to 8 bits and a root
            as_printed(f"{name} of the first token", rows[name][0], published[name][0], 0.03 * published["bound"][0])
            for name in ("bound", "diagonal")
        ],
        of_means("diagonal: mean share of the bound", diagonal[1:], of_itself[1:]),
        of_means(f"previous, read as {nearest}: mean share of the bound", readings[nearest], of_previous),
        shown(f"previous, read as {other}: mean share of the bound", shares[other], target),
        shown("previous: mean share of the bound with the key of t - 1", own_bound),
    ]
    curves = [Curve(f"{name}, ours", np.arange(len(bound)), rows[name]) for name in published]
    curves += [Curve(f"{name}, published", np.arange(len(row)), row, points=True) for name, row in published.items()]
    remark = (
        f"{found.remark}The paper's column of the token before fits better if it is read as the logit of {nearest}. "
        "The paper divides this logit by the bound of a token with itself; the share of its own bound is given too."
    )
    return Finding(
        comparisons,
        {found.title: Panel("token", "logit", curves)},
        remark,
        ours=f"{diagonal.mean():.3f} of the bound on itself, {shares[nearest]:.3f} on the token before",
    )


def shares_of_bound(published: dict[str, tuple[float, ...]]) -> tuple[Array, Array]:
    """The published logits divided by the bound: those on the token itself, and those on the token before it.

    The second array has no value for the first token, which has no token before it.
    """
    bound = np.array(published["bound"])
    return np.array(published["diagonal"]) / bound, (np.array(published["previous"]) / bound)[1:]


def of_means(what: str, ours_T: Array, published_T: Array) -> CheckedNumber:
    """Compare our mean over tokens with the mean over the paper's tokens, which are different from ours.

    So each mean has a standard error over its own tokens.
    """
    ours_T = ours_T[np.isfinite(ours_T)]
    means, errors = zip(*((x.mean(), x.std(ddof=1) / np.sqrt(len(x))) for x in (ours_T, published_T)), strict=True)
    error = welch_width(float(errors[0]), len(ours_T), float(errors[1]), len(published_T))
    # the margin is as far as the token before is from 0 in these tables; diagonal heads are 0.75 from 0
    return near(what, float(means[0]), float(means[1]), 0.25, float(means[1]), error)


def entropy_of_lists(run: RunVerb, subject: Subject) -> Finding:
    """Figure 3: the entropy of the first layer's heads at the end of a question, for each length of its list."""
    directory = run("probe", *subject.overrides, "prompt=maximum")
    by_head: dict[int, dict[int, float]] = defaultdict(dict)
    for record in json.loads((directory / "results.json").read_text(encoding="utf-8")):
        if record["metric"] == "entropy" and record["layer"] == 0:
            by_head[record["head"]][record["n"]] = record["value"]
    gains = {head: entropies[max(entropies)] - entropies[min(entropies)] for head, entropies in by_head.items()}
    curves = [Curve(f"head {head}", list(found), list(found.values())) for head, found in by_head.items()]
    return Finding(
        ours=f"entropy grows in {sum(gain > 0 for gain in gains.values())} of {len(gains)} heads, from 1 to "
        f"{max(by_head[0])} numbers",
        comparisons=[at_least(f"head {head}: entropy gained (nats)", gain, 0.0) for head, gain in gains.items()],
        panels={"entropy of the last row, first layer": Panel("listed numbers", "entropy (nats)", curves, log="x")},
        remark="The paper does not print its prompt, and the values of its figure are not known here, so only the "
        "growth of the entropy is compared.",
    )


def logit_spreads(run: RunVerb, subject: Subject) -> Finding:
    """The table of delta, the largest minus the smallest logit of a row, over all heads and layers, on source code."""
    spread_LH = numbers(probed(run, subject, "code").arrays["logit_spread"])
    spreads = np.sort(spread_LH[np.isfinite(spread_LH)])
    n, n_heads, mean, deviation = len(spreads), 18 * 8, SPREADS["mean"], SPREADS["standard deviation"]
    ours = {"mean": spreads.mean(), "smallest": spreads[0], "largest": spreads[-1], "standard deviation": spreads.std()}
    error = welch_width(spreads.std() / np.sqrt(n), n, deviation / np.sqrt(n_heads), n_heads)
    curves = [
        Curve("ours", np.linspace(0, 1, n), spreads),
        Curve("published: smallest, mean, largest", [0, 0.5, 1], [2.28, mean, 14.78], points=True),
    ]
    return Finding(
        ours=f"{spreads[0]:.2f} to {spreads[-1]:.2f}, mean {spreads.mean():.2f}",
        comparisons=[
            as_printed("mean of the spreads", ours["mean"], mean, 0.1 * mean, error),
            *[
                # these depend on single heads; Gemma 7B's smallest and largest are outside this tolerance
                as_printed(f"{name} of the spreads", ours[name], published, 0.25 * published)
                for name, published in SPREADS.items()
                if name != "mean"
            ],
        ],
        panels={"sorted": Panel("share of the heads", "spread", curves)},
        remark="Each of our values is a head's mean over rows, on other source code; the paper does not say which "
        "rows it used. The interval is over the heads. Gemma 7B, as published: 0.09 to 32.74, mean 5.82, standard "
        "deviation 2.61.",
    )


# -- the table

TEXTS = {
    "italian": "Fig19a_Italian_q",
    "chinese": "Fig19b_Chinese_q",
    "code": "Fig19c_Code_q",
    "sums": "Fig19d_Arith_q",
}


def of_model(
    model: str,
    shows: str,
    published: str,
    measure: Callable[[RunVerb, Subject], Finding],
    texts: str = "texts=shakespeare",
) -> Figure:
    """An entry of FIGURES. texts: the option of `roundround probe` that chooses the texts or the prompt to read."""
    command = f"roundround probe model={model} {texts}"
    return Figure(shows=shows, published=published, command=command, model=model, measure=measure)


FIGURES: dict[str, Figure] = {
    "rope.fig3": of_model(
        "gemma-7b",
        "Gemma 7B: norms of queries and keys by pair and layer",
        "share of the slowest quarter: queries 0.50, keys 0.42",
        partial(norms_by_layer, maps={"query": "G7B_Fig3a_query_layer", "key": "G7B_Fig3b_key_layer"}),
    ),
    "rope.fig4": of_model(
        "gemma-7b",
        "Gemma 7B, first layer: norms of queries and keys by pair and head",
        "fastest heads, counted from 1: 5, 8",
        first_layer_norms,
    ),
    "rope.fig5": of_model(
        "gemma-7b",
        "Gemma 7B: weights of a diagonal and a previous-token head",
        "layer 27, head 8 and layer 1, head 8",
        partial(attention_maps, heads=(LATE_DIAGONAL, PREVIOUS)),
    ),
    "rope.fig7": of_model(
        "gemma-7b",
        "Gemma 7B: weights of a head that looks for apostrophes",
        "layer 1, head 10: the apostrophe from the token behind it, else the first token",
        partial(attention_maps, heads=(APOSTROPHE,)),
    ),
    "rope.fig10": of_model(
        "llama-3.1-8b",
        "Llama 3.1 8B: norms of queries, keys and values by pair and layer",
        "share of the slowest quarter: queries 0.39, keys 0.31, values 0.27",
        partial(
            norms_by_layer,
            maps={"query": "L3.1_Fig10a_query", "key": "L3.1_Fig10b_key", "value": "L3.1_Fig10c_value"},
        ),
    ),
    "rope.fig11": of_model(
        "llama-3.1-8b",
        "Llama 3.1 8B, last layer, head group 4: norms of queries",
        "head 3 of the group is the fast and diagonal one",
        last_layer_group,
    ),
    "rope.fig12": of_model(
        "gemma-7b",
        "Gemma 7B: logits of the apostrophe head",
        "about 2 on the first token, 7 on an apostrophe",
        apostrophe_logits,
    ),
    "rope.fig13": of_model(
        "gemma-7b",
        "Gemma 7B: norms of values by pair and layer",
        "share of the slowest quarter: values 0.25",
        partial(norms_by_layer, maps={"value": "G7B_Fig13c_value_layer"}),
    ),
    "rope.fig19": of_model(
        "gemma-7b",
        "Gemma 7B: norms of queries on Italian, Chinese, code and sums",
        "the maps are nearly identical",
        partial(norms_by_layer, maps=TEXTS, by_text=True),
        "texts=italian (chinese, code, sums)",
    ),
    "softmax.fig3": of_model(
        "gemma-2b",
        "Gemma 2B, first layer: entropy of each head against the length of a list",
        "entropy grows with the list in every head",
        entropy_of_lists,
        "prompt=maximum",
    ),
    "softmax.deltas": of_model(
        "gemma-2b",
        "Gemma 2B: spread of the logits, over heads and layers, on source code",
        "2.28 to 14.78, mean 5.69",
        logit_spreads,
        "texts=code",
    ),
}
FIGURES |= {
    f"rope.fig{n}": of_model(
        "gemma-7b",
        f"Gemma 7B: norms of {named.label} ({named.pattern}), token by token",
        f"strongest pairs of queries: {strongest}",
        partial(token_norms, named=named),
    )
    for n, named, strongest in (
        (6, LATE_DIAGONAL, "1, 2, 3"),
        (14, DIAGONAL, "1, 3, 2"),
        (15, LATE_DIAGONAL, "1, 2, 3"),
        (16, PREVIOUS, "1, 126, 113"),
        (17, APOSTROPHE, "120, 98, 91"),
        (18, SEMANTIC, "111, 123, 88"),
    )
}
FIGURES |= {
    name: of_model(
        "gemma-7b",
        f"Gemma 7B, {named.label} ({'previous token' if named is PREVIOUS else 'diagonal'}): "
        "logits against their bound",
        "{:.3f} of the bound on itself, {:.3f} on the token before".format(*map(np.mean, shares_of_bound(published))),
        partial(alignment, name=name),
    )
    for name, (named, published) in ALIGNMENTS.items()
}
