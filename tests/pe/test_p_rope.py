"""p-RoPE and its reversed control."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, build, golden, logits, noise, positions, rotated

both = pytest.mark.parametrize("name", ["p_rope", "p_rope_reversed"])


@both
def test_p_one_is_rope(name: str) -> None:
    encoding, rope = build(name, p=1.0), build("rope")
    x_BHTC = noise(2, 4, 50, 16, dtype=torch.float32)
    assert torch.equal(encoding.frequencies(), rope.frequencies())
    assert torch.equal(rotated(encoding, x_BHTC, positions(50)), rotated(rope, x_BHTC, positions(50)))


@both
def test_p_zero_is_nope(name: str) -> None:
    x_BHTC = noise(2, 4, 50, 16, dtype=torch.float32)
    assert torch.equal(rotated(build(name, p=0.0), x_BHTC, positions(50, 8000)), x_BHTC)


def test_kept_frequencies_are_the_fastest_of_the_full_ladder() -> None:
    full = build("rope").frequencies(torch.float64)
    kept = build("p_rope", p=0.75).frequencies(torch.float64)
    torch.testing.assert_close(kept, torch.cat([full[:6], torch.zeros(2, dtype=torch.float64)]))


def test_reversed_keeps_the_slowest_of_the_full_ladder() -> None:
    full, reverse = build("rope").frequencies(), build("p_rope_reversed", p=0.75).frequencies()
    assert torch.equal(reverse, torch.cat([torch.zeros(2), full[2:]]))


def test_the_quarter_yaml_is_p_rope_at_a_quarter() -> None:
    assert torch.equal(build("p_rope_25").frequencies(), build("p_rope", p=0.25).frequencies())


@pytest.mark.parametrize("row", golden("pe_p_rope_kept_pairs"), ids=str)
def test_kept_pairs_are_those_of_the_paper(row: dict[str, float]) -> None:
    encoding = build("p_rope", attention_shape(head_dim=row["head_dim"]), p=row["p"])
    facts = encoding.facts()
    assert (facts["rotated_pairs"], facts["pairs"]) == (row["pairs"], row["head_dim"] // 2)
    if "wavelength" in row:
        assert facts["slowest_wavelength"] == row["wavelength"]


def test_frequencies_are_those_of_hugging_face() -> None:
    for case in golden("pe_p_rope_frequencies"):
        encoding = build("p_rope", attention_shape(head_dim=case["head_dim"]), p=case["p"])
        torch.testing.assert_close(encoding.frequencies(), torch.tensor(case["frequencies"]), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("name", "first", "stop"), [("p_rope", 0, 5), ("p_rope_reversed", 3, 8)])
def test_rotation_is_the_formula(name: str, first: int, stop: int) -> None:
    # head_dim 16, p = 0.7: int(0.7 * 16 // 2) = 5 of the 8 pairs rotate
    x_BHTC, expected = noise(1, 1, 9, 16), noise(1, 1, 9, 16)
    for t in range(9):
        for pair in range(first, stop):
            angle = (t + 40) * 10000.0 ** (-2 * pair / 16)
            u, v = x_BHTC[0, 0, t, pair].item(), x_BHTC[0, 0, t, pair + 8].item()
            expected[0, 0, t, pair] = u * math.cos(angle) - v * math.sin(angle)
            expected[0, 0, t, pair + 8] = v * math.cos(angle) + u * math.sin(angle)
    torch.testing.assert_close(rotated(build(name, p=0.7), x_BHTC, positions(9, 40)), expected)


@pytest.mark.parametrize(("name", "still"), [("p_rope", slice(6, 8)), ("p_rope_reversed", slice(0, 2))])
def test_logits_of_pairs_that_stand_still_do_not_depend_on_distance(name: str, still: slice) -> None:
    q_C, k_C = torch.zeros(2, 16, dtype=torch.float64)
    for half in (0, 8):
        q_C[half:][still], k_C[half:][still] = noise(2, 2, seed=half)
    q, k = (x_C.expand(1, 4, 30, 16) for x_C in (q_C, k_C))
    still_logits, rope_logits = (logits(e, q, k, positions(30)) for e in (build(name, p=0.75), build("rope")))
    assert still_logits.max() - still_logits.min() < 1e-12
    assert rope_logits.max() - rope_logits.min() > 1e-3


@both
@pytest.mark.parametrize("p", [-0.1, 1.01, 75, math.nan, math.inf])
def test_p_outside_zero_to_one_is_refused(name: str, p: float) -> None:
    with pytest.raises(ValueError, match=rf"^p={p} must lie between 0 .* and 1 .*\)$"):
        build(name, p=p)


@pytest.mark.parametrize("theta", [1.0, 0.0, -5.0, math.inf, math.nan])
def test_theta_must_exceed_one(theta: float) -> None:
    with pytest.raises(ValueError, match=f"^theta={theta} must be a finite number above 1$"):
        build("p_rope", theta=theta)


def test_an_odd_head_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^head_dim=15 is odd"):
        build("p_rope", attention_shape(head_dim=15))
