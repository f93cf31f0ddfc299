"""What a page shows of a run: sections of panels, tables and figures, and what the page's scripts read.

Figures are those that a run left as SVG files, as images. A run directory may be anybody's: in an image nothing runs,
nothing is fetched, and nothing reaches the page around it; one that would take a browser hours to draw is left out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote
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
MOST_TOGETHER = 1_300_000  # characters of all figures in base64, so that the page stays below two million
MOST_DRAWN = 300_000  # shapes of a figure, those that are drawn again included; the largest of ours has 9,000
SVG = "http://www.w3.org/2000/svg"
NAMED = re.compile(r"#([^\s'\")]+)")
ElementTree.register_namespace("", SVG)  # else each name gets a prefix


@dataclass(frozen=True)
class Figure:
    """A figure of the run: its name, the address that holds all of it, and what stands for it where it is not seen."""

    name: str
    address: str
    alt: str


def figures_of(files: RunFiles, folder: str = "figures") -> list[Figure]:
    """The SVG files of the run's folder, smallest first where not all fit; what is left out becomes a remark."""
    paths = sorted((files.run.directory / folder).glob("*.svg"))
    found, together = [], 0
    for number, path in enumerate(sorted(paths, key=size)):
        try:
            address = address_of(read_text(path, LARGEST))
        except (OSError, ValueError, RecursionError, ElementTree.ParseError) as error:
            files.remarks.append(f"{folder}/{path.name} cannot be shown ({one_line(error)})")
            continue
        together += len(address)
        if together > MOST_TOGETHER:
            left = sorted(paths, key=size)[number:]
            names = ", ".join(f"{folder}/{path.name}" for path in left)
            files.remarks.append(f"left out, because a page has up to 2 MB: {names}")
            break
        name = escaped(path.stem)
        alt = f"{name.replace('_', ' ')}: a figure of this run; its numbers are in the tables"
        found.append(Figure(name, address, alt))
    return sorted(found, key=lambda figure: figure.name)


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def address_of(text: str) -> str:
    """The figure as a data address, written anew from what was read. ParseError, ValueError for what is no figure."""
    if "<!ENTITY" in text:
        raise ValueError("it declares entities")
    root = ElementTree.fromstring(text)
    if root.tag != f"{{{SVG}}}svg":
        raise ValueError("it is no SVG")
    styles = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("style")]
    for value in [*styles, *(value for node in root.iter() for value in node.attrib.values())]:
        if "\\" in value or "data:" in value.replace("data:image/png;base64,", ""):
            raise ValueError("it holds a picture of another kind, or an escape")
    if any("#" in style for style in styles):
        raise ValueError("a style names another part")
    if n_drawn(root) > MOST_DRAWN:
        raise ValueError(f"it draws more than {MOST_DRAWN:,} shapes")
    return f"data:image/svg+xml;base64,{base64.b64encode(ElementTree.tostring(root, encoding='utf-8')).decode()}"


def n_drawn(root: ElementTree.Element) -> int:
    """The elements of a figure, those that a name draws again included. RecursionError for one that draws itself."""
    by_name = {node.get("id"): node for node in root.iter()}

    @cache
    def weight(node: ElementTree.Element) -> int:
        again = (by_name.get(unquote(name)) for value in node.attrib.values() for name in NAMED.findall(value))
        return 1 + sum(map(weight, node)) + sum(weight(other) for other in again if other is not None)

    return weight(root)
