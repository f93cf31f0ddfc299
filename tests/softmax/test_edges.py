"""Attention at the edges of numbers: faults that were met once.

Of roundround/kernels/fused.py, softmax/null_key.py, softmax/projection.py, softmax/alpha_entmax.py and pe/scaled.py.
"""

from __future__ import annotations

import pytest
import torch
from conftest import named
from torch import Tensor

from roundround.kernels.bias import LinearBias
from roundround.kernels.keys import AttentionShape, Keys
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax

N = 70


def shape(train_length: int = 32, head_dim: int = 16) -> AttentionShape:
    return AttentionShape(n_heads=2, n_key_heads=2, head_dim=head_dim, d_model=32, layer=0, train_length=train_length)


def softmax(name: str, **numbers: object) -> AttentionSoftmax:
    return named("softmax", name, AttentionSoftmax, **numbers)(shape()).double()  # type: ignore[type-abstract]


def keys(n: int, **more: object) -> Keys:
    pos = torch.arange(n)[None]
    return Keys(q_pos_BQ=pos, k_pos_BK=pos, **more)  # type: ignore[arg-type]


def drawn(n: int, *, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, n, 16, generator=generator, dtype=dtype) for _ in range(3)]


def by_definition(own: AttentionSoftmax, logits: Tensor, v: Tensor, rows: dict[str, Tensor]) -> Tensor:
    visible = torch.ones(1, 1, *logits.shape[-2:]).tril().bool()
    counts = visible.sum(-1, keepdim=True)
    return own.weights(logits, visible, {"n_visible": counts, **rows}) @ v


@pytest.mark.parametrize("name", ["softmax", "softmax1", "sink", "input_sink"])
def test_learned_slopes_of_distance_get_their_gradient_beside_a_null_key(name: str) -> None:
    own, (q, k, v) = softmax(name), drawn(N)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    x_BTD = torch.randn(1, N, 32, generator=torch.Generator().manual_seed(2)).double()
    rows = {name: row.detach() for name, row in own.row_parameters(x_BTD).items()}
    found = []
    for definition in (False, True):
        slopes = torch.tensor([0.1, 0.3], dtype=torch.float64)[:, None, None].requires_grad_()
        distance = (torch.arange(N)[None] - torch.arange(N)[:, None]).double()
        if definition:
            out = by_definition(own, q @ k.mT * 0.25 + slopes * distance, v, rows)
        else:
            out = own(q, k, v, scale=0.25, keys=keys(N), bias=LinearBias(slopes=slopes), rows=rows)
        out.square().sum().backward()
        found.append(slopes.grad)
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-8)


def test_a_row_whose_window_holds_only_padding_is_no_error() -> None:
    """Counted by position, it has keys; visible is none of them."""
    own, (q, k, v) = softmax("as_entmax", count="position"), drawn(40)
    valid = (torch.arange(40) < 20)[None]
    rows = own.row_parameters(torch.randn(1, 40, 32).double())
    out = own(q, k, v, scale=0.25, keys=keys(40, valid_BK=valid, window=8), bias=None, rows=rows)
    assert out[:, :, :20].isfinite().all()


@pytest.mark.parametrize("alpha", [1.5, 1.75, 2.0])
def test_weights_of_entmax_sum_to_one_in_single_precision(alpha: float) -> None:
    own, (q, k, _) = softmax("alpha_entmax", alpha=alpha).float(), drawn(130, dtype=torch.float32)
    out = own(q, k, torch.ones_like(q), scale=0.25, keys=keys(130), bias=None, rows={})
    assert float((out - 1).abs().max()) < 1e-5


def test_xpos_reads_as_far_as_its_visible_logits_are_finite() -> None:
    """Keys far behind have products with the first queries that overflow; no query sees them."""
    make = named("pe", "xpos", PositionalEncoding, scale_base=16)  # type: ignore[type-abstract]
    encoding, n = make(shape(head_dim=16)), 1280  # 80 times the base: as 40,960 tokens at 512
    q, k, v = drawn(n, dtype=torch.float32)
    prepared = encoding.prepare(torch.arange(n)[None], torch.float32)
    q, k = encoding.rotate_queries(q, prepared), encoding.rotate_keys(k, prepared)
    assert not float(q.abs().max()) * float(k.abs().max()) < 1e38, "some product overflows"
    out = softmax("softmax").float()(q, k, v, scale=0.25, keys=keys(n), bias=None, rows={})
    hidden = torch.ones(n, n).triu(1).bool()
    logits = (q.double() @ k.double().mT * 0.25).masked_fill(hidden, -torch.inf)
    torch.testing.assert_close(out.double(), logits.softmax(-1) @ v.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ntk_dynamic", "longrope"])
def test_frequencies_follow_the_length_of_each_text_and_document(name: str) -> None:
    encoding = named("pe", name, PositionalEncoding, factor=4.0)(shape())  # type: ignore[type-abstract]
    long = torch.arange(90)[None]
    short = torch.cat([torch.arange(20), torch.arange(70)])[None]  # two documents
    both = encoding.prepare(torch.cat([long, short]), torch.float64)
    for row, own in enumerate((long, short)):
        for together, alone in zip(both, encoding.prepare(own, torch.float64), strict=True):
            assert torch.equal(together[row : row + 1], alone)
    for together, alone in zip(
        encoding.prepare(short, torch.float64), encoding.prepare(short[:, :20], torch.float64), strict=True
    ):
        assert torch.equal(together[:, :20], alone), (
            "the second document is beyond the trained length, the first is not"
        )


def test_a_single_clipped_pair_rests() -> None:
    make = named("pe", "clipped_rope", PositionalEncoding, n_clipped=1)  # type: ignore[type-abstract]
    frequencies = make(shape()).frequencies()  # type: ignore[attr-defined]
    assert frequencies[-1].abs() < 1e-7
    assert (frequencies[:-1] > 0).all()
