"""What the statements' constructions are made of: vectors turned by this program's rotation, weights by its softmax.

Keys are made by the paper's formula: a check that rotated both sides with the same code would not see a rotation the
wrong way round, or of the wrong pairs. Shapes: N positions, R rows, K keys, C channels, P pairs.

Tested by tests/papers/test_rope_claims.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from roundround.attention.blocks import logits_of_rows, rows_between
from roundround.attention.keys import AttentionShape, Keys
from roundround.attention.row_measures import shannon_entropy
from roundround.pe.p_rope import PRoPE
from roundround.pe.rope import RoPE
from roundround.pe.rotary import apply_rotation, rotation
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.row_scale import RowScale
from roundround.softmax.softmax import Softmax
from roundround.softmax.temperature import Temperature

HEAD_DIM, THETA = 256, 10_000.0  # Gemma's
SHAPE = AttentionShape(n_heads=1, n_key_heads=1, head_dim=16, d_model=16, layer=0, train_length=2048)


def shape(head_dim: int = HEAD_DIM) -> AttentionShape:
    """One head of this width."""
    return AttentionShape(n_heads=1, n_key_heads=1, head_dim=head_dim, d_model=head_dim, layer=0, train_length=8192)


def frequencies(head_dim: int = HEAD_DIM, theta: float = THETA) -> Tensor:
    """RoPE's, radians per token, fastest first: [P], float64."""
    return RoPE(shape(head_dim), theta=theta).frequencies(torch.float64)


def p_rope_frequencies(p: float, head_dim: int = HEAD_DIM, theta: float = THETA) -> Tensor:
    """p-RoPE's, 0 for the pairs that rest: [P], float64."""
    return PRoPE(shape(head_dim), p=p, theta=theta).frequencies(torch.float64)


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


def aligned(distances_N: Tensor, frequencies_P: Tensor) -> Tensor:
    """Logit of a key like the query, all pairs of equal norm, over that at distance 0: [N]."""
    unit_C = torch.cat([torch.ones_like(frequencies_P), torch.zeros_like(frequencies_P)])
    unit_C = unit_C / math.sqrt(len(frequencies_P))
    return torch.cat([logits(unit_C, unit_C, some, frequencies_P) for some in torch.split(distances_N, 4096)])


def aligned_by_formula(distances_N: ArrayLike, frequencies_P: ArrayLike) -> np.ndarray:
    """The same written out, mean_k cos(n g_k): [N]."""
    mean_N: np.ndarray = np.cos(np.outer(np.asarray(distances_N), np.asarray(frequencies_P))).mean(1)
    return mean_N


def turned(x_C: Tensor, angles_P: Tensor) -> Tensor:
    """rho(angle) on each pair (m, m + P) by equation 2 of arXiv:2410.06205, written out: [C]."""
    first_P, second_P = x_C.chunk(2)
    cos_P, sin_P = angles_P.cos(), angles_P.sin()
    return torch.cat([cos_P * first_P - sin_P * second_P, sin_P * first_P + cos_P * second_P])


def ladder_by_formula(head_dim: int = HEAD_DIM, theta: float = THETA) -> Tensor:
    """g_k = theta^(-2(k-1)/d) for k = 1 .. d/2, as the paper writes it: [P], float64."""
    return torch.tensor([theta ** (-2 * (k - 1) / head_dim) for k in range(1, head_dim // 2 + 1)], dtype=torch.float64)


def random_vector(*sizes: int, seed: int) -> Tensor:
    """Standard normal numbers, float64; a matrix or more where there are several sizes."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_pair(first: float, second: float, pair: int, head_dim: int = HEAD_DIM) -> Tensor:
    """A 2-vector on the channels (pair, pair + P) of an otherwise empty head, pairs from 0: [C]."""
    x_C = torch.zeros(head_dim, dtype=torch.float64)
    x_C[pair], x_C[pair + head_dim // 2] = first, second
    return x_C


def weights(logits_RK: Tensor, softmax: AttentionSoftmax | None = None) -> Tensor:
    """Weights of rows that see all their keys, by the plain softmax where no other is given: [R, K]."""
    visible_RK = torch.ones_like(logits_RK, dtype=torch.bool)
    n_visible = visible_RK.sum(-1)[None, None, :, None]
    softmax = Softmax(SHAPE) if softmax is None else softmax
    return softmax.weights(logits_RK[None, None], visible_RK, {"n_visible": n_visible})[0, 0].detach()


def causal_weights(q_NC: Tensor, k_NC: Tensor) -> Tensor:
    """Weights of a causal head with these queries and keys, rotated already, logits q . k: [N, N]."""
    pos_1N = torch.arange(len(q_NC))[None]
    keys = Keys(q_pos_BQ=pos_1N, k_pos_BK=pos_1N)
    logits, visible = logits_of_rows(q_NC[None, None], k_NC[None, None], 1.0, keys, None, 0, len(q_NC))
    return Softmax(SHAPE).weights(logits, visible, rows_between({}, visible, 0, len(q_NC)))[0, 0]


def weights_at(temperature: float, logits_RK: Tensor) -> Tensor:
    """The same at a fixed temperature."""
    return weights(logits_RK, Temperature(SHAPE, temperature=temperature))


def lone_weight(lead: float, n: float, softmax: RowScale | None = None) -> float:
    """Weight of one key that leads n - 1 keys, all alike, by `lead`; any n: those are one key with ln(n - 1) more.

    A row scale multiplies the lead, at the entropy that the row has without it.
    """
    if softmax is not None:
        one_11 = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        beta = softmax.beta(n * one_11, lambda: lone_entropy(lead, n) * one_11)
        lead = lead if beta is None else lead * float(torch.as_tensor(beta).flatten()[0])
    return float(weights(torch.tensor([[lead, math.log(n - 1)]], dtype=torch.float64))[0, 0])


def lone_entropy(lead: float, n: float) -> float:
    """Entropy in nats of that row under the plain softmax: of one against the rest, and within the rest."""
    share = lone_weight(lead, n)
    of_two = shannon_entropy(torch.tensor([share, 1 - share], dtype=torch.float64))
    return float(of_two) + (1 - share) * math.log(n - 1)


def first_length(is_reached: Any, longest: float) -> float:
    """Smallest whole n from 2 to `longest` at which `is_reached(n)`, which stays so once it is; infinite where none."""
    low, high = 1, int(longest)
    if not is_reached(high):
        return math.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_reached(middle) else (middle, high)
    return float(high)


def slope(x: Sequence[float], y: Sequence[float] | Tensor) -> float:
    """Of the straight line through the points, by least squares, in log-log."""
    x_N = torch.tensor(x, dtype=torch.float64).log()
    y_N = torch.as_tensor(y, dtype=torch.float64).log()
    x_N = x_N - x_N.mean()
    return float((x_N * (y_N - y_N.mean())).sum() / x_N.square().sum())
