"""A Hugging Face model as a probe looks at it.

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

from roundround.attention.precision import at_least_float32
from roundround.data.tokenizers import Vocabulary, vocabulary_of
from roundround.loading.patching.attention import normalisers_of, text_decoder
from roundround.loading.patching.frequencies import frequency_tables, places, replace_frequencies, replace_rotations
from roundround.probing.probed_model import ProbedModel
from roundround.support.errors import UserError

LOGITS_AT_ONCE = 2**27  # half a GiB of float32


@final
class ProbedHuggingFaceModel(ProbedModel):
    """A model inside `attention.installed`, with its tokenizer.

    Every text begins with the beginning-of-sequence token where the tokenizer puts one by itself. Text that spells a
    special token is that token, as in transformers, unless `reads_special_tokens` is False.
    """

    def __init__(self, name: str, model: PreTrainedModel, tokenizer: Any, *, reads_special_tokens: bool = True) -> None:
        normalisers = normalisers_of(model)
        super().__init__(name, model, normalisers, first_token_of(tokenizer), normalisers[0].shape.train_length)
        self.pretrained, self.tokenizer, self.decoder = model, tokenizer, text_decoder(model)
        self.reads_special_tokens = reads_special_tokens
        if not frequency_tables(model):
            raise UserError(f"{name} ({type(model).__name__}) has no RoPE; there are no frequencies to probe")

    @property
    def device(self) -> torch.device:
        device = self.pretrained.get_input_embeddings().weight.device
        return torch.device("cpu") if device.type == "meta" else device

    def tables(self) -> list[Tensor]:
        return [table.detach().double().cpu() for table in frequency_tables(self.pretrained)]

    @property
    def theta(self) -> float | list[float]:
        bases = list(dict.fromkeys(place.theta for place in places(self.pretrained)))
        return bases if len(bases) > 1 else bases[0]

    def windows(self) -> list[int | None]:
        config = self.pretrained.config.get_text_config().to_dict()
        window, kinds = config.get("sliding_window"), config.get("layer_types")
        found = [window] * len(self.normalisers)
        if kinds is not None:
            found = [window if kind == "sliding_attention" else None for kind in kinds[: len(self.normalisers)]]
        both = [[w for w in (own, s.window) if w is not None] for own, s in zip(found, self.normalisers, strict=True)]
        return [min(windows, default=None) for windows in both]

    def text_tokens(self, text: str) -> list[int]:
        plain = not self.reads_special_tokens
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=plain).input_ids)

    def vocabulary(self) -> Vocabulary:
        """Its tokenizer, with the token that joins documents: the one before every text, else the end of a sequence."""
        reads = self.reads_special_tokens
        return vocabulary_of(self.tokenizer, self.name, self.first_token, reads_special_tokens=reads)

    def words(self, tokens: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([token]) for token in tokens]

    def hidden(self, tokens_BT: Tensor, pos_BT: Tensor) -> Tensor:
        hidden_BTD: Tensor | None = getattr(self.decoded(tokens_BT, pos_BT), "last_hidden_state", None)
        if hidden_BTD is None:
            raise UserError(f"{type(self.pretrained).__name__} has no text decoder of a known form inside")
        return hidden_BTD

    def decoded(self, tokens_BT: Tensor, pos_BT: Tensor) -> Any:
        """What the decoder returns for tokens at these positions; UserError where it cannot take our mask."""
        return self.decoder(input_ids=tokens_BT, position_ids=pos_BT.expand_as(tokens_BT), use_cache=False)

    def token_loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        n_vocab = self.pretrained.get_input_embeddings().num_embeddings
        at_once = max(1, LOGITS_AT_ONCE // (n_vocab * len(tokens_BT)))
        pos_1T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        decoded = self.decoded(tokens_BT, pos_1T)
        blocks = []
        for a in range(0, tokens_BT.shape[1], at_once):
            logits_NV = at_least_float32(self.head(tokens_BT, decoded, slice(a, a + at_once))).flatten(0, 1)
            targets_BN = targets_BT[:, a : a + at_once]
            # classes last: with classes in the middle they are added one by one, too low by 4e-4 nats at 262,144
            blocks.append(F.cross_entropy(logits_NV, targets_BN.flatten(), reduction="none").view_as(targets_BN))
        return torch.cat(blocks, 1)

    def head(self, tokens_BT: Tensor, decoded: Any, rows: slice) -> Tensor:
        """Logits [B, rows, V] from the decoder's output: the whole model runs, caps and scales included, but for it.

        A long text times a large vocabulary would not fit at once, and the decoder need not run again.
        """
        of_rows = type(decoded)(**{**decoded, "last_hidden_state": decoded.last_hidden_state[:, rows]})
        own = self.decoder.__dict__.get("forward")  # offloading puts its own there
        self.decoder.__dict__["forward"] = lambda *args, **options: of_rows
        try:
            logits_BTV: Tensor = self.pretrained(input_ids=tokens_BT[:, rows], use_cache=False).logits
        finally:
            del self.decoder.__dict__["forward"]
            if own is not None:
                self.decoder.__dict__["forward"] = own
        return logits_BTV

    @contextmanager
    def with_frequencies(self, tables: Sequence[Tensor]) -> Iterator[None]:
        own = replace_frequencies(self.pretrained, tables)
        try:
            yield
        finally:
            replace_rotations(self.pretrained, own)


def first_token_of(tokenizer: Any) -> int | None:
    """The beginning-of-sequence token where the tokenizer puts it before a text by itself, else None."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        return None
    ids = tokenizer("a").input_ids
    return int(tokenizer.bos_token_id) if ids and ids[0] == tokenizer.bos_token_id else None


def as_pretrained_model(model: object) -> PreTrainedModel:
    """The model, if it is one of Hugging Face's; else UserError."""
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"this takes a loaded Hugging Face decoder, not a {type(model).__name__}")
    return model
