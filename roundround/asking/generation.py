"""Models that write texts or answers, one step for each token: decoders of this project and pretrained models.

Shapes: B texts, T tokens, V vocabulary.

Tested by tests/asking/test_generation.py and tests/asking/test_task_answers.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from roundround.asking.reader import check_symbols, run_of
from roundround.data.tasks.base import Example, Task
from roundround.data.tasks.length_tests import LengthTest
from roundround.data.tokenizers import Vocabulary
from roundround.kernels.precision import at_least_float32
from roundround.model.cache import Cache
from roundround.model.decoder import Decoder
from roundround.model.scoring import AnswerScores, nats_of
from roundround.support.errors import UserError
from roundround.trained.models import TrainedRun, first_of, opened_pretrained
from roundround.verbs.generate import GenerateConfig, check_sampling

if TYPE_CHECKING:
    from roundround.hf.load import ProbedHuggingFaceModel

REPLACEMENT = "\ufffd"  # bytes that are not yet a whole character decode to this


@final
class DecoderWriter:
    """A decoder of this project that writes texts, with its tokenizer and a cache of the tokens that it has read.

    name: the model's name on a page. first: the token with which every text begins, as in training; None if there is no
    such token. ends: the tokens that end a text. most: the largest number of tokens that the decoder can read; None if
    there is no limit. normalisers: the normaliser of each layer.
    """

    def __init__(self, name: str, decoder: Decoder, vocabulary: Vocabulary) -> None:
        self.name, self.decoder, self.vocabulary = name, decoder, vocabulary
        self.first = first_of(vocabulary)
        self.normalisers, self.device = decoder.normalisers, decoder.embed_tokens.weight.device
        self.ends = {vocabulary.end_of_document}
        self.most = None if decoder.draws_positions else decoder.longest()
        self.cache: Cache | None = None

    def tokens(self, text: str, *, first: bool) -> list[int]:
        """Token ids of a text. Raises UserError if a task's vocabulary lacks a word of the text.

        first: whether this is the first text to read; if so, the token `self.first` is put in front of it.
        """
        if self.vocabulary.first is not None:  # the vocabulary of a task
            check_symbols(text, self.vocabulary)
        ids = self.vocabulary.encode(text)
        return ids if not first or self.first is None or ids[:1] == [self.first] else [self.first, *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, without special tokens."""
        return self.vocabulary.decode(tokens)

    def words(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token by itself, special tokens included."""
        return [self.vocabulary.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]

    def begin(self, length: int | None) -> None:
        """Forget what was read. length: the number of tokens of the next text; None if that is unknown."""
        self.cache = self.decoder.empty_cache(length=length)

    def read(self, tokens_BT: Tensor) -> Tensor:
        """Read more tokens. Returns the logits [B, V] of the token after them."""
        return self.decoder.unembed(self.decoder.hidden(tokens_BT, cache=self.cache)[:, -1])

    def repeat(self, n: int) -> None:
        """Copy the text in the cache n times, to continue it in n ways; the cache must contain exactly one text."""
        assert self.cache is not None, "begin makes the cache"
        self.cache.select(torch.zeros(n, dtype=torch.int64))

    def log_probabilities(self, tokens_BT: Tensor, n: int) -> Tensor:
        """ln p of every possible next token after each of the last n tokens, [B, n, V], in at least float32.

        tokens_BT: whole texts.
        """
        of_draws = [self.decoder.hidden(tokens_BT, step=draw)[:, -n:] for draw in self.decoder.draws(tokens_BT)]
        each = [at_least_float32(self.decoder.unembed(x_BnD)).log_softmax(-1) for x_BnD in of_draws]
        return torch.stack(each).mean(0)  # the mean of ln p, as in the loss of an evaluation


@final
class PretrainedWriter:
    """A Hugging Face model with the interface of `DecoderWriter`, and the cache that transformers makes for it."""

    def __init__(self, probed: ProbedHuggingFaceModel) -> None:
        self.probed, self.name, self.normalisers = probed, probed.name, probed.normalisers
        self.model, self.tokenizer, self.words = probed.pretrained, probed.tokenizer, probed.words
        self.device = probed.device
        self.ends = probed.ends
        from roundround.hf.patching.frequencies import rotary_tables  # transformers takes a second to import

        tables = rotary_tables(self.model)
        learned = None if tables else getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self.most: int | None = learned
        self.turning_lengths = {table.turning_length for table in tables if table.turning_length is not None}
        self.cache: Any = None
        self.read_BT = torch.empty(1, 0, dtype=torch.int64, device=self.device)

    def tokens(self, text: str, *, first: bool) -> list[int]:
        return self.probed.tokens(text) if first else self.probed.text_tokens(text)

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def begin(self, length: int | None) -> None:
        from roundround.hf.patching.attention import ENCODING, attention_layers

        for encoding in (getattr(layer, ENCODING) for layer in attention_layers(self.model)):
            if encoding.reads_input:
                raise UserError(
                    f"{self.name} cannot write with this encoding: it reads the input of layers, so there is no cache"
                )
        self.cache, self.read_BT = None, self.read_BT[:1, :0]

    def read(self, tokens_BT: Tensor) -> Tensor:
        before, self.read_BT = self.read_BT.shape[1], torch.cat([self.read_BT, tokens_BT], 1)
        if any(before <= length < self.read_BT.shape[1] for length in self.turning_lengths):
            self.cache, tokens_BT = None, self.read_BT  # the cached keys were rotated by the factors for short texts
        options = {} if self.cache is None else {"past_key_values": self.cache}
        found = self.model(input_ids=tokens_BT, use_cache=True, logits_to_keep=1, **options)
        self.cache = getattr(found, "past_key_values", None)
        if self.cache is None:
            raise UserError(
                f"{self.name} ({type(self.model).__name__}) has no cache of keys and values, so it cannot write"
            )
        logits_BV: Tensor = found.logits[:, -1]
        return logits_BV

    def repeat(self, n: int) -> None:
        self.read_BT = self.read_BT.expand(n, -1)
        if n > 1:
            self.cache.batch_repeat_interleave(n)

    def log_probabilities(self, tokens_BT: Tensor, n: int) -> Tensor:
        logits_BnV = self.model(input_ids=tokens_BT, use_cache=False, logits_to_keep=n).logits
        return at_least_float32(logits_BnV).log_softmax(-1)


Writer = DecoderWriter | PretrainedWriter


@contextmanager
def opened_writer(config: GenerateConfig, device: torch.device) -> Iterator[tuple[Writer, TrainedRun | None]]:
    """The model that the config names, and the run that trained it; the run is None for a pretrained model.

    Raises UserError if the decoder of a run has no cache.
    """
    if config.model is not None:
        with opened_pretrained(config.model, config.pe, config.softmax, device) as probed:
            yield PretrainedWriter(probed), None
        return
    trained = run_of(config)
    decoder = trained.decoder(config.checkpoint).requires_grad_(False).to(device)
    yield decoder_writer(trained, decoder), trained


def decoder_writer(trained: TrainedRun, decoder: Decoder) -> DecoderWriter:
    """The writer of a run's decoder. Raises UserError if the decoder has no cache."""
    writer = DecoderWriter("/".join(trained.directory.parts[-2:]), decoder, trained.vocabulary())
    try:
        writer.begin(None)
        return writer
    except ValueError as error:
        raise UserError(f"{trained.directory} cannot write: {error}") from error


def prompt_tokens(writer: Writer, prompt: str, length: int) -> list[int]:
    """Token ids of the prompt.

    Raises UserError if the prompt is empty or has an unknown symbol, or if the model has too few positions for it and
    `length` more tokens.
    """
    tokens = writer.tokens(prompt, first=True)
    if not prompt or not tokens:
        raise UserError('prompt= is empty; give the beginning of a text, such as prompt="Once upon a time"')
    check_room(writer, len(tokens), length)
    return tokens


def check_room(writer: Writer, n_prompt: int, length: int) -> None:
    """Raises UserError if the model has fewer positions than the prompt and `length` more tokens need."""
    n_read = n_prompt + length - 1  # the last token is written and not read
    if writer.most is not None and n_read > writer.most:
        raise UserError(
            f"{writer.name} has {writer.most} positions, and a prompt of {n_prompt} tokens with length={length} needs "
            f"{n_read}; give a shorter prompt or length, or train with more positions"
        )


def whole_texts(
    writer: Writer, prompt: str, *, length: int, temperature: float, top_k: int | None, seed: int, n: int
) -> list[str]:
    """n texts that begin with the prompt, returned when all are written.

    Raises UserError in the same cases as `roundround generate`.
    """
    check_sampling(length=length, temperature=temperature, top_k=top_k, seed=seed, n=n)
    tokens = prompt_tokens(writer, prompt, length)
    texts = [list(tokens) for _ in range(n)]
    try:
        writer.begin(len(tokens) + length)
        with torch.inference_mode():
            logits_BV = writer.read(torch.tensor([tokens], device=writer.device))
        options: dict[str, Any] = {"length": length, "temperature": temperature, "top_k": top_k}
        for chosen in write(writer, logits_BV, n=n, generators=generators_of(seed, n), **options):
            for text, token in zip(texts, chosen, strict=True):
                text.extend([] if token is None else [token])
    except ValueError as error:  # there is no cache, or logits are not finite
        raise UserError(str(error)) from error
    return [writer.decode(text) for text in texts]


@torch.inference_mode()
def write(
    writer: Writer,
    logits_BV: Tensor,
    *,
    n: int,
    length: int,
    temperature: float,
    top_k: int | None,
    generators: Sequence[torch.Generator],
) -> Iterator[list[int | None]]:
    """Yield, step by step, the next token of each of n texts; None for a text that has ended.

    The iterator ends after `length` steps, or when all texts have ended. logits_BV: the logits after the prompt, which
    the writer has read. Raises ValueError if logits are not finite.
    """
    ended = [False] * n
    if n > len(logits_BV):
        writer.repeat(n)
        logits_BV = logits_BV.expand(n, -1)
    for i in range(length):
        chosen = next_tokens(logits_BV, temperature=temperature, top_k=top_k, generators=generators)
        yield [None if over else token for token, over in zip(chosen, ended, strict=True)]
        ended = [over or token in writer.ends for token, over in zip(chosen, ended, strict=True)]
        if all(ended) or i + 1 == length:
            return
        logits_BV = writer.read(torch.tensor(chosen, device=writer.device)[:, None])


def next_tokens(
    logits_BV: Tensor, *, temperature: float, top_k: int | None, generators: Sequence[torch.Generator]
) -> list[int]:
    """A token for each row: at temperature 0 the likeliest token, else a token drawn from the `top_k` likeliest.

    generators: a random generator for each row.
    """
    logits_BV = at_least_float32(logits_BV).cpu()
    if not bool(logits_BV.amax(-1).isfinite().all()):
        raise ValueError("the model's logits are no finite numbers; no token can be chosen from them")
    if temperature == 0:
        return list(logits_BV.argmax(-1).tolist())
    if top_k is not None and top_k < logits_BV.shape[-1]:
        smallest_B1 = logits_BV.topk(top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_B1, -torch.inf)
    temperature = max(temperature, torch.finfo(logits_BV.dtype).tiny)
    weights_BV = ((logits_BV - logits_BV.amax(-1, keepdim=True)) / temperature).softmax(-1)
    return [int(row.multinomial(1, generator=own)) for row, own in zip(weights_BV, generators, strict=True)]


def generators_of(seed: int, n: int) -> list[torch.Generator]:
    """A generator on the CPU for each text; the generator of a text does not depend on n."""
    hashes = [hashlib.sha256(f"{seed} {text}".encode()).digest() for text in range(n)]
    return [torch.Generator().manual_seed(int.from_bytes(own[:4], "little")) for own in hashes]


class TextStream:
    """The text of tokens as they arrive, in whole characters; each step decodes only the last few tokens."""

    def __init__(self, writer: Writer, tokens: Sequence[int]) -> None:
        self.writer, self.tokens, self.begin, self.shown = writer, list(tokens), 0, len(tokens)

    def add(self, token: int) -> str:
        """The text that this token adds to what has been shown."""
        self.tokens.append(token)
        before = self.writer.decode(self.tokens[self.begin : self.shown])
        whole = self.writer.decode(self.tokens[self.begin :])
        if whole.endswith(REPLACEMENT) or len(whole) <= len(before):
            return ""
        self.begin, self.shown = self.shown, len(self.tokens)
        return whole[len(before) :]


# -- answers to the examples of a task; `model/scoring.py` scores a decoder under teacher forcing


@final
class AnsweringPretrained:
    """A Hugging Face model that is scored on a task's examples. It computes no logits before the first scored token."""

    def __init__(self, probed: ProbedHuggingFaceModel) -> None:
        self.probed = probed

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        return [None]

    def marked(self, tokens_BT: Tensor, targets_BT: Tensor, scored_BT: Tensor, step: Any) -> tuple[Tensor, Tensor]:
        nats_BT, right_BT = torch.zeros(scored_BT.shape, device=scored_BT.device), torch.zeros_like(scored_BT)
        for columns, logits_BNV in self.probed.logits(tokens_BT, first=int(scored_BT.any(0).nonzero()[0])):
            right_BT[:, columns] = logits_BNV.argmax(-1) == targets_BT[:, columns]
            nats_BT[:, columns] = nats_of(logits_BNV, targets_BT[:, columns])
        return nats_BT * scored_BT, right_BT & scored_BT


@torch.inference_mode()
def score_written(writer: Writer, task: Task, examples: Iterable[tuple[Example, int]]) -> AnswerScores:
    """The scores of the texts that the model writes greedily after each question.

    The model reads a question in one pass, then writes one token in each step. The score is the number of references
    found. A `LengthTest` has texts as references; the written text must contain them, in any order and in upper or
    lower case (RULER's rule). In any other task, the only reference is the whole answer. Writing stops when all
    references are found.
    """
    scores = AnswerScores(written=True)
    for example, times in examples:
        first = int(example.scored.argmax())
        if example.answers is not None or not example.scored[first:].all():  # no whole question before a whole answer
            raise UserError(
                f"by=generation is for tasks whose answer follows the whole question, and {type(task).__name__} has "
                "answers inside the question; leave by= out"
            )
        answer = example.tokens[first:].tolist()
        prompt_1T = torch.from_numpy(example.tokens[None, :first]).to(writer.device)
        if isinstance(task, LengthTest):
            left = [reference.lower() for reference in task.references(writer.decode(answer[:-1]))]  # without its end
            n_references, n_most = len(left), max(task.written, len(answer))
        else:
            n_references, n_most = 1, len(answer)
        writer.begin(first + n_most)
        logits_1V, tokens, n_found = writer.read(prompt_1T), list[int](), 0
        options: dict[str, Any] = {"temperature": 0.0, "top_k": None, "generators": []}
        for (token,) in write(writer, logits_1V, n=1, length=n_most, **options):
            assert token is not None, "writing stops when the only text has ended"
            tokens.append(token)
            if isinstance(task, LengthTest):
                text = writer.decode(tokens).lower()
                left = [reference for reference in left if reference not in text]
                n_found = n_references - len(left)
            else:
                n_found = int(tokens == answer)
            if n_found == n_references:
                break
        counts = {"exact": n_found == n_references, "hits": n_found, "targets": n_references}
        none = {"nats": 0, "output": 0, "with_output": 0}
        scores.add(torch.tensor([times]), **{name: torch.tensor([float(n)]) for name, n in (counts | none).items()})
    return scores
