"""Who may look at whom: the masks of `Keys` against a double loop over queries and keys.

Shapes: B batch, Q queries, K keys.
"""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from roundround.kernels.bias import Bias, LinearBias
from roundround.kernels.keys import Keys

VALID_BK = torch.tensor(
    [
        [False, False, True, True, True, True, True],  # padded on the left
        [True, True, True, True, True, False, False],  # on the right
        [True, False, True, True, False, True, True],  # with holes
        [False, False, False, False, False, False, False],  # nothing but padding
    ]
)
SIZES = [(7, 7), (1, 7), (3, 7), (1, 1)]
WINDOWS = [None, 1, 2, 3, 7, 100]
CHUNKS = [None, 1, 3, 4, 100]

each_size = pytest.mark.parametrize(("n_queries", "n_keys"), SIZES)
each_causality = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
each_padding = pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])


def keys_of(
    n_queries: int,
    n_keys: int,
    causal: bool = True,
    window: int | None = None,
    valid_BK: Tensor | None = None,
    chunk: int | None = None,
) -> Keys:
    """Keys whose positions say nothing about their order, because visibility goes by order alone."""
    pos_1K = torch.arange(n_keys)[None].flip(1) * 3 + 5
    return Keys(
        q_pos_BQ=pos_1K[:, n_keys - n_queries :],
        k_pos_BK=pos_1K,
        valid_BK=valid_BK,
        causal=causal,
        window=window,
        chunk=chunk,
    )


def every_window(n_queries: int, n_keys: int, causal: bool, padded: bool) -> list[Keys]:
    valid_BK = VALID_BK[:, -n_keys:] if padded else None
    return [keys_of(n_queries, n_keys, causal, window, valid_BK, chunk) for window in WINDOWS for chunk in CHUNKS]


def sees(keys: Keys, text: int, row: int, column: int) -> bool:
    """Whether query row sees key column, ahead of padding, in words: queries are the last Q of the K tokens.

    Chunks are counted from the first token of the text that is no padding.
    """
    token = keys.n_keys - keys.n_queries + row
    if keys.causal and column > token:
        return False
    valid_K = torch.ones(keys.n_keys) if keys.valid_BK is None else keys.valid_BK[text]
    begins = next((j for j in range(keys.n_keys) if valid_K[j]), keys.n_keys)
    in_chunk = keys.chunk is None or (token - begins) // keys.chunk == (column - begins) // keys.chunk
    return in_chunk and (keys.window is None or abs(token - column) < keys.window)


def by_loop(keys: Keys) -> Tensor:
    """The whole mask [B, Q, K] by a double loop."""
    n_rows = 1 if keys.valid_BK is None else len(keys.valid_BK)
    mask = torch.zeros(n_rows, keys.n_queries, keys.n_keys, dtype=torch.bool)
    for b in range(n_rows):
        for i in range(keys.n_queries):
            for j in range(keys.n_keys):
                padding = keys.valid_BK is not None and not keys.valid_BK[b, j]
                mask[b, i, j] = sees(keys, b, i, j) and not padding
    return mask


@each_size
@each_causality
@each_padding
def test_every_block_of_the_mask_is_the_double_loops(n_queries: int, n_keys: int, causal: bool, padded: bool) -> None:
    for keys in every_window(n_queries, n_keys, causal, padded):
        whole_BQK = by_loop(keys)
        for a, b in combinations(range(keys.n_queries + 1), 2):
            first, last = keys.span(a, b)
            assert 0 <= first < last <= n_keys
            visible_B1QK = keys.visible(a, b)
            assert visible_B1QK.dtype == torch.bool
            assert torch.equal(visible_B1QK, whole_BQK[:, None, a:b, first:last])
            assert not whole_BQK[:, a:b, :first].any(), "span leaves out a visible key"
            assert not whole_BQK[:, a:b, last:].any(), "span leaves out a visible key"


@each_size
@each_causality
@each_padding
def test_counts_are_the_visible_keys_of_each_row(n_queries: int, n_keys: int, causal: bool, padded: bool) -> None:
    for keys in every_window(n_queries, n_keys, causal, padded):
        whole_BQ = by_loop(keys).sum(-1)
        for a, b in combinations(range(keys.n_queries + 1), 2):
            counts_B1Q1 = keys.counts(a, b)
            assert counts_B1Q1.dtype == torch.int64
            assert torch.equal(counts_B1Q1, whole_BQ[:, None, a:b, None])


@each_size
@each_causality
@each_padding
def test_marked_keys_are_counted_for_each_head(n_queries: int, n_keys: int, causal: bool, padded: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for keys in every_window(n_queries, n_keys, causal, padded):
        whole_B1QK = by_loop(keys)[:, None]
        marked_BGK = torch.rand(len(whole_B1QK), 3, n_keys, generator=generator) < 0.4
        n_BGQ = (whole_B1QK & marked_BGK[:, :, None]).sum(-1)
        for a, b in combinations(range(keys.n_queries + 1), 2):
            assert torch.equal(keys.counts(a, b, marked_BGK), n_BGQ[:, :, a:b, None])


@each_size
def test_the_span_of_causal_rows_is_no_wider_than_what_they_see(n_queries: int, n_keys: int) -> None:
    for keys in every_window(n_queries, n_keys, causal=True, padded=False):
        for a, b in combinations(range(keys.n_queries + 1), 2):
            first, last = keys.span(a, b)
            seen = [j for j in range(n_keys) if any(sees(keys, 0, i, j) for i in range(a, b))]
            assert (first, last) == (seen[0], seen[-1] + 1)


@each_size
@each_causality
@each_padding
def test_a_shortcut_is_taken_only_where_the_mask_is_the_kernels_own(
    n_queries: int, n_keys: int, causal: bool, padded: bool
) -> None:
    for keys in every_window(n_queries, n_keys, causal, padded):
        mask_BQK = by_loop(keys)
        if keys.is_unmasked:
            assert mask_BQK.all()
        if keys.is_plain_causal:
            assert torch.equal(mask_BQK, torch.ones(1, n_queries, n_keys, dtype=torch.bool).tril())


@pytest.mark.parametrize(
    ("keys", "plain_causal", "unmasked"),
    [
        (keys_of(7, 7), True, False),
        (keys_of(1, 1), True, True),
        (keys_of(1, 7), False, True),  # one new token and its cache
        (keys_of(3, 7), False, False),  # several: a kernel would align them with the first keys
        (keys_of(7, 7, window=3), False, False),
        (keys_of(7, 7, window=7), False, False),  # hides nothing, but blocks of queries are right too
        (keys_of(1, 7, window=6), False, False),
        (keys_of(1, 7, window=7), False, True),
        (keys_of(7, 7, valid_BK=VALID_BK), False, False),
        (keys_of(1, 7, valid_BK=VALID_BK), False, False),
        (keys_of(7, 7, causal=False), False, True),
        (keys_of(3, 7, causal=False), False, True),
        (keys_of(7, 7, causal=False, window=6), False, False),
        (keys_of(7, 7, causal=False, window=7), False, True),
        (keys_of(7, 7, causal=False, valid_BK=VALID_BK), False, False),
    ],
)
def test_shortcuts_truth_table(keys: Keys, plain_causal: bool, unmasked: bool) -> None:
    assert (keys.is_plain_causal, keys.is_unmasked) == (plain_causal, unmasked)


def test_the_mask_lies_where_the_positions_lie() -> None:
    keys = Keys(q_pos_BQ=torch.empty(1, 4, device="meta"), k_pos_BK=torch.empty(1, 6, device="meta"), window=2)
    assert keys.visible(1, 3).is_meta
    assert keys.visible(1, 3).shape == (1, 1, 2, 3)


def test_the_base_bias_asks_for_a_block() -> None:
    with pytest.raises(NotImplementedError):
        Bias().block(keys_of(7, 7), 0, 7)


def test_a_linear_bias_multiplied_is_its_block_multiplied() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = ((3, 1, 1), (1, 3, 7), (1, 3, 5, 1))
    slopes, t_13K, factor_1HQ1 = (torch.rand(*size, generator=generator) for size in sizes)
    bias, keys = LinearBias(slopes, t_13K[..., 2:], t_13K), keys_of(5, 7)
    whole = bias.times(factor_1HQ1).block(keys, 0, 5)
    torch.testing.assert_close(whole, factor_1HQ1 * bias.block(keys, 0, 5))
    torch.testing.assert_close(bias.times(factor_1HQ1).block(keys, 1, 3), whole[:, :, 1:3, :5])
