"""What an attention normaliser is: one definition (`normalise`) and one way to run it (`attend`).

Shapes: B batch, T tokens, Q queries, K keys, H heads, G key heads, C head channels, D model width.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roundround.interface import AttentionShape, Bias, Keys, widen
from roundround.softmax import fused, kernels

LOGITS_PER_BLOCK = 2**23  # 32 MiB of float32: large enough to keep a GPU busy, small beside a model
LOGITS_IN_CACHE = 2**21  # on a CPU: 8 MiB stay in the allocator's reach, up to twice as fast ...
ROWS_IN_CACHE = 32  # ... unless it leaves fewer rows than this, for each of which all keys' gradients are added up


class RunsInBlocks(UserWarning):
    """Said once of a combination that no fused kernel computes exactly."""


class AttentionSoftmax(nn.Module):
    """Base of every normaliser: turns logits into attention weights.

    A variant is one final class: `__init__(self, shape, *, tunables)`, one instance a layer. It defines `normalise`,
    and where an exact faster form of the same thing exists `has_kernel` and `run_kernel`. Calling the module is
    `attend`, so that PyTorch's forward hooks see the queries, keys and values of every layer.

    sums_to_one: whether the weights of a row with a visible key always sum to one.
    cost_in_blocks: time of `attend` over blocks of rows as a multiple of the fused softmax's, forward, at 4,096 tokens
    (docs/benchmarks.md).
    """

    sums_to_one: ClassVar[bool] = True
    cost_in_blocks: ClassVar[float]

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, q_BHQC: Tensor, k_BGKC: Tensor, v_BGKC: Tensor, **options: Any) -> Tensor:
        return self.attend(q_BHQC, k_BGKC, v_BGKC, **options)

    def row_parameters(self, x_BTD: Tensor) -> dict[str, Tensor]:
        """What a normaliser reads off each token for its own row, every tensor [B, H, T, 1]; default nothing."""
        return {}

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The formula: weights of float32 or float64 logits. What it gives where a key is not visible is ignored.

        `rows` holds `n_visible` (visible keys of each row, int64, [1 or B, 1, Q, 1]) and the `row_parameters`.
        """
        raise NotImplementedError

    def weights(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The definition: attention weights [B, H, Q, K], in at least float32, zero where not visible.

        A row with a visible logit that is not finite is NaN throughout: nothing plausible comes of a broken model.
        """
        wide_BHQK = widen(logits_BHQK)
        alpha_BHQK = self.normalise(wide_BHQK, visible_B1QK, rows).masked_fill(~visible_B1QK, 0.0)
        # finite: 0; a sum that overflows although its terms are finite needs logits of 1e30
        poison_BHQ1 = 0.0 * wide_BHQK.detach().masked_fill(~visible_B1QK, 0.0).sum(-1, keepdim=True)
        return alpha_BHQK + poison_BHQ1

    def has_kernel(self, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> bool:
        """Whether `run_kernel` computes exactly this, here; default no."""
        return False

    def run_kernel(
        self, q_BHQC: Tensor, k_BGKC: Tensor, v_BGKC: Tensor, *, scale: float, keys: Keys, slopes: Tensor | None
    ) -> Tensor:
        """The definition in a fused form, for finite queries and keys; `slopes` are those of a linear bias."""
        raise NotImplementedError

    def attend(
        self,
        q_BHQC: Tensor,
        k_BGKC: Tensor,
        v_BGKC: Tensor,
        *,
        scale: float,
        keys: Keys,
        bias: Bias | None,
        rows: Mapping[str, Tensor],
    ) -> Tensor:
        """Attention output [B, H, Q, C], memory linear in length: by a kernel, else the definition over blocks of rows.

        `scale` multiplies q . k; a bias is added after that.
        """
        if not self.has_kernel(q_BHQC, keys, bias):
            self.announce_blocks(bias)
            return self.attend_in_blocks(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias, rows=rows)
        q_BHQC, k_BGKC, poison_BHQ1 = fused.finite(q_BHQC, k_BGKC, scale, keys)
        out = self.run_kernel(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, slopes=fused.slopes_of(bias))
        return fused.poisoned(out, poison_BHQ1)

    def attend_in_blocks(
        self,
        q_BHQC: Tensor,
        k_BGKC: Tensor,
        v_BGKC: Tensor,
        *,
        scale: float,
        keys: Keys,
        bias: Bias | None,
        rows: Mapping[str, Tensor],
    ) -> Tensor:
        """`attend` by the definition, a few query rows at a time; the backward pass computes each block again."""
        blocks = []
        for a, b in reversed(query_blocks(q_BHQC, keys, bias)):  # the longest first: what it frees, the next can use
            block = (self, q_BHQC, k_BGKC, v_BGKC, scale, keys, bias, rows, a, b)
            keep = torch.is_grad_enabled() and b - a < keys.n_queries
            blocks.append(checkpoint(attend_rows, *block, use_reentrant=False) if keep else attend_rows(*block))
        return torch.cat(blocks[::-1], dim=2)

    def announce_blocks(self, bias: Bias | None) -> None:
        """Say, once for each combination, that there is no fused form, and what that costs."""
        combination = type(self).__name__ + (f" with {type(bias).__name__}" if bias is not None else "")
        warnings.warn(
            f"{combination} has no exact fused form: attention runs over blocks of query rows, its memory linear in "
            f"length, its time about {self.cost_in_blocks:g} times the fused softmax's"
            + (" and what the bias takes" if bias is not None else ""),
            RunsInBlocks,
            stacklevel=3,
        )


def query_blocks(q_BHQC: Tensor, keys: Keys, bias: Bias | None = None) -> list[tuple[int, int]]:
    """Ranges of query rows whose logits fit in `LOGITS_PER_BLOCK` elements; at least one row each."""
    held = q_BHQC.shape[0] * max(q_BHQC.shape[1], 1 if bias is None else bias.n_hidden)
    rows = rows_within(LOGITS_PER_BLOCK // held, keys)
    if q_BHQC.device.type == "cpu":
        rows = min(rows, max(ROWS_IN_CACHE, rows_within(LOGITS_IN_CACHE // held, keys)))
    rows = max(1, rows)
    return [(a, min(a + rows, keys.n_queries)) for a in range(0, keys.n_queries, rows)]


def rows_within(limit: int, keys: Keys) -> int:
    """Number of rows with at most `limit` logits; with a window they span no more keys than themselves and it."""
    rows = limit // keys.n_keys
    if keys.window is None:
        return rows
    return max(rows, largest_square(limit, keys.window * (1 if keys.causal else 2)))


def largest_square(limit: int, side: int) -> int:
    """Largest n with n (n + side) <= limit; 0 where there is none above."""
    return int(((side * side + 4 * limit) ** 0.5 - side) / 2)


def attend_rows(
    softmax: AttentionSoftmax,
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    scale: float,
    keys: Keys,
    bias: Bias | None,
    rows: Mapping[str, Tensor],
    a: int,
    b: int,
) -> Tensor:
    """Attention output of the query rows a..b by the definition: [B, H, b - a, C]."""
    first, last = keys.span(a, b)
    logits_BHQK, visible_B1QK = logits_of_rows(q_BHQC, k_BGKC, scale, keys, bias, a, b)
    v_BHKC = kernels.repeated(v_BGKC[:, :, first:last], q_BHQC)
    alpha_BHQK = softmax.weights(logits_BHQK, visible_B1QK, rows_between(rows, visible_B1QK, a, b))
    return alpha_BHQK.to(v_BHKC.dtype) @ v_BHKC


def logits_of_rows(
    q_BHQC: Tensor, k_BGKC: Tensor, scale: float, keys: Keys, bias: Bias | None, a: int, b: int
) -> tuple[Tensor, Tensor]:
    """Logits [B, H, b - a, K'] of the query rows a..b over the keys of `keys.span(a, b)`, and who is visible."""
    first, last = keys.span(a, b)
    k_BHKC = kernels.repeated(k_BGKC[:, :, first:last], q_BHQC)
    logits_BHQK = (q_BHQC[:, :, a:b] * scale) @ k_BHKC.mT
    if bias is not None:
        logits_BHQK = logits_BHQK + bias.block(keys, a, b)
    return logits_BHQK, keys.visible(a, b)


def rows_between(rows: Mapping[str, Tensor], visible_B1QK: Tensor, a: int, b: int) -> dict[str, Tensor]:
    """What `normalise` reads about the query rows a..b."""
    return {name: value[:, :, a:b] for name, value in rows.items()} | {"n_visible": visible_B1QK.sum(-1, keepdim=True)}


def softmax_over_visible(logits_BHQK: Tensor, visible_B1QK: Tensor) -> Tensor:
    """exp(e_j) / sum_l exp(e_l) over the visible keys; NaN in a row that sees none."""
    return logits_BHQK.masked_fill(~visible_B1QK, -torch.inf).softmax(-1)


def checked_finite(**values: float) -> None:
    """Raises ValueError for the first value that is not a finite number."""
    for name, value in values.items():
        if not abs(value) < float("inf"):
            raise ValueError(f"{name}={value} must be a finite number")


def checked_positive(**values: float) -> None:
    """Raises ValueError for the first value that is not a finite number above 0."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name}={value} must be a finite number above 0")
