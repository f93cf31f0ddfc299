"""What a probe of a model left in its run directory, read for the figures of arXiv:2410.06205, and compared.

The cells of the published heat maps were read off the pictures. Neither the texts of the paper nor whether their first
tokens count is known, and one of the 28 layers of Gemma 7B is not shown: not the first one, whose heads in Figure 4
average to the first column of Figure 3 (correlation 0.99). So what fits best is taken, and tolerances are as large as
the differences between the maps of different texts in the paper.
Shapes: L layers, H heads, G key heads, T tokens, P pairs, N columns (layers or heads). Layers of another size are
filled up with NaN.

Tested by tests/papers/test_other_models.py.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from roundround.papers.claim import CheckedNumber, as_printed, near, shown
from roundround.papers.figures import (
    Figure,
    Outcome,
    RunVerb,
    Subject,
)
from roundround.probing.prompt import LayerRecord, PromptRecord
from roundround.probing.rows import PLACES
from roundround.support.errors import UserError
from roundround.support.panels import HeatMap

Array = NDArray[np.float64]
FOLDER = Path(__file__).parent / "published"
PAPERS_MODELS = {"gemma-2b": "Gemma 2B", "gemma-7b": "Gemma 7B", "llama-3.1-8b": "Llama 3.1 8B"}
SLOWEST, FASTEST = 4, 16  # the slowest quarter of the pairs, and the fastest sixteenth: 8 of Gemma's 128


@dataclass(frozen=True, kw_only=True)
class ModelFigure(Figure):
    """A figure of a pretrained model. Made of another one in its place, its numbers are shown and not judged."""

    @abstractmethod
    def look(self, run: RunVerb, subject: Subject) -> Outcome:
        """What this model's probe shows."""

    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        assert subject is not None
        outcome = self.look(run, subject)
        if subject.is_the_papers:
            return outcome
        comparisons = [shown(c.what, c.ours, c.published) for c in outcome.comparisons]
        untested = f"made of {subject.name}, not of {PAPERS_MODELS[self.model or '']}"
        return replace(outcome, comparisons=comparisons, untested=untested)


@dataclass(frozen=True)
class Probed:
    """The run directory of a probe."""

    directory: Path
    arrays: dict[str, Tensor]

    def by_head(self, kind: str, *, first_token: bool = True) -> Array:
        """Mean norm of every pair of `query`, `key` or `value` in every head: [L, H or G, P].

        Without `first_token`, the first token of each text is left out.
        """
        return numbers(self.arrays[f"{kind}_norm" + ("" if first_token else "_without_first")])

    def by_layer(self, kind: str, *, first_token: bool = True) -> Array:
        """The same as the paper draws it, as a mean over heads: [P, L]."""
        return mean(self.by_head(kind, first_token=first_token), axis=1).T

    @property
    def places(self) -> Array:
        """Share of each head's weight by place, in the order of PLACES: [L, H, 7]."""
        return numbers(self.arrays["places"])

    def share(self, label: str) -> Array:
        """Share of each head's weight at one place: [L, H]."""
        return self.places[..., PLACES.index(label)]

    @property
    def n_layers(self) -> int:
        return len(self.arrays["frequencies"])

    def frequencies(self) -> Array:
        """Radians per token of every pair, 0 in a layer without RoPE: [L, P]."""
        return numbers(self.arrays["frequencies"])

    def prompt(self) -> PromptRecord:
        """The prompt, token by token."""
        path = self.directory / "prompt.safetensors"
        with safe_open(path, framework="pt") as file:
            words = json.loads(file.metadata()["words"])
        arrays, layers = load_file(path), {}
        for layer in range(self.n_layers):  # without what it is filled up with
            found = {name: array[layer] for name, array in arrays.items()}
            heads, pairs = ~found["logits"][:, 0, 0].isnan(), ~found["query_norms"][0, 0].isnan()
            key_heads = ~found["key_norms"][:, 0, 0].isnan()
            layers[layer] = LayerRecord(
                query_norms=found["query_norms"][heads][..., pairs],
                key_norms=found["key_norms"][key_heads][..., pairs],
                logits=found["logits"][heads],
                weights=found["weights"][heads],
                bound=found["bound"][heads],
            )
        return PromptRecord(words, layers)


def probed(run: RunVerb, subject: Subject, texts: str = "shakespeare") -> Probed:
    """The probe of a model on texts of the package, which looks at the default prompt too."""
    directory = run("probe", *subject.overrides, f"texts={texts}")
    return Probed(directory, load_file(directory / "probe.safetensors"))


def heat_map(name: str) -> Array:
    """The published cells of a figure, such as G7B_Fig3a_query_layer: [rows, columns]."""
    return np.loadtxt(FOLDER / f"{name}.csv", delimiter=",", ndmin=2)


def numbers(x: Tensor) -> Array:
    return np.asarray(x.double())


def mean(x: Array, axis: int) -> Array:
    """The mean of what is not NaN; NaN where there is nothing else."""
    there = np.isfinite(x)
    with np.errstate(invalid="ignore"):
        found: Array = np.where(there, x, 0).sum(axis) / there.sum(axis)
    return found


def columns(map_PN: Array) -> list[Array]:
    """The columns of a map without what they are filled up with, those that are empty left out."""
    filled = [column[np.isfinite(column)] for column in map_PN.T]
    return [column for column in filled if len(column)]


def filled(x_HP: Array) -> Array:
    """One layer's heads and pairs without those that it does not have."""
    there = np.isfinite(x_HP)
    found: Array = x_HP[there.any(1)][:, there.any(0)]
    return found


def slowest_share(map_PN: Array) -> Array:
    """Share of the squared norm in the slowest quarter of the pairs, of every column: [N]; `even_share` is even."""
    slowest = [column[len(column) - n_slowest(column) :] for column in columns(map_PN)]
    return np.array(
        [(slow**2).sum() / (column**2).sum() for slow, column in zip(slowest, columns(map_PN), strict=True)]
    )


def even_share(map_PN: Array) -> Array:
    """The same where all pairs are alike: 0.25, unless four does not divide their number."""
    return np.array([n_slowest(column) / len(column) for column in columns(map_PN)])


def n_slowest(column: Array) -> int:
    return round(len(column) / SLOWEST)


def fastest_mean(map_PN: Array) -> Array:
    """Mean norm of the fastest sixteenth of the pairs, at least one, of every column: [N]."""
    return np.array([column[: max(1, len(column) // FASTEST)].mean() for column in columns(map_PN)])


N_BINS = 16  # of the frequencies, from the fastest
# Figure 19 (Italian, Chinese, code, sums) against Figure 3(a) (English) differs by up to 0.31 in these means, by up to
# 0.13 in the share of the slowest quarter, and correlates with it from 0.925 to 0.954; moved by one layer at most 0.59.
NORM_TOLERANCE = 0.35  # of the published mean norm
SHARE_TOLERANCE = 0.14
LEAST_CORRELATION = 0.9
TIED = 0.8  # of the largest norm of a head, from which on a pair is one of its strongest: 1, 126, 113, 128 in one head
ROWS = 1  # pairs by which the reading of a picture may be wrong


def best_fit(candidates: Mapping[str, Array], published: Array) -> tuple[str, Array, str]:
    """Which map correlates best with the published one, each with one of its columns left out where it has one more.

    And of how many it is the best, in the words that stand beside the verdict.
    """
    cut = {}
    for name, ours in candidates.items():
        check_shape(ours, published)
        if ours.shape == published.shape:
            cut[name] = ours
        else:
            cut |= {f"{name}, without layer {i}": np.delete(ours, i, axis=1) for i in range(ours.shape[1])}
    best = max(cut, key=lambda name: correlation(cut[name], published))
    return best, cut[best], f"the best of {len(cut)} readings, norms within {NORM_TOLERANCE:.0%}"


def check_shape(ours: Array, published: Array) -> None:
    """UserError where this cannot be the model that the paper shows."""
    n_pairs, n = published.shape
    if len(ours) != n_pairs or ours.shape[1] not in (n, n + 1):
        raise UserError(
            f"this is not the paper's model: it has {ours.shape[1]} layers or heads of {len(ours)} pairs in place of "
            f"{n} of {n_pairs}; give it by its own name in model="
        )


def correlation(ours: Array, published: Array) -> float:
    """Of all cells; NaN where a map has one value alone."""
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(ours.ravel(), published.ravel())[0, 1])


def bin_means(map_PN: Array, n_bins: int) -> Array:
    """Mean norm in bins of neighbouring pairs, from the fastest, over all columns: [n_bins]."""
    found: Array = mean(np.array([[part.mean() for part in np.array_split(c, n_bins)] for c in columns(map_PN)]), 0)
    return found


def compare_maps(what: str, ours: Array, published: Array) -> list[CheckedNumber]:
    """Means along the frequencies and the share of the slowest quarter, whatever the sizes; cells where they agree."""
    n_bins = min(N_BINS, *(len(column) for column in columns(ours)))
    means = zip(bin_means(ours, n_bins), bin_means(published, n_bins), strict=True)
    share, published_share = (float(slowest_share(x).mean()) for x in (ours, published))
    found = [as_printed(f"{what}: share of the slowest quarter", share, published_share, SHARE_TOLERANCE)]
    found += [
        as_printed(f"{what}: mean norm in part {n} of {n_bins} of the frequencies", a, b, NORM_TOLERANCE * b)
        for n, (a, b) in enumerate(means, 1)
    ]
    if ours.shape == published.shape:
        found.append(alike(f"{what}: correlation of the cells", correlation(ours, published), LEAST_CORRELATION))
    return found


def alike(what: str, correlation: float, least: float) -> CheckedNumber:
    """Two maps that are the same have a correlation of 1."""
    return near(what, correlation, 1.0, 1 - least)


def compare_strongest(what: str, ours_P: Array, published_P: Array) -> list[CheckedNumber]:
    """The strongest pair of a head, counted from 1 as in the paper, and its norm."""
    pair, most = int(ours_P.argmax()), float(published_P.max())
    strongest = np.flatnonzero(published_P >= TIED * most)
    nearest = int(strongest[np.abs(strongest - pair).argmin()])
    return [
        near(f"{what}: strongest pair", pair + 1, nearest + 1, ROWS, int(published_P.argmax()) + 1),
        as_printed(f"{what}: norm of the strongest pair", float(ours_P.max()), most, NORM_TOLERANCE * most),
    ]


def side_by_side(
    what: str, ours: Array, published: Array, columns_are: str, *, titles: tuple[str, str] = ("ours", "published")
) -> dict[str, HeatMap]:
    """Both maps, equally dark where norms are equal if they have the same size."""
    most = float(max(ours.max(), published.max())) if ours.shape == published.shape else None
    return {
        f"{what}, {title}": HeatMap(values, columns_are, "pair, from the fastest", most, label="mean norm")
        for title, values in zip(titles, (ours, published), strict=True)
    }
