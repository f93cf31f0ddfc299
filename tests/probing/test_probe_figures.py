"""What a figure shows: measured on the drawn axes, because a file of the right size proves nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers_hf import Words, some_tokens, tiny
from matplotlib.backends.backend_agg import FigureCanvasAgg

from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.model.scoring import PositionLoss
from roundround.probing import ablation
from roundround.probing.probe import Probe, observe
from roundround.report import probe_results as report
from roundround.report.drawing import figures
from roundround.report.drawing.figures import SCREEN, styled
from roundround.report.eval_panels import TEXT
from roundround.report.probe_panels import kept_panels
from roundround.support.panels import Drawing

NAME = "2026-11-21/23-59-59-pe-p_rope_25,softmax-adaptive_temperature"


@pytest.fixture(scope="module")
def seen() -> Probe:
    """Two layers of two heads that do not look anywhere: everything is small, and every head is diffuse."""
    model = tiny("llama", num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight *= 0.01
    texts = [some_tokens(300, seed=n).tolist() for n in range(2)]
    with installed(model):
        return observe(ProbedHuggingFaceModel(NAME, model, Words()), texts, prompt=texts[0][:12])


@contextmanager
def kept() -> Iterator[dict[str, Any]]:
    """Figures by name, laid out as they are saved, and not written."""
    found: dict[str, Any] = {}

    def keep(figure: Any, folder: Path, name: str, kinds: object = ()) -> list[Path]:
        FigureCanvasAgg(figure).draw()
        found[name] = figure
        return []

    with pytest.MonkeyPatch.context() as patch:
        for module in (report, figures):
            patch.setattr(module, "save", keep)
        yield found


@pytest.fixture(scope="module")
def drawn(seen: Probe) -> Iterator[dict[str, Any]]:
    """Every figure of the probe."""
    with kept() as found:
        report.draw_all(seen, seen.prompt, Path())
        yield found


def texts_of(figure: Any) -> list[Any]:
    """Every title and label of ticks that can be seen."""
    found = [*([figure._suptitle] if figure._suptitle else []), *figure.texts]
    for axis in figure.axes:
        found += [axis.title, axis._left_title]
        for ticks in (axis.xaxis, axis.yaxis):
            low, high = sorted(ticks.get_view_interval())
            found += [tick.label1 for tick in ticks.get_major_ticks() if low <= tick.get_loc() <= high]
    return [text for text in found if text.get_text() and text.get_visible()]


def test_no_title_is_cut_and_no_ticks_run_together(drawn: dict[str, Any]) -> None:
    assert set(drawn) == {"norms", "heads", "labels", "logits_by_frequency", "without_a_band", "prompt", "plane"}
    for name, figure in drawn.items():
        for text in texts_of(figure):
            box = text.get_window_extent()
            cut = min(box.x0, box.y0) < -1 or box.x1 > figure.bbox.x1 + 1 or box.y1 > figure.bbox.y1 + 1
            assert not cut, (name, text)
        for axis in figure.axes:
            boxes = [t.get_window_extent() for t in axis.get_xticklabels() if t.get_text() and not t.get_rotation()]
            assert all(one.x1 < other.x0 for one, other in pairwise(boxes)), (name, axis)


def test_kinds_of_layers_are_points_of_the_plane_and_named_in_titles() -> None:
    model = tiny("gemma4_text")
    with installed(model):
        probed = ProbedHuggingFaceModel(NAME, model, Words())
        seen = observe(probed, [some_tokens(40).tolist()], rows=False, entropy=False)
    with kept() as found:
        report.draw_plane(seen, Path())
    axis = found["plane"].axes[0]
    points = [line.get_xydata()[0].tolist() for line in axis.lines if "line" in (line.get_gid() or "")]
    slowest = [2 * math.pi * 1e4 ** (7 / 8), 2 * math.pi * 1e6 ** (3 / 16)]
    assert points == [[1.0, pytest.approx(slowest[0], rel=1e-5)], [0.25, pytest.approx(slowest[1], rel=1e-5)]]
    names = [text.get_text() for text in found["plane"].legends[0].get_texts()]
    assert names == ["sliding: layers 0, 2, 19,869 tokens", "full: layers 1, 3, 84 tokens", "the training context"]
    with styled(SCREEN) as sizes:
        figure = report.draw_heads(seen, sizes)
    assert figure.axes[2].get_title().startswith("layer 3, full")


def test_pairs_have_their_wavelengths_and_the_training_context(drawn: dict[str, Any]) -> None:
    for name in ("norms", "heads", "logits_by_frequency", "prompt"):
        axis = drawn[name].axes[0]
        assert axis.get_yticklabels()[0].get_text() == "0: 6"  # 2 pi tokens
        assert any(line.get_ydata()[0] == 3.5 for line in axis.lines)  # pairs of 199 and of 628 tokens, trained on 256
        assert "less than once within 256 tokens" in drawn[name].texts[-1].get_text().replace("\n", " ")
    assert drawn["norms"].axes[2].get_ylabel() == "pair"  # values are not rotated


def norms_of(name: str, **changes: Any) -> Any:
    """The first panel of the picture of norms by layer."""
    model = tiny(name, **changes)
    with installed(model):
        probe = observe(ProbedHuggingFaceModel(name, model, Words()), [some_tokens(40).tolist()], rows=False)
    with styled(SCREEN) as sizes:
        return report.draw_layers(probe, sizes).axes[0]


def test_layers_that_rotate_differently_have_their_wavelengths_side_by_side() -> None:
    axis = norms_of("gemma3_text", sliding_window=60)
    assert "2: 63 | 199" in [t.get_text() for t in axis.get_yticklabels()]  # 2 pi 10^(4 * 2/8) and 2 pi 10^(6 * 2/8)
    assert axis.get_ylabel() == "pair: wavelength (tokens) | layers 1, 3"
    ends = {tuple(line.get_xdata()): line.get_ydata()[0] for line in axis.lines}
    local, of_all = 1.5, 2.5  # of 6, 20 and 63 tokens, in a window of 60; of 6, 35, 199 and 1,117, in a context of 256
    assert ends == {(-0.5, 0.5): local, (0.5, 1.5): of_all, (1.5, 2.5): local, (2.5, 3.5): of_all}


def test_heads_of_two_sizes_and_layers_without_rotation_are_named_too() -> None:
    axis = norms_of("gemma4_text")
    assert axis.get_yticklabels()[-1].get_text() == "15: - | still"
    assert norms_of("smollm3").get_ylabel() == "pair: wavelength (tokens)"


def test_a_pair_far_above_all_others_does_not_hide_them() -> None:
    norms = 1 + torch.arange(400.0).view(2, 200) / 400
    assert report.darkest(norms) == norms.max()
    norms[0, 3] = 40.0
    assert 1.9 < report.darkest(norms) < 2.0


def draw_curve(before: PositionLoss, bands: list[ablation.Band], losses: list[PositionLoss]) -> None:
    """Perplexity along the fraction of frequencies kept."""
    records = report.records_of_loss(before, kept=1.0)
    for band, loss in zip(bands, losses, strict=True):
        records += report.records_of_loss(loss, end=band.end, kept=1 - band.fraction)
    panels = kept_panels(records)
    figures.save_drawing(Drawing("ablation", "tiny", panels), Path(), alike=True)


def test_a_thousandth_is_not_drawn_as_an_effect() -> None:
    found = {}
    for number, n in enumerate((128, 256, 512)):
        found[n] = PositionLoss(n)
        found[n].add(torch.full((20, n), 5.416 + 0.001 * number))
    with kept() as drawn:
        records = [{"metric": "perplexity", "length": n, "value": loss.perplexity()} for n, loss in found.items()]
        for n, loss in found.items():
            place = {"metric": "nats_per_token", "length": n, "value": loss.token_loss()}
            records += [{**place, "first_position": a, "last_position": a} for a in (0, n - 1)]
        figures.save_drawing(TEXT.drawing(records, (256, 256), "tiny", ""), Path())
        draw_curve(found[512], [ablation.Band("lowest", 1.0)], [found[512]])
        for axis in [*drawn["perplexity"].axes, drawn["ablation"].axes[0]]:
            low, high = axis.get_ylim()
            assert high - low >= 0.099 * (low + high) / 2
        assert any("targets)" in text.get_text() for text in drawn["ablation"].legends[0].get_texts())
