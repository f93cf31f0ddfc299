"""Gated DeltaNet: the chunked form equals the recurrence and transformers' form, and documents begin afresh.

Shapes: B batch, H heads, T tokens, C key channels, V value channels.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

from roundround.kernels.documents import documents_of
from roundround.kernels.gated_delta import CHUNK, gated_delta_rule

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def inputs(n_tokens: int, dtype: torch.dtype = torch.float64, n_texts: int = 2) -> Inputs:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(n_texts, 3, n_tokens, *size, generator=generator, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(8), dim=-1) for _ in range(2))
    made = (q, k, normal(6), -normal().exp(), normal().sigmoid())
    return tuple(x.to(dtype).requires_grad_() for x in made)  # type: ignore[return-value]


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The equation, a token at a time."""
    state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    outs = []
    for t in range(q.shape[2]):
        state = state * g[:, :, t, None, None].exp()
        held = torch.einsum("bhcv,bhc->bhv", state, k[:, :, t])
        new = beta[:, :, t, None] * (v[:, :, t] - held)
        state = state + torch.einsum("bhc,bhv->bhcv", k[:, :, t], new)
        outs.append(torch.einsum("bhcv,bhc->bhv", state, q[:, :, t]))
    return torch.stack(outs, 2), state


@pytest.mark.parametrize("n_tokens", [1, CHUNK - 1, CHUNK, 2 * CHUNK + 7])
def test_the_chunked_form_is_the_recurrence(n_tokens: int) -> None:
    given = inputs(n_tokens)
    out, state = gated_delta_rule(*given, None, None)
    expected, last = recurrent(*given)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-10, atol=1e-12)


def test_output_state_and_gradients_are_those_of_transformers() -> None:
    ours, theirs = inputs(150, torch.float32), inputs(150, torch.float32)
    out, state = gated_delta_rule(*ours, None, None)
    q, k, v, g, beta = (x.transpose(1, 2) for x in theirs)
    of_them, last = torch_chunk_gated_delta_rule(q * q.shape[-1] ** 0.5, k, v, g, beta, output_final_state=True)
    torch.testing.assert_close(out, of_them.transpose(1, 2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-5)
    out.square().sum().backward()
    of_them.square().sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_a_text_in_parts_has_the_same_outputs_and_state() -> None:
    given = inputs(100)
    out, state = gated_delta_rule(*given, None, None)
    parts, so_far = [], None
    for a, b in ((0, 70), (70, 71), (71, 100)):
        part, so_far = gated_delta_rule(*(x[:, :, a:b] for x in given), so_far, None)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 2), out)
    torch.testing.assert_close(so_far, state)


def test_documents_begin_afresh() -> None:
    """Ends in the middle of a chunk, twice in one chunk, and at its border."""
    n_tokens = 2 * CHUNK + 20
    ends_BT = torch.zeros(2, n_tokens, dtype=torch.bool)
    ends_BT[0, [10, 40, CHUNK - 1, CHUNK + 5]] = True
    ends_BT[1, [CHUNK]] = True
    given = inputs(n_tokens)
    out, _ = gated_delta_rule(*given, None, documents_of(ends_BT, lambda pos: pos))
    for text in range(2):
        first = 0
        for end in [*ends_BT[text].nonzero()[:, 0].tolist(), n_tokens - 1]:
            alone, _ = recurrent(*(x[text : text + 1, :, first : end + 1] for x in given))
            torch.testing.assert_close(out[text : text + 1, :, first : end + 1], alone, rtol=1e-10, atol=1e-12)
            first = end + 1
