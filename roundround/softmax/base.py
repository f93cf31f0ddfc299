"""What an attention normaliser is: one definition (`weights`) and one way to run it (`attend`).

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels, D model width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from roundround.interface import AttentionShape, Bias, Keys

LOGITS_PER_BLOCK = 2**23  # 32 MiB of float32: large enough to keep two cores or a GPU busy, small beside a model


class AttentionSoftmax(nn.Module):
    """Base of every normaliser: turns logits into attention weights.

    A variant is one final class: `__init__(self, shape, *, tunables)`, one instance a layer. It defines `weights`, and
    overrides `attend` only with an exact faster form of the same thing.
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape

    def row_parameters(self, x_BTD: Tensor) -> dict[str, Tensor]:
        """What a normaliser reads off each token for its own row, every tensor [B, H, T, 1]; default nothing."""
        return {}

    def weights(self, logits_BHQK: Tensor, visible_B1QK: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The definition: attention weights [B, H, Q, K], in at least float32, zero where not visible.

        `rows` holds `n_visible` (visible keys of each row, int64, [1 or B, 1, Q, 1]) and the `row_parameters`.
        """
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
        """Attention output [B, H, Q, C]: the definition over blocks of query rows, so memory stays linear in length.

        The backward pass computes each block again. `scale` multiplies q . k; a bias is added after that.
        """
        blocks = []
        for a, b in query_blocks(q_BHQC, keys):
            block = (self, q_BHQC, k_BGKC, v_BGKC, scale, keys, bias, rows, a, b)
            keep = torch.is_grad_enabled() and b - a < keys.n_queries
            blocks.append(checkpoint(attend_rows, *block, use_reentrant=False) if keep else attend_rows(*block))
        return torch.cat(blocks, dim=2)


def query_blocks(q_BHQC: Tensor, keys: Keys) -> list[tuple[int, int]]:
    """Ranges of query rows whose logits fit in `LOGITS_PER_BLOCK` elements; at least one row each."""
    rows = max(1, LOGITS_PER_BLOCK // (q_BHQC.shape[0] * q_BHQC.shape[1] * keys.n_keys))
    return [(a, min(a + rows, keys.n_queries)) for a in range(0, keys.n_queries, rows)]


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
    n_groups = q_BHQC.shape[1] // k_BGKC.shape[1]
    k_BHKC = k_BGKC[:, :, first:last].repeat_interleave(n_groups, dim=1)
    v_BHKC = v_BGKC[:, :, first:last].repeat_interleave(n_groups, dim=1)
    logits_BHQK = (q_BHQC[:, :, a:b] * scale) @ k_BHKC.mT
    if bias is not None:
        logits_BHQK = logits_BHQK + bias.block(keys, a, b)
    visible_B1QK = keys.visible(a, b)
    row_block = {name: value[:, :, a:b] for name, value in rows.items()}
    row_block["n_visible"] = visible_B1QK.sum(-1, keepdim=True)
    return softmax.weights(logits_BHQK, visible_B1QK, row_block).to(v_BHKC.dtype) @ v_BHKC
