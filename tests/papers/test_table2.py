"""The small Table 2: whole seeds, differences paired by seed, the paper's numbers beside them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from omegaconf import OmegaConf

from roundround.papers.figures import own as table2
from roundround.papers.figures.own import Difference
from roundround.trained.models import build_decoder

CONF = ROOT / "conf"
EXPERIMENT = OmegaConf.load(CONF / "experiment" / "rope" / "table2.yaml")


def record(pe: str, seed: int, value: float, *, length: int = 256, **fields: Any) -> dict[str, Any]:
    return {"metric": "perplexity", "verb": "eval", "pe": pe, "seed": seed, "length": length, "value": value, **fields}


def records(losses: dict[str, list[float]], *, length: int = 256) -> list[dict[str, Any]]:
    """Perplexities of these losses in nats, by encoding, for the seeds 1, 2, ..."""
    return [
        record(pe, seed, math.exp(nats), length=length)
        for pe, by_seed in losses.items()
        for seed, nats in enumerate(by_seed, start=1)
    ]


def between(first: list[float], second: list[float]) -> Difference:
    sweep = table2.sweep_of(records({"p_rope": first, "rope": second}))
    return table2.difference(sweep, "p_rope", "rope", 256)


def test_an_interval_by_hand() -> None:
    found = between([3.01, 3.02, 3.03, 3.04, 3.05], [3.0] * 5)
    # mean 0.03, deviation sqrt(2.5e-4), over sqrt(5), times 2.776445, the 97.5 % quantile of t with 4 degrees
    assert (found.nats, found.low, found.high) == pytest.approx((0.03, 0.01036757, 0.04963243), abs=1e-7)


def test_what_the_seeds_share_is_no_noise() -> None:
    shared, own = np.array([0.0, 0.5, 1.0, -0.5, 0.2]), np.array([0.01, 0.012, 0.008, 0.011, 0.009])
    found = between((3 + shared + own).tolist(), (3 + shared).tolist())
    assert found.nats == pytest.approx(0.01)
    assert found.high - found.low < 0.005


def test_only_whole_seeds_count() -> None:
    whole = records({"rope": [3.0, 3.1, 3.2, 3.3], "p_rope": [3.0, 3.1, 3.2]})
    longer = records({"rope": [3.0, 3.1, 3.2, 3.3], "p_rope": [3.0, 3.1]}, length=512)
    sweep = table2.sweep_of(whole + longer)
    assert set(sweep.columns) == {(n, pe) for n in (256, 512) for pe in ("rope", "p_rope")}
    assert list(sweep.index) == [1, 2]
    assert list(sweep[512, "p_rope"]) == pytest.approx(np.exp([3.0, 3.1]))


def test_two_corpora_are_not_mixed_and_an_evaluation_may_be_repeated() -> None:
    once = record("rope", 1, 40.0)
    assert list(table2.sweep_of([once, once]).index) == [1]
    with pytest.raises(ValueError, match="duplicate"):
        table2.sweep_of([once, record("rope", 1, 44.0)])


@pytest.mark.parametrize(
    ("encoding", "wiki", "flan"),
    [
        ("nope", 0.0852, 0.0306),
        ("rope_500k", -0.0032, 0.0025),
        ("p_rope_reversed", -0.0008, 0.0039),
        ("partial_rope", -0.0020, 0.0021),
        ("p_rope_25", 0.0150, 0.0105),
        ("p_rope", -0.0048, -0.0001),
    ],
)
def test_the_papers_differences_in_nats(encoding: str, wiki: float, flan: float) -> None:
    """Worked out from the published perplexities by hand."""
    assert table2.paper_difference(encoding, "rope") == pytest.approx((wiki, flan), abs=6e-5)


def test_the_experiment_runs_the_encodings_of_the_paper() -> None:
    assert EXPERIMENT.hydra.sweeper.params.pe.split(",") == list(table2.PAPER)
    assert {name for pair in table2.CONTROLS for name in pair} <= table2.PAPER.keys()


def test_the_controls_rotate_as_many_pairs_as_p_rope() -> None:
    model = OmegaConf.merge(OmegaConf.load(CONF / "model" / "tiny.yaml"), EXPERIMENT.model)
    softmax = OmegaConf.load(CONF / "softmax" / "softmax.yaml")
    facts = {
        pe: build_decoder(model, OmegaConf.load(CONF / "pe" / f"{pe}.yaml"), softmax, 2).encoding.facts()
        for pe in ("rope", "rope_500k", "p_rope_reversed", "partial_rope", "p_rope_25", "p_rope")
    }
    assert [found["rotated_pairs"] for found in facts.values()] == [16, 16, 12, 12, 4, 12]
