"""Contextual positions.

Shapes: B batch, Q queries, K keys, H heads, C head channels, N positions with an embedding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from roundround.kernels.bias import Bias
from roundround.kernels.documents import Documents
from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.pe.base import PositionalEncoding


class ContextualBias(Bias):
    """Adds q . e[p], where p counts the tokens from the key to the query that the query's gates let through."""

    def __init__(self, q_BHQC: Tensor, embeddings_NC: Tensor) -> None:
        self.q_BHQC, self.embeddings_NC = q_BHQC, embeddings_NC
        self.n_hidden = 8 * q_BHQC.shape[1]  # gates, positions, two indices of 64 bits and two numbers, for each head

    def applied(self, logits_BHQK: Tensor, keys: Keys, a: int, b: int) -> Tensor:
        seen_B1QK = replace(keys, causal=True).visible_to(
            torch.arange(a, b, device=logits_BHQK.device), *keys.span(a, b)
        )
        gates_BHQK = logits_BHQK.sigmoid().masked_fill(~seen_B1QK, 0.0)
        largest = len(self.embeddings_NC) - 1
        p_BHQK = gates_BHQK.flip(-1).cumsum(-1).flip(-1).clamp(max=largest)
        with torch.autocast(logits_BHQK.device.type, enabled=False):
            q_BHQC, embeddings_NC = (x.to(logits_BHQK.dtype) for x in (self.q_BHQC[:, :, a:b], self.embeddings_NC))
            at_each_BHQN = q_BHQC @ embeddings_NC.mT
        below_BHQK = p_BHQK.detach().long()
        low, high = (at_each_BHQN.gather(-1, i) for i in (below_BHQK, (below_BHQK + 1).clamp(max=largest)))
        return logits_BHQK + torch.lerp(low, high, p_BHQK - below_BHQK)

    def of_groups(self, documents: Documents) -> list[Bias]:
        return [ContextualBias(q_MHLC, self.embeddings_NC) for q_MHLC in documents.split(self.q_BHQC)]


@final
class ContextualPosition(PositionalEncoding):
    """Counts positions by content: each query decides for every key whether it counts, and embeds the sum.

    e_ij <- e_ij + q_i . E[p_ij], p_ij = min(sum_{j <= l <= i} sigmoid(e_il), N - 1), interpolated between two rows of E

    Golovneva et al. 2024, arXiv:2405.18719, section 4 and appendix B (CoPE; clipped RoPE, which is `pe=clipped_rope`,
    has the same short name).

    `n_positions`: N. E starts at 0, so a model begins as NoPE; the heads of a layer share it. Hidden keys have the gate
    0. Here q is not scaled, while e is q . k / sqrt(C), as in the authors' code.
    """

    per_layer: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape, *, n_positions: int) -> None:
        super().__init__(shape)
        if n_positions < 1:
            raise ValueError(f"n_positions={n_positions} must be at least 1")
        self.embeddings = nn.Parameter(torch.empty(n_positions, shape.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.embeddings)

    def bias(self, q_BHTC: Tensor, k_BGTC: Tensor, prepared: Any) -> ContextualBias:
        own_BHTC = q_BHTC[..., -self.shape.head_dim :]  # in latent attention other channels stand before the encoding's
        return ContextualBias(own_BHTC, at_least_float32(self.embeddings))
