"""Batches depend on seed and step alone; every target is used as often as its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers_corpora import global_batch
from torch.utils.data import DataLoader

from roundround.data.batches import (
    DocumentWindows,
    EvaluationWindows,
    Shares,
    TrainingWindows,
    evaluation_windows,
    validation_windows,
)
from roundround.support.errors import UserError

TOKENS = np.arange(1003, dtype=np.uint16)  # a token is its own place in the stream
LENGTH, BATCH = 16, 12
ORDER = {"seed": 5, "length": LENGTH}
PLAN = {"batch_size": BATCH, "n_steps": 7}


def windows(rank: int = 0, world_size: int = 1, n_micro_batches: int = 1, **changes: int) -> TrainingWindows:
    order = {name: changes.pop(name, value) for name, value in ORDER.items()}
    plan = PLAN | changes | {"rank": rank, "world_size": world_size, "n_micro_batches": n_micro_batches}
    return TrainingWindows(TOKENS, Shares(**plan), **order)


def naive_windows(seed: int, n_items: int) -> list[int]:
    """First token of each item of a run: epoch after epoch, written as a loop."""
    n_windows, starts, epoch = len(TOKENS) // LENGTH - 1, [], 0
    while len(starts) < n_items:
        rng = np.random.default_rng([seed, epoch])
        offset = rng.integers(LENGTH)
        starts += [int(offset + window * LENGTH) for window in rng.permutation(n_windows)]
        epoch += 1
    return starts[:n_items]


def test_batches_walk_one_permutation_after_another() -> None:
    n_steps = 14  # 168 items: almost three epochs of 61, so some batches straddle two
    starts = naive_windows(5, n_steps * BATCH)
    for step in range(n_steps):
        batch = global_batch(TOKENS, seed=5, step=step, batch_size=BATCH, length=LENGTH)
        expected = [list(range(start, start + LENGTH + 1)) for start in starts[step * BATCH : (step + 1) * BATCH]]
        assert batch.tolist() == expected
        assert batch.dtype == torch.int64


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("n_micro_batches", [1, 2])
def test_ranks_and_micro_batches_in_order_are_the_global_batch(world_size: int, n_micro_batches: int) -> None:
    streams = [iter(windows(rank, world_size, n_micro_batches)) for rank in range(world_size)]
    for step in range(PLAN["n_steps"]):
        parts = [next(stream) for stream in streams for _ in range(n_micro_batches)]
        assert {len(part) for part in parts} == {BATCH // (world_size * n_micro_batches)}
        assert torch.equal(torch.cat(parts), global_batch(TOKENS, seed=5, step=step, batch_size=BATCH, length=LENGTH))
    assert all(next(stream, None) is None for stream in streams)


def test_resuming_needs_only_the_step() -> None:
    whole = list(windows(n_micro_batches=2))
    rest = list(windows(n_micro_batches=2, first_step=4, n_steps=3))
    assert len(windows(n_micro_batches=2)) == len(whole) == 14
    assert all(torch.equal(a, b) for a, b in zip(whole[8:], rest, strict=True))


def test_loader_workers_share_the_work_and_keep_the_order() -> None:
    own = list(windows(n_micro_batches=3))
    shared = list(DataLoader(windows(n_micro_batches=3), batch_size=None, num_workers=2))
    assert len(own) == len(shared)
    assert all(torch.equal(a, b) for a, b in zip(own, shared, strict=True))


@pytest.mark.parametrize("n_tokens", [17, 18, 31, 32, 33, 48])
def test_few_tokens_still_make_whole_windows(n_tokens: int) -> None:
    few = TOKENS[:n_tokens]
    batch = global_batch(few, seed=0, step=0, batch_size=50, length=LENGTH)
    assert batch.shape == (50, 17)
    assert int(batch.max()) < n_tokens
    if n_tokens <= 2 * LENGTH:  # one window at every offset there is room for: every token is reached
        assert set(batch.flatten().tolist()) == set(range(n_tokens))


def test_fewer_tokens_than_a_window_are_counted_in_the_error() -> None:
    for make in (
        lambda: global_batch(TOKENS[:16], seed=0, step=0, batch_size=1, length=LENGTH),
        lambda: TrainingWindows(TOKENS[:16], Shares(**PLAN), **ORDER),
    ):
        with pytest.raises(UserError, match="16 tokens in all, fewer than the 17 of one window"):
            make()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 5}, "batch_size=12 must be a multiple of 5 = 5 ranks x 1 micro-batches"),
        ({"world_size": 2, "n_micro_batches": 4}, "batch_size=12 must be a multiple of 8 = 2 ranks x 4"),
    ],
)
def test_numbers_that_do_not_go_together_are_named(changes: dict[str, int], message: str) -> None:
    with pytest.raises((UserError, ValueError), match=message):
        windows(**changes)


@pytest.mark.parametrize("length", [8, 16, 32, 64])
def test_every_length_scores_the_same_targets_once(length: int) -> None:
    found = evaluation_windows(TOKENS, length=length, longest=64)
    assert scored(found) == list(range(1, 1003))
    assert found[:-1][:, :-1].flatten().tolist() == list(range(1002 // length * length))  # the windows meet
    assert found[:].dtype == torch.int64


@pytest.mark.parametrize(("length", "stride"), [(64, 1), (64, 7), (64, 63), (10, 3), (1, 1), (1002, 5)])
def test_sliding_windows_score_every_target_once_after_enough_context(length: int, stride: int) -> None:
    found = evaluation_windows(TOKENS, length=length, longest=length, stride=stride)
    assert scored(found) == list(range(1, 1003))
    assert all(int(first) >= length - stride for first in found.first_scored(slice(1, None)))


def scored(windows: EvaluationWindows) -> list[int]:
    """The targets that count, window after window; TOKENS are the numbers from 0 on."""
    rows = zip(windows[:].tolist(), windows.first_scored(slice(None)).tolist(), strict=True)
    return [target for row, first in rows for target in row[1 + first :]]


def test_the_last_token_can_be_the_last_target() -> None:
    assert len(evaluation_windows(TOKENS[:129], length=64, longest=64)) == 2
    assert scored(evaluation_windows(TOKENS[:128], length=64, longest=64)) == list(range(1, 128))
    assert validation_windows(TOKENS[:129], length=64, max_tokens=999).shape == (2, 65)
    assert validation_windows(TOKENS[:128], length=64, max_tokens=999).shape == (1, 65)


def test_max_tokens_is_what_is_scored() -> None:
    assert scored(evaluation_windows(TOKENS, length=16, longest=64, max_tokens=200)) == list(range(1, 201))
    assert scored(evaluation_windows(TOKENS, length=16, longest=64, max_tokens=10**9)) == list(range(1, 1003))
    assert validation_windows(TOKENS, length=16, max_tokens=200).shape == (12, 17)


def test_nothing_is_read_before_it_is_asked_for() -> None:
    huge = np.lib.stride_tricks.as_strided(TOKENS, shape=(10**11,), strides=(0,))  # 200 GB, were it copied
    found = evaluation_windows(huge, length=1000, longest=1000)
    assert len(found) == 10**8
    assert found[5:7].shape == (2, 1001)
    assert found.first_scored(slice(-1, None)).tolist() == [1]


@pytest.mark.parametrize("first", [None, 7777])
@pytest.mark.parametrize(("length", "stride"), [(100, 100), (8, 8), (8, 3), (1, 1)])
def test_documents_one_by_one_have_every_target_once_and_none_of_another(
    first: int | None, length: int, stride: int
) -> None:
    is_joint = np.zeros(60, bool)
    is_joint[[0, 5, 6, 9, 40]] = True  # two of them empty, one of two tokens, one of thirty, the last without a joint
    documents = [range(1, 5), range(7, 9), range(10, 40), range(41, 60)]
    windows = DocumentWindows(TOKENS[:60], is_joint, first=first, length=length, stride=stride)
    seen: list[int] = []
    for start in range(0, len(windows), 4):
        rows, scored = windows[start : start + 4].tolist(), windows.scored(slice(start, start + 4)).tolist()
        assert len(rows[0]) - 1 == len(scored[0]) <= length
        for row, counted in zip(rows, scored, strict=True):
            text = row if first is None else row[1:]
            assert first is None or row[0] == first
            assert sum(set(text) <= set(document) for document in documents) == 1, "a window has one document"
            seen += [token for token, counts in zip(row[1:], counted, strict=True) if counts]
    expected = [token for document in documents for token in (document if first else document[1:])]
    assert sorted(seen) == expected
    begins = [windows.window(number)[:2] for number in range(len(windows))]
    for document in documents:
        assert ([first, document[0]] if first else [document[0], document[1]]) in begins, "each from its beginning"
