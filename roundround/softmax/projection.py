"""The projection family: sparse weights. deep-spin's `entmax` computes them, or `adasplash` on CUDA if it is installed.

`unmet` checks what `adasplash` 0.2 requires. The kernel `adasplash_v2` computes only causal entmax-1.5; it supports
grouped queries. The kernel `adasplash_v1` computes the other alphas, and attention without a mask; it needs as many key
heads as query heads. Both kernels run ten iterations, as in the tests of `adasplash`. Both get the length of each
sequence as an argument, because otherwise they accept only lengths that are powers of two.

Shapes: B batch, T tokens, Q queries, K keys, H heads, G key heads, C head channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import entmax
import torch
from torch import Tensor

from roundround.kernels import sdpa
from roundround.kernels.bias import Bias
from roundround.kernels.keys import Keys
from roundround.kernels.torch_internals import once_per_compilation, outside_compilation
from roundround.kernels.trial import passes
from roundround.kernels.whole_rows import Kind, RowFunction
from roundround.softmax.base import AttentionSoftmax

try:
    from adasplash import adasplash_v1, adasplash_v2
except ImportError:  # not installed, or older than 0.2
    adasplash_v1 = adasplash_v2 = None

SPLASH_CHANNELS = (16, 32, 64, 128, 256)
SPLASH_TOKENS = 64  # the smallest number of tokens
SPLASH_ALPHAS = (1.33, 2.0)  # the range of its own tests
SPLASH_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SPLASH_ITERATIONS = 10


class Projection(AttentionSoftmax):
    """argmax_p p . e + entropy(p), over the simplex, with an entropy that makes small weights exactly zero.

    A variant defines `project`. A variant that is the entmax of one fixed alpha also sets `fixed_alpha`, so that a
    fused kernel can compute its attention.
    """

    cost_in_blocks: ClassVar[float] = 10
    fixed_alpha: float | None = None

    def project(self, logits_BHQK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The weights. The logits are -inf at invisible keys; every row has at least one finite logit."""
        raise NotImplementedError

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        finite = logits_BHQK.nan_to_num(0.0, 0.0, 0.0)  # entmax would fail on NaN; `weights` later makes the row NaN
        hidden_B1QK = ~visible_B1QK & visible_B1QK.any(-1, keepdim=True)  # a row that sees no key: `weights` zeroes it
        return self.project(finite.masked_fill(hidden_B1QK, -torch.inf), rows)

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction | None:
        return None if self.fixed_alpha is None else entmax_function(self.fixed_alpha)

    # the number of logits to sort depends on their values, which a compiled graph cannot read
    attend_in_blocks = outside_compilation(AttentionSoftmax.attend_in_blocks)

    def has_fused_form(self, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> bool:
        if self.fixed_alpha is None or not is_splash_here(q_BHQC) or unmet(self.fixed_alpha, q_BHQC, keys, bias):
            return False
        causal, n_channels = not keys.is_unmasked, q_BHQC.shape[-1]
        return splash_passes(self.fixed_alpha, causal, str(q_BHQC.device), q_BHQC.dtype, n_channels)

    def why_in_blocks(self, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> str | None:
        if self.fixed_alpha is None or not is_splash_here(q_BHQC):
            return None
        return unmet(self.fixed_alpha, q_BHQC, keys, bias) or "adasplash failed its trial"

    @outside_compilation  # it launches kernels of its own
    def attend_fused(
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
        assert self.fixed_alpha is not None, "has_fused_form has been asked"
        q = q_BHQC * (scale * q_BHQC.shape[-1] ** 0.5)  # the kernels divide by the square root of the channels
        return splash(q, k_BGKC, v_BGKC, self.fixed_alpha, causal=not keys.is_unmasked)


def checked_alpha(alpha: float) -> None:
    """Raises ValueError unless alpha is from 1 to 2, because above 2 the gradient of entmax has no bound.

    dp_j / de_j is proportional to p_j^(2 - alpha): above 2, the smaller the weight of a key, the larger its gradient.
    At alpha 3 the gradients in float32 are wrong by a tenth.
    """
    if not 1 <= alpha <= 2:
        raise ValueError(
            f"alpha={alpha} must lie between 1 (softmax) and 2 (sparsemax); above 2 the gradient grows "
            "without bound as the weight of a key approaches 0"
        )


def splash(q_BHTC: Tensor, k_BGTC: Tensor, v_BGTC: Tensor, alpha: float, *, causal: bool) -> Tensor:
    """The output of alpha-entmax attention, [B, H, T, C], computed by `adasplash`; the logits are q . k / sqrt(C).

    The caller has checked with `unmet` that `adasplash` can compute it.
    """
    length_B = torch.full((q_BHTC.shape[0],), q_BHTC.shape[2], dtype=torch.int32, device=q_BHTC.device)
    if alpha == 1.5 and causal:
        q, k, v = (x.contiguous() for x in (q_BHTC, k_BGTC, v_BGTC))
        out: Tensor = adasplash_v2(q, k, v, niter=SPLASH_ITERATIONS, varlen=length_B)
        return out
    q, k, v = (sdpa.repeated(x, q_BHTC).contiguous() for x in (q_BHTC, k_BGTC, v_BGTC))
    if torch.is_grad_enabled() and not q.requires_grad and (k.requires_grad or v.requires_grad):
        q = q.detach().requires_grad_()  # the kernel prepares gradients only if q requires one
    out = adasplash_v1(q, k, v, alpha=alpha, is_causal=causal, varlen=length_B, niter=SPLASH_ITERATIONS)
    return out


def entmax_function(alpha: float | Tensor, factor: Tensor | None = None) -> RowFunction:
    """alpha-entmax of `factor` times the logits, as a `RowFunction`. If alpha is a tensor, [H], it gets a gradient."""
    if not isinstance(alpha, Tensor) and alpha == 1:
        return RowFunction(kind=Kind.SOFTMAX, factor=factor)
    of_heads = torch.as_tensor(alpha, dtype=torch.float64) if not isinstance(alpha, Tensor) else alpha[:, None, None]
    return RowFunction(kind=Kind.ENTMAX, factor=factor, alpha=of_heads)


def is_splash_here(q_BHQC: Tensor) -> bool:
    return adasplash_v2 is not None and q_BHQC.device.type == "cuda" and torch.version.hip is None


def unmet(alpha: float, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> str | None:
    """Why `adasplash` cannot compute this call; None if it can."""
    if bias is not None:
        return "adasplash takes no bias"
    if keys.n_queries != keys.n_keys or not (keys.is_plain_causal or keys.is_unmasked):
        return "adasplash takes whole sequences without windows or padding"
    if keys.n_queries < SPLASH_TOKENS:
        return f"adasplash takes at least {SPLASH_TOKENS} tokens"
    if q_BHQC.shape[-1] not in SPLASH_CHANNELS:
        return f"adasplash takes {', '.join(map(str, SPLASH_CHANNELS))} channels, not {q_BHQC.shape[-1]}"
    if q_BHQC.dtype not in SPLASH_DTYPES:
        return "adasplash takes float32 and half precision"
    if not SPLASH_ALPHAS[0] <= alpha <= SPLASH_ALPHAS[1]:
        return f"adasplash is tested for alpha between {SPLASH_ALPHAS[0]} and {SPLASH_ALPHAS[1]:g}"
    return None


@once_per_compilation
def splash_passes(alpha: float, causal: bool, device: str, dtype: torch.dtype, n_channels: int) -> bool:
    """Whether `splash` gives the same numbers as `entmax_of` on this device."""

    def definition(q_BHTC: Tensor, k_BGTC: Tensor, v_BGTC: Tensor) -> Tensor:
        k, v = (sdpa.repeated(x, q_BHTC) for x in (k_BGTC, v_BGTC))
        logits = q_BHTC @ k.mT * n_channels**-0.5
        if causal:
            past = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
            logits = logits.masked_fill(~past, -torch.inf)
        return entmax_of(logits, alpha) @ v

    return passes(
        "adasplash",
        lambda q, k, v: splash(q, k, v, alpha, causal=causal),
        definition,
        device=device,
        dtype=dtype,
        n_channels=n_channels,
        variant=(alpha, causal),
        instead="attention runs over blocks of query rows",
    )


def entmax_of(logits: Tensor, alpha: float | Tensor) -> Tensor:
    """alpha-entmax over the last axis: in closed form for alpha 1, 1.5 and 2, else by bisection to the last digit.

    If alpha is a tensor, [H], it holds the alpha of each head and gets a gradient.
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
    """How many of the largest logits `entmax` should sort to find the support of a row; None for all logits.

    A logit has no weight if it is more than 1 / (alpha - 1) below the largest logit. `width` is half of this distance.
    Logits that are more than `width` below the largest rarely have a weight, so only the other logits are counted. If
    the count is too small, `entmax` notices it and sorts twice as many logits. In sparse rows this takes a third of the
    time of sorting all logits; in no row does it take longer.
    """
    n_near = (logits > logits.amax(-1, keepdim=True) - width).sum(-1)
    k = int(n_near.max()) + 1 if n_near.numel() else 1
    return k if 2 * k < logits.shape[-1] else None
