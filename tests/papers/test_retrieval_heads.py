"""The two numbers of a head: read off one that was made to have them, and enough for the paper's table."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from helpers_stored import DOCS, text_of

from roundround.analysis.load import rows_of
from roundround.papers.max_retrieval import PAPER, SLOPE, SPREAD
from roundround.papers.max_retrieval.model import MaxRetrieval, slope_and_spread
from roundround.softmax.adaptive_temperature import inverse_temperature

OFFSETS = torch.tensor([0.0, 0.004, -0.002, 0.001])
DRAWS, SETS, N_CLASSES = 10, 512, 10  # of a simulated head: of its offsets, and sets of each size for each of them


def made_head(slopes: list[float]) -> MaxRetrieval:
    """Logits slope (priority + offset of the class), by GELUs so far from 0 that they are straight."""
    options = {"n_classes": 4, "width": 8, "scaled_logits": False, "tanh_gelu": False, "uniform_init": False}
    model = MaxRetrieval(range(len(slopes)), **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.item_in.weight[:, 0, 0] = 1.0
        model.item_in.weight[:, 1:, 0] = OFFSETS
        model.item_in.bias[..., 0] = 20.0
        model.query_out.bias[..., 0] = torch.tensor(slopes)[:, None]
        for layer in (model.item_out, model.to_query, model.to_key):
            layer.weight[:] = torch.eye(8)
    return model


def test_the_numbers_of_a_made_head_are_read_off() -> None:
    slope_S, spread_S = slope_and_spread(made_head([260.0, -100.0]))
    assert slope_S.tolist() == pytest.approx([260.0, -100.0], rel=1e-4)
    assert spread_S.tolist() == pytest.approx([float(OFFSETS.std())] * 2, rel=1e-2)


def simulated(slope: float, spread: float, sizes: Iterable[int]) -> dict[int, tuple[float, float]]:
    """Accuracy in per cent, plain and with the published adaptive temperature, of heads e = slope (priority + offset).

    By items, as PAPER. Offsets are drawn from a normal distribution, one a class; the answer is the class with the most
    weight. Each is the mean over 10 draws of the offsets, of 512 sets each.
    """
    found = {}
    for n in sizes:
        right = np.empty((DRAWS, 2))
        for draw in range(DRAWS):
            rng = np.random.default_rng([draw, n])
            classes_BN, priority_BN = rng.integers(N_CLASSES, size=(SETS, n)), rng.random((SETS, n))
            offsets_K = spread * np.random.default_rng(draw).normal(size=N_CLASSES)
            e_BN = torch.from_numpy(slope * (priority_BN + offsets_K[classes_BN]))
            beta_B1 = inverse_temperature(torch.special.entr(e_BN.softmax(-1)).sum(-1, keepdim=True))
            answer_B = np.take_along_axis(classes_BN, priority_BN.argmax(-1)[:, None], -1)[:, 0]
            for place, weights_BN in enumerate((e_BN.softmax(-1), (beta_B1 * e_BN).softmax(-1))):
                of_class_BK = torch.zeros(SETS, N_CLASSES, dtype=torch.float64)
                of_class_BK.scatter_add_(1, torch.from_numpy(classes_BN), weights_BN)
                right[draw, place] = (of_class_BK.argmax(-1).numpy() == answer_B).mean()
        plain, adaptive = 100 * right.mean(0)
        found[n] = float(plain), float(adaptive)
    return found


@pytest.mark.parametrize("largest", [1024, pytest.param(16384, marks=pytest.mark.slow)])
def test_a_head_with_these_two_numbers_has_the_papers_table(largest: int) -> None:
    paper = np.array([PAPER[n] for n in PAPER if n <= largest])
    found = np.array(list(simulated(SLOPE, SPREAD, [n for n in PAPER if n <= largest]).values()))
    gaps = np.stack([found[:, 0] - paper[:, 0], found[:, 1] - found[:, 0] - paper[:, 1] + paper[:, 0]])
    baseline, gains = np.sqrt(np.mean(gaps**2, 1))
    assert baseline < 2.0
    assert gains < 0.8


def test_flatter_heads_are_right_less_often() -> None:
    assert simulated(130.0, SPREAD, [1024])[1024][0] < simulated(SLOPE, SPREAD, [1024])[1024][0] - 10


def test_trained_heads_gain_more_than_heads_with_their_two_numbers() -> None:
    rows = [row for _, row in rows_of(DOCS / "max_retrieval" / "heads.csv") if row["setting"] == "nothing"]
    slopes, spreads = (
        [row["value"] for row in rows if row["metric"] == name] for name in ("logit_slope", "class_offset_spread")
    )
    found = np.array([list(simulated(*two, (256, 512, 1024)).values()) for two in zip(slopes, spreads, strict=True)])
    gained = ", ".join(f"{gain:+.1f}" for gain in (found[..., 1] - found[..., 0]).mean(0))
    assert f"gain {gained} points" in " ".join(text_of("max_retrieval_heads").split())
