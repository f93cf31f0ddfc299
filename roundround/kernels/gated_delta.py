"""The gated delta rule: a state of fixed size that decays, and replaces what it holds for a key by a new value.

S_t = exp(g_t) (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T; o_t = S_t^T q_t

Yang et al. 2024, arXiv:2412.06464, equation 10; computed in chunks as in section 3.3, or by flash-linear-attention on
CUDA where it is installed.
Shapes: B batch, H heads, T tokens, C key channels, V value channels; N chunks of L tokens.

Tested by tests/model/test_gated_deltanet.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from roundround.kernels.documents import Documents
from roundround.kernels.precision import wide_dtype
from roundround.kernels.torch_internals import outside_compilation

CHUNK = 64  # tokens


def gated_delta_rule(
    q_BHTC: Tensor,
    k_BHTC: Tensor,
    v_BHTV: Tensor,
    g_BHT: Tensor,
    beta_BHT: Tensor,
    state_BHCV: Tensor | None,
    documents: Documents | None,
) -> tuple[Tensor, Tensor]:
    """The outputs o, [B, H, T, V] in the dtype of v, and the state after the last token, at least float32.

    g: the logarithm of the decay, at most 0. state: that of the tokens before; None for zeros. documents: the state
    begins at zero in each.
    """
    if v_BHTV.is_cuda and v_BHTV.dtype != torch.float64:
        found = by_library(q_BHTC, k_BHTC, v_BHTV, g_BHT, beta_BHT, state_BHCV, documents)
        if found is not None:
            return found
    n_texts, n_heads, n_tokens, n_values = v_BHTV.shape
    wide, chunk = wide_dtype(v_BHTV.dtype), min(CHUNK, n_tokens)
    n_spare = -n_tokens % chunk

    def in_chunks(x: Tensor) -> Tensor:  # [B, H, T, ...] -> [N, B, H, L, ...]
        padded = F.pad(x.to(wide), (*(0, 0) * (x.dim() - 3), 0, n_spare))
        return padded.reshape(*x.shape[:2], -1, chunk, *x.shape[3:]).movedim(2, 0)

    q, k, v, g, beta = (in_chunks(x) for x in (q_BHTC, k_BHTC, v_BHTV, g_BHT, beta_BHT))
    decay, v_new = g.cumsum(-1), v * beta[..., None]
    together = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    alive = torch.ones((), dtype=torch.bool, device=v.device)  # whether a row sees the state before the chunk
    if documents is not None:
        begins_BT = documents.first_BT == torch.arange(n_tokens, device=v.device)
        of_doc = in_chunks(begins_BT[:, None].to(wide)).cumsum(-1)
        together = together & (of_doc[..., :, None] == of_doc[..., None, :])
        alive = of_doc == 0
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(~together, -torch.inf).exp()
    from_before = decay.exp() * alive
    k_beta, kk, qk = k * beta[..., None], (k @ k.mT) * between, (q @ k.mT) * between
    both = torch.cat([v_new, k_beta * from_before[..., None]], -1)
    solved = torch.linalg.solve_triangular(beta[..., None] * kk, both, upper=False, unitriangular=True)
    v_new, k_new = solved.tensor_split([n_values], -1)
    q_before, k_last = q * from_before[..., None], k * between[..., -1, :, None]
    state = v.new_zeros(n_texts, n_heads, k.shape[-1], n_values) if state_BHCV is None else state_BHCV.to(wide)
    outs = []
    for n in range(len(q)):
        values = v_new[n] - k_new[n] @ state
        outs.append(q_before[n] @ state + qk[n] @ values)
        state = state * from_before[n, :, :, -1, None, None] + k_last[n].mT @ values
    return torch.cat(outs, 2)[:, :, :n_tokens].to(v_BHTV.dtype), state


@outside_compilation
def by_library(
    q_BHTC: Tensor,
    k_BHTC: Tensor,
    v_BHTV: Tensor,
    g_BHT: Tensor,
    beta_BHT: Tensor,
    state_BHCV: Tensor | None,
    documents: Documents | None,
) -> tuple[Tensor, Tensor] | None:
    """`gated_delta_rule` by flash-linear-attention, which wants documents in one row; None if it is not installed."""
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError:
        return None
    of_one_dtype = (q_BHTC.to(v_BHTV), k_BHTC.to(v_BHTV), v_BHTV, g_BHT, beta_BHT.to(v_BHTV))
    inputs = [x.transpose(1, 2).contiguous() for x in of_one_dtype]
    if documents is not None:
        inputs = [x.flatten(0, 1)[None] for x in inputs]
    out, state = chunk_gated_delta_rule(
        *inputs,
        scale=1.0,
        initial_state=state_BHCV,
        output_final_state=True,
        cu_seqlens=None if documents is None else documents.offsets,
    )
    return out.reshape(v_BHTV.transpose(1, 2).shape).transpose(1, 2), state
