"""Panels as they are drawn on a page: where values lie, what is averaged, and figures of a run as images."""

from __future__ import annotations

import base64
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers_page import Page, write_run

from roundround.report.drawing.figures import y_ends
from roundround.report.page.view import VARIABLES, page_of, picture_of
from roundround.report.train_panels import logged
from roundround.support.panels import Curve, HeatMap, Mark, Panel

CSS = Path(__file__).parents[2] / "roundround" / "report" / "page" / "page.css"


def parts(panel: Panel | HeatMap, tag: str, **attributes: str) -> list[ElementTree.Element]:
    """The elements of a picture with these attributes."""
    root = ElementTree.fromstring(f"<svg>{picture_of(panel, 0)['svg']}</svg>")
    return [e for e in root.iter(tag) if all(e.get(name.rstrip("_")) == value for name, value in attributes.items())]


def corners(path: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.-]+) ([\d.-]+)", path.get("d", ""))]


def test_a_line_is_interrupted_where_there_is_no_number() -> None:
    (path,) = parts(Panel("x", "y", [Curve("a", range(5), [1, 2, math.nan, 1, 5])]), "path", class_="line")
    assert path.get("d", "").count("M") == 2
    assert len(corners(path)) == 4


def test_a_band_ends_where_the_possible_does() -> None:
    curve = Curve("a", [0, 1], [50.0, 60.0], low=[-400, 40], high=[600, 80])
    panel = Panel("x", "y", [curve], possible=(0.0, 100.0))
    (band,) = parts(panel, "path", class_="band")
    _, y, low, high = panel.visible(curve)
    assert (list(low), list(high), list(y)) == ([0, 40], [100, 80], [50, 60])
    low, high = y_ends([panel])
    heights = [(246 - y) / 236 * (high - low) + low for _, y in corners(band)]
    assert (min(heights), max(heights)) == (pytest.approx(0, abs=2), pytest.approx(100, abs=2))


def test_every_marker_says_its_numbers_and_its_words_are_text() -> None:
    curves = [Curve("<a>", [1, 2], [5.0, 2.0]), Curve("b", [1, 2, 3], [4.0, math.nan, 1.5])]
    panel = Panel("<x>", "$y_1$", curves)
    found = [title.text for title in parts(panel, "title")]
    assert found == ["<a>: 5.000 at 1.000", "<a>: 2.000 at 2.000", "b: 4.000 at 1.000", "b: 1.500 at 3.000"]
    assert {"<x>", "$y_1$"} <= {text.text for text in parts(panel, "text")}
    assert "&lt;x&gt;" in picture_of(panel, 0)["svg"]


def test_the_colours_of_a_picture_are_the_pages_own_and_the_page_has_dark_ones() -> None:
    panel = Panel(
        "x", "y", [Curve(f"{n}", [1, 2], [n, n + 1]) for n in range(8)] + [Curve("r", [1, 2], [3, 3], reference=True)],
        marks=[Mark("here", 1.2, 1.6), Mark("there", 1.5, 1.5)],
    )  # fmt: skip
    svg = picture_of(panel, 0)["svg"]
    assert "#" not in re.sub(r'href="#\w+"', "", svg)
    assert set(re.findall(r"var\(--(\w+)\)", svg)) <= set(VARIABLES.values())
    dark = CSS.read_text().split("prefers-color-scheme: dark")[1]
    assert [name for name in VARIABLES.values() if f"--{name}:" not in dark] == []


def test_a_long_curve_is_averaged_and_its_extremes_are_the_band() -> None:
    lines: list[dict[str, Any]] = [{"step": step, "loss": float(step % 10)} for step in range(3000)]
    curve, note = logged(lines, "loss", "loss")
    assert len(np.asarray(curve.x)) == 300
    assert [np.asarray(values)[7] for values in (curve.x, curve.y, curve.low, curve.high)] == [75, 4.5, 0, 9]
    assert "mean of 10 logged steps" in note
    lines[75]["loss"] = "nan"
    assert math.isnan(np.asarray(logged(lines, "loss", "loss")[0].y)[7])
    curve, note = logged(lines[:70], "loss", "loss")
    assert (len(np.asarray(curve.x)), np.size(curve.low), note) == (70, 0, "")


SVG = """<?xml version="1.0"?><?xml-stylesheet href="http://a/b.css"?><svg xmlns="http://www.w3.org/2000/svg"
 xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" style="position: fixed"><style>* {fill: red}</style>
<defs><path id="a" d="M0 0L9 9"/></defs><use xlink:href="#a" clip-path="url(#a)"/>
<image href="data:image/png;base64,AAAA"/><g style="fill: #123456"><text>a &lt;b&gt;</text></g></svg>"""


def test_a_figure_stands_on_the_page_as_an_image_of_its_own_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "theory", [])
    (run / "figures").mkdir()
    (run / "figures" / "good.svg").write_text(SVG)
    (image,) = Page(page_of(run)).all("img")
    start, _, content = str(image["src"]).partition(",")
    assert start == "data:image/svg+xml;base64"
    assert base64.b64decode(content).decode() == SVG
