"""The sets of max retrieval: pure functions of seed and step."""

from __future__ import annotations

import torch

from roundround.papers.max_retrieval.model import FITTING, ITEMS_AT_ONCE, TEST, Sets, TrainingSets, sets_of_size


def training(seeds: list[int], **changed: object) -> TrainingSets:
    options = {"batch_size": 8, "n_min": 5, "n_max": 16, "n_classes": 10, **changed}
    return TrainingSets(seeds, **options)  # type: ignore[arg-type]


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    together, alone = training([4, 7]), training([7])
    for step in (200, 3, 64, 63):  # in any order, across the blocks that are drawn together
        ours, theirs = together.batch(step), alone.batch(step)
        assert torch.equal(ours.priorities_SBN[1], theirs.priorities_SBN[0])
        assert torch.equal(ours.classes_SBN[1], theirs.classes_SBN[0])
        assert torch.equal(ours.queries_SB[1], theirs.queries_SB[0])


def test_no_two_steps_or_seeds_share_a_batch() -> None:
    sets = training([4, 7], n_min=16)
    first, second = sets.batch(0).priorities_SBN, sets.batch(1).priorities_SBN
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, second)


def test_sizes_are_uniform_from_the_smallest_to_the_largest() -> None:
    sets = training([0], batch_size=1)
    sizes = torch.tensor([sets.batch(step).priorities_SBN.shape[-1] for step in range(2400)])
    counts = torch.bincount(sizes, minlength=17)
    assert not counts[:5].any()
    assert (counts[5:] - 200).abs().max() < 60  # 4 standard deviations


def test_each_set_may_draw_its_own_size() -> None:
    sets = training([0], batch_size=4000, size_of_each_set=True).batch(0)
    assert sets.present_SBN is not None
    counts = torch.bincount(sets.present_SBN.sum(-1).flatten(), minlength=17)
    assert not counts[:5].any()
    assert (counts[5:] > 250).all()


def test_the_answer_is_the_class_of_the_largest_priority_among_those_present() -> None:
    priorities = torch.tensor([[[0.1, 0.9, 0.5], [0.3, 0.2, 0.99]]])
    classes = torch.tensor([[[7, 8, 9], [1, 2, 3]]])
    assert Sets(priorities, classes, torch.zeros(1, 2)).answers_SB.tolist() == [[8, 3]]
    present = torch.tensor([[[True, True, True], [True, True, False]]])
    assert Sets(priorities, classes, torch.zeros(1, 2), present).answers_SB.tolist() == [[8, 1]]


def test_test_sets_come_in_bounded_blocks_and_more_of_them_begin_with_the_same() -> None:
    options = {"n": 100, "n_classes": 10, "stream": TEST}
    few, many = (list(sets_of_size(0, n_sets=n_sets, **options)) for n_sets in (200, 400))  # type: ignore[arg-type]
    assert all(block.priorities_SBN.numel() <= ITEMS_AT_ONCE for block in many)
    for name, shape in (("priorities_SBN", (1, 400, 100)), ("classes_SBN", (1, 400, 100)), ("queries_SB", (1, 400))):
        first, all_of_them = (
            torch.cat([getattr(block, name) for block in few], 1),
            torch.cat([getattr(block, name) for block in many], 1),
        )
        assert all_of_them.shape == shape
        assert torch.equal(first, all_of_them[:, :200])


def test_fitting_never_sees_a_test_set() -> None:
    test, fitting = (next(sets_of_size(0, n=9, n_sets=5, n_classes=10, stream=stream)) for stream in (TEST, FITTING))
    assert not torch.equal(test.priorities_SBN, fitting.priorities_SBN)
