"""The projection family: sparse weights, by deep-spin's `entmax`; on CUDA by `adasplash` where that is installed.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import entmax
import torch
from torch import Tensor

from roundround.attention import kernels
from roundround.attention.bias import Bias, LinearBias
from roundround.attention.compilation import outside_compilation
from roundround.attention.keys import Keys
from roundround.attention.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax

try:
    from adasplash import adasplash
except ImportError:
    adasplash = None


class Projection(AttentionSoftmax):
    """argmax_p p . e + entropy(p), over the simplex, for an entropy under which small weights become zero.

    A variant defines `project`, and `fixed_alpha` where it is the entmax of one alpha, which a kernel may know.
    """

    cost_in_blocks: ClassVar[float] = 10
    fixed_alpha: float | None = None

    def project(self, logits_BHQK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Weights of logits that are -inf where not visible; no row is -inf throughout."""
        raise NotImplementedError

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        finite = logits_BHQK.nan_to_num(0.0, 0.0, 0.0)  # `weights` makes such rows NaN; entmax would fail on the index
        hidden_B1QK = ~visible_B1QK & (rows["n_visible"] > 0)  # and hides all of a row that sees nothing
        return self.project(finite.masked_fill(hidden_B1QK, -torch.inf), rows)

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction | None:
        return None if self.fixed_alpha is None else entmax_function(self.fixed_alpha)

    # how many logits to sort is read off them
    attend_in_blocks = outside_compilation(AttentionSoftmax.attend_in_blocks)

    def has_fused_form(self, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> bool:
        return self.fixed_alpha is not None and bias is None and splashes(q_BHQC, keys)

    def attend_fused(
        self,
        q_BHQC: Tensor,
        k_BGKC: Tensor,
        v_BGKC: Tensor,
        *,
        scale: float,
        keys: Keys,
        bias: LinearBias | None,
        rows: Mapping[str, Tensor],
    ) -> Tensor:
        q = q_BHQC * (scale * q_BHQC.shape[-1] ** 0.5)  # the kernel divides by the root of the channels
        k, v = (kernels.repeated(x, q_BHQC).contiguous() for x in (k_BGKC, v_BGKC))
        out: Tensor = adasplash(q.contiguous(), k, v, alpha=self.fixed_alpha, is_causal=not keys.is_unmasked)
        return out


def entmax_function(alpha: float | Tensor, factor: Tensor | None = None) -> RowFunction:
    """alpha-entmax of logits times `factor`, as whole_rows.cpp takes it; a tensor alpha [H] is differentiated."""
    if not isinstance(alpha, Tensor) and alpha == 1:
        return RowFunction(kind=Kind.SOFTMAX, factor=factor)
    of_heads = torch.as_tensor(alpha, dtype=torch.float64) if not isinstance(alpha, Tensor) else alpha[:, None, None]
    return RowFunction(kind=Kind.ENTMAX, factor=factor, alpha=of_heads)


def splashes(q_BHQC: Tensor, keys: Keys) -> bool:
    """Whether `adasplash` is there and takes this: CUDA, all rows of one sequence, channels a power of two."""
    n_channels = q_BHQC.shape[-1]
    whole = keys.n_queries == keys.n_keys and (keys.is_plain_causal or keys.is_unmasked)
    fits = n_channels >= 16 and n_channels & (n_channels - 1) == 0
    return adasplash is not None and q_BHQC.device.type == "cuda" and whole and fits


def entmax_of(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """alpha-entmax over the last axis: in closed form where there is one, else by bisection to the last digit.

    A tensor alpha [H] holds one for each head and is differentiated.
    """
    if isinstance(alpha, Tensor):
        alpha = alpha.to(logits.dtype)[:, None, None]
    elif alpha == 1:
        return logits.softmax(-1)
    elif alpha == 1.5:
        return entmax.entmax15(logits, dim=-1, k=n_largest(logits, 1.0))  # type: ignore[no-any-return]
    elif alpha == 2:
        return entmax.sparsemax(logits, dim=-1, k=n_largest(logits, 0.5))  # type: ignore[no-any-return]
    n_halvings = 30 if logits.dtype == torch.float32 else 60
    return entmax.entmax_bisect(logits, alpha, dim=-1, n_iter=n_halvings)  # type: ignore[no-any-return]


@torch.no_grad()
def n_largest(logits: Tensor, width: float) -> int | None:
    """How many of the largest logits `entmax` should sort to find the support of a row; None: all of them.

    No logit further than 1 / (alpha - 1) below the largest has any weight, and few further than half of that, the
    `width`; where this is too few, `entmax` sees it and sorts twice as many. Measured: a third of the time of sorting
    all where rows are sparse, and never more of it.
    """
    n_near = (logits > logits.amax(-1, keepdim=True) - width).sum(-1)
    k = int(n_near.max()) + 1 if n_near.numel() else 1
    return k if 2 * k < logits.shape[-1] else None
