"""What a page shows of a run: sections of panels, tables and figures, and what the page's scripts read.

Figures are those that a run left as SVG files, as images. A run directory may be anybody's: in an image nothing runs,
nothing is fetched, and nothing reaches the page around it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from roundround.report.page.sources import RunFiles
from roundround.report.tables import Table
from roundround.support.errors import escaped, one_line
from roundround.support.files import read_text
from roundround.support.panels import HeatMap, Panel


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
