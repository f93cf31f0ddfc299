"""What a figure or table of a paper is here: how it is made again, and what came of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from numpy.typing import ArrayLike

from roundround.papers.claim import Comparison, Picture
from roundround.papers.figures import verdict


class RunVerb(Protocol):
    """Runs `roundround VERB OVERRIDE ...`, or finds the finished run of the same numbers; returns its directory."""

    def __call__(self, verb: str, *overrides: str) -> Path: ...


@dataclass(frozen=True)
class Subject:
    """The model that a figure of a pretrained model is made of: the paper's own, or another in its place.

    overrides: how it is given on the command line, such as ("model=hf", "model.path=DIR").
    """

    name: str
    overrides: tuple[str, ...]
    is_the_papers: bool


@dataclass(frozen=True)
class HeatMap:
    """A panel of coloured cells, rows downwards. most: the value of the darkest colour; None for the largest cell."""

    values: ArrayLike
    x_label: str
    y_label: str
    most: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of making an item again.

    ours: its most telling number or two, as text. panels: the figure, in the paper's layout. remark: why it differs,
    what the paper does not say. untested: why nothing is judged, although there are numbers; "" where something is.
    drawn: whether a sketch or a listing is compared with itself.
    """

    ours: str
    comparisons: Sequence[Comparison] = ()
    panels: Mapping[str, HeatMap | Picture] = field(default_factory=dict)
    remark: str = ""
    untested: str = ""
    drawn: bool = False

    @property
    def verdict(self) -> str:
        return verdict.of_item(self.comparisons, untested=bool(self.untested), drawn=self.drawn)


@dataclass(frozen=True, kw_only=True)
class Item(ABC):
    """A figure or table.

    shows: what it is about. published: the paper's most telling number or two, as text. command: the verb that does
    the work; "" where this program's own functions are called directly. minutes: of two CPU cores, without a model.
    model: the pretrained model that it is about, by its name in `model=`; None for none. needs: what no machine like
    this has; "" where it can be made here, given the model. trains: whether it reads `data=`, a text to train on.
    """

    shows: str
    published: str
    command: str = ""
    minutes: float = 0.2
    model: str | None = None
    needs: str = ""
    trains: bool = False

    @abstractmethod
    def make(self, run: RunVerb, subject: Subject | None) -> Outcome:
        """Make it again. subject: where `model` is not None, the model to take."""
