"""RoPE over randomly spaced positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers_pe import attention_shape, build, noise, positions, rotated


def examples(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def test_an_evaluation_draws_five_times_by_the_tokens_of_the_example_alone() -> None:
    encoding = build("rope_random", max_position=300)
    one, other = list(range(40)), list(range(1, 41))
    together = [encoding.positions(positions(40), draw) for draw in encoding.draws(examples(one, other))]
    alone = [encoding.positions(positions(40), draw) for draw in encoding.draws(examples(one))]
    turned = [encoding.positions(positions(40), draw) for draw in encoding.draws(examples(other, one))]
    assert len(together) == len(alone) == 5
    for pos_BT, pos_1T, turned_BT in zip(together, alone, turned, strict=True):
        assert pos_BT.shape == (2, 40)
        assert (pos_BT.diff() > 0).all()
        assert 0 <= pos_BT.min() <= pos_BT.max() < 300
        assert pos_BT[0].equal(pos_1T[0])
        assert pos_BT.flip(0).equal(turned_BT)
    assert len({tuple(pos_T.tolist()) for pos_BT in together for pos_T in pos_BT}) == 10
    seeded = build("rope_random", max_position=300, seed=1)
    assert not seeded.positions(positions(40), seeded.draws(examples(one))[0]).equal(alone[0])


def test_a_shorter_example_stands_where_it_would_in_a_batch_of_training() -> None:
    encoding = build("rope_random", attention_shape(train_length=160), max_position=1600)
    gaps = []
    for i in range(200):
        [draw, *_] = encoding.draws(examples([i] * 20))
        gaps.append(float(encoding.positions(positions(20), draw).diff().float().mean()))
    trained = [float(encoding.positions(positions(160), step)[0, :20].diff().float().mean()) for step in range(200)]
    error = (np.var(gaps) / 200 + np.var(trained) / 200) ** 0.5
    assert np.mean(gaps) == pytest.approx(np.mean(trained), abs=4 * error)
    assert np.mean(gaps) == pytest.approx(10, rel=0.1)  # 1,600 positions for 160 tokens


def test_a_batch_of_short_examples_stands_at_the_positions_of_its_step() -> None:
    """Micro-batches and processes share out a step, and each is as wide as its own longest example."""
    encoding = build("rope_random", attention_shape(train_length=160), max_position=1600)
    whole = encoding.positions(positions(160), 7)
    assert encoding.positions(positions(20), 7).equal(whole[:, :20])


def test_evaluation_at_consecutive_positions_is_rope() -> None:
    encoding, x_BHTC = build("rope_random", positions="consecutive"), noise(2, 4, 50, 16, dtype=torch.float32)
    assert encoding.draws(examples([1] * 50)) == [None]
    assert encoding.positions(positions(50), None).equal(positions(50))
    assert encoding.longest() is None
    assert rotated(encoding, x_BHTC, positions(50)).equal(rotated(build("rope"), x_BHTC, positions(50)))


def test_training_positions_are_ordered_distinct_and_in_range() -> None:
    encoding = build("rope_random", max_position=300)
    for step in range(50):
        drawn = encoding.positions(positions(160), step)
        assert drawn.shape == (1, 160)
        assert (drawn.diff() > 0).all()
        assert 0 <= drawn.min() <= drawn.max() < 300


def test_every_position_is_drawn_equally_often() -> None:
    encoding = build("rope_random", attention_shape(train_length=20), max_position=80)
    n_steps = 2000
    drawn = torch.cat([encoding.positions(positions(20), step)[0] for step in range(n_steps)])
    share = torch.bincount(drawn, minlength=80) / n_steps
    assert (share - 20 / 80).abs().max() < 4.5 * (0.25 * 0.75 / n_steps) ** 0.5  # binomial, 4.5 sigma over 80 counts


def test_the_draw_depends_on_seed_and_step_alone() -> None:
    torch.manual_seed(0)
    first = build("rope_random", seed=1).positions(positions(40), 7)
    torch.manual_seed(99)
    assert build("rope_random", seed=1).positions(positions(40), 7).equal(first)
    others = [build("rope_random", seed=seed).positions(positions(40), step) for seed, step in [(1, 8), (2, 7), (7, 1)]]
    assert not any(other.equal(first) for other in others)


def test_seeds_are_no_shifted_copies_of_one_another() -> None:
    draws = {
        tuple(build("rope_random", seed=seed).positions(positions(40), step)[0].tolist())
        for seed in range(8)
        for step in [*range(8), 2**32, 2**32 + 1]
    }
    assert len(draws) == 8 * 10


def test_the_global_generator_is_not_touched() -> None:
    before = torch.get_rng_state()
    build("rope_random").positions(positions(40), 7)
    assert torch.get_rng_state().equal(before)


def test_a_draw_of_the_whole_range_is_the_plain_positions() -> None:
    assert build("rope_random", max_position=160).positions(positions(160), 3).equal(positions(160))


def test_documents_that_restart_share_the_draw() -> None:
    pos_BT = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    drawn = build("rope_random").positions(pos_BT, 3)
    assert drawn[0].tolist() == [drawn[1][i].item() for i in (0, 1, 2, 0, 1)]


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^max_position=159 must be at least the training length, 160: "):
        build("rope_random", max_position=159)
    encoding = build("rope_random", max_position=200)
    assert encoding.longest() == 200
    for step in (0, encoding.draws(examples([1] * 201))[0]):
        with pytest.raises(ValueError, match=r"^201 tokens exceed max_position=200: "):
            encoding.positions(positions(201), step)
    with pytest.raises(ValueError, match=r"^positions=random must be drawn or consecutive$"):
        build("rope_random", positions="random")
