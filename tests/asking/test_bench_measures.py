"""What a trained decoder promises, costs, and looks at: kept where it must be, missed where a variant cannot."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Done, option
from omegaconf import OmegaConf
from torch import Tensor

from roundround.asking import bench_measures
from roundround.model.decoder import Decoder
from roundround.probing.rows import PLACES, places_of_heads
from roundround.trained.models import TrainedRun, build_decoder

SIZES: dict[str, Any] = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_key_heads": 2, "d_mlp": 32, "train_length": 128}


def decoder(pe: str = "rope", softmax: str = "softmax") -> Decoder:
    torch.manual_seed(0)
    return build_decoder(option("model", "tiny", **SIZES), option("pe", pe), option("softmax", softmax), 50).eval()


def tokens() -> Tensor:
    return torch.randint(50, (2, bench_measures.TEXT), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("pe", "is_kept"), [("rope", True), ("alibi", True), ("learned", False), ("sinusoidal", False)]
)
@torch.no_grad()
def test_a_shift_changes_what_is_added_to_embeddings_and_nothing_else(pe: str, is_kept: bool) -> None:
    model, tokens_BT = decoder(pe), tokens()
    found = bench_measures.apart(bench_measures.shifted(model, tokens_BT), bench_measures.logits(model, tokens_BT))
    assert (found <= bench_measures.EXACT) == is_kept, found


@pytest.mark.parametrize("softmax", ["softmax", "entmax15", "ssmax", "sink"])
@torch.no_grad()
def test_pieces_and_padding_change_no_logit_and_bfloat16_little(softmax: str) -> None:
    model, tokens_BT = decoder("fox", softmax), tokens()
    whole = bench_measures.logits(model, tokens_BT)
    assert bench_measures.apart(bench_measures.cached(model, tokens_BT), whole) <= bench_measures.EXACT
    assert bench_measures.apart(bench_measures.padded(model, tokens_BT), whole) <= bench_measures.EXACT
    assert 0 < bench_measures.rounding(model, tokens_BT, whole) <= bench_measures.ROUNDED


def test_what_cannot_be_asked_is_missed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> Tensor:
        raise ValueError("Gone has no cache")

    monkeypatch.setattr(bench_measures, "cached", refuse)
    monkeypatch.setattr(bench_measures, "exported", lambda *args: 0.5)
    found, remarks = bench_measures.promises(SimpleNamespace(decoder=lambda name: decoder()))  # type: ignore[arg-type]
    assert found == {"bfloat16": 1.0, "cache": 0.0, "shift": 1.0, "padding": 1.0, "export": 0.0, "kept": 3.0}
    assert remarks == ["cache: Gone has no cache", "export: 0.5 of the largest logit, at most 0.0002"]
    monkeypatch.setattr(bench_measures, "exported", lambda *args: math.nan)
    _, remarks = bench_measures.promises(SimpleNamespace(decoder=lambda name: decoder()))  # type: ignore[arg-type]
    assert remarks[1] == "export: nan of the largest logit, at most 0.0002"


@pytest.mark.usefixtures("checked_here")
def test_a_trained_run_keeps_all_of_them_and_its_heads_look_somewhere(train: Callable[..., Done]) -> None:
    run = TrainedRun(train("pe=p_rope", "model.train_length=128").directory, trust=False)
    found, remarks = bench_measures.promises(run)
    assert (found["kept"], remarks) == (5.0, [])
    places, _ = bench_measures.places(run)
    assert list(places) == list(PLACES)
    assert all(0 <= share <= 1.001 for share in places.values())


def test_heads_that_look_at_themselves_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("alibi")
    steep = torch.full((2,), 50.0)
    monkeypatch.setattr(model.encoding, "slopes", lambda dtype, device: steep.to(dtype))
    shares_LH7 = places_of_heads(model.normalisers, model.hidden, tokens()).double()
    assert shares_LH7.shape == (2, 2, 7)
    torch.testing.assert_close(shares_LH7.sum(-1), torch.ones(2, 2).double(), rtol=0, atol=1e-3)
    assert float(shares_LH7[..., PLACES.index("diagonal")].min()) > 0.95


def test_costs_are_those_of_the_plain_model_for_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_measures, "STEP", (64,))
    monkeypatch.setattr(bench_measures, "TOKEN", (64,))
    config = {
        "model": option("model", "tiny", **SIZES),
        "pe": option("pe", "rope"),
        "softmax": option("softmax", "softmax"),
    }
    run = SimpleNamespace(config=OmegaConf.create(config), manifest={"data": {"n_vocab": 50}})
    found, _ = bench_measures.costs(run)  # type: ignore[arg-type]
    assert found["step_memory@64"] == found["token_memory@64"] == 1.0
    assert all(math.isnan(found[name]) or 0.3 < found[name] < 3 for name in ("step_time@64", "token_time@64"))


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([1.0, 1.02, 1.01], 1.01),
        ([0.507, 0.936, 0.866, 0.95, 0.94, 0.96], 0.95),  # busy at first
        ([0.507, 0.936, 0.866] * 4, math.nan),
    ],
)
def test_a_cost_is_a_number_where_three_repeats_in_a_row_agree(
    ratios: list[float], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(ratios)
    monkeypatch.setattr(bench_measures, "in_turn", lambda calls, times: [next(left), 1.0])
    assert bench_measures.steady_ratio(lambda: [], 1) == pytest.approx(expected, nan_ok=True)
    assert not list(left), "not repeated further than needed"
