"""One short prompt, looked at whole: chunk norms of every token, logits and weights of every head.

It rides along with the first texts of a probe, so that the weights pass through the model once.
Shapes: T tokens, H heads, G key heads, C head channels, P pairs.

Tested by tests/probing/test_probe.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roundround.attention.blocks import logits_of_rows, rows_between
from roundround.attention.kernels import repeated
from roundround.attention.keys import Keys
from roundround.attention.precision import at_least_float32
from roundround.probing.layout import Layout
from roundround.probing.norms import stacked
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError

LONGEST = 256  # tokens: everything is kept, so a prompt is short


@dataclass(frozen=True)
class LayerRecord:
    """One layer: chunk norms [H, T, P] and [G, T, P], scaled logits and weights [H, T, T], whole norms [H, T]."""

    query_norms: Tensor
    key_norms: Tensor
    logits: Tensor
    weights: Tensor
    bound: Tensor  # scale |q_i| |k_j|: no logit exceeds it (Cauchy-Schwarz), [H, T, T]


@dataclass(frozen=True)
class PromptRecord:
    """A prompt's tokens as words, and what every layer does with them."""

    words: list[str]
    layers: list[LayerRecord]

    def alignment(self, layer: int, head: int) -> dict[str, list[float | None]]:
        """How near to their bounds a head's logits on itself and on the token before come, token by token.

        Barbero et al. 2024, arXiv:2410.06205, tables 3 to 5. `bound` is |q_t| |k_t|; `previous` is the logit of query t
        on key t - 1 and `bound_previous` its own bound; `next` is the logit of query t + 1 on key t, which is how the
        paper's column may be read.
        """
        record = self.layers[layer]
        logits, bound = record.logits[head], record.bound[head]
        below, bound_below = logits.diagonal(-1).tolist(), bound.diagonal(-1).tolist()
        return {
            "bound": bound.diagonal().tolist(),
            "diagonal": logits.diagonal().tolist(),
            "previous": [None, *below],
            "bound_previous": [None, *bound_below],
            "next": [*below, None],
        }

    def arrays(self) -> dict[str, Tensor]:
        """query_norms [L, H, T, P], key_norms [L, G, T, P], logits and weights [L, H, T, T], float32."""
        names = ("query_norms", "key_norms", "logits", "weights", "bound")
        return {name: stacked([getattr(layer, name) for layer in self.layers]) for name in names}


def check_prompt(tokens: Sequence[int]) -> None:
    """UserError for fewer than 2 or more than LONGEST tokens."""
    if not 2 <= len(tokens) <= LONGEST:
        raise UserError(f"the prompt has {len(tokens)} tokens; from 2 to {LONGEST} can be looked at whole")


def record_layer(
    softmax: AttentionSoftmax,
    layout: Layout,
    q_HTC: Tensor,
    k_GTC: Tensor,
    *,
    scale: float,
    keys: Keys,
    rows: Mapping[str, Tensor],
) -> LayerRecord:
    """What a layer does with the prompt; `rows` are its row parameters, [1, H, T, 1]."""
    n = q_HTC.shape[1]
    q, k = at_least_float32(q_HTC)[None], at_least_float32(k_GTC)[None]
    logits, visible = logits_of_rows(q, k, scale, keys, None, 0, n)
    weights = softmax.weights(logits, visible, rows_between(rows, visible, 0, n))
    lengths = q.norm(dim=-1)[..., None] * repeated(k, q).norm(dim=-1)[..., None, :] * abs(scale)
    found = (layout.norms(q), layout.norms(k), logits.masked_fill(~visible, torch.nan), weights, lengths)
    return LayerRecord(*(x[0].float().cpu() for x in found))
