"""What a style promises, asked of the figure that is drawn: sizes, fonts, looks, limits, legends that cover nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.text import Text

from roundround.config.options import conf_dir
from roundround.config.verb import FigureStyle
from roundround.report.drawing import figures
from roundround.report.drawing.figures import FONTS, SCREEN, save_drawing
from roundround.support.panels import Curve, Drawing, HeatMap, Mark, Panel
from roundround.verbs import VERBS

PAPER = FigureStyle(style="paper")
SIZES_ITEMS = [16, 128, 1024]


def drawing() -> Drawing:
    """Two panels whose curves have other names, a range of training, a band beyond what is possible."""
    many = [
        Curve(f"pe=rope, softmax={n}", SIZES_ITEMS, [0.9, 0.5, 0.1 * n], low=[-9] * 3, high=[9] * 3) for n in range(3)
    ]
    share = Panel(
        "items", "accuracy", many, "x", "Accuracy", marks=[Mark("lengths in training", 16, 100)], possible=(0.0, 1.0)
    )
    loss = Panel("items", "loss (nats)", [Curve("loss", SIZES_ITEMS, [0.001, 0.1, 20.0])], "xy", "Loss")
    return Drawing("two", "tiny, pe=rope", [share, loss], note="64 examples at each length.")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draws and keeps a figure, laid out as it is saved."""

    def draw(a_drawing: Drawing, style: FigureStyle = SCREEN) -> Any:
        found = []

        def keep(figure: Any, *_: object) -> list[Path]:
            figure.canvas.draw_idle()
            figure.draw_without_rendering()
            found.append(figure)
            return []

        monkeypatch.setattr(figures, "save", keep)
        save_drawing(a_drawing, Path(), style)
        return found[0]

    return draw


def words(figure: Any) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


@pytest.mark.parametrize("font", FONTS)
def test_a_papers_figure_is_as_wide_as_its_columns_and_nothing_in_it_is_smaller_than_seven_points(
    drawn: Any, font: str
) -> None:
    one, two = (drawn(Drawing("a", "a", panels), FigureStyle(style="paper", font=font))
                for panels in (drawing().panels[:1], drawing().panels))  # fmt: skip
    assert (one.get_size_inches()[0], two.get_size_inches()[0]) == (3.25, 6.75)
    assert {text.get_fontsize() for figure in (one, two) for text in words(figure)} == {7, 8}
    assert {text.get_fontname() for text in words(two)} == {{"sans": "DejaVu Sans", "times": "STIXGeneral"}[font]}


@pytest.mark.parametrize("style", [SCREEN, PAPER])
def test_a_legend_covers_no_panel_and_lies_inside_the_figure(drawn: Any, style: FigureStyle) -> None:
    figure = drawn(drawing(), style)
    box = figure.legends[0].get_window_extent()
    assert all(box.y1 <= axis.get_tightbbox().y0 + 1 for axis in figure.axes)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= -1


def test_no_two_names_of_a_figure_look_alike_without_colour(drawn: Any) -> None:
    figure = drawn(drawing())
    lines = {line.get_label(): line for axis in figure.axes for line in axis.lines}
    looks = [(line.get_marker(), line._unscaled_dash_pattern[1]) for line in lines.values()]
    assert len(looks) == 4
    assert len({marker for marker, _ in looks}) == len({dashes for _, dashes in looks}) == 4


def test_ticks_of_all_axes_are_plain_numbers(drawn: Any) -> None:
    heat = HeatMap([[-1200.0, 0.0], [3.0, 2e4]], "key", "query", label="logit (nats)")
    labels = [t.get_text() for panels in (drawing().panels, [heat])
              for axis in drawn(Drawing("a", "a", panels)).axes
              for t in [*axis.get_xticklabels(), *axis.get_yticklabels()]]  # fmt: skip
    assert {"1,000", "20", "0.01", "0.2", "10,000"} <= set(labels)
    assert [label for label in labels if not re.fullmatch(r"\N{MINUS SIGN}?[\d,.]*", label)] == []


@pytest.mark.pictures
def test_words_can_be_edited_in_svg_and_pdf(tmp_path: Path) -> None:
    for font in FONTS:
        svg, pdf = save_drawing(drawing(), tmp_path, FigureStyle(style="paper", font=font), kinds=("svg", "pdf"))
        assert "accuracy</text>" in svg.read_text()
        assert "64 examples at each length." in svg.read_text(), "which the picture leaves to the caption"
        assert b"/Type3" not in pdf.read_bytes()
        assert b"/FontFile2" in pdf.read_bytes()


def test_a_users_own_settings_of_matplotlib_change_no_figure(drawn: Any) -> None:
    with matplotlib.rc_context({"font.size": 31, "lines.linewidth": 9, "axes.facecolor": "black"}):
        figure = drawn(drawing())
        assert matplotlib.rcParams["font.size"] == 31
    assert max(text.get_fontsize() for text in words(figure)) == 10
    assert figure.axes[0].get_facecolor() == (1, 1, 1, 1)


def test_every_verb_that_draws_has_the_key_and_no_other() -> None:
    told = {verb.name for verb in VERBS if "figures" in verb.keys}
    assert told == {"compare", "eval", "max-retrieval", "probe", "reproduce", "theory"}
    for verb in told:
        text = (conf_dir() / f"{verb.replace('-', '_')}.yaml").read_text()
        assert "\n  - figures\n" in text
