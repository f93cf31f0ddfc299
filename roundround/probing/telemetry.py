"""What attention does while a model trains: a few rows of one text, by layer.

Shapes: B batch, T tokens, Q queries, K keys, H heads.

Tested by tests/training/test_telemetry.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows, rows_between
from roundround.kernels.precision import at_least_float32
from roundround.kernels.row_measures import entropy_of_weights, extreme_logits
from roundround.model.decoder import Decoder
from roundround.probing.probed_model import watching
from roundround.softmax.base import AttentionSoftmax

BLOCKS, ROWS = 8, 32  # blocks of so many rows each, spread over the text evenly


@torch.no_grad()
def attention_statistics(decoder: Decoder, tokens_1T: Tensor, *, step: Any) -> dict[str, float]:
    """One forward pass of a text, and what is then seen of at most BLOCKS * ROWS of its rows, all heads of a layer.

    largest_logit: of all rows and visible keys, scale q . k with its bias and before any temperature.
    attention_entropy: the mean of the weights' entropies in nats; weights that do not sum to one are first made to.
    first_token_share: the mean weight of the text's first token, over the rows but its own; 0 where a window hides it.
    Each is named with its layer. Nothing of the model changes; `step` is that of the training step.
    """
    found: dict[str, float] = {}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        q_BHQC, k_BGKC, keys, rows = qkv[0], qkv[1], options["keys"], options["rows"]
        largest, entropies, shares = [], [], []
        for a, b in spread_blocks(keys.n_queries):
            logits, visible = logits_of_rows(q_BHQC, k_BGKC, options["scale"], keys, options["bias"], a, b)
            logits = at_least_float32(logits)
            alpha_BHQK = softmax.weights(logits, visible, rows_between(rows, visible, a, b))
            largest.append(extreme_logits(logits, visible)[0].amax())
            entropies.append(entropy_of_weights(alpha_BHQK).flatten())
            first = alpha_BHQK[..., 0] if keys.span(a, b)[0] == 0 else torch.zeros_like(alpha_BHQK[..., 0])
            shares.append(first[..., 1 if a == 0 else 0 :].flatten())
        numbers = {
            "largest_logit": torch.stack(largest).amax(),
            "attention_entropy": torch.cat(entropies).mean(),
            "first_token_share": torch.cat(shares).mean(),
        }
        found.update({f"{name}_layer_{softmax.shape.layer}": float(value) for name, value in numbers.items()})

    with watching([module for module in decoder.modules() if isinstance(module, AttentionSoftmax)], take_in):
        decoder.hidden(tokens_1T, step=step)
    return found


def spread_blocks(n: int) -> list[tuple[int, int]]:
    """All n rows where they are few, else BLOCKS blocks of ROWS rows, the first at the start, the last at the end."""
    if n <= BLOCKS * ROWS:
        return [(0, n)]
    return [(a := round(i * (n - ROWS) / (BLOCKS - 1)), a + ROWS) for i in range(BLOCKS)]
