"""Opens the model and the texts that a verb needs, reads the texts in windows, and computes the loss in the windows.

docs/howto/evaluation.md explains how text is read.
Shapes: L layers, H heads, N bins, as in probing/dispersion.py.

Tested by tests/asking/test_eval_pretrained.py, tests/asking/test_hf_commands.py and tests/training/test_eval.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from torch import nn

from roundround.config.build import build
from roundround.config.recorded import overridden
from roundround.data.batches import DocumentWindows, EvaluationWindows, Tokens, check_one_window, evaluation_windows
from roundround.data.corpora import Corpus
from roundround.data.prepared import TokenData
from roundround.data.shards import Mix
from roundround.data.tasks.base import Examples, Task
from roundround.data.tokenising import Encoder
from roundround.data.tokenizers import Vocabulary, check_known, content_hash, unknown_token
from roundround.distributed.peers import Peers
from roundround.model.decoder import Decoder
from roundround.model.scoring import PositionLoss, Share, score
from roundround.probing.dispersion import Dispersion, watched
from roundround.probing.probed_model import AfterFirstToken, ProbedDecoder, ProbedModel
from roundround.probing.texts import APOSTROPHE, texts_of
from roundround.records.directories import find_run
from roundround.records.run import Invocation
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.trained.models import TrainedRun, first_of, give_default_data, opened_pretrained
from roundround.verbs.probe import SubjectConfig

TARGETS_TO_CHOOSE_BY = 2048  # enough to distinguish losses that differ by a few hundredths of a nat


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A model and the text that it is scored on, in windows of any length.

    model: a decoder of this project, or a pretrained model wrapped for a probe. bos: whether every window begins with
    the token that begins a text (auto, true or false). For a decoder of this project bos is false, because the decoder
    was trained on windows that begin anywhere. stride: the number of tokens from the beginning of one window to the
    beginning of the next (None: the length of a window). max_tokens: the number of targets to score, counted from the
    first target (None: all). separate_documents: whether tokens attend only within their document. peers: the processes
    that share the windows.
    """

    model: Decoder | ProbedModel
    data: TokenData
    device: torch.device
    batch_tokens: int
    bos: str = "false"
    stride: int | None = None
    max_tokens: int | None = None
    separate_documents: bool = False
    peers: Peers

    @property
    def one_by_one(self) -> bool:
        """Whether documents are read one by one, to keep them separate in a pretrained model.

        A decoder of this project reads windows, and a mask keeps their documents separate.
        """
        return self.separate_documents and isinstance(self.model, ProbedModel)

    @property
    def n_tokens(self) -> int:
        """The number of tokens of the stream that are read."""
        return min(len(self.data.held_out), (self.max_tokens or len(self.data.held_out)) + 1)

    def check(self, length: int) -> None:
        """Raises UserError if the text fills no window of `length`, or if bos=true and the model has no first token."""
        if self.bos == "true" and isinstance(self.model, ProbedModel) and self.model.first_token is None:
            raise UserError(f"bos=true: the tokenizer of {self.model.name} puts no token at the beginning of a text")
        if not self.one_by_one:
            check_one_window(self.data.held_out, length, self.max_tokens)

    def reading(self) -> dict[str, str | bool]:
        """The settings that say how the text is read. Every result has them, because the loss depends on them."""
        return {
            "joining_token": self.data.joining_token,
            "separate_documents": self.separate_documents,
            "special_tokens": "plain" if self.data.tokenizer.encode_special_tokens else "read",
        }

    def first_token(self, length: int) -> int | None:
        """The token in front of every window of this length; None if windows begin without it.

        With bos=auto, the losses of the first targets are computed with and without the token, and the lower loss
        decides. A model that uses its first key as a sink needs the token before every window. But a model trained on
        windows that begin anywhere takes the token as the beginning of a text, and most windows begin inside a text.
        If documents are read one by one, the token stands where the tokenizer puts it, unless bos=false. Raises
        UserError in the same cases as `check`.
        """
        self.check(length)
        if not isinstance(self.model, ProbedModel) or self.bos == "false":
            return None
        first = self.model.first_token
        if first is None or self.bos == "true" or self.one_by_one:
            return first
        most = max(length, min(TARGETS_TO_CHOOSE_BY, self.max_tokens or TARGETS_TO_CHOOSE_BY))
        with_it, without = (self.loss(length, token, most=most) for token in (first, None))
        better = with_it.token_loss() < without.token_loss()
        print_status(
            f"windows of {length:,} begin {'with' if better else 'without'} {self.data.tokenizer.id_to_token(first)}: "
            f"{with_it.token_loss():.3f} nats per token with it, {without.token_loss():.3f} without, over the first "
            f"{without.n_targets:,} targets (bos=true or bos=false overrides this choice)"
        )
        return first if better else None

    def scored_model(self, first_token: int | None) -> nn.Module:
        """The module that is called with windows and targets."""
        if not isinstance(self.model, ProbedModel):
            return self.model
        return AfterFirstToken(self.model, None if self.one_by_one else first_token)

    def loss(self, length: int, first_token: int | None, *, most: int | None = None) -> PositionLoss:
        """The losses of all targets, or of the first `most`; each process reads a share of the windows.

        Raises UserError as `check` does.
        """
        windows = self.windows(length, first_token, most)
        joints = None if self.one_by_one else self.cut(self.is_joint.view(np.uint8), length, most)
        share = Share(windows, first=self.peers.rank, n=self.peers.n)
        batch = max(1, self.batch_tokens // max(1, windows.length))
        if self.one_by_one and isinstance(self.model, ProbedModel) and self.model.follows_length:
            batch = 1  # the longest row of a batch determines the frequencies of all its rows
        own = score(
            self.scored_model(first_token),
            share,
            batch=batch,
            device=self.device,
            scored=lambda rows: windows.scored(share.among_all(rows)),
            joints=None if joints is None else lambda rows: joints[share.among_all(rows)][:, 1:].bool(),
            separator=self.data.end_of_document if self.separate_documents and not self.one_by_one else None,
        )
        total = PositionLoss(windows.length)
        total.add_all(self.peers.gather(own))
        return total

    def windows(self, length: int, first_token: int | None, most: int | None) -> EvaluationWindows | DocumentWindows:
        """Windows of the stream, or of its documents one by one."""
        if not self.one_by_one:
            return self.cut(self.data.held_out[: self.n_tokens], length, most)
        tokens, stride = self.data.held_out[: self.n_tokens], self.stride or length
        windows = DocumentWindows(tokens, self.is_joint, first=first_token, length=length, stride=stride)
        if not len(windows):
            raise UserError("the documents are too short: none has a second token to predict; give longer documents")
        return windows

    def cut(self, values: Tokens, length: int, most: int | None) -> EvaluationWindows:
        return evaluation_windows(values, length=length, longest=length, stride=self.stride, max_tokens=most)

    @functools.cached_property
    def is_joint(self) -> NDArray[np.bool_]:
        """True at each token that only joins two documents of the stream, [n_tokens]; False at all tokens of texts."""
        ids, n_bytes = (x[: self.n_tokens] for x in (self.data.held_out, self.data.held_out_bytes))
        is_joint: NDArray[np.bool_] = (np.asarray(ids) == self.data.end_of_document) & (np.asarray(n_bytes) == 0)
        return is_joint

    def scored_bytes(self, first_token: int | None) -> int:
        """The number of UTF-8 bytes in the text of all targets."""
        n_bytes = np.asarray(self.data.held_out_bytes[: self.n_tokens])
        begins = np.append(True, self.is_joint[:-1]) if self.one_by_one else np.arange(len(n_bytes)) == 0
        return int(n_bytes[~begins].sum() if first_token is None or not self.one_by_one else n_bytes.sum())


@dataclass(frozen=True)
class Windowed:
    """A reader for a probe: all windows have the same length and the same token in front (or none)."""

    reader: Reader
    length: int
    first_token: int | None

    def loss(self) -> PositionLoss:
        return self.reader.loss(self.length, self.first_token)

    def reading(self) -> dict[str, Any]:
        """The settings that say how the text is read. Every result has them."""
        word = None if self.first_token is None else self.reader.data.tokenizer.id_to_token(self.first_token)
        return {"length": self.length, "first_token": word, **self.reader.reading()}

    def inputs(self) -> list[list[int]]:
        """The tokens that the model reads in each window, in the order of the text."""
        windows = self.reader.windows(self.length, self.first_token, None)
        if isinstance(windows, DocumentWindows):
            return [windows.window(number) for number in windows.rows[:, 0].argsort(kind="stable").tolist()]
        head = [] if self.first_token is None else [self.first_token]
        return [head + row for row in windows[:][:, :-1].tolist()]


def joined(texts: Iterable[str], vocabulary: Vocabulary, most: int | None) -> TokenData:
    """The texts joined to one held-out stream in memory, like the stream that `prepare` writes.

    Texts are added until the stream has `most` targets; if `most` is None, all texts are added.
    """
    encode, found, n_tokens = Encoder(vocabulary), [], 0
    for text in texts:
        found.append(encode([(True, text)])[0])
        n_tokens += len(found[-1]["held_out"])
        if most is not None and n_tokens > most:
            break
    ids, n_bytes = (np.concatenate([arrays[name] for arrays in found]) for name in ("held_out", "held_out_bytes"))
    check_known(ids, unknown_token(vocabulary.tokenizer, vocabulary.end_of_document), "the texts")
    return TokenData(
        train=Mix((), ()),
        held_out=ids,
        held_out_bytes=n_bytes,
        n_train_documents=0,
        n_held_out_documents=len(found),
        n_held_out_bytes=int(n_bytes.sum()),
        n_vocab=vocabulary.size,
        end_of_document=vocabulary.end_of_document,
        tokenizer=vocabulary.tokenizer,
        corpus_hash="",
        tokenizer_hash=content_hash(vocabulary.tokenizer),
        n_groups=1,
    )


# -- what a text costs


def check_dispersion(dispersion: bool, *, separate: bool) -> None:
    """Raises UserError if `dispersion` and `separate` are both True.

    separate: whether tokens attend only within their document. Dispersion could not be measured then, because it groups
    rows by their position in the window, not by their position in the document.
    """
    if separate and dispersion:
        raise UserError(
            "dispersion=true treats each window as one text, and here documents do not see each other; give "
            "data.separate_documents=false, or use roundround probe for single documents"
        )


def check_lengths(decoder: Decoder, n_tokens: int, what: str, pe: str | None) -> None:
    """Raises UserError if the encoding has fewer positions than the `n_tokens` that the option `what` requires."""
    longest = decoder.longest()
    if longest is not None and n_tokens > longest:
        raise UserError(
            f"pe={pe} has {longest} positions and {what} asks for more; "
            "evaluate at a smaller length, or train with more positions"
        )


def first_tokens_of(reader: Reader, lengths: Sequence[int]) -> dict[int, int | None]:
    """A dict from each length to the token in front of its windows, or to None.

    Raises UserError as `Reader.check` does at the largest length.
    """
    reader.check(max(lengths))
    return {length: reader.first_token(length) for length in sorted(set(lengths))}


def measure(
    reader: Reader, first_tokens: Mapping[int, int | None], *, dispersion: bool
) -> tuple[dict[int, PositionLoss], dict[int, Dispersion]]:
    """Losses at each length and, if `dispersion` is True, the dispersion of the attention behind these losses.

    The targets are the same at all lengths: the tokens of the stream from the second on, but at most max_tokens.
    """
    losses, dispersions = {}, {}
    for length, first in first_tokens.items():
        n_keys, model = length + (first is not None), reader.scored_model(first)
        with watched(model, n_keys) if dispersion else nullcontext() as seen:
            losses[length] = reader.loss(length, first)
        if seen is not None:
            dispersions[length] = of_all(seen, reader.peers)
    return losses, dispersions


def of_all(own: Dispersion, peers: Peers) -> Dispersion:
    """The dispersion over all processes: the sums of the other processes are added to `own`."""
    sums = peers.gather((own.sums_LHN, own.n_rows_LN))
    own.add_all(theirs for rank, theirs in enumerate(sums) if rank != peers.rank)
    return own


# -- the model and the texts of a verb


def subject_choices(cfg: DictConfig, invocation: Invocation, *, with_data: bool = False) -> dict[str, str]:
    """Remove the default model from the config if the command names a run. Returns the chosen option of each group.

    with_data: whether to add a pretrained model's default text if the command names the model but no text.
    """
    choices = invocation.given
    if cfg.run is not None and not any(key.partition(".")[0] == "model" for key in overridden(invocation.overrides)):
        OmegaConf.update(cfg, "model", None, force_add=True)
        return {group: choice for group, choice in choices.items() if group != "model"}
    refuse_checkpoint(invocation)
    if with_data and cfg.texts is None and "model" in choices:
        return choices | give_default_data(cfg, otherwise=None)
    return choices


def refuse_checkpoint(invocation: Invocation) -> None:
    """Raises UserError if the command line gives `checkpoint` for a pretrained model, which has no checkpoints."""
    if "checkpoint" in overridden(invocation.overrides):
        raise UserError(
            "checkpoint= names a checkpoint of a run, and a pretrained model has none; give run= or no checkpoint="
        )


def run_of(config: Any) -> TrainedRun:
    """The training run that the config names.

    If the config gives `pe` or `softmax`, the given option replaces the option of the run. Raises UserError if `run`
    names no finished training run.
    """
    source = find_run(config.run, config.outputs, "train", done=True)
    return TrainedRun(source, trust=config.trust, pe=config.pe, softmax=config.softmax)


@contextmanager
def probed_model_of(config: SubjectConfig, device: torch.device) -> Iterator[tuple[ProbedModel, TrainedRun | None]]:
    """The model to probe, and the run that trained it; the run is None for a pretrained model."""
    if config.model is not None:
        with opened_pretrained(config.model, config.pe, config.softmax, device) as probed:
            yield probed, None
        return
    assert config.run is not None
    trained = run_of(config)
    decoder, vocabulary = trained.decoder(config.checkpoint).requires_grad_(False), trained.vocabulary()
    name = "/".join(trained.directory.parts[-2:])
    yield ProbedDecoder(name, decoder.to(device), vocabulary.tokenizer, first_of(vocabulary)), trained


def prompt_for(prompt: str | None, probed: ProbedModel, trained: TrainedRun | None) -> list[int]:
    """Token ids of the text that is shown token by token.

    Without a prompt, the text is an example of the task that the run learned. If there is no task, it is a fixed text
    with apostrophes. Raises UserError if the prompt has a word that the task's vocabulary lacks.
    """
    task = None if trained is None else trained.task()
    if task is None:
        return probed.tokens(APOSTROPHE if prompt is None else prompt)
    if prompt is None:
        return next(examples_of(task, task.train_lengths[1]))
    check_symbols(prompt, task.vocabulary())
    return probed.tokens(prompt)


def check_symbols(prompt: str, vocabulary: Vocabulary) -> None:
    """Raises UserError if the prompt has a word that a task's vocabulary lacks."""
    known = vocabulary.tokenizer.get_vocab()
    unknown = next((word for word in prompt.split() if word not in known), None)
    if unknown is not None:
        raise UserError(f"the task has no symbol '{unknown}', which the prompt has")


def examples_of(task: Task, length: int | None) -> Iterator[list[int]]:
    """An endless series of a task's test examples, as token ids. length: the length of each; None: as in training."""
    examples = Examples(task, seed=0, split="test", length=length)
    return (examples[i].tokens.tolist() for i in count())


def scored_of(trained: TrainedRun | None, length: int | None, n: int) -> list[list[bool]] | None:
    """For each of the first `n` examples of `examples_of`, True at the scored tokens; None if the run learned text.

    Raises UserError if the task keeps its right answers outside the sequence of tokens.
    """
    task = None if trained is None else trained.task()
    if task is None:
        return None
    examples = Examples(task, seed=0, split="test", length=length)
    if examples[0].answers is not None:
        raise UserError(
            "ablate= scores tokens of the sequence, and this task's answers are no part of it; use roundround eval"
        )
    return [examples[i].scored.tolist() for i in range(n)]


def windows_for(
    config: SubjectConfig, probed: ProbedModel, trained: TrainedRun | None, peers: Peers, *, batch_tokens: int = 2048
) -> Windowed | None:
    """The text in windows, as in `roundround eval`: the run's own text or, if the config has `length`, any text.

    Returns None if the run learned a task. Without `length`, also returns None for every text except the run's own,
    because the documents of such a text are read one by one.
    """
    own = config.data is None and config.texts is None and trained is not None
    if (trained is not None and trained.task() is not None) or (not own and config.length is None):
        return None
    length, most = config.length or probed.longest, config.max_tokens
    if trained is not None and own:
        data, separate = trained.held_out_text(), trained.separate_documents
        ends = np.flatnonzero(np.asarray(data.held_out) == data.end_of_document)
        if config.max_documents is not None and config.max_documents <= len(ends):
            end = int(ends[config.max_documents - 1])
            most = end if most is None else min(most, end)
    else:
        if trained is not None and trained.separate_documents:
            raise UserError(
                "length= joins documents into windows, but this run was trained on separate documents; omit length="
            )
        separate = config.data is not None and build(config.data, Corpus).separate_documents  # type: ignore[type-abstract]
        if trained is not None:
            vocabulary = trained.vocabulary()
        else:
            from roundround.hf.load import ProbedHuggingFaceModel  # transformers takes a second to import

            assert isinstance(probed, ProbedHuggingFaceModel), "what was not trained here is a pretrained model"
            vocabulary = probed.vocabulary()
        data = joined(documents_of(config), vocabulary, most)
    reader = Reader(
        model=probed.decoder if isinstance(probed, ProbedDecoder) else probed,
        data=data,
        device=probed.device,
        batch_tokens=batch_tokens,
        bos=config.bos if trained is None else "false",
        max_tokens=None if most is None else max(most, length),
        separate_documents=separate,
        peers=peers,
    )
    return Windowed(reader, length, reader.first_token(length))


def texts_for(
    config: SubjectConfig, probed: ProbedModel, trained: TrainedRun | None, windowed: Windowed | None
) -> list[list[int]]:
    """Token ids of the texts to probe, within the limits of the config.

    If `windowed` is given, the texts are the windows. But if documents did not see each other in the run, each text is
    a document, cut off at the length of a window. If `windowed` is None, the texts are examples of the task that the
    run learned. If there is no task, the texts are documents, each with the model's first token (if any) in front.
    """
    if windowed is not None:
        if trained is None or not trained.separate_documents:
            return windowed.inputs()
        ids = np.asarray(windowed.reader.data.held_out)
        ends = np.flatnonzero(ids == windowed.reader.data.end_of_document)
        documents = np.split(ids, ends + 1)[:-1]  # each with the token that ends it
        return limited((document[: windowed.length].tolist() for document in documents), config)
    task = None if trained is None else trained.task()
    if task is not None:
        if config.data is not None or config.texts is not None:
            raise UserError("data=, text= and texts= are for a run trained on text, and this run learned a task")
        if config.max_tokens is None and config.max_documents is None:
            raise UserError("a task has endless examples; limit them with max_tokens= or max_documents=")
        return limited(examples_of(task, config.length), config)
    texts = limited((probed.tokens(text)[: probed.longest] for text in documents_of(config)), config)
    check_known(list(chain(*texts)), probed.unknown_token, "the texts")
    return texts


def documents_of(config: SubjectConfig) -> Iterator[str]:
    """The documents of the corpus `data` (training and held out) or, without `data`, the texts that `texts` names."""
    if config.data is None:
        return iter(texts_of("shakespeare" if config.texts is None else config.texts))
    corpus = build(config.data, Corpus)  # type: ignore[type-abstract]
    return islice((text for _, text in corpus.documents()), config.max_documents)


def limited(texts: Iterator[list[int]], config: SubjectConfig) -> list[list[int]]:
    """As many texts, from the first on, as `max_tokens` and `max_documents` allow, but at least the first."""
    found: list[list[int]] = []
    n_tokens = 0
    for text in islice(texts, config.max_documents):
        if found and config.max_tokens is not None and n_tokens + len(text) > config.max_tokens:
            break
        found.append(text)
        n_tokens += len(text)
    return found
