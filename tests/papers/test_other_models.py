"""Every item of a pretrained model can be made of another one: its numbers are told, and nothing is judged."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from probe_directories import WORDS, always, uneven, write

from roundround.cli import run as cli
from roundround.papers import figure_names
from roundround.papers.figures import (
    Subject,
    figures_of,
)
from roundround.papers.figures.pretrained import probed
from roundround.probing.rows import entropy_by_length
from roundround.report import probe_results
from roundround.support.errors import UserError
from roundround.support.panels import HeatMap
from roundround.verbs.probe import run as verb_run

STORIES = Subject("stories260k", ("model=stories260k",), is_the_papers=False)
UNEVEN = Subject("an uneven model", ("model=hf", "model.path=DIR"), is_the_papers=False)
FIGURES = figures_of(figure_names())
OF_MODELS = [name for name, figure in FIGURES.items() if figure.model is not None]
OF_PROBES = [name for name in OF_MODELS if name != "softmax.fig3"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Probes inside this process, of a few words and without pictures: one for all texts, and one of lists."""
    outputs, made = tmp_path_factory.mktemp("outputs"), {}

    def probe(verb: str, *overrides: str) -> Path:
        kind = overrides[-1].partition("=")[0]
        if kind not in made:
            words = [*overrides, "logger=none", "device=cpu", "max_tokens=150", f"outputs={outputs}"]
            out = io.StringIO()
            with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(io.StringIO()):
                for draw in ("draw_all",):
                    patch.setattr(probe_results, draw, lambda *_: [])
                patch.setattr(verb_run, "entropy_by_length", partial(entropy_by_length, n_elements=(1, 8), n_lists=1))
                assert not cli([verb, *words])
            made[kind] = Path(out.getvalue().split()[-1])
        return made[kind]

    return probe


@pytest.mark.parametrize("name", OF_MODELS)
def test_stories260k_takes_the_place_of_the_papers_model(name: str, run: Callable[..., Path]) -> None:
    outcome = FIGURES[name].make(run, STORIES)
    assert outcome.verdict == "not tested"
    assert outcome.untested.startswith("made of stories260k, not of ")
    assert outcome.comparisons
    assert all(math.isfinite(c.ours) and c.low == -math.inf and c.high == math.inf for c in outcome.comparisons)
    assert outcome.panels


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("rope.fig3", ["texts=shakespeare"]),
        ("rope.fig19", ["texts=italian", "texts=chinese", "texts=code", "texts=sums"]),
        ("softmax.deltas", ["texts=code"]),
    ],
)
def test_a_probe_reads_what_the_paper_read(name: str, asked: list[str], tmp_path: Path) -> None:
    directory, calls = write(tmp_path, *uneven()), []

    def run(verb: str, *overrides: str) -> Path:
        calls.append((verb, *overrides))
        return directory

    FIGURES[name].make(run, UNEVEN)
    assert calls == [("probe", *UNEVEN.overrides, text) for text in asked]


def test_the_share_told_is_the_one_that_the_probe_says(run: Callable[..., Path]) -> None:
    directory = run("probe", *STORIES.overrides, "texts=shakespeare")
    shares = [
        r["value"]
        for r in json.loads((directory / "results.json").read_text())
        if r["metric"] == "share_of_slowest_quarter" and r["kind"] == "query" and r["first_token"]
    ]
    outcome = FIGURES["rope.fig3"].make(run, STORIES)
    (told,) = [c.ours for c in outcome.comparisons if c.what == "queries: share of the slowest quarter"]
    assert told == pytest.approx(np.mean(shares), abs=0.05)  # there of mean squares by head, here of the map


def test_alignment_is_the_one_that_the_probe_writes(run: Callable[..., Path]) -> None:
    seen = probed(run, STORIES)
    prompt = seen.prompt()
    tables = json.loads((seen.directory / "alignment.json").read_text())
    assert tables
    for table in tables:
        assert table["tokens"] == prompt.words
        ours = prompt.alignment(table["layer"], table["head"])
        assert ours["diagonal"] == pytest.approx(table["diagonal"])
        assert ours["next"][:-1] == pytest.approx(table["next"][:-1])


@pytest.mark.parametrize("name", OF_PROBES)
def test_layers_of_several_sizes_and_without_rope_are_no_obstacle(name: str, tmp_path: Path) -> None:
    outcome = FIGURES[name].make(always(write(tmp_path, *uneven())), UNEVEN)
    assert all(math.isfinite(c.ours) for c in outcome.comparisons)
    assert "nan" not in outcome.ours + outcome.remark
    for title, panel in outcome.panels.items():
        assert not isinstance(panel, HeatMap) or np.isfinite(panel.values).any(), title


def test_logits_outside_a_window_are_left_out(tmp_path: Path) -> None:
    norms, prompt = uneven()
    rows = np.arange(len(WORDS))
    prompt["logits"][:, :, rows[:, None] - rows >= 5] = np.nan
    outcome = FIGURES["rope.fig12"].make(always(write(tmp_path, norms, prompt)), UNEVEN)
    assert all(math.isfinite(c.ours) for c in outcome.comparisons)


@pytest.mark.parametrize("name", ["rope.fig7", "rope.fig12", "rope.fig17"])
def test_a_tokenizer_without_an_apostrophe_alone_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    words = ["I", "'m", *["not"] * (len(WORDS) - 2)]
    with pytest.raises(UserError, match="joins the apostrophe") as refused:
        FIGURES[name].make(always(write(tmp_path, *uneven(), words=words)), UNEVEN)
    assert "\n" not in str(refused.value)
