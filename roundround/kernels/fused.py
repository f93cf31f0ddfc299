"""Fused attention with features that `F.scaled_dot_product_attention` lacks, and the entropy of attention rows.

The features are windows, padding, caches, linear biases (ALiBi, FoX) and null keys. No matrix of logits is made: see
`tiled_attention.py`.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/softmax/test_softmax.py and tests/softmax/test_normalisers.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from roundround.kernels import sdpa
from roundround.kernels.bias import LinearBias
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32, wide_dtype
from roundround.kernels.sdpa import fitted
from roundround.kernels.tiled_attention import EntropyScaledAttention, TiledAttention, centre_of_keys, for_entropy
from roundround.kernels.torch_internals import outside_compilation

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # then Triton's kernels run on a CPU, for tests


def attention(
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    *,
    scale: float,
    keys: Keys,
    bias: LinearBias | None = None,
    null_BHQ: Tensor | None = None,
) -> Tensor:
    """Softmax attention [B, H, Q, C] over the visible keys, with memory linear in length and exact gradients.

    bias: the bias that is added to the logits.
    null_BHQ: the logit of a null key, whose value is zero, for each head or row, [1 or B, H, 1 or Q], or None.

    A row that sees nothing is zero. Queries and keys must be finite: see `without_broken_rows`.
    """
    if keys.documents is not None:
        assert bias is None, "`choose` gives no kernel to documents with a bias"
        assert null_BHQ is None, "no kernel for documents takes a null key"
        return sdpa.attention_of_documents(q_BHQC, k_BGKC, v_BGKC, scale, keys.documents)
    if bias is None and null_BHQ is None and (keys.is_plain_causal or keys.is_unmasked):
        return sdpa.scaled_dot_product_attention(q_BHQC, k_BGKC, v_BGKC, scale, causal=not keys.is_unmasked)
    out: Tensor = attention_by_tiles(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias, null_BHQ=null_BHQ)[0]
    return out


def entropy(q_BHQC: Tensor, k_BGKC: Tensor, *, scale: float, keys: Keys, bias: LinearBias | None = None) -> Tensor:
    """Shannon entropy in nats of the softmax of each row, [B, H, Q, 1], at least float32, from one fused pass.

    On a CPU the pass computes in at least float32. On CUDA, without a bias, `entropy_kernel.py` computes the entropy in
    float32. In all other cases, half precision has the error that `for_entropy` states.

    Without that kernel: H = log-sum-exp - E_p[e]. The mean logit E_p[e] is scale q . E_p[k] + slope E_p[t_j - t_i],
    where t are the coordinates of a linear bias (`LinearTerms`). One call of attention with the keys as values gives
    E_p[k]. In this formula only the weights p pass a gradient. This gradient is the exact derivative
    dH/de_j = -p_j (e_j - E_p[e]), and it also reaches slopes and coordinates.
    """
    return entropy_and_log_sum_exp(q_BHQC, k_BGKC, scale=scale, keys=keys, bias=bias)[0]


def entropy_and_log_sum_exp(
    q_BHQC: Tensor, k_BGKC: Tensor, *, scale: float, keys: Keys, bias: LinearBias | None = None
) -> tuple[Tensor, Tensor]:
    """The result of `entropy`, and the log-sum-exp of each row, [B, H, Q, 1]; only the entropy passes a gradient."""
    q_BHQC, k_BGKC = fitted(q_BHQC, k_BGKC)
    if bias is None and has_entropy_kernel(q_BHQC, keys):
        return entropy_by_kernel(q_BHQC, k_BGKC, scale, keys)
    if bias is not None:  # `attention_by_tiles` runs in float32 then
        q_BHQC, k_BGKC = at_least_float32(q_BHQC), at_least_float32(k_BGKC)
    centre_BG1C = centre_of_keys(k_BGKC, keys)
    q_BHQC, k_BGKC = for_entropy(q_BHQC, k_BGKC, centre_BG1C)
    mean_key, log_sum_exp, mean_distance = attention_by_tiles(
        q_BHQC, k_BGKC, k_BGKC.detach(), scale=scale, keys=keys, bias=bias
    )
    wide = log_sum_exp.dtype
    with torch.autocast(q_BHQC.device.type, enabled=False):
        mean_logit = scale * torch.linalg.vecdot(q_BHQC.detach().to(wide), mean_key.to(wide))[..., None]
        if bias is not None:
            mean_logit = mean_logit + bias.slopes.detach() * mean_distance
        entropy_BHQ1 = log_sum_exp - mean_logit
        if centre_BG1C is not None:
            shift = scale * torch.linalg.vecdot(q_BHQC.detach().to(wide), sdpa.repeated(centre_BG1C, q_BHQC))
            sees_nothing = keys.counts(0, keys.n_queries) == 0  # the log-sum-exp of such a row is 0
            log_sum_exp = log_sum_exp + shift[..., None].masked_fill(sees_nothing, 0.0)
    return entropy_BHQ1, log_sum_exp


@outside_compilation  # for the same reason as `attention_by_tiles`
def attention_by_entropy(
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    *,
    scale: float,
    keys: Keys,
    beta_of: Callable[[Tensor], Tensor],
) -> Tensor:
    """`attention` with the queries `beta_of(entropy) * q`, with gradients through the entropy.

    It takes less memory than a call of `entropy` followed by a call of `attention`.

    beta_of: a function without parameters, from each row's entropy to its inverse temperature, both [B, H, Q, 1].
    """
    with torch.autocast(q_BHQC.device.type, enabled=False):
        if has_entropy_kernel(q_BHQC, keys):
            beta = beta_of(entropy_by_kernel(q_BHQC, k_BGKC, scale, keys)[0])
            return attention((q_BHQC * beta).to(q_BHQC.dtype), k_BGKC, v_BGKC, scale=scale, keys=keys)
        return cast("Tensor", EntropyScaledAttention.apply(q_BHQC, k_BGKC, v_BGKC, beta_of, scale, keys))  # type: ignore[no-untyped-call]


def has_entropy_kernel(q_BHQC: Tensor, keys: Keys) -> bool:
    """Whether `entropy_kernel.py` computes the entropy of these rows. Triton is imported only where it can run."""
    if q_BHQC.device.type != "cuda" and not INTERPRETED:
        return False
    from roundround.kernels import entropy_kernel

    return entropy_kernel.serves(q_BHQC, keys)


@outside_compilation  # it launches kernels of its own
def entropy_by_kernel(q_BHQC: Tensor, k_BGKC: Tensor, scale: float, keys: Keys) -> tuple[Tensor, Tensor]:
    """Entropy and log-sum-exp of each row, [B, H, Q, 1] float32; the log-sum-exp passes no gradient."""
    from roundround.kernels.entropy_kernel import RowEntropy

    found = RowEntropy.apply(q_BHQC, k_BGKC.to(q_BHQC.dtype), scale, keys)  # type: ignore[no-untyped-call]
    entropy, log_sum_exp = cast("tuple[Tensor, Tensor]", found)
    return entropy[..., None], log_sum_exp[..., None]


@outside_compilation  # tiles are chosen by reading numbers
def attention_by_tiles(
    q_BHQC: Tensor,
    k_BGKC: Tensor,
    v_BGKC: Tensor,
    *,
    scale: float,
    keys: Keys,
    bias: LinearBias | None = None,
    null_BHQ: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output [B, H, Q, C], log-sum-exp [B, H, Q, 1] and, with a bias, the row's mean distance [B, H, Q, 1].

    The mean distance is E_p[t_j - t_i], with the bias's coordinates t (`LinearTerms`) and the weights p. The
    log-sum-exp passes no gradient; it is 0 for a row that sees nothing.
    """
    device, dtype = q_BHQC.device.type, q_BHQC.dtype
    slopes = t_q = t_k = None
    if bias is not None:  # bfloat16 counts exactly only to 256
        dtype = wide_dtype(dtype)
        slopes, (t_q, t_k) = bias.slopes.to(dtype).expand(*q_BHQC.shape[:3], 1), bias.coordinates(keys)
    q, k, v = (x.to(dtype) for x in (q_BHQC, k_BGKC, v_BGKC))
    with torch.autocast(device, enabled=False):
        merged = TiledAttention.apply(q, k, v, slopes, t_q, t_k, null_BHQ, scale, keys)  # type: ignore[no-untyped-call]
    out, log_sum_exp, mean_distance = cast("tuple[Tensor, Tensor, Tensor]", merged)
    return out.to(q_BHQC.dtype), log_sum_exp[..., None], mean_distance


def without_broken_rows(
    q_BHQC: Tensor, k_BGKC: Tensor, scale: float, keys: Keys
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries and keys made finite for a kernel, and a mask [B, H, Q, 1], True at the rows whose output must be NaN.

    The mask is None if all logits are known to be finite. A row is broken if one of its visible logits is not finite.
    The kernels would not show this: on a CPU a row of NaN logits gives zeros, a key of -inf acts as a hidden key, and a
    hidden key of NaN spoils other rows.
    """
    if (
        q_BHQC.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and all_logits_finite(q_BHQC, k_BGKC, scale, keys)
    ):
        return q_BHQC, k_BGKC, None  # on a GPU, reading a number would wait for the device
    with torch.no_grad():
        # a bound on the norm is enough; in the norm itself the squares would overflow much sooner
        wide, root = wide_dtype(q_BHQC.dtype), math.sqrt(q_BHQC.shape[-1])
        q_norm_BHQ = q_BHQC.abs().amax(-1).to(wide) * (root * scale)
        k_norm_BGK = k_BGKC.abs().amax(-1).to(wide) * root
        finite_BHQ = q_norm_BHQ.nan_to_num(0.0, 0.0, 0.0)
        longest_BGQ = finite_BHQ.reshape(len(q_BHQC), k_BGKC.shape[1], -1, q_BHQC.shape[2]).amax(2)
        bad_q_BHQ1 = ~q_norm_BHQ.isfinite()[..., None]
        bad_k_BGK = ~(k_norm_BGK * of_those_that_see(longest_BGQ, keys)).isfinite()
        sees_bad_BHQ1 = sdpa.repeated(keys.counts(0, keys.n_queries, bad_k_BGK) > 0, q_BHQC)
        broken_BHQ1 = (bad_q_BHQ1 & (keys.counts(0, keys.n_queries) > 0)) | sees_bad_BHQ1
    return q_BHQC.masked_fill(bad_q_BHQ1, 0.0), k_BGKC.masked_fill(bad_k_BGK[..., None], 0.0), broken_BHQ1


def of_those_that_see(longest_BGQ: Tensor, keys: Keys) -> Tensor:
    """For each key, the largest norm of a query that sees the key, [B, G, K].

    Without a causal mask the result is the largest norm of all queries, [B, G, 1]. The mask matters for xPos: products
    of late keys with the first queries overflow, but the first queries do not see late keys.
    longest_BGQ: for each key head and row, the largest norm of a query among the key head's query heads.
    """
    if not keys.causal:
        return longest_BGQ.amax(-1, keepdim=True)
    behind_BGQ = longest_BGQ.flip(-1).cummax(-1).values.flip(-1)
    n_before = keys.n_keys - keys.n_queries  # keys of a cache, which all queries may see
    return torch.cat([behind_BGQ[..., :1].expand(*behind_BGQ.shape[:-1], n_before), behind_BGQ], -1)


@torch.no_grad()
def all_logits_finite(q_BHQC: Tensor, k_BGKC: Tensor, scale: float, keys: Keys) -> bool:
    """Whether the product of the norms of q and k, which bounds every logit (Cauchy-Schwarz), is finite."""
    wide = wide_dtype(q_BHQC.dtype)
    q_norm = torch.linalg.vector_norm(q_BHQC, dtype=wide)
    if keys.k_norm is not None:
        return float(q_norm) * keys.k_norm * scale < torch.finfo(wide).max  # False if one of them is NaN
    return math.isfinite(float(q_norm * torch.linalg.vector_norm(k_BGKC, dtype=wide) * scale))
