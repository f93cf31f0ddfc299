"""What a page is made of: the files that a run left, and sections of panels, tables and figures.

Of a file that is damaged, half-written or missing a remark tells. Figures are those that a run left as SVG files, as
images. A run directory may be anybody's: in an image nothing runs, nothing is fetched, and nothing reaches the page
around it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from roundround.analysis.past_run import DIED, PastRun, past_run
from roundround.records.directories import METRICS, RESULTS
from roundround.report.drawing.tables import Record, Table
from roundround.support.errors import UserError, escaped, one_line
from roundround.support.files import check_is_file, parse_json, read_text
from roundround.support.panels import HeatMap, Panel

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_ARRAY = 256 << 20  # bytes


@dataclass
class RunFiles:
    """A run, and `remarks`: a line for each thing that could not be read."""

    run: PastRun
    remarks: list[str] = field(default_factory=list)

    def records(self) -> list[Record]:
        """The records of results.json; none where it is damaged or not there."""
        try:
            found = self.run.results()
        except UserError as error:
            self.remarks.append(f"{one_line(error)}: no results are shown")
            return []
        if not found:
            self.remarks.append(f"there is no {RESULTS}, or none in it: the run has no results yet")
        return found

    def metrics(self) -> list[Record]:
        """The lines of metrics.jsonl in their order; those that are damaged are counted."""
        try:
            found, n_damaged = self.run.metrics()
        except UserError as error:
            self.remarks.append(f"{one_line(error)}: no curves are shown")
            return []
        if n_damaged:
            lines = "line is" if n_damaged == 1 else "lines are"
            self.remarks.append(f"{METRICS}: {n_damaged:,} {lines} damaged and left out")
        return found

    def json(self, name: str) -> Any:
        """The content of a json file; None where there is none, or where it is damaged."""
        try:
            return parse_json(read_text(self.run.directory / name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.remarks.append(f"{name} cannot be read ({one_line(error)}); nothing of it is shown")
            return None

    def arrays(self, name: str, wanted: Callable[[str], bool] = lambda key: True) -> dict[str, NDArray[Any]]:
        """The wanted arrays of a safetensors file by name; none where it is not there or damaged."""
        path = self.run.directory / name
        if not path.exists():
            return {}
        from safetensors import SafetensorError, safe_open

        try:
            check_is_file(path)
            with safe_open(path, framework="numpy") as file:
                names: list[str] = file.keys()
                keys = [key for key in names if wanted(key)]
                sizes = {key: 4 * math.prod(file.get_slice(key).get_shape()) for key in keys}
                too_large = [key for key in keys if sizes[key] > LARGEST_ARRAY]
                if too_large:
                    self.remarks.append(f"{name}: {', '.join(too_large)} is too large for a page")
                return {key: file.get_tensor(key) for key in keys if key not in too_large}
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            self.remarks.append(f"{name} cannot be read ({one_line(error)}); nothing of it is shown")
            return {}

    def about(self, name: str) -> dict[str, str]:
        """The metadata of a safetensors file; none where it is not there or damaged."""
        from safetensors import SafetensorError, safe_open

        try:
            check_is_file(self.run.directory / name)
            with safe_open(self.run.directory / name, framework="numpy") as file:
                return dict(file.metadata() or {})
        except (OSError, SafetensorError, ValueError):
            return {}

    def words(self, name: str) -> list[str]:
        """The tokens that a safetensors file keeps as words in its metadata."""
        try:
            words = parse_json(self.about(name).get("words", "[]"))
        except ValueError:
            return []
        return [str(word) for word in words] if isinstance(words, list) else []


def opened_run(directory: Path) -> RunFiles:
    """The run in a directory, with a remark where it has not ended well. UserError where there is none."""
    run = past_run(directory)
    files = RunFiles(run)
    if run.status == "running":
        files.remarks.append("the run has not ended: the page shows what there is so far")
    elif run.status == DIED:
        files.remarks.append("the run died: its process was killed before it could say how it ended")
    elif run.status != "done":
        files.remarks.append(f"the run did not finish: {run.status}")
    return files


# -- what is shown


@dataclass
class Section:
    """A heading and what stands below it. `part` is a template of its own, with `values` for it.

    Panels without a point are left out. anchor: what a link to the section names.
    """

    title: str
    panels: Sequence[Panel | HeatMap] = ()
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
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


# -- the files of figures/, as images


LARGEST = 1 << 20  # bytes of a figure on a page
MOST_TOGETHER = 1_000_000  # characters of all figures


@dataclass(frozen=True)
class Figure:
    """A figure of the run: its name, the address that holds all of it, and what stands for it where it is not seen."""

    name: str
    address: str
    alt: str


def figures_of(files: RunFiles) -> list[Figure]:
    """The SVG files of the run's folder; what cannot be shown, or has no room, becomes a remark."""
    found, left_out, room = [], [], MOST_TOGETHER
    for path in sorted((files.run.directory / "figures").glob("*.svg")):
        try:
            text = read_text(path, LARGEST)
            ElementTree.fromstring(text)  # half-written, it is no picture
        except (OSError, ValueError, ElementTree.ParseError) as error:
            files.remarks.append(f"figures/{path.name} cannot be shown ({one_line(error)})")
            continue
        if len(text) > room:
            left_out.append(f"figures/{path.name}")
            continue
        room -= len(text)
        name = escaped(path.stem)
        alt = f"{name.replace('_', ' ')}: a figure of this run; its numbers are in the tables"
        found.append(Figure(name, f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}", alt))
    if left_out:
        files.remarks.append(f"left out, because a page has no room for them: {', '.join(left_out)}")
    return found
