"""The charts of a page: where values lie, what is averaged, and figures of a run made harmless."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from helpers_page import write_run

from roundround.report.page.axes import Scale, even_ticks, log_ticks, tick_label
from roundround.report.page.charts import Chart, Series
from roundround.report.page.figures import address_of, figures_of
from roundround.report.page.of_train import thinned
from roundround.report.page.sources import opened_run


def places(chart: Chart, number: int = 0) -> list[tuple[float, float]]:
    """The corners of a line, off its path."""
    (path,) = chart.paths(chart.series[number])
    return [tuple(float(word) for word in corner.split()) for corner in path[1:].split("L")]  # type: ignore[misc]


def test_equal_steps_lie_equally_far_apart_and_larger_values_higher() -> None:
    chart = Chart("", [Series("a", [(0, 1), (1, 2), (2, 3)])], "x", "y")
    (x0, y0), (x1, y1), (x2, y2) = places(chart)
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    assert x1 > x0
    assert y1 < y0  # the page counts downwards


def test_equal_factors_lie_equally_far_apart_on_a_logarithmic_axis() -> None:
    chart = Chart("", [Series("a", [(16, 1), (64, 10), (256, 100)])], "x", "y", log_x=True, log_y=True)
    (x0, y0), (x1, y1), (x2, y2) = places(chart)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.11)


def test_a_line_is_interrupted_where_there_is_no_number() -> None:
    chart = Chart("", [Series("a", [(0, 1), (1, 2), (2, None), (3, 1), (4, 5)])], "x", "y")
    assert len(chart.paths(chart.series[0])) == 2


def test_nothing_to_draw_is_no_chart() -> None:
    assert Chart("", [Series("a", [(1, None)]), Series("b", [])], "x", "y").scales is None
    assert Chart("", [Series("a", [(1, -1.0)])], "x", "y", log_y=True).scales is None
    assert Chart("", [Series("a", [(1, 2.0)])], "x", "y").scales is not None


def test_a_band_ends_where_the_axis_does() -> None:
    chart = Chart("", [Series("a", [(0, 50.0), (1, 60.0)], [(-400, 600), (40, 80)])], "x", "y", limits=(0.0, 100.0))
    heights = [float(corner.split()[1]) for corner in chart.band_path(chart.series[0])[1:-1].split("L")]
    assert chart.scales is not None
    assert (max(heights), min(heights)) == (chart.scales[1](0.0), chart.scales[1](100.0))


def test_the_picture_in_words_names_both_ends_and_the_least() -> None:
    chart = Chart("", [Series("loss", [(1, 5.0), (2, 2.0), (3, 4.0)])], "step", "nats")
    assert chart.alt == "nats against step. loss: 5.000 at 1, 4.000 at 3, least 2.000 at 2."


def test_ticks_are_round_and_few() -> None:
    assert even_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert log_ticks(1, 10_000) == [1, 10, 100, 1000, 10_000]
    assert log_ticks(18, 900) == [20, 50, 100, 200, 500]
    assert Scale(1, 5000, 0, 1, log=True).ticks([2.0**n for n in range(12)]) == [2, 8, 32, 128, 512, 2048]
    assert [tick_label(value) for value in (0, 0.25, 1500, 2_500_000, 2e-5)] == ["0", "0.25", "1,500", "2.5M", "2e-5"]


def test_a_long_curve_is_averaged_and_its_extremes_are_the_band() -> None:
    points = [(float(step), float(step % 10)) for step in range(3000)]
    means, band, note = thinned(points)
    assert len(means) == 300
    assert means[7] == (75.0, 4.5)
    assert band[7] == (0.0, 9.0)
    assert "mean of 10 logged steps" in note
    points[75] = (75.0, None)
    assert thinned(points)[0][7][1] is None
    assert thinned(points[:300]) == (points[:300], [], "")


SVG = """<?xml version="1.0"?><?xml-stylesheet href="http://a/b.css"?><svg xmlns="http://www.w3.org/2000/svg"
 xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" style="position: fixed"><style>* {fill: red}</style>
<defs><path id="a" d="M0 0L9 9"/></defs><use xlink:href="#a" clip-path="url(#a)"/>
<image href="data:image/png;base64,AAAA"/><g style="fill: #123456"><text>a &lt;b&gt;</text></g></svg>"""


def test_a_figure_is_an_image_that_nothing_leaves() -> None:
    start, _, content = address_of(SVG).partition(",")
    assert start == "data:image/svg+xml;base64"
    drawn = base64.b64decode(content).decode()
    assert "a &lt;b&gt;" in drawn
    assert "stylesheet" not in drawn
    assert drawn.startswith("<svg xmlns=")


def nested(n: int, again: str) -> str:
    """n levels, each of which draws the one below it ten times: 10^n shapes."""
    levels = [f'<g id="l{k}">{again.format(k - 1) * 10}</g>' for k in range(1, n + 1)]
    return f'<svg xmlns="http://www.w3.org/2000/svg"><rect id="l0"/>{"".join(levels)}</svg>'


@pytest.mark.parametrize(
    "text",
    [
        *("", "<svg", "<p/>", '<!DOCTYPE a [<!ENTITY b "c">]><svg/>', "<svg>" * 5000),
        nested(11, '<use href="#l{}"/>'),  # in 10 kB more shapes than a browser draws in a day
        nested(11, '<use xlink:href="#%6C{}" xmlns:xlink="http://www.w3.org/1999/xlink"/>'),
        nested(11, '<rect fill="url(#l{})"/>'),
        nested(1, '<use href="#l1"/>'),  # itself
        nested(1, '<rect style="fill:u\\72l(#l{})"/>'),
        nested(1, '<image href="data:image/svg+xml;base64,AAAA"/>'),
        nested(1, "<style>* {{fill: url(#l{})}}</style>"),
    ],
)
def test_what_is_no_figure_is_named_and_left_out(tmp_path: Path, text: str) -> None:
    run = write_run(tmp_path / "run", "theory", [])
    (run / "figures").mkdir()
    (run / "figures" / "good.svg").write_text(SVG)
    (run / "figures" / "bad.svg").write_text(text)
    files = opened_run(run)
    assert [figure.name for figure in figures_of(files)] == ["good"]
    assert [remark for remark in files.remarks if "figures/bad.svg cannot be shown" in remark]


def test_figures_that_would_fill_the_page_are_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", "theory", [])
    (run / "figures").mkdir()
    for n in range(3):
        (run / "figures" / f"f{n}.svg").write_text(SVG.replace("<text>", f"<text>{'x' * 1000 * n}"))
    monkeypatch.setattr("roundround.report.page.figures.MOST_TOGETHER", 2500)
    files = opened_run(run)
    assert [figure.name for figure in figures_of(files)] == ["f0", "f1"]
    assert files.remarks == ["left out, because a page has up to 2 MB: figures/f2.svg"]
