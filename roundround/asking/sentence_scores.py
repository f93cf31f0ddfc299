"""How likely a model finds sentences: each by itself, or after a shared text, which is read once.

Shapes: B sentences, T tokens, N tokens of the shared text, V vocabulary.

Tested by tests/asking/test_sentence_scores.py.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import groupby
from typing import Any, final

import torch
from torch import Tensor

from roundround.hf.load import LOGITS_AT_ONCE, ProbedHuggingFaceModel
from roundround.model.decoder import Decoder
from roundround.model.scoring import nats_of
from roundround.pe.scaled import FollowsLength

KEPT_BYTES = 2**28  # at most, for copies of the shared text's keys and values: one for each sentence of a batch
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
    """The sum of the log-probabilities of each sentence's tokens, in nats: [sentences], float64, on the CPU.

    first: the token before every sentence; if it is None, a sentence's first token is not counted.
    prefix: the tokens of the shared text, in front of `first`. All sentences of a batch have one length, so there is no
    padding, and no logit depends on other sentences. A sentence that occurs several times is read once.
    """
    begin = () if first is None else (first,)
    every = [(*begin, *sentence) for sentence in sentences]
    sums = dict.fromkeys(every, 0.0)
    prefix_1N = torch.tensor([list(prefix)], dtype=torch.int64, device=device)
    shared: SharedText | None = None
    for n, group in groupby(sorted(sums, key=len), key=len):
        if n < 2:
            continue  # no token is predicted
        if shared is None or shared.of_one_length:
            shared = read_once(model, prefix_1N, n - 1)
        rows = list(group)
        size = max(1, min(batch_tokens // (n - 1 + shared.n_read_again), shared.most_sentences(n - 1)))
        for some in (rows[start : start + size] for start in range(0, len(rows), size)):
            rows_BT1 = torch.tensor(some, device=device)
            losses_B = shared.loss(rows_BT1[:, :-1], rows_BT1[:, 1:]).double().sum(-1)
            sums.update(zip(some, (-losses_B).tolist(), strict=True))
    return torch.tensor([sums[row] for row in every], dtype=torch.float64)


def read_once(model: Model, prefix_1N: Tensor, n_tokens: int) -> SharedText:
    """The shared text in front of sentences of `n_tokens` tokens: in a cache, or read again if no cache can hold it."""
    if prefix_1N.shape[1] == 0:
        return ReadAgain(model, prefix_1N)
    if isinstance(model, Decoder):
        try:
            return ReadAgain(model, prefix_1N) if model.draws_positions else KeptByDecoder(model, prefix_1N, n_tokens)
        except ValueError:  # an encoding has no cache
            return ReadAgain(model, prefix_1N)
    if model.follows_length:  # its cache holds keys at the frequencies of the shared text's length
        return ReadAgain(model, prefix_1N)
    cache = getattr(model.pretrained(input_ids=prefix_1N, use_cache=True, logits_to_keep=1), "past_key_values", None)
    return ReadAgain(model, prefix_1N) if cache is None else KeptByTransformers(model, cache)


@final
class ReadAgain:
    """The shared text, which is read again with each sentence. An empty shared text is allowed.

    n_read_again: the number of tokens of the shared text that are read with each sentence. of_one_length: True if the
    object only serves sentences of one length, because the encoding's frequencies depend on the length of a whole text.
    """

    of_one_length = False

    def __init__(self, model: Model, prefix_1N: Tensor) -> None:
        self.model, self.prefix_1N = model, prefix_1N
        self.n_read_again = prefix_1N.shape[1]

    def most_sentences(self, n_tokens: int) -> int:
        """The number of sentences of `n_tokens` tokens that fit in memory at once."""
        return LOGITS_AT_ONCE // n_tokens

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """The loss of each target of the sentences in nats, [B, T]."""
        n_before, n = self.prefix_1N.shape[1], tokens_BT.shape[1]
        prefix_BN = self.prefix_1N.expand(len(tokens_BT), -1)
        whole_BT, targets_BT = torch.cat([prefix_BN, tokens_BT], 1), torch.cat([prefix_BN, targets_BT], 1)
        if not isinstance(self.model, Decoder):
            return self.model.token_loss(whole_BT, targets_BT)[:, n_before:]
        scored_BT = (torch.arange(n_before + n, device=whole_BT.device) >= n_before).expand_as(whole_BT)
        losses_BT: Tensor = self.model(whole_BT, targets_BT=targets_BT, scored_BT=scored_BT if n_before else None)
        return losses_BT[:, n_before:]


@final
class KeptByDecoder:
    """The shared text in a decoder's cache, with the interface of `ReadAgain`.

    n_tokens: the number of tokens of a sentence, for encodings whose frequencies depend on the length of a whole text.
    """

    n_read_again = 0

    def __init__(self, decoder: Decoder, prefix_1N: Tensor, n_tokens: int) -> None:
        self.decoder = decoder
        self.of_one_length = any(isinstance(encoding, FollowsLength) for encoding in decoder.all_encodings)
        self.cache = decoder.empty_cache(length=prefix_1N.shape[1] + n_tokens if self.of_one_length else None)
        decoder.hidden(prefix_1N, cache=self.cache)
        self.copies = self.cache  # with one copy for each sentence of the last batch

    def most_sentences(self, n_tokens: int) -> int:
        return KEPT_BYTES // self.cache.n_bytes

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        if self.copies.n_texts != len(tokens_BT):
            self.copies = self.cache.branch()
            self.copies.select(torch.zeros(len(tokens_BT), dtype=torch.int64))
        losses_BT: Tensor = self.decoder(tokens_BT, targets_BT=targets_BT, cache=self.copies.branch())
        return losses_BT


@final
class KeptByTransformers:
    """The shared text in the cache that transformers made for a model, with the interface of `ReadAgain`."""

    n_read_again, of_one_length = 0, False

    def __init__(self, model: ProbedHuggingFaceModel, cache: Any) -> None:
        self.model, self.cache = model, cache
        self.n_vocab = int(model.pretrained.get_input_embeddings().num_embeddings)
        config = model.pretrained.config.get_text_config()
        per_token = 8 * config.num_hidden_layers * config.hidden_size  # bytes at most: heads may share keys
        self.n_bytes = int(per_token * cache.get_seq_length())

    def most_sentences(self, n_tokens: int) -> int:
        return min(LOGITS_AT_ONCE // (n_tokens * self.n_vocab), KEPT_BYTES // self.n_bytes)

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        cache = copy.deepcopy(self.cache)
        cache.batch_repeat_interleave(len(tokens_BT))
        logits_BTV = self.model.pretrained(input_ids=tokens_BT, past_key_values=cache, use_cache=True).logits
        return nats_of(logits_BTV, targets_BT)


SharedText = ReadAgain | KeptByDecoder | KeptByTransformers
