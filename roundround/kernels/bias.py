"""What an encoding does to the logits, a block of query rows at a time: a bias that it adds, or any other change.

Shapes: B batch, Q queries, K keys, H heads.

Tested by tests/kernels/test_keys.py and tests/softmax/test_softmax_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from roundround.kernels.documents import Documents
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32

# the logit of batch b, head h, query i and key j -> the logit to use instead
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Bias:
    """What an encoding does to the logits, computed for a block of query rows at a time so that no n x n table exists.

    An encoding that adds a bias defines `block`; one that changes logits in any other way defines `applied`.

    n_hidden: the number of intermediate values that `applied` holds for each query and key, all heads together; the
    larger it is, the fewer rows a block has. of_distance: whether the bias depends only on key position minus query
    position; `by_distance` is then defined.
    """

    n_hidden: int = 1
    of_distance: bool = False

    def by_distance(self, distances_N: Tensor) -> Tensor:
        """The bias [1 or H, N], at least float32, for each of N distances.

        distances_N: key position minus query position, in tokens, int64.
        """
        raise NotImplementedError

    def block(self, keys: Keys, a: int, b: int) -> Tensor:
        """Bias [1 or B, H, b - a, K'] for the query rows a..b over the keys of `keys.span(a, b)`, in logits.

        It is at least float32, also under autocast: an implementation that multiplies matrices turns autocast off. The
        values do not depend on other rows, on windows, on blocks or on `keys.causal`.
        """
        raise NotImplementedError

    def applied(self, logits_BHQK: Tensor, keys: Keys, a: int, b: int) -> Tensor:
        """The changed logits of the query rows a..b over the keys of `keys.span(a, b)`; by default `block` is added.

        logits_BHQK: scale q . k, at least float32, not masked yet. The result has their shape and dtype. Autograd gives
        the gradients. What else is needed, such as queries, is an attribute, which `PositionalEncoding.bias` has set. A
        row may read its own logits of the keys that it sees, `replace(keys, causal=True).visible_to`. It reads nothing
        of other keys in the span; their logits may be NaN.
        """
        return logits_BHQK + self.block(keys, a, b)

    def score_mod(self, keys: Keys) -> ScoreMod | None:
        """`applied` as a function of one logit, batch b, head h, query i and key j, for FlexAttention.

        None, the default, if there is no such function, or if a kernel could not compute its gradient fast.
        """
        return None

    def of_groups(self, documents: Documents) -> list[Bias]:
        """The bias for each group of documents. This default is for a bias that depends only on positions."""
        return [self] * len(documents.n_in_groups)


class PiecewiseBias(Bias):
    """A continuous, piecewise linear bias, such as a network with one input and one hidden ReLU layer computes.

    b(i, j) = slope_p s + level_p between the knots p - 1 and p, s = u(|j - i|) / span(i)
    """

    def u(self, distances: Tensor) -> Tensor:
        """The function u of the absolute distances in tokens (int64). u grows with the distance; at least float32."""
        raise NotImplementedError

    def span(self, q_pos: Tensor) -> Tensor:
        """The divisor of u for each query position: above 0, in the shape of `q_pos`, at least float32."""
        raise NotImplementedError

    def pieces(self) -> tuple[Tensor, Tensor]:
        """(slope and level of each piece, [H, P, 2]; the ascending knots between pieces, [P - 1], without gradient)."""
        raise NotImplementedError


@final
class LinearBias(Bias):
    """A bias linear in a coordinate of the tokens, which a fused kernel takes as one more channel.

    b(i, j) = slope (t_j - t_i), where t is the token's position (ALiBi), or a given coordinate (FoX)

    slopes: the slope of each head or query row, in logits per unit of the coordinate; at least float32, broadcasts to
    [B, H, Q, 1]. t_BHQ, t_BHK: the coordinates of queries and of keys, [1 or B, 1 or H, Q or K]; None if the coordinate
    is the position in tokens. Coordinates and slopes get gradients. A kernel can leave out far keys if coordinates
    never decrease from key to key and slopes are above 0.
    """

    def __init__(self, slopes: Tensor, t_BHQ: Tensor | None = None, t_BHK: Tensor | None = None) -> None:
        self.slopes, self.t_BHQ, self.t_BHK = slopes, t_BHQ, t_BHK

    def coordinates(self, keys: Keys) -> tuple[Tensor, Tensor]:
        """Coordinates of the queries [1 or B, 1 or H, Q] and of the keys [1 or B, 1 or H, K]."""
        if self.t_BHQ is None or self.t_BHK is None:
            return keys.q_pos_BQ[:, None], keys.k_pos_BK[:, None]
        return self.t_BHQ, self.t_BHK

    def times(self, factor: Tensor | float) -> LinearBias:
        """The bias multiplied by a factor, which broadcasts to [B, H, Q, 1]."""
        return LinearBias(self.slopes * factor, self.t_BHQ, self.t_BHK)

    def of_groups(self, documents: Documents) -> list[Bias]:
        def split(x_BHT1: Tensor) -> list[Tensor]:
            n_batch, n_tokens = documents.pos_BT.shape
            return documents.split(x_BHT1.expand(n_batch, -1, n_tokens, -1))

        one = self.slopes.numel() == self.slopes.shape[-3]  # one slope for each head
        slopes = [self.slopes] * len(documents.n_in_groups) if one else split(self.slopes)
        if self.t_BHQ is None or self.t_BHK is None:
            return [LinearBias(slopes_MHL1) for slopes_MHL1 in slopes]
        t_q, t_k = ([t[..., 0] for t in split(t_BHT[..., None])] for t_BHT in (self.t_BHQ, self.t_BHK))
        return [LinearBias(*of_group) for of_group in zip(slopes, t_q, t_k, strict=True)]

    def score_mod(self, keys: Keys) -> ScoreMod | None:
        t_BHQ, t_BHK = self.coordinates(keys)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (self.slopes, t_BHQ, t_BHK)):
            return None  # each query and key would add to a coordinate's gradient; a coordinate in a channel is faster
        slopes, t_q, t_k = (at_each(x) for x in (self.slopes[..., 0], t_BHQ, t_BHK))
        return lambda s, b, h, i, j: s + slopes(b, h, i) * (t_k(b, h, j) - t_q(b, h, i)).to(self.slopes.dtype)

    def block(self, keys: Keys, a: int, b: int) -> Tensor:
        first, last = keys.span(a, b)
        t_BHQ, t_BHK = self.coordinates(keys)
        # subtracted before the cast: float32 would round large coordinates
        distance_BHQK = t_BHK[:, :, None, first:last] - t_BHQ[:, :, a:b, None]
        slopes = self.slopes if self.slopes.shape[-2] == 1 else self.slopes[..., a:b, :]
        return slopes * distance_BHQK.to(slopes.dtype)


@final
class GivenBias(Bias):
    """A bias that is there as a whole, [1 or B, 1 or H, Q, K]: a model's own, as Inkling's, or an attention mask."""

    def __init__(self, bias_BHQK: Tensor) -> None:
        self.bias_BHQK = bias_BHQK

    def block(self, keys: Keys, a: int, b: int) -> Tensor:
        first, last = keys.span(a, b)
        return at_least_float32(self.bias_BHQK[:, :, a:b, first:last])


def at_each(x: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function that gives x[b, h, t] for the indices b, h and t. x: a tensor that broadcasts to [B, H, tokens]."""
    axes = [3 - n for n in range(x.dim(), 0, -1) if x.shape[-n] > 1]
    values = x.reshape([n for n in x.shape if n > 1] or [1])
    if not axes:
        return lambda b, h, t: values[0 * b]
    # with a constant among the indices the gradient would not compile for a GPU
    return lambda *indices: values[tuple(indices[n] for n in axes)]


def relative_positions(keys: Keys, a: int, b: int) -> Tensor:
    """Key position minus query position, in tokens: [1 or B, 1, b - a, K'] int64, over the keys of `keys.span(a, b)`.

    Past keys have negative values. Future keys within the span are included; only the mask hides them.
    """
    first, last = keys.span(a, b)
    q_pos_B1Q1, k_pos_B11K = keys.q_pos_BQ[:, None, a:b, None], keys.k_pos_BK[:, None, None, first:last]
    return k_pos_B11K - q_pos_B1Q1
