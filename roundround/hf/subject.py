"""A Hugging Face model as the subject of a probe.

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from roundround.errors import UserError
from roundround.hf.attention import normalisers_of
from roundround.probing.subject import Subject


@final
class HuggingFaceModel(Subject):
    """A model inside `attention.installed`, with its tokenizer.

    Every text begins with the tokenizer's beginning-of-sequence token where it has one.
    """

    def __init__(self, name: str, model: PreTrainedModel, tokenizer: Any) -> None:
        first = None if tokenizer is None else tokenizer.bos_token_id
        normalisers = normalisers_of(model)
        super().__init__(name, model, normalisers, first, normalisers[0].shape.train_length)
        self.pretrained, self.tokenizer = model, tokenizer
        if not frequency_tables(model):
            raise UserError(f"{name} ({type(model).__name__}) has no RoPE; there are no frequencies to probe")

    @property
    def device(self) -> torch.device:
        device = self.pretrained.get_input_embeddings().weight.device
        return torch.device("cpu") if device.type == "meta" else device

    def tables(self) -> list[Tensor]:
        return [table.detach().double().cpu() for table in frequency_tables(self.pretrained)]

    def text_tokens(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([token]) for token in tokens]

    def hidden(self, tokens_BT: Tensor, pos_BT: Tensor) -> Tensor:
        out = self.pretrained.base_model(input_ids=tokens_BT, position_ids=pos_BT.expand_as(tokens_BT), use_cache=False)
        hidden_BTD: Tensor = out.last_hidden_state
        return hidden_BTD

    def nats(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        logits_BTV = self.pretrained(input_ids=tokens_BT, use_cache=False).logits
        return F.cross_entropy(logits_BTV.float().transpose(1, 2), targets_BT, reduction="none")

    @contextmanager
    def turning_at(self, tables: Sequence[Tensor]) -> Iterator[None]:
        own = frequency_tables(self.pretrained)
        kept = [table.clone() for table in own]
        try:
            for table, new in zip(own, tables, strict=True):
                table.copy_(new)
            yield
        finally:
            for table, old in zip(own, kept, strict=True):
                table.copy_(old)


def pretrained(model: object) -> PreTrainedModel:
    """The model, if it is one of Hugging Face's; else UserError."""
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"this takes a loaded Hugging Face decoder, not a {type(model).__name__}")
    return model


def frequency_tables(model: PreTrainedModel) -> list[Tensor]:
    """The buffers from which the model's rotary modules compute their angles, radians per token; not copies."""
    return [
        buffer
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2].endswith("inv_freq") and not name.endswith("original_inv_freq")
    ]
