"""Positions added to the token embeddings: sinusoidal and learned."""

from __future__ import annotations

import math

import pytest
import torch
from helpers_pe import attention_shape, build, golden, noise, positions
from rounding import rounding


def test_sinusoidal_is_the_formula() -> None:
    x_BTD = noise(1, 6, 64)
    expected = x_BTD.clone()
    for t in range(6):
        for channel in range(64):
            angle = (t + 300) / 10000.0 ** (2 * (channel // 2) / 64)
            expected[0, t, channel] += math.cos(angle) if channel % 2 else math.sin(angle)
    torch.testing.assert_close(build("sinusoidal").embed(x_BTD, positions(6, 300)), expected)


def test_sinusoidal_vectors_are_those_of_hugging_face() -> None:
    case = golden("pe_sinusoidal")
    encoding = build("sinusoidal", attention_shape(d_model=case["d_model"]))
    vectors = encoding.embed(torch.zeros(1, case["n_positions"], case["d_model"]), positions(case["n_positions"]))
    torch.testing.assert_close(
        vectors[0], torch.tensor(case["vectors"]), atol=rounding(size=case["n_positions"]), rtol=0
    )


def test_sinusoidal_products_depend_on_distance_alone() -> None:
    vectors = build("sinusoidal").embed(torch.zeros(1, 400, 64, dtype=torch.float64), positions(400))[0]
    products = vectors @ vectors.mT
    torch.testing.assert_close(products[7, :100], products[207, 200:300])


def test_a_bfloat16_model_gets_the_right_waves_at_far_positions() -> None:
    exact = build("sinusoidal").embed(torch.zeros(1, 1, 64, dtype=torch.float64), torch.tensor([[8191]]))
    rounded = build("sinusoidal").bfloat16().embed(torch.zeros(1, 1, 64, dtype=torch.bfloat16), torch.tensor([[8191]]))
    assert (rounded - exact).abs().max() < 2**-8  # half a unit in the last place of a bfloat16 near one, and no more


def test_sinusoidal_refuses_an_odd_width_and_a_bad_theta() -> None:
    with pytest.raises(ValueError, match=r"^d_model=63 is odd"):
        build("sinusoidal", attention_shape(d_model=63))
    for theta in (1.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"^theta={theta} must be a finite number above 1$"):
            build("sinusoidal", theta=theta)


def test_learned_adds_the_row_of_its_position() -> None:
    encoding, x_BTD = build("learned"), noise(2, 4, 64, dtype=torch.float32)
    pos_BT = torch.tensor([[0, 1, 2, 3], [9, 7, 7, 159]])
    out = encoding.embed(x_BTD, pos_BT)
    for b in range(2):
        for t in range(4):
            assert torch.equal(out[b, t], x_BTD[b, t] + encoding.table[pos_BT[b, t]])


def test_learned_with_a_zero_table_is_nope() -> None:
    x_BTD = noise(2, 4, 64, dtype=torch.float32)
    assert torch.equal(build("learned", init_std=0.0).embed(x_BTD, positions(4)), x_BTD)


def test_learned_starts_at_its_standard_deviation() -> None:
    table = build("learned", attention_shape(train_length=2000)).table
    assert table.std().item() == pytest.approx(0.02, rel=0.02)
    assert abs(table.mean().item()) < 3e-4


def test_learned_knows_as_many_positions_as_the_training_length() -> None:
    assert build("learned").longest() == 160
    assert build("learned", max_position=500).longest() == 500


@pytest.mark.parametrize("name", ["sinusoidal", "rope", "alibi", "t5_bias", "kerple", "fire", "nope"])
def test_other_encodings_know_no_limit(name: str) -> None:
    assert build(name).longest() is None


@pytest.mark.parametrize(("n_tokens", "start"), [(161, 0), (1, 160), (100, 100)])
def test_learned_refuses_positions_it_has_no_row_for(n_tokens: int, start: int) -> None:
    message = f"^{n_tokens + start} positions exceed max_position=160, .* or train with a larger max_position$"
    with pytest.raises(ValueError, match=message):
        build("learned").embed(noise(1, n_tokens, 64, dtype=torch.float32), positions(n_tokens, start))


def test_learned_refuses_a_table_shorter_than_its_training() -> None:
    with pytest.raises(ValueError, match=r"^max_position=159 must be null or at least the training length, 160$"):
        build("learned", max_position=159)
    with pytest.raises(ValueError, match=r"^init_std=-0\.1 must be a finite number, 0 or above$"):
        build("learned", init_std=-0.1)
    with pytest.raises(ValueError, match=r"^init_std=inf must be a finite number"):
        build("learned", init_std=float("inf"))
