"""What a probe of a model left in its run directory, read for the figures of arXiv:2410.06205.

Shapes: L layers, H heads, G key heads, T tokens, P pairs. Layers of another size are filled up with NaN.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from roundround.papers.claim import shown
from roundround.papers.figures.item import Outcome, RunVerb, Subject
from roundround.probing.places import PLACES
from roundround.probing.prompt import LayerRecord, PromptRecord
from roundround.support.errors import UserError

Array = NDArray[np.float64]
PAPERS_MODELS = {"gemma-2b": "Gemma 2B", "gemma-7b": "Gemma 7B", "llama-3.1-8b": "Llama 3.1 8B"}
SLOWEST, FASTEST = 4, 16  # the slowest quarter of the pairs, and the fastest sixteenth: 8 of Gemma's 128


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

    def rotates(self) -> NDArray[np.bool_]:
        """Which layers have RoPE: [L]."""
        return np.asarray(np.nan_to_num(numbers(self.arrays["frequencies"])).any(axis=1), dtype=np.bool_)

    def n_still(self) -> int:
        """How many pairs do not rotate, in layers with RoPE; the most of all layers."""
        return int((numbers(self.arrays["frequencies"])[self.rotates()] == 0).sum(1).max())

    def n_frequency_tables(self) -> int:
        """How many different sets of frequencies the layers with RoPE use."""
        tables = np.nan_to_num(numbers(self.arrays["frequencies"]), nan=-1)[self.rotates()]
        return len(np.unique(tables, axis=0))

    def prompt(self) -> PromptRecord:
        """The prompt, token by token.

        Raises UserError where an earlier version left no words.
        """
        path = self.directory / "prompt.safetensors"
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
        if "words" not in about:
            raise UserError(f"{path} of an earlier version does not say which tokens the prompt had; delete its run")
        arrays = load_file(path)
        return PromptRecord(json.loads(about["words"]), [layer_of(arrays, n) for n in range(self.n_layers)])


def probed(run: RunVerb, subject: Subject, texts: str = "shakespeare") -> Probed:
    """The probe of a model on texts of the package, which looks at the default prompt too."""
    directory = run("probe", *subject.overrides, f"texts={texts}")
    return Probed(directory, load_file(directory / "probe.safetensors"))


def layer_of(arrays: dict[str, Tensor], layer: int) -> LayerRecord:
    """One layer of a prompt without what it is filled up with."""
    found = {name: array[layer] for name, array in arrays.items()}
    heads = ~found["logits"][:, 0, 0].isnan()
    key_heads, pairs = ~found["key_norms"][:, 0, 0].isnan(), ~found["query_norms"][0, 0].isnan()
    return LayerRecord(
        query_norms=found["query_norms"][heads][..., pairs],
        key_norms=found["key_norms"][key_heads][..., pairs],
        logits=found["logits"][heads],
        weights=found["weights"][heads],
        bound=found["bound"][heads],
    )


def numbers(x: Tensor) -> Array:
    found: Array = x.double().numpy()
    return found


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


def whose(outcome: Outcome, subject: Subject, model: str | None) -> Outcome:
    """The outcome as it is where the paper's own model was looked at; else with numbers that are told, not judged."""
    if subject.is_the_papers:
        return outcome
    told = [shown(c.what, c.ours, c.published) for c in outcome.comparisons]
    made_of = f"made of {subject.name}, not of {PAPERS_MODELS[model or '']}"
    return replace(outcome, comparisons=told, untested=made_of)


def sentences(parts: Sequence[str]) -> str:
    return " ".join(part for part in parts if part)
