"""How likely a model finds sentences: each by itself, or behind a text that all share and that is read once.

Shapes: B sentences, T tokens, N tokens of the shared text, V vocabulary.

Tested by tests/asking/test_sentence_scores.py.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from roundround.hf.load import LOGITS_AT_ONCE, ProbedHuggingFaceModel
from roundround.hf.patching.frequencies import follows_length
from roundround.model.decoder import Decoder
from roundround.model.scoring import nats_of
from roundround.pe.scaled import FollowsLength

KEPT_BYTES = 2**28  # of the keys and values of the shared text, of which each sentence of a batch has a copy
Model = Decoder | ProbedHuggingFaceModel


@torch.inference_mode()
def log_probabilities(
    model: Model,
    sentences: Sequence[Sequence[int]],
    *,
    first: int | None,
    prefix: Sequence[int] = (),
    batch_tokens: int,
    device: torch.device,
) -> Tensor:
    """The sum of the log-probabilities of each sentence's tokens, in nats, [sentences], float64, on the CPU.

    first: the token before every sentence; None where there is none, and then a sentence's first token is not counted.
    prefix: the tokens of the shared text, which stand before that. A batch has sentences of one length, so that nothing
    is filled up and no logit depends on the others. A sentence that stands several times is read once.
    """
    begin = () if first is None else (first,)
    every = [(*begin, *sentence) for sentence in sentences]
    rows = list(dict.fromkeys(every))
    by_length: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        by_length.setdefault(len(row) - 1, []).append(place)
    sums = torch.zeros(len(rows), dtype=torch.float64)
    prefix_1N = torch.tensor([list(prefix)], dtype=torch.int64, device=device)
    shared: SharedText | None = None
    for n_tokens, places in sorted(by_length.items()):
        if n_tokens < 1:
            continue  # nothing is predicted
        if shared is None or shared.of_one_length:
            shared = read_once(model, prefix_1N, n_tokens)
        size = max(1, min(batch_tokens // (n_tokens + shared.n_read_again), shared.most_sentences(n_tokens)))
        for some in (places[start : start + size] for start in range(0, len(places), size)):
            rows_BT1 = torch.tensor([rows[place] for place in some], device=device)
            sums[some] = -shared.loss(rows_BT1[:, :-1], rows_BT1[:, 1:]).double().sum(-1).cpu()
    place_of = {row: place for place, row in enumerate(rows)}
    return sums[[place_of[row] for row in every]]


def read_once(model: Model, prefix_1N: Tensor, n_tokens: int) -> SharedText:
    """The shared text in front of sentences of so many tokens: from a cache, else with each sentence anew."""
    if prefix_1N.shape[1] == 0:
        return ReadAgain(model, prefix_1N)
    if isinstance(model, Decoder):
        return KeptByDecoder(model, prefix_1N, n_tokens) if can_be_cached(model) else ReadAgain(model, prefix_1N)
    if follows_length(model.pretrained):  # its cache holds keys at the frequencies of the shared text's length
        return ReadAgain(model, prefix_1N)
    cache = getattr(model.pretrained(input_ids=prefix_1N, use_cache=True, logits_to_keep=1), "past_key_values", None)
    return ReadAgain(model, prefix_1N) if cache is None else KeptByTransformers(model, cache)


def can_be_cached(decoder: Decoder) -> bool:
    """Whether a decoder's keys can be kept: not where positions are drawn, nor where an encoding has no cache."""
    try:
        decoder.empty_cache()
    except ValueError:
        return False
    return not decoder.draws_positions


class SharedText(ABC):
    """The text in front of all sentences.

    n_read_again: tokens that are read with each sentence beside its own. of_one_length: whether it serves sentences of
    one length alone, because the frequencies follow the length of the whole text.
    """

    n_read_again = 0
    of_one_length = False

    @abstractmethod
    def most_sentences(self, n_tokens: int) -> int:
        """How many sentences of so many tokens fit in memory at once."""

    @abstractmethod
    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Nats of each target of the sentences, [B, T]."""


@final
class ReadAgain(SharedText):
    """Read with each sentence anew; it may be empty."""

    def __init__(self, model: Model, prefix_1N: Tensor) -> None:
        self.model, self.prefix_1N = model, prefix_1N
        self.n_read_again = prefix_1N.shape[1]

    def most_sentences(self, n_tokens: int) -> int:
        return LOGITS_AT_ONCE // n_tokens

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        n_before, n = self.prefix_1N.shape[1], tokens_BT.shape[1]
        prefix_BN = self.prefix_1N.expand(len(tokens_BT), -1)
        whole_BT, targets_BT = torch.cat([prefix_BN, tokens_BT], 1), torch.cat([prefix_BN, targets_BT], 1)
        if isinstance(self.model, Decoder) and n_before:
            scored_BT = (torch.arange(n_before + n, device=whole_BT.device) >= n_before).expand_as(whole_BT)
            losses_BT: Tensor = self.model(whole_BT, targets_BT=targets_BT, scored_BT=scored_BT)
        elif isinstance(self.model, Decoder):
            losses_BT = self.model(whole_BT, targets_BT=targets_BT)
        else:
            losses_BT = self.model.token_loss(whole_BT, targets_BT)
        return losses_BT[:, n_before:]


@final
class KeptByDecoder(SharedText):
    """In a decoder's cache. n_tokens: of the sentences to come, for frequencies that follow the whole length."""

    def __init__(self, decoder: Decoder, prefix_1N: Tensor, n_tokens: int) -> None:
        self.decoder = decoder
        self.of_one_length = any(isinstance(encoding, FollowsLength) for encoding in decoder.all_encodings)
        self.cache = decoder.empty_cache(length=prefix_1N.shape[1] + n_tokens if self.of_one_length else None)
        decoder.hidden(prefix_1N, cache=self.cache)
        self.copies = self.cache  # as many texts as the last batch had sentences

    def most_sentences(self, n_tokens: int) -> int:
        return KEPT_BYTES // self.cache.n_bytes

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        if self.copies.n_texts != len(tokens_BT):
            self.copies = self.cache.branch()
            self.copies.select(torch.zeros(len(tokens_BT), dtype=torch.int64))
        losses_BT: Tensor = self.decoder(tokens_BT, targets_BT=targets_BT, cache=self.copies.branch())
        return losses_BT


@final
class KeptByTransformers(SharedText):
    """In the cache that transformers made for a model."""

    def __init__(self, model: ProbedHuggingFaceModel, cache: Any) -> None:
        self.model, self.cache = model, cache
        self.n_vocab = int(model.pretrained.get_input_embeddings().num_embeddings)
        config = model.pretrained.config.get_text_config()
        per_token = 8 * config.num_hidden_layers * config.hidden_size  # at most: heads may share keys
        self.n_bytes = int(per_token * cache.get_seq_length())

    def most_sentences(self, n_tokens: int) -> int:
        return min(LOGITS_AT_ONCE // (n_tokens * self.n_vocab), KEPT_BYTES // self.n_bytes)

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        cache = copy.deepcopy(self.cache)
        cache.batch_repeat_interleave(len(tokens_BT))
        logits_BTV = self.model.pretrained(input_ids=tokens_BT, past_key_values=cache, use_cache=True).logits
        return nats_of(logits_BTV, targets_BT)
