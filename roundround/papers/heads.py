"""Heads made by hand: logits by this program's own rotation, on keys that are made by the paper's formula.

A check that rotated both sides with the same code would not see a rotation the wrong way round, or of the wrong pairs.
Shapes: N positions, R rows, C channels, P pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roundround.attention.keys import AttentionShape
from roundround.pe.rope import RoPE
from roundround.pe.rotary import apply_rotation, rotation

HEAD_DIM, THETA = 256, 10_000.0  # Gemma's


def shape(head_dim: int = HEAD_DIM) -> AttentionShape:
    """One head of this width."""
    return AttentionShape(n_heads=1, n_key_heads=1, head_dim=head_dim, d_model=head_dim, layer=0, train_length=8192)


def frequencies(head_dim: int = HEAD_DIM, theta: float = THETA) -> Tensor:
    """RoPE's, radians per token, fastest first: [P], float64."""
    return RoPE(shape(head_dim), theta=theta).frequencies(torch.float64)


def rotated(x_NC: Tensor, pos_N: Tensor, frequencies_P: Tensor) -> Tensor:
    """Each row of x turned as RoPE turns a query or key at its position: [N, C].

    One row [C] serves all positions, and one position all rows.
    """
    cos, sin = rotation(pos_N[None], frequencies_P)
    x_NC = x_NC.expand(len(pos_N), -1) if x_NC.ndim == 1 else x_NC
    return apply_rotation(x_NC[None, None], cos, sin)[0, 0]


def logits(q_C: Tensor, k_C: Tensor, distances_N: Tensor, frequencies_P: Tensor) -> Tensor:
    """Logit of one query with one key that stands this many tokens before it: [N], no division by sqrt(head_dim)."""
    return rotated(k_C, -distances_N, frequencies_P) @ q_C


def turned(x_C: Tensor, angles_P: Tensor) -> Tensor:
    """rho(angle) on each pair (m, m + P) by equation 2 of arXiv:2410.06205, written out: [C]."""
    first_P, second_P = x_C.chunk(2)
    cos_P, sin_P = angles_P.cos(), angles_P.sin()
    return torch.cat([cos_P * first_P - sin_P * second_P, sin_P * first_P + cos_P * second_P])


def ladder_by_formula(head_dim: int = HEAD_DIM, theta: float = THETA) -> Tensor:
    """g_k = theta^(-2(k-1)/d) for k = 1 .. d/2, as the paper writes it: [P], float64."""
    return torch.tensor([theta ** (-2 * (k - 1) / head_dim) for k in range(1, head_dim // 2 + 1)], dtype=torch.float64)


def random_vector(n: int, seed: int) -> Tensor:
    """Standard normal, float64."""
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_pair(first: float, second: float, pair: int, head_dim: int = HEAD_DIM) -> Tensor:
    """A 2-vector on the channels (pair, pair + P) of an otherwise empty head, pairs from 0: [C]."""
    x_C = torch.zeros(head_dim, dtype=torch.float64)
    x_C[pair], x_C[pair + head_dim // 2] = first, second
    return x_C
