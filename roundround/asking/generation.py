"""A model that writes text, or answers: a decoder of this project or a pretrained model, one step for each token.

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

REPLACEMENT = "\ufffd"  # what bytes decode to that are no whole character yet


@final
class DecoderWriter:
    """A decoder of this project with its tokenizer, and what it has read so far; its text begins as in training.

    name: what the page calls it. first: the token before a text, None where nothing stands there. ends: the tokens that
    end a text. most: tokens that it can read, None where there is no limit. normalisers: of its layers.
    """

    def __init__(self, name: str, decoder: Decoder, vocabulary: Vocabulary) -> None:
        self.name, self.decoder, self.vocabulary = name, decoder, vocabulary
        self.first = first_of(vocabulary)
        self.normalisers, self.device = decoder.normalisers, decoder.embed_tokens.weight.device
        self.ends = {vocabulary.end_of_document}
        self.most = None if decoder.draws_positions else decoder.longest()
        self.cache: Cache | None = None

    def tokens(self, text: str, *, first: bool) -> list[int]:
        """Token ids of a text, with the token before a text where it is the `first`. UserError for unknown symbols."""
        if self.vocabulary.first is not None:  # it is that of a task
            check_symbols(text, self.vocabulary)
        ids = self.vocabulary.encode(text)
        return ids if not first or self.first is None or ids[:1] == [self.first] else [self.first, *ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """Their text, without special tokens."""
        return self.vocabulary.decode(tokens)

    def words(self, tokens: Sequence[int]) -> list[str]:
        """What each token reads as."""
        return [self.vocabulary.tokenizer.decode([token], skip_special_tokens=False) for token in tokens]

    def begin(self, length: int | None) -> None:
        """Forget everything; the next text will have so many tokens, None where that is unknown."""
        self.cache = self.decoder.empty_cache(length=length)

    def read(self, tokens_BT: Tensor) -> Tensor:
        """Read more tokens; the logits [B, V] of the next one."""
        return self.decoder.unembed(self.decoder.hidden(tokens_BT, cache=self.cache)[:, -1])

    def repeat(self, n: int) -> None:
        """Continue with n texts in place of the one so far."""
        assert self.cache is not None, "begin has made one"
        self.cache.select(torch.zeros(n, dtype=torch.int64))

    def log_probabilities(self, tokens_BT: Tensor, n: int) -> Tensor:
        """ln p of the token after each of the last n of whole texts, [B, n, V], at least float32; nothing is kept."""
        of_draws = [self.decoder.hidden(tokens_BT, step=draw)[:, -n:] for draw in self.decoder.draws(tokens_BT)]
        each = [at_least_float32(self.decoder.unembed(x_BnD)).log_softmax(-1) for x_BnD in of_draws]
        return torch.stack(each).mean(0)  # as the loss of an evaluation is


@final
class PretrainedWriter:
    """A Hugging Face model with the interface of `DecoderWriter`, and the cache that transformers makes for it."""

    def __init__(self, probed: ProbedHuggingFaceModel) -> None:
        self.probed, self.name, self.normalisers = probed, probed.name, probed.normalisers
        self.model, self.tokenizer, self.words = probed.pretrained, probed.tokenizer, probed.words
        self.device = probed.device
        ends = self.model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        from roundround.hf.patching.frequencies import rotary_tables  # transformers takes a second to import

        tables = rotary_tables(self.model)
        learned = None if tables else getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self.most: int | None = learned
        self.turning_lengths = {table.turning_length for table in tables if table.turning_length is not None}
        self.cache: Any = None
        self.read_BT = torch.empty(1, 0, dtype=torch.int64, device=self.device)

    def tokens(self, text: str, *, first: bool) -> list[int]:
        plain = not self.probed.reads_special_tokens
        ids = list(self.tokenizer(text, add_special_tokens=first, split_special_tokens=plain).input_ids)
        if first and ids[:2] == 2 * [self.tokenizer.bos_token_id]:
            ids = ids[1:]  # the text spells the token that stands before every text
        if first and len(ids) > 1 and ids[-1] in self.ends and self.tokens(text, first=False)[-1:] != ids[-1:]:
            return ids[:-1]  # some tokenizers close what they encode
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def begin(self, length: int | None) -> None:
        self.cache, self.read_BT = None, self.read_BT[:1, :0]

    def read(self, tokens_BT: Tensor) -> Tensor:
        before, self.read_BT = self.read_BT.shape[1], torch.cat([self.read_BT, tokens_BT], 1)
        if any(before <= length < self.read_BT.shape[1] for length in self.turning_lengths):
            self.cache, tokens_BT = None, self.read_BT  # cached keys are rotated by the short factors
        options = {} if self.cache is None else {"past_key_values": self.cache}
        found = self.model(input_ids=tokens_BT, use_cache=True, logits_to_keep=1, **options)
        self.cache = getattr(found, "past_key_values", None)
        if self.cache is None:
            raise UserError(f"{self.name} ({type(self.model).__name__}) keeps no keys and values; it cannot write")
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
    """The model that the config names, and its run where it was trained here. UserError where it cannot write."""
    if config.model is not None:
        with opened_pretrained(config.model, config.pe, config.softmax, device) as probed:
            yield PretrainedWriter(probed), None
        return
    trained = run_of(config)
    decoder = trained.decoder(config.checkpoint).requires_grad_(False).to(device)
    yield decoder_writer(trained, decoder), trained


def decoder_writer(trained: TrainedRun, decoder: Decoder) -> DecoderWriter:
    """The writer of a run's decoder. UserError where it has no cache."""
    writer = DecoderWriter("/".join(trained.directory.parts[-2:]), decoder, trained.vocabulary())
    try:
        writer.begin(None)
        return writer
    except ValueError as error:
        raise UserError(f"{trained.directory} cannot write: {error}") from error


def prompt_tokens(writer: Writer, prompt: str, length: int) -> list[int]:
    """Token ids of the prompt. UserError for an empty one, or one that the model cannot read or continue so."""
    tokens = writer.tokens(prompt, first=True)
    if not prompt or not tokens:
        raise UserError('prompt= is empty; give the beginning of a text, such as prompt="Once upon a time"')
    check_room(writer, len(tokens), length)
    return tokens


def check_room(writer: Writer, n_prompt: int, length: int) -> None:
    """Raises UserError where the encoding has fewer positions than a text will have."""
    n_read = n_prompt + length - 1  # the last token is written and not read
    if writer.most is not None and n_read > writer.most:
        raise UserError(
            f"{writer.name} has {writer.most} positions, and a prompt of {n_prompt} tokens with length={length} needs "
            f"{n_read}; give a shorter prompt or length, or train with more positions"
        )


def whole_texts(
    writer: Writer, prompt: str, *, length: int, temperature: float, top_k: int | None, seed: int, n: int
) -> list[str]:
    """The n texts that begin with the prompt, once all are written. UserError as `roundround generate`."""
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
    except ValueError as error:  # no cache, or no numbers
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
    """The next token of each of n texts, again and again, until all have ended or have `length`; None for an ended one.

    logits_BV: after the prompt, which the writer has read. Raises ValueError for logits that are not finite.
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
    """A token for each row: the largest at temperature 0, else one of the `top_k` largest by its own generator."""
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
    """A generator for each text, on the CPU: the first text is the same however many there are."""
    hashes = [hashlib.sha256(f"{seed} {text}".encode()).digest() for text in range(n)]
    return [torch.Generator().manual_seed(int.from_bytes(own[:4], "little")) for own in hashes]


class TextStream:
    """Text as its tokens arrive: it never shows half of a character, and decodes no token more than twice."""

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


# -- answers to the examples of a task; `model/scoring.py` has a decoder under teacher forcing


@final
class AnsweringPretrained:
    """A Hugging Face model that answers; its head computes only columns with a scored target, some at a time."""

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


def check_is_written(task: Task, example: Example) -> None:
    """UserError where the answer is not at the end of an example, after the whole question."""
    scored = example.scored
    if example.answers is not None or not scored[int(scored.argmax()) :].all():
        raise UserError(
            f"by=generation is for an answer after its question, and {type(task).__name__} asks for several in "
            "between; leave it out"
        )


@torch.inference_mode()
def score_written(writer: Writer, task: Task, examples: Iterable[tuple[Example, int]]) -> AnswerScores:
    """Scores of what the model writes after each question, greedily: one pass over it, then one step for each token.

    A length test is right as far as the text contains its references, whatever their case and order (RULER's rule for
    its tests of these kinds); writing ends where all are found, which changes no score. Any other task has one
    reference, the tokens of its answer.
    """
    scores = AnswerScores(written=True)
    for example, times in examples:
        check_is_written(task, example)
        first = int(example.scored.argmax())
        answer = example.tokens[first:].tolist()
        prompt_1T = torch.from_numpy(example.tokens[None, :first]).to(writer.device)
        if isinstance(task, LengthTest):
            left = [reference.lower() for reference in task.references(writer.decode(answer[:-1]))]  # without the end
            n_references, n_most = len(left), max(task.written, len(answer))
        else:
            n_references, n_most = 1, len(answer)
        writer.begin(first + n_most)
        logits_1V, tokens, n_found = writer.read(prompt_1T), list[int](), 0
        options: dict[str, Any] = {"temperature": 0.0, "top_k": None, "generators": []}
        for (token,) in write(writer, logits_1V, n=1, length=n_most, **options):
            assert token is not None, "one text has not ended, or there are no more steps"
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
