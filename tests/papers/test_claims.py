"""Every statement holds here, and every way of breaking the mathematics is seen by a check.

What follows from the papers and does not stand there are results of docs/results/theory.md.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from roundround.kernels import blocks, fused, row_measures
from roundround.kernels.keys import Keys
from roundround.model.block import heads
from roundround.papers import rope, softmax, statement_names
from roundround.papers.claim import checks_of
from roundround.papers.constructions import (
    HEAD_DIM,
    SHAPE,
    aligned,
    before_rotation,
    frequencies,
    ladder_by_formula,
    logits,
    p_rope_frequencies,
    random_vector,
    stories260k,
    weights,
)
from roundround.papers.softmax import ADAPTIVE
from roundround.pe import p_rope, rotary
from roundround.pe.p_rope import PRoPE
from roundround.pe.p_rope_reversed import PRoPEReversed
from roundround.pe.partial_rope import PartialRoPE
from roundround.probing.probed_model import ProbedDecoder
from roundround.softmax import adaptive_temperature, base
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.hard import Hard
from roundround.softmax.softmax import Softmax
from roundround.softmax.ssmax import SSMax


def interleaved(whole: Any, x_BHTC: Tensor, cos_BTR: Tensor, sin_BTR: Tensor) -> Tensor:
    n = cos_BTR.shape[-1]
    order = torch.arange(n).reshape(-1, 2).T.reshape(-1)  # 0, 2, 4, ..., 1, 3, 5, ...
    there = torch.cat([order, torch.arange(n, x_BHTC.shape[-1])])
    return whole(x_BHTC[..., there], cos_BTR, sin_BTR)[..., there.argsort()]


def one_step_on(whole: Any, n_pairs: int, width: int, theta: float, dtype: torch.dtype, device: Any) -> Tensor:
    """k for k-1 in the exponent."""
    return 1.0 / theta ** (torch.arange(2, 2 * n_pairs + 2, 2, device=device).to(dtype) / width)


def a_ladder_of_its_own(whole: Any, self: p_rope.PRoPE, dtype: Any = torch.float32, device: Any = "cpu") -> Tensor:
    """Partial RoPE's frequencies: the kept pairs span the whole range."""
    kept = rotary.ladder(self.n_kept, 2 * self.n_kept, self.theta, dtype, device)
    return torch.cat([kept, kept.new_zeros(self.shape.head_dim // 2 - self.n_kept)])


def values_rotated(whole: Any, self: AttentionSoftmax, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    g_P = rotary.ladder(v.shape[-1] // 2, v.shape[-1], 10_000.0, torch.float64, "cpu")
    turned = rotary.apply_rotation(v, *rotary.rotation(options["keys"].k_pos_BK, g_P))
    return whole(self, q, k, turned, **options)


# what each breaks: a module or a class, the name in it, and what stands there, which is given the original first
MUTATIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "wrong sign of the rotation": (
        rotary, "rotation", lambda whole, pos, g, *a: (whole(pos, g, *a)[0], -whole(pos, g, *a)[1])
    ),
    "interleaved for half-split pairs": (rotary, "apply_rotation", interleaved),
    "k for k-1 in the exponent": (rotary, "ladder", one_step_on),
    "a reversed polynomial": (
        adaptive_temperature, "polynomial", lambda whole, coefficients, x: whole(coefficients[::-1], x)
    ),
    "binary for natural logarithm": (
        row_measures, "shannon_entropy", lambda whole, *args, **named: whole(*args, **named) / math.log(2)
    ),
    "no rotation": (rotary, "rotation", lambda whole, pos, g, *a: whole(pos, 0 * g, *a)),
    "a rotation without its sines": (
        rotary, "rotation", lambda whole, pos, g, *a: (whole(pos, g, *a)[0], 0 * whole(pos, g, *a)[1])
    ),
    "float32 angles": (
        rotary, "rotation", lambda whole, pos, g, *a: tuple(x.to(g.dtype) for x in whole(pos, g.float(), *a))
    ),
    "p-RoPE without its fastest pairs": (p_rope, "PRoPE", lambda whole, *args, **named: PRoPEReversed(*args, **named)),
    "partial RoPE for p-RoPE": (p_rope.PRoPE, "frequencies", a_ladder_of_its_own),
    "pairs rounded to the nearest": (p_rope, "kept_pairs", lambda whole, p, head_dim: round(p * head_dim / 2)),
    "rotated values": (AttentionSoftmax, "forward", values_rotated),
    "a mask that sees one token ahead": (
        Keys, "visible_to", lambda whole, self, rows_R, first, last: whole(self, rows_R + 1, first, last)
    ),
    "a mask that hides a token from itself": (
        Keys, "visible_to", lambda whole, self, rows_R, first, last: whole(self, rows_R - 1, first, last)
    ),
    "SSMax for softmax": (  # with a strength of 1 / ln 64: sharper than the softmax from 65 keys on
        Softmax, "beta", lambda whole, self, n, entropy: n.clamp(min=1).log() / math.log(64)
    ),
    "softmax of the negative logits": (
        base, "softmax_over_visible", lambda whole, logits, visible: whole(-logits, visible)
    ),
    "softmax to the base of two": (
        base, "softmax_over_visible", lambda whole, logits, visible: whole(math.log(2) * logits, visible)
    ),
    "products of queries and keys twice as large": (blocks, "times_of_key_heads", lambda whole, x, y: 2 * whole(x, y)),
    "half the spread in the bound on the entropy": (
        row_measures, "entropy_bound", lambda whole, ln_n, spread: whole(ln_n, spread / 2)
    ),
    "a gap counting number a tenth too large": (row_measures, "gap_ratios", lambda whole, logits: whole(logits) / 1.1),
    "a gap counting number a tenth too small": (row_measures, "gap_ratios", lambda whole, logits: whole(logits) * 1.1),
    "a contact index counted from 0": (row_measures, "contact_index", lambda whole, ratios: whole(ratios) - 1),
    "logits in descending order": (row_measures, "ordered_logits", lambda whole, *args: whole(*args).flip(-1)),
    "an entropy without the mean logit": (  # the log-sum-exp alone
        fused, "entropy_and_log_sum_exp", lambda whole, *args, **named: (whole(*args, **named)[1],) * 2
    ),
}  # fmt: skip


def mutate(monkeypatch: pytest.MonkeyPatch, mutation: str) -> None:
    """Replace a method, or a function in its own module and wherever it was imported by name."""
    place, name, broken = MUTATIONS[mutation]
    whole = getattr(place, name)
    ours = [module for key, module in sys.modules.items() if key.startswith("roundround")]
    for holder in [place] if isinstance(place, type) else [m for m in ours if vars(m).get(name) is whole]:
        monkeypatch.setattr(holder, name, lambda *args, **named: broken(whole, *args, **named))


CHECKS = {name: checks_of(name)[0] for name in statement_names()}  # imported before anything is broken

SEEN_BY = {  # checks that each mutation must fail; together they are all
    "wrong sign of the rotation": ["rope.prop_3_1", "rope.thm_5_3", "rope.equation_3", "rope.apostrophe"],
    "interleaved for half-split pairs": ["rope.prop_3_1", "rope.equation_3", "rope.apostrophe"],
    "k for k-1 in the exponent": [
        *("rope.prop_3_1", "rope.lemma_a_1", "rope.lemma_a_2", "rope.side_computations", "rope.apostrophe"),
        "rope.p_rope_listing",
    ],
    "a reversed polynomial": ["softmax.polynomial"],
    "binary for natural logarithm": ["softmax.polynomial", "softmax.prop_3_2"],
    "no rotation": ["rope.thm_6_1", "rope.figure_6", "rope.table_1"],
    "a rotation without its sines": ["rope.prop_3_2"],
    "float32 angles": ["rope.p_rope_listing"],
    "p-RoPE without its fastest pairs": ["rope.table_1", "rope.p_rope_listing"],
    "partial RoPE for p-RoPE": ["rope.p_rope_listing"],
    "pairs rounded to the nearest": ["rope.p_rope_listing"],
    "rotated values": ["rope.equation_3"],
    "a mask that sees one token ahead": ["rope.thm_5_3", "softmax.thm_2_2"],
    "a mask that hides a token from itself": ["rope.prop_5_2"],
    "SSMax for softmax": ["softmax.thm_2_2"],
    "softmax of the negative logits": ["rope.lemma_a_3"],
    "softmax to the base of two": ["softmax.lemma_2_1"],
    "products of queries and keys twice as large": ["softmax.prop_3_1", "softmax.thm_2_2"],
    "half the spread in the bound on the entropy": ["softmax.lemma_2_1"],
    "a gap counting number a tenth too large": ["softmax.gap_counting"],
    "a gap counting number a tenth too small": ["softmax.gap_counting"],
    "a contact index counted from 0": ["softmax.gap_counting"],
    "logits in descending order": ["softmax.gap_counting"],
    "an entropy without the mean logit": ["softmax.streaming_entropy"],
}


@pytest.mark.parametrize("name", statement_names())
def test_a_claim_holds_with_its_words(name: str) -> None:
    finding = CHECKS[name]()
    assert finding.of_statement == "holds", [c for c in finding.comparisons if c.verdict == "differs"]
    statement, *formula, source = (CHECKS[name].__doc__ or "").split("\n\n")
    assert statement
    assert all(formula)
    assert "arXiv" in source


def test_every_claim_sees_some_mutation_of_the_program() -> None:
    assert {name for found in SEEN_BY.values() for name in found} == set(statement_names())
    assert SEEN_BY.keys() == MUTATIONS.keys()


# half a second or more for a check; that each holds is tested above
LONG = {
    *("rope.thm_5_3", "rope.thm_6_1", "rope.prop_3_2", "rope.lemma_a_2"),
    "softmax.thm_2_2",
}


def cases() -> Iterator[Any]:
    """Each mutation and each statement once; slow are pairs of two that another pair has, and long checks."""
    seen: set[str] = set()
    for mutation, found in SEEN_BY.items():
        for name in found:
            again = mutation in seen and name in seen
            yield pytest.param(mutation, name, marks=[pytest.mark.slow] if again or name in LONG else [])
            seen |= {mutation, name}


@pytest.mark.parametrize(("mutation", "name"), list(cases()))
def test_a_mutation_is_seen(mutation: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, mutation)
    assert CHECKS[name]().of_statement == "FAILS"


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("name", softmax.BOUNDS)
def test_another_constant_in_a_bound_of_the_gap_counting_number_is_seen(
    name: str, larger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, least = softmax.BOUNDS[name]
    factor = 1.05 if larger else 0.99 * least  # less than what rows attain
    monkeypatch.setitem(softmax.BOUNDS, name, (lambda r, ln_k: factor * bound(r, ln_k), least))
    failed = [c.what for c in CHECKS["softmax.gap_counting"]().comparisons if c.verdict == "differs"]
    assert failed
    assert all(what.startswith(f"{name}, over its bound") for what in failed)


@pytest.fixture(scope="module")
def trained() -> tuple[ProbedDecoder, list[int]]:
    return stories260k()


@pytest.mark.parametrize("mutation", list(MUTATIONS)[:2])
def test_a_wrong_rotation_is_seen_in_every_layer_of_a_trained_model(
    mutation: str, trained: tuple[ProbedDecoder, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch, mutation)
    probed, tokens = trained
    finding = rope.equation_3_of_model(probed, [tokens])
    assert len(finding.comparisons) == 5
    assert {comparison.verdict for comparison in finding.comparisons} == {"differs"}


@pytest.mark.parametrize("encoding", [PRoPE, PartialRoPE])
def test_equation_3_holds_of_encodings_that_rotate_some_pairs(
    encoding: Any, trained: tuple[ProbedDecoder, list[int]]
) -> None:
    probed, tokens = trained
    decoder = copy.deepcopy(probed.decoder)
    decoder.encodings[0] = encoding(decoder.encoding.shape, theta=10_000.0, p=0.5)
    other = ProbedDecoder("other", decoder, probed.tokenizer, 1)
    assert rope.equation_3_of_model(other, [tokens]).of_statement == "holds"


def test_queries_before_rotation_are_the_projections(trained: tuple[ProbedDecoder, list[int]]) -> None:
    """Of the last layer, which sees what the rotations below it do."""
    (probed, story), inputs = trained, []
    tokens, attention = story[:6], probed.model.layers[-1].self_attn  # type: ignore[union-attr, index]
    with attention.register_forward_pre_hook(lambda _, args: inputs.append(args[0])), torch.no_grad():
        probed.hidden(torch.tensor([tokens]), torch.arange(6)[None])
        projected: Tensor = heads(attention.q_proj(inputs[0]), attention.shape.head_dim)
    assert torch.allclose(before_rotation(probed, tokens)[-1][0], projected[0], atol=1e-12)


def test_the_ladder_by_formula_is_the_one_that_rotates() -> None:
    assert torch.allclose(ladder_by_formula(), frequencies(), rtol=1e-12)


@pytest.mark.parametrize(
    "make_softmax",
    [
        pytest.param(Hard, marks=pytest.mark.slow),
        lambda shape: SSMax(shape, s=1 / math.log(64), bias=False, scaled_heads=None),
    ],
)
def test_theorem_2_2_fails_where_attention_does_not_disperse(
    make_softmax: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = softmax.random_decoder
    monkeypatch.setattr(softmax, "random_decoder", lambda: whole(make_softmax))
    failed = [c.what for c in checks_of("softmax.thm_2_2")[0]().comparisons if c.verdict == "differs"]
    assert "largest weight of a row of 1,024 keys, any head and text" in failed


FAR = torch.cat([torch.arange(64), torch.logspace(1.81, 6, 500, dtype=torch.float64).long()])  # tokens
LEAD = 5.69  # nats: the mean spread of the logits of Gemma 2B's heads


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75])
def test_the_unrotated_pairs_of_p_rope_have_the_same_share_of_a_logit_at_every_distance(p: float) -> None:
    still = (p_rope_frequencies(p) == 0).repeat(2)
    q, k = random_vector(HEAD_DIM, seed=0) * still, random_vector(HEAD_DIM, seed=1) * still
    share_N = logits(q, k, FAR, p_rope_frequencies(p))
    assert float(share_N.max() - share_N.min()) < 1e-9
    assert float(aligned(FAR, frequencies()[int(p * HEAD_DIM // 2) :]).min()) < 0, "under RoPE they turn round"


@pytest.mark.parametrize(("first", "last", "lost"), [(110, 120, 0.92), (115, 115, 0.58)])
def test_a_band_of_low_frequencies_loses_its_target_more_often_than_one_frequency(
    first: int, last: int, lost: float
) -> None:
    """The target's logit is 64 at distance 0, that of every other key 8; it is put at each distance in turn."""
    unit_N = aligned(torch.arange(100_000), frequencies()[first - 1 : last])
    others_N = (8 * unit_N).exp()
    rest_N = (others_N.sum() - others_N).log()  # all other keys as one
    alpha_N = weights(torch.stack([64 * unit_N, rest_N], -1))[:, 0]
    assert float((alpha_N <= 0.5).double().mean()) == pytest.approx(lost, abs=0.005)


def lift(n: int, softmax: AttentionSoftmax) -> float:
    """By how much a normaliser raises the weight of one key that leads n - 1 others, all alike."""
    row_1N = torch.zeros(1, n, dtype=torch.float64)
    row_1N[0, 0] = LEAD
    return float(weights(row_1N, softmax)[0, 0] / weights(row_1N)[0, 0])


def test_the_adaptive_temperature_lifts_a_lone_weight_3_7_fold_at_most_and_from_1046_keys_on_not_at_all() -> None:
    found = {n: lift(n, ADAPTIVE) for n in (100, 853, 854, 855, 1045, 1046, 100_000)}
    assert max(found, key=lambda n: found[n]) == 854
    assert found[854] == pytest.approx(3.714, abs=1e-3)
    assert found[1045] > 1 + 1e-6
    assert [found[n] for n in (1046, 100_000)] == pytest.approx([1.0, 1.0], abs=1e-12)


def test_the_weight_falls_as_a_smaller_power_of_the_length_under_ssmax() -> None:
    ssmax = SSMax(SHAPE, s=1 / math.log(2048), bias=False, scaled_heads=None).requires_grad_(False)
    slope = math.log(lift(1_000_000, ssmax) / lift(100_000, ssmax)) / math.log(10) - 1
    assert slope == pytest.approx(LEAD / math.log(2048) - 1, abs=0.05)
