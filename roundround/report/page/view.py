"""What a page is made of: the files that a run left, and sections of panels, tables and images.

A run directory may be anybody's: its SVG files are shown as images, in which nothing runs and which fetch nothing.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundround.analysis.past_run import DIED, PastRun, past_run
from roundround.records.directories import METRICS, RESULTS
from roundround.report.drawing.tables import Record, Table
from roundround.support.errors import escaped
from roundround.support.files import parse_json, read_text
from roundround.support.panels import HeatMap, Panel

STEPS = 999  # of an integer that stands for a share of the largest value


@dataclass
class RunFiles:
    """A run, and `remarks`: lines that its page begins with."""

    run: PastRun
    remarks: list[str] = field(default_factory=list)

    def records(self) -> list[Record]:
        """The records of results.json; none where it is not there."""
        found = self.run.results()
        if not found:
            self.remarks.append(f"there is no {RESULTS}, or none in it: the run has no results yet")
        return found

    def metrics(self) -> list[Record]:
        """The lines of metrics.jsonl in their order. A killed process leaves half a line: damaged ones are counted."""
        found, n_damaged = self.run.metrics()
        if n_damaged:
            lines = "line is" if n_damaged == 1 else "lines are"
            self.remarks.append(f"{METRICS}: {n_damaged:,} {lines} damaged and left out")
        return found

    def json(self, name: str) -> Any:
        """The content of a json file; None where there is none."""
        path = self.run.directory / name
        return parse_json(read_text(path)) if path.exists() else None

    def arrays(self, name: str, wanted: Callable[[str], bool] = lambda key: True) -> dict[str, NDArray[Any]]:
        """The wanted arrays of a safetensors file by name; none where it is not there."""
        if not (self.run.directory / name).exists():
            return {}
        from safetensors import safe_open

        with safe_open(self.run.directory / name, framework="numpy") as file:
            keys: list[str] = file.keys()
            return {key: file.get_tensor(key) for key in keys if wanted(key)}

    def about(self, name: str) -> dict[str, str]:
        """The metadata of a safetensors file."""
        from safetensors import safe_open

        with safe_open(self.run.directory / name, framework="numpy") as file:
            return dict(file.metadata() or {})

    def words(self, name: str) -> list[str]:
        """The tokens that a safetensors file keeps as words in its metadata."""
        return list(map(str, json.loads(self.about(name).get("words", "[]"))))


def files_of(directory: Path) -> RunFiles:
    """The run in a directory, with a remark where it has not ended well. UserError where there is none."""
    run = past_run(directory)
    remark = {
        "done": "",
        "running": "the run has not ended: the page shows what there is so far",
        DIED: "the run died: its process was killed before it could say how it ended",
    }.get(run.status, f"the run did not finish: {run.status}")
    return RunFiles(run, [remark] if remark else [])


# -- what is shown


@dataclass(frozen=True)
class Image:
    """An SVG file of the run: its name, the address that holds all of it, and words in its place."""

    name: str
    address: str
    alt: str


@dataclass
class Section:
    """A heading and what stands below it. `part` is a template of its own, with `values` for it.

    Panels without a point are left out. anchor: what a link to the section names.
    """

    title: str
    panels: Sequence[Panel | HeatMap] = ()
    tables: list[Table] = field(default_factory=list)
    figures: list[Image] = field(default_factory=list)
    note: str = ""
    part: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    anchor: str = ""

    @property
    def drawn(self) -> list[Panel | HeatMap]:
        return [panel for panel in self.panels if isinstance(panel, HeatMap) or panel.drawn]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.drawn or self.tables or self.figures or self.part)


@dataclass
class View:
    """The body of a page. scope: what the numbers were taken over. data: what `scripts` read, as JSON.

    findings: what came out, in sentences that the page begins with.
    """

    sections: list[Section]
    scope: list[str] = field(default_factory=list)
    data: dict[str, Any] | None = None
    scripts: tuple[str, ...] = ()
    findings: list[str] = field(default_factory=list)


def images_of(directory: Path) -> list[Image]:
    """The SVG files of the run's folder `figures`."""
    found = []
    for path in sorted((directory / "figures").glob("*.svg")):
        name = escaped(path.stem)
        alt = f"{name.replace('_', ' ')}: a figure of this run; its numbers are in the tables"
        found.append(Image(name, f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}", alt))
    return found


# -- numbers and words as a page carries them for its script


def shown_word(word: str) -> str:
    """A token as the page shows it: a space or nothing would not be seen."""
    return escaped(word.strip()) or (escaped(word.replace(" ", "_")) or "_")


def short(value: float, digits: int = 3) -> float | int | None:
    """A number with this many significant digits; None for one that is not finite."""
    if not math.isfinite(value):
        return None
    found = float(f"{value:.{digits - 1}e}")
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
