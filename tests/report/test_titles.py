"""Figures and tables as they are written: what a foreign run is called is text there, and no picture has a date."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from roundround.console import print_table
from roundround.report import evaluation
from roundround.report.figures import KINDS, save, set_title, subplots

ODD = "pe=$\\frac{$, [/nope] [link](x) <script> -- \x1b[31m \ud800 \uffff"


@pytest.mark.pictures
def test_a_figure_takes_any_title(tmp_path: Path) -> None:
    figure, _ = subplots()
    set_title(figure, ODD)
    svg, *_ = save(figure, tmp_path, "odd")
    ElementTree.parse(svg)
    (shown,) = figure.texts
    assert shown.get_text().replace("\n", " ") == ODD.replace("\x1b", "\\x1b").replace("\ud800", "\\ud800").replace(
        "\uffff", "\\uffff"
    )
    assert not shown.get_parse_math()


def test_a_table_shows_its_title_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    title = "pe=[red]x[/nope], softmax=[link](y)"
    print_table(evaluation.table({}, train_length=8, title=title), width=200)
    assert title in capsys.readouterr().err


@pytest.mark.pictures
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_picture_is_the_same_bytes(kind: str, tmp_path: Path) -> None:
    written = []
    for folder in ("first", "second"):
        figure, axis = subplots()
        axis.plot([0, 1], [1, 0], label="a")
        axis.imshow([[0, 1]])
        axis.legend()
        (path,) = save(figure, tmp_path / folder, "picture", [kind])
        written.append(path.read_bytes())
    assert written[0] == written[1]
