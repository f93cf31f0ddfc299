"""Figures that a run left as SVG files, made fit to stand inside a page.

A run directory may be anybody's: of an SVG only shapes and text are kept, nothing that runs, fetches or styles what is
outside. Names inside are given a prefix, because those of two figures are the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from markupsafe import Markup

from roundround.errors import escaped, one_line
from roundround.files import read_text
from roundround.report.page.sources import RunFiles

LARGEST = 1 << 20  # bytes of a figure on a page
MOST_TOGETHER = 1_300_000  # bytes of all figures, so that the page stays below two million
SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
ELEMENTS = {
    "svg", "g", "defs", "use", "clipPath", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text",
    "tspan", "image", "linearGradient", "radialGradient", "stop", "pattern",
}  # fmt: skip
ATTRIBUTES = {
    "id", "d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx", "ry", "dx", "dy", "width", "height", "points",
    "transform", "viewBox", "style", "clip-path", "fill", "stroke", "stroke-width", "opacity", "offset", "stop-color",
    "preserveAspectRatio", "patternUnits", "patternTransform", "gradientUnits", "text-anchor", "font-size",
}  # fmt: skip
LEADS_OUT = re.compile(r"url\((?!\s*#)|@import|expression|javascript:", re.IGNORECASE)
PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]+")


@dataclass(frozen=True)
class Figure:
    """A figure of the run: its name, its SVG as text, and what stands for it where it is not seen."""

    name: str
    svg: Markup
    alt: str


def figures_of(files: RunFiles, folder: str = "figures") -> list[Figure]:
    """The SVG files of the run's folder, smallest first where not all fit; what is left out becomes a remark."""
    paths = sorted((files.run.directory / folder).glob("*.svg"))
    found, together = [], 0
    for number, path in enumerate(sorted(paths, key=size)):
        try:
            svg = cleaned(read_text(path, LARGEST), f"f{number}-")
        except (OSError, ValueError, RecursionError, ElementTree.ParseError) as error:
            files.remarks.append(f"{folder}/{path.name} cannot be shown ({one_line(error)})")
            continue
        together += len(svg)
        if together > MOST_TOGETHER:
            left = sorted(paths, key=size)[number:]
            names = ", ".join(f"{folder}/{path.name}" for path in left)
            files.remarks.append(f"left out, because a page has up to 2 MB: {names}")
            break
        name = escaped(path.stem)
        found.append(
            Figure(name, Markup(svg), f"{name.replace('_', ' ')}: a figure of this run; its numbers are in the tables")
        )
    return sorted(found, key=lambda figure: figure.name)


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def cleaned(text: str, prefix: str) -> str:
    """The SVG with nothing but shapes and text, its names behind a prefix. ParseError, ValueError for what is none."""
    if "<!ENTITY" in text:
        raise ValueError("it declares entities")
    root = ElementTree.fromstring(text)
    if root.tag != f"{SVG}svg":
        raise ValueError("it is no SVG")
    kept = copied(root, prefix)
    kept.attrib.pop("style", None)
    kept.set("aria-hidden", "true")
    kept.set("focusable", "false")
    return ElementTree.tostring(kept, encoding="unicode")


def copied(node: ElementTree.Element, prefix: str) -> ElementTree.Element:
    """The element without what is not allowed, below it too."""
    kept = ElementTree.Element(node.tag.removeprefix(SVG), allowed(node, prefix))
    kept.text, kept.tail = node.text, node.tail
    for child in node:
        if isinstance(child.tag, str) and child.tag.removeprefix(SVG) in ELEMENTS:
            kept.append(copied(child, prefix))
    return kept


def allowed(node: ElementTree.Element, prefix: str) -> dict[str, str]:
    """The attributes that stay: no events, no addresses but names in this figure and pictures in base64."""
    found = {}
    for name, value in node.attrib.items():
        if name in ("href", f"{XLINK}href"):
            if value.startswith("#"):
                found["href"] = f"#{prefix}{value[1:]}"
            elif PICTURE.fullmatch(value):
                found["href"] = value
        elif name == "id":
            found["id"] = prefix + value
        elif name in ATTRIBUTES and not LEADS_OUT.search(value):
            found[name] = re.sub(r"url\(\s*#", f"url(#{prefix}", value)
    return found
