"""Figures and tables as they are written: what a foreign run is called is text there, and no picture has a date."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest

from roundround.report.drawing.figures import KINDS, finish, save, subplots
from roundround.report.drawing.style import SCREEN, styled
from roundround.report.eval_panels import TEXT
from roundround.support.console import print_table

ODD = "pe=$\\frac{$, [/nope] [link](x) <script> -- \x1b[31m \ud800 \uffff"


@pytest.mark.pictures
def test_a_figure_takes_any_title(tmp_path: Path) -> None:
    with styled(SCREEN) as sizes:
        figure, _ = subplots(figsize=(5, 3))
        finish(figure, sizes, ODD)
        svg, *_ = save(figure, tmp_path, "odd")
    ElementTree.parse(svg)
    (shown,) = figure.texts
    assert shown.get_text().replace("\n", " ") == ODD.replace("\x1b", "\\x1b").replace("\ud800", "\\ud800").replace(
        "\uffff", "\\uffff"
    )
    assert not shown.get_parse_math()


def test_a_table_shows_its_title_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    title = "pe=[red]x[/nope], softmax=[link](y)"
    records = [{"metric": name, "length": 8, "value": 1.5} for name in TEXT.columns]
    print_table(TEXT.table(records, None, title).rich())
    assert title in capsys.readouterr().err


def test_a_command_draws_without_pyplot_whatever_backend_a_notebook_has_chosen(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from roundround.__main__ import main
try:
    main()
except SystemExit:
    from roundround.report.drawing.figures import colour_map, save, subplots
    figure, axes = subplots(1, 2, figsize=(4, 2), sharey=True)
    axes[0].plot([0, 1], color=colour_map(["white", "black"])(0.5))
    save(figure, Path(), "drawn")
    assert "matplotlib.pyplot" not in sys.modules
"""
    env = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {f"drawn.{kind}" for kind in KINDS}


@pytest.mark.pictures
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_told_as_such_and_leaves_no_part_of_a_figure(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(OSError, match="No space left"):
        save(subplots()[0], tmp_path, "picture", [kind])
    assert list(tmp_path.iterdir()) == []


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
