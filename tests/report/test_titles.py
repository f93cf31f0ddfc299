"""A name of somebody else's run above a figure or a table is text: no formula, no markup, nothing unprintable."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from roundround.report import evaluation
from roundround.report.figures import save, set_title, subplots

ODD = "pe=$\\frac{$, [/nope] [link](x) <script> -- \x1b[31m \ud800"


def test_a_figure_takes_any_title(tmp_path: Path) -> None:
    figure, _ = subplots()
    set_title(figure, ODD)
    svg, _ = save(figure, tmp_path, "odd")
    ElementTree.parse(svg)


def test_a_table_shows_its_title_as_it_is() -> None:
    title = "pe=[red]x[/nope], softmax=[link](y)"
    out = io.StringIO()
    Console(file=out, width=200).print(evaluation.table({}, train_length=8, title=title))
    assert title in out.getvalue()
