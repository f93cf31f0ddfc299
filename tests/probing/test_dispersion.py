"""Dispersion in a stream equals a loop over whole attention rows, and obeys Lemma 2.1."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from conftest import Done, option
from helpers_attention import (
    KEYS,
    SCALE,
    changed,
    encoding_of,
    gaps_by_loop,
    inputs,
    layer_bias,
    mask_by_loop,
    shape_of,
)
from omegaconf import OmegaConf
from scipy.stats import entropy as shannon
from torch import Tensor, nn

from roundround.config.options import load_option
from roundround.kernels import blocks
from roundround.kernels.keys import Keys
from roundround.kernels.row_measures import contact_index, gap_ratios, ordered_logits
from roundround.probing import dispersion as dispersion_module
from roundround.probing.dispersion import MEASURES, OF_GAPS, Dispersion, watched
from roundround.report.evaluation import records_of_dispersion
from roundround.softmax.adaptive_temperature import PUBLISHED, AdaptiveTemperature, inverse_temperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.entmax15 import Entmax15
from roundround.softmax.sigmoid import Sigmoid
from roundround.softmax.sink import Sink
from roundround.softmax.softmax import Softmax
from roundround.softmax.ssmax import SSMax
from roundround.trained.models import build_decoder

MODES = ["plain causal", "padded", "window", "three queries and their cache"]


def normaliser(name: str) -> AttentionSoftmax:
    shape = shape_of(2)
    if name == "adaptive":
        always = {"min_entropy": 0.5, "min_beta": 1.0, "in_training": True, "gradient_through_beta": True}
        return AdaptiveTemperature(shape, coefficients=PUBLISHED, entropy_range=None, **always)
    if name == "ssmax":
        ssmax = SSMax(shape, s=0.6, bias=True, scaled_heads=None).double()
        with torch.no_grad():
            ssmax.s.copy_(torch.tensor([0.6, 1.5, -0.4, 0.1]))  # training may turn a head upside down
        return ssmax
    made = {"softmax": Softmax, "entmax15": Entmax15, "sigmoid": Sigmoid}
    return made[name](shape) if name in made else Sink(shape, init_logit=0.7)


def measured(softmax: AttentionSoftmax, keys: Keys, bias: str | None, tensors: list[Tensor]) -> Dispersion:
    q, k, v, _ = tensors
    with watched(nn.ModuleList([softmax]), keys.n_keys) as seen, torch.no_grad():
        bias_of_rows = layer_bias(encoding_of(bias).double(), keys, q, k)
        softmax(q, k, v, scale=SCALE, keys=keys, bias=bias_of_rows, rows={})
    return seen


def mean_by_loop(rows: list[dict[str, Tensor]], name: str) -> Tensor:
    """Over the rows that have a value, [H]."""
    mean_H = torch.stack([row[name] for row in rows if row["n"] > 1 or name not in OF_GAPS]).double().mean(0)
    return 1 / mean_H if name == "gap_counting" else mean_H


@torch.no_grad()
def by_loop(softmax: AttentionSoftmax, keys: Keys, bias: str | None, tensors: list[Tensor]) -> list[dict[str, Tensor]]:
    """Every measure [H] of every row that sees something, with its n, from whole rows of logits."""
    q, k, _, _ = tensors
    of_pairs = layer_bias(encoding_of(bias).double(), keys, q, k)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    logits = (SCALE * q @ k.mT).detach()
    if of_pairs is not None:
        logits = changed(of_pairs, logits, keys)
    mask = mask_by_loop(keys)
    counts = {"n_visible": mask.sum(-1, keepdim=True)}
    alpha = softmax.weights(logits, mask, counts).detach()
    rows = []
    for b in range(q.shape[0]):
        for i in range(keys.n_queries):
            seen = mask[b, 0, i]
            n = int(seen.sum())
            if not n:
                continue
            e, w = logits[b, :, i, seen], alpha[b, :, i, seen]
            plain = torch.from_numpy(shannon(e.softmax(-1).numpy(), axis=-1))
            delta, behind = e.amax(-1) - e.amin(-1), w.log().amax(-1) - w.log().amin(-1)  # of their softmax
            rows.append(
                {
                    "n": torch.tensor(n),
                    "entropy": torch.from_numpy(shannon(w.numpy(), axis=-1)),  # scipy makes them sum to one
                    "largest_weight": w.amax(-1),
                    "logit_spread": delta,
                    "in_active_range": ((plain > 0.8492) & (plain < 5.9449)).double(),
                    "ln_n": torch.full_like(delta, math.log(n)),
                    "entropy_bound": (math.log(n) - behind).clamp(min=0),
                    "largest_weight_bound": (behind.exp() / n).clamp(max=1),
                    "gap_counting": torch.tensor([gaps_by_loop(head.tolist())[0] for head in e]),
                    "collapsed": torch.tensor([float(gaps_by_loop(head.tolist())[0] > 1) for head in w.log()]),
                }
            )
    return rows


@pytest.mark.parametrize("rows_per_block", [2, 1000])
@pytest.mark.parametrize("bias", [None, "alibi", "t5_bias"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["softmax", "adaptive", "ssmax", "sink", "entmax15", "sigmoid"])
def test_the_stream_equals_a_loop_over_rows(
    name: str, mode: str, bias: str | None, rows_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, softmax = KEYS[mode], normaliser(name)
    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", rows_per_block * 3 * 4 * keys.n_keys)
    tensors = inputs(keys, 2)
    with torch.no_grad():
        tensors[0].mul_(4)  # spread the entropies
    seen, rows = measured(softmax, keys, bias, tensors), by_loop(softmax, keys, bias, tensors)
    assert seen.n_rows_LN.sum() == len(rows)
    for name_of_measure in MEASURES:
        expected_H = mean_by_loop(rows, name_of_measure)
        torch.testing.assert_close(seen.means_LH(name_of_measure)[0], expected_H, msg=name_of_measure)


def test_rows_are_put_into_bins_by_the_keys_they_see() -> None:
    keys = KEYS["padded"]
    seen = measured(normaliser("softmax"), keys, None, inputs(keys, 2))
    rows = by_loop(normaliser("softmax"), keys, None, inputs(keys, 2))
    assert seen.largest_n == [1, 2, 4, 8, 16]
    for i, (below, largest) in enumerate(pairwise([0, *seen.largest_n])):
        inside = [row for row in rows if below < row["n"] <= largest]
        assert seen.n_rows_LN[0, i] == len(inside)
        torch.testing.assert_close(seen.means_LHN("entropy")[0, :, i], mean_by_loop(inside, "entropy"))
        for name in OF_GAPS:
            found_H = seen.means_LHN(name)[0, :, i]
            if i:
                torch.testing.assert_close(found_H, mean_by_loop(inside, name))
            else:
                assert found_H.isnan().all(), "one key has no gap"


@pytest.mark.parametrize("name", ["adaptive", "ssmax", "sink", "entmax15", "sigmoid"])
def test_no_mean_of_any_normaliser_breaks_the_lemma(name: str) -> None:
    keys, tensors = KEYS["plain causal"], inputs(KEYS["plain causal"], 2)
    with torch.no_grad():
        tensors[0].mul_(4)
    seen = measured(normaliser(name), keys, None, tensors)
    entropy, largest = seen.means_LHN("entropy"), seen.means_LHN("largest_weight")
    assert (entropy >= seen.means_LHN("entropy_bound") - 1e-12)[~entropy.isnan()].all()
    assert (largest <= seen.means_LHN("largest_weight_bound") + 1e-12)[~largest.isnan()].all()


LOGITS = {
    "normal": lambda n: torch.randn(7, n),
    "long tail": lambda n: torch.randn(7, n).pow(3),
    "in steps, with ties": lambda n: torch.randint(0, 4, (7, n)),
    "tied at the top": lambda n: torch.randn(7, n).clamp(max=0),
    "equal": lambda n: torch.full((7, n), 2.5),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_keys", [1, 2, 3, 17, 63, 64, 65, 300])
@pytest.mark.parametrize("kind", LOGITS)
def test_the_gap_counting_number_is_that_of_a_loop_over_sorted_keys(kind: str, n_keys: int, dtype: torch.dtype) -> None:
    torch.manual_seed(n_keys)
    logits, visible = LOGITS[kind](n_keys).to(dtype), torch.rand(7, n_keys) < 0.7
    visible[0], visible[1, 2:], visible[2] = True, False, False
    before, ordered = logits.clone(), ordered_logits(logits, visible)
    ratios = gap_ratios(ordered)
    expected = [gaps_by_loop(row[seen].tolist()) for row, seen in zip(logits, visible, strict=True)]
    least = ratios.amin(-1).double()
    torch.testing.assert_close(
        least[visible.any(-1)], torch.tensor([one for one, _ in expected]).double()[visible.any(-1)]
    )
    assert least[~visible.any(-1)].isnan().all()
    if dtype == torch.float64:  # where float32 rounds, two ratios may change places
        indices = contact_index(ratios).tolist()
        assert [k for k, (_, right) in zip(indices, expected, strict=True) if right] == [k for _, k in expected if k]
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_with_a_logit_that_is_no_number_has_no_gap_counting_number(bad: float) -> None:
    logits, visible = torch.randn(3, 9), torch.ones(3, 9, dtype=torch.bool)
    logits[:2, 4] = bad
    visible[1, 4] = False
    ratios = gap_ratios(ordered_logits(logits, visible))
    assert ratios.amin(-1).isnan().tolist() == [True, False, False]
    assert contact_index(ratios)[0] == 0


def test_a_head_upside_down_is_collapsed_onto_its_smallest_logits() -> None:
    seen = {}
    for s in (3.0, -3.0):
        ssmax = SSMax(shape_of(2), s=1.0, bias=False, scaled_heads=None).double().requires_grad_(False)
        ssmax.s.fill_(s)
        q, k, v, rest = inputs(KEYS["plain causal"], 2)
        seen[s] = measured(ssmax, KEYS["plain causal"], None, [q if s > 0 else -q, k, v, rest]).means_LH("collapsed")
    torch.testing.assert_close(seen[3.0], seen[-3.0])
    assert (seen[3.0] > 0).all()


def test_watching_changes_nothing() -> None:
    keys, softmax = KEYS["plain causal"], normaliser("adaptive")
    q, k, v, _ = inputs(keys, 2)
    alone = softmax(q, k, v, scale=SCALE, keys=keys, bias=None, rows={})
    with watched(nn.ModuleList([softmax]), keys.n_keys):
        assert torch.equal(softmax(q, k, v, scale=SCALE, keys=keys, bias=None, rows={}), alone)


def test_the_active_range_is_that_of_the_published_polynomial() -> None:
    low, high = Dispersion(inverse_temperature, {0: 1}, 8).active_range()
    assert (low, high) == pytest.approx((0.849, 5.945), abs=2e-3)


def test_memory_does_not_grow_with_the_square_of_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers_attention import Peak, keys_of

    monkeypatch.setattr(blocks, "LOGITS_PER_BLOCK", 2**15)
    peaks = []
    for n in (512, 1024):
        q, k = torch.randn(1, 4, n, 8), torch.randn(1, 2, n, 8)
        with watched(nn.ModuleList([normaliser("softmax")]), n) as seen, Peak() as peak:
            seen.add(normaliser("softmax"), q, k, scale=SCALE, keys=keys_of(n, n), bias=None, rows={})
        peaks.append(peak)
    assert peaks[1].largest < 1024 * 1024 * 4 / 3
    assert peaks[1].most < 2.3 * peaks[0].most


# -- the report


@pytest.mark.pictures
def test_eval_reports_dispersion_for_each_head_and_length(
    roundround: Callable[..., Done], train: Callable[..., Done]
) -> None:
    run = train("trainer.max_steps=20", "optim.lr=0.02").directory
    done = roundround("eval", f"run={run}", "logger=none", "length=16,64", "dispersion=true", "max_tokens=512")
    assert done.code == 0, done.err
    for length in (16, 64):
        for layer in (0, 1):
            for head in (0, 1):
                where = {"length": length, "layer": layer, "head": head}
                value = {name: done.value(name, **where) for name in dispersion_module.MEASURES}
                mean_ln_n = math.fsum(math.log(n + 1) for n in range(length)) / length
                assert value["ln_n"] == pytest.approx(mean_ln_n)
                assert value["entropy_bound"] <= value["entropy"] <= value["ln_n"]
                assert 1 / length < value["largest_weight"] <= value["largest_weight_bound"]
    assert {path.name for path in (done.directory / "figures").iterdir()} >= {"dispersion.svg", "dispersion.pdf"}
    kept = json.loads((done.directory / "dispersion.json").read_text())
    assert kept["16"]["largest_n"] == [1, 2, 4, 8, 16]
    assert "dispersion" in done.err
    plain = roundround("eval", f"run={run}", "logger=none", "length=16", "max_tokens=512")
    assert not {r["metric"] for r in plain.results} & {r["metric"] for r in done.results if "layer" in r}


def test_layers_may_have_different_numbers_of_heads() -> None:
    torch.manual_seed(0)
    pattern = OmegaConf.create(
        {"order": ["plain", "pairs"], "plain": {}, "pairs": {"attention": option("attention", "diff")}}
    )
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 8, "train_length": 16}
    parts = {"pe": option("pe", "rope"), "softmax": option("softmax", "softmax")}
    model = build_decoder(load_option("model", "tiny", **sizes), n_vocab=20, pattern=pattern, **parts)
    with watched(model, 16) as seen:
        model(torch.arange(16)[None])
    means_LH = seen.means_LH("entropy")
    assert means_LH.shape == (2, 8)
    assert means_LH.isfinite().sum(1).tolist() == [4, 8]
    records = records_of_dispersion({16: seen}, {})
    assert sum(record["metric"] == "entropy" for record in records) == 12


def test_a_model_without_attention_has_no_dispersion(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"d_model": 32, "n_layers": 1, "n_heads": 4, "n_key_heads": 2, "d_mlp": 8, "train_length": 16}
    nodes = {"pe": None, "softmax": None, "attention": option("attention", "gated_deltanet")}
    model = build_decoder(load_option("model", "tiny", **sizes), n_vocab=20, **nodes)
    with watched(model, 16) as seen:
        model(torch.arange(16)[None])
    assert seen is None
    assert "no layer of this model has attention" in capsys.readouterr().err
