"""The frequencies at which a Hugging Face model rotates: found in its buffers, and replaced there.

Shapes: P channel pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roundround.errors import UserError
from roundround.hf.patching.attention import text_decoder

CHANGING = {"dynamic", "longrope"}  # kinds of RoPE whose frequencies follow the length


def frequency_tables(model: PreTrainedModel) -> list[Tensor]:
    """The buffers from which the decoder's rotary modules compute their angles, radians per token; not copies."""
    return [
        buffer
        for name, buffer in text_decoder(model).named_buffers()
        if name.rpartition(".")[2].endswith("inv_freq") and not name.endswith("original_inv_freq")
    ]


def replace_frequencies(model: PreTrainedModel, tables: Sequence[Tensor]) -> list[Tensor]:
    """Let the model rotate at other frequencies; returns its own. UserError where it computes them anew by itself."""
    for module in text_decoder(model).modules():
        kinds = getattr(module, "rope_type", None)
        changing = CHANGING & set(kinds.values() if isinstance(kinds, dict) else [kinds])
        if changing:
            raise UserError(
                f"{type(model).__name__} computes its frequencies anew for every length (rope_type {changing.pop()}); "
                "they can be looked at, not replaced"
            )
    own = [table.clone() for table in frequency_tables(model)]
    with torch.no_grad():
        for table, new in zip(frequency_tables(model), tables, strict=True):
            table.copy_(new)
    return own
