"""The base class of attention normalisers: each has a definition (`normalise`), some also have an exact faster form.

Shapes: B batch, T tokens, Q queries, K keys, H heads, G key heads, C head channels, D model width.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, cast, final, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels import fused, whole_rows
from roundround.kernels.bias import Bias
from roundround.kernels.blocks import attend_in_blocks, logits_of_rows, query_blocks, rows_between
from roundround.kernels.choose import Form, Path, choose
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.sdpa import fitted
from roundround.kernels.torch_internals import once_per_compilation, outside_compilation
from roundround.kernels.trial import FallsBack
from roundround.kernels.variants import FinalVariants
from roundround.kernels.whole_rows import RowFunction


class RunsInBlocks(FallsBack):
    """Warns once that no fused kernel computes a combination of normaliser and bias exactly."""


Count = Literal["visible", "position"]


def checked_count(count: str) -> Count:
    """The count if it is a value of `AttentionSoftmax.count`. Raises ValueError for any other value."""
    if count not in get_args(Count):
        raise ValueError(f"count={count} must be {' or '.join(get_args(Count))}")
    return cast("Count", count)


class AttentionSoftmax(FinalVariants, nn.Module):
    """Base of every normaliser: turns logits into attention weights.

    A variant is one final class: `__init__(self, shape, *, tunables)`, with one instance for each layer. It defines
    `normalise`. A variant with an exact faster form also defines `has_fused_form` and `attend_fused`. A variant that
    attends only to the latest tokens sets `window`; the definition and the faster form then get only the keys in the
    window. `forward` is final, so that PyTorch's forward hooks see the queries, keys and values of every layer.

    window: the number of tokens that a query sees: the query's own token and the tokens before it; None for all keys
    that the model allows. count: the meaning of `n_visible`. With `visible`, `n_visible` is the number of visible keys;
    with `position`, it is the number of keys that the query would see without windows and chunks.
    sums_to_one: whether the weights of a row with a visible key always sum to one.
    orders_keys: whether the weights depend on the order of the keys, so that a layer takes no encoding beside it.
    cost_in_blocks: the time of a forward pass over blocks of rows at 4,096 tokens, as a multiple of the time that the
    fused softmax takes (docs/inside/benchmarks.md).
    """

    window: int | None = None
    count: Count = "visible"
    sums_to_one: ClassVar[bool] = True
    orders_keys: ClassVar[bool] = False
    cost_in_blocks: ClassVar[float]
    form: ClassVar[Form] = Form.OWN

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "forward" in vars(cls):
            raise TypeError(
                f"{cls.__name__} overrides forward, which is final; a normaliser can set window, and it defines "
                "normalise and, for a fast form, has_fused_form and attend_fused"
            )

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape

    def narrowed(self, keys: Keys) -> Keys:
        """The keys within `window`, which this normaliser reads.

        With several documents, it returns all keys, because the window is applied to each document later.
        """
        return keys if self.window is None or keys.documents is not None else keys.within(self.window)

    def n_counted(self, keys: Keys) -> Tensor:
        """The number of keys of each row, as `count` defines it, [1 or B, 1, Q, 1], int64."""
        if self.count == "position":
            return replace(keys, window=None, chunk=None).counts(0, keys.n_queries) + keys.n_forgotten
        return keys.counts(0, keys.n_queries)

    def counted(self, rows: Mapping[str, Tensor], keys: Keys) -> Mapping[str, Tensor]:
        """The row parameters; if `count` is not `visible`, `n_visible` is added to them."""
        if self.count == "visible" or "n_visible" in rows:
            return rows
        return {**rows, "n_visible": self.n_counted(keys)}

    @final  # type: ignore[misc]  # torch declares an attribute
    def forward(
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
        """Attention output [B, H, Q, C]. The memory that is used grows linearly with the length.

        If possible, whole_rows.cpp (on a CPU) or a fused kernel computes the output. Otherwise the definition is
        computed over blocks of rows.

        `scale` multiplies q . k; then the bias is added. `rows` are the `row_parameters`.
        """
        rows = self.counted(rows, keys)
        together = self.window is None and not keys.is_local and self.path(q_BHQC, keys, bias) is Path.DOCUMENTS
        if keys.documents is not None and not together:
            return self.attend_documents(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias, rows=rows)
        keys = self.narrowed(keys)
        function = self.row_function(rows, keys, bias) if whole_rows.fits(q_BHQC, keys, bias) else None
        if function is not None and whole_rows.library() is not None:
            return whole_rows.attention(q_BHQC, k_BGKC, v_BGKC, function=function, scale=scale, keys=keys, bias=bias)
        if self.has_fused_form(q_BHQC, keys, bias):
            n_channels, dtype = v_BGKC.shape[-1], q_BHQC.dtype
            q_BHQC, k_BGKC, v_BGKC = fitted(q_BHQC, k_BGKC, v_BGKC)
            q_BHQC, k_BGKC, broken_BHQ1 = fused.without_broken_rows(q_BHQC, k_BGKC, scale, keys)
            out = self.attend_fused(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias, rows=rows)
            out = out[..., :n_channels].to(dtype)
            return out if broken_BHQ1 is None else out + torch.where(broken_BHQ1, torch.nan, 0.0).to(out.dtype)
        combination = type(self).__name__ + (f" with {type(bias).__name__}" if bias is not None else "")
        why = self.why_in_blocks(q_BHQC, keys, bias)
        here = "" if why is None else f" here ({why})"
        announce(
            f"{combination} has no exact fused form{here}: attention runs over blocks of query rows, its memory linear "
            f"in length, its time about {self.cost_in_blocks:g} times the fused softmax's"
            + (" and what the bias takes" if bias is not None else "")
        )
        return self.attend_in_blocks(q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias, rows=rows)

    def row_parameters(self, x_BTD: Tensor) -> dict[str, Tensor]:
        """The numbers that a normaliser computes from each token for that token's row; default none.

        Every tensor is [B, H, T, 1], or has fewer heads if only some heads need the number.
        """
        return {}

    def normalise(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The formula: the weights for float32 or float64 logits. The caller sets the weights of invisible keys to 0.

        `rows` holds `n_visible`, the result of `n_counted` (int64, [1 or B, 1, Q, 1]), and the `row_parameters`.
        """
        raise NotImplementedError

    def weights(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The definition: attention weights [B, H, Q, K], in at least float32, zero at keys that are not visible.

        If a visible logit is not finite, its whole row is NaN, so that a broken model gives no plausible weights.
        """
        wide_BHQK = at_least_float32(logits_BHQK)
        alpha_BHQK = self.normalise(wide_BHQK, visible_B1QK, rows).masked_fill(~visible_B1QK, 0.0)
        # 0 if the logits are finite; their sum overflows only if they are about 1e30
        nan_if_broken_BHQ1 = 0.0 * wide_BHQK.detach().masked_fill(~visible_B1QK, 0.0).sum(-1, keepdim=True)
        return alpha_BHQK + nan_if_broken_BHQ1

    def all_weights(
        self, q_BHQC: Tensor, k_BGKC: Tensor, *, scale: float, keys: Keys, bias: Bias | None, rows: Mapping[str, Tensor]
    ) -> Tensor:
        """The weights of every query and key, [B, H, Q, K]. Their memory is Q x K numbers for each head."""
        rows, keys, blocks = self.counted(rows, keys), self.narrowed(keys), []
        for a, b in query_blocks(q_BHQC, keys, bias):
            logits_BHQK, visible_B1QK = logits_of_rows(q_BHQC, k_BGKC, scale, keys, bias, a, b)
            alpha_BHQK = self.weights(logits_BHQK, visible_B1QK, rows_between(rows, visible_B1QK, a, b))
            first, last = keys.span(a, b)
            blocks.append(F.pad(alpha_BHQK, (first, keys.n_keys - last)))
        return torch.cat(blocks, 2)

    def row_function(self, rows: Mapping[str, Tensor], keys: Keys, bias: Bias | None) -> RowFunction | None:
        """The definition as a `RowFunction` for whole_rows.cpp, which computes it on a CPU; default None.

        `rows` are the `row_parameters`. A variant returns None if a kernel of PyTorch computes this call.
        """
        return None

    def path(self, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> Path | None:
        """The result of `choose` for this call; None if `form` is `Form.OWN`."""
        return None if self.form is Form.OWN else choose(self.form, q_BHQC, keys, bias)

    def has_fused_form(self, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> bool:
        """Whether `attend_fused` computes this call exactly on this device; by default `path` decides it."""
        return self.path(q_BHQC, keys, bias) is not None

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
        """The definition in a fused form, for finite queries and keys; `rows` are the `row_parameters`."""
        raise NotImplementedError

    @outside_compilation  # the number and the sizes of the groups depend on the documents
    def attend_documents(
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
        """Attention within each document; documents of similar length are computed together."""
        documents, groups = keys.documents, keys.of_groups()
        assert documents is not None, "of_groups has asked"
        parts = zip(*(documents.split(x) for x in (q_BHQC, k_BGKC, v_BGKC)), groups, strict=True)
        biases = [None] * len(groups) if bias is None else bias.of_groups(documents)
        split = {name: documents.split(value) for name, value in rows.items()}
        outs = []
        for i, (q, k, v, keys_of_group) in enumerate(parts):
            own = {name: values[i] for name, values in split.items()}
            outs.append(self.forward(q, k, v, scale=scale, keys=keys_of_group, bias=biases[i], rows=own))
        return documents.joined(outs)

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
        """The definition over blocks of rows, even if there is a fused form."""

        def weights_of_rows(logits_BHQK: Tensor, visible_B1QK: Tensor, texts: slice, a: int, b: int) -> Tensor:
            of_texts = {name: value if len(value) == 1 else value[texts] for name, value in rows.items()}
            return self.weights(logits_BHQK, visible_B1QK, rows_between(of_texts, visible_B1QK, a, b))

        return attend_in_blocks(weights_of_rows, q_BHQC, k_BGKC, v_BGKC, scale=scale, keys=keys, bias=bias)

    def why_in_blocks(self, q_BHQC: Tensor, keys: Keys, bias: Bias | None) -> str | None:
        """Why this call has no fused form, if other calls have one; default None.

        The text must not contain numbers that differ between calls, because each new text causes another warning.
        """
        return None


@once_per_compilation
def announce(message: str) -> None:
    warnings.warn(message, RunsInBlocks, stacklevel=4)


def softmax_over_visible(logits_BHQK: Tensor, visible_B1QK: Tensor) -> Tensor:
    """exp(e_j) / sum_l exp(e_l) over the visible keys; NaN in a row without a visible key."""
    return logits_BHQK.masked_fill(~visible_B1QK, -torch.inf).softmax(-1)


def exp_or_zero(x: Tensor) -> Tensor:
    """exp(x), and 0 below -80: near and below the smallest float32, exp takes up to thirty times as long on a CPU."""
    return F.threshold(x.clamp(min=-80.0).exp(), 2e-35, 0.0)
