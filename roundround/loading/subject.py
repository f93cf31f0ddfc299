"""What is looked at: a trained model, and the texts that it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from roundround.config.build import build
from roundround.config.recorded import overridden
from roundround.config.schema import SubjectConfig
from roundround.data.corpora import Corpus
from roundround.data.tasks.base import Examples, Task
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import Vocabulary
from roundround.distributed.peers import Peers
from roundround.loading.models import TrainedRun, give_default_data, opened_pretrained
from roundround.loading.reading import Reader, Windowed, joined
from roundround.probing.probed_model import ProbedDecoder, ProbedModel
from roundround.probing.texts import APOSTROPHE, texts_of
from roundround.runs.directories import find_run
from roundround.runs.run import Invocation
from roundround.support.errors import UserError


def settle_model_and_data(cfg: DictConfig, invocation: Invocation) -> dict[str, str]:
    """Leave out the default model where a run is given, else read the text that goes with the model where none is.

    Returns the choices of the command after that.
    """
    choices = invocation.given
    if cfg.run is not None and not any(key.partition(".")[0] == "model" for key in overridden(invocation.overrides)):
        OmegaConf.update(cfg, "model", None, force_add=True)
        return {group: choice for group, choice in choices.items() if group != "model"}
    return choices if cfg.texts is not None else choices | give_default_data(cfg, otherwise=None)


@contextmanager
def probed_model_of(config: SubjectConfig, device: torch.device) -> Iterator[tuple[ProbedModel, TrainedRun | None]]:
    """What is probed, and its run where it was trained here."""
    if config.model is not None:
        with opened_pretrained(config.model, config.pe, config.softmax, device) as probed:
            yield probed, None
        return
    assert config.run is not None
    source = find_run(config.run, config.outputs, "train", done=True)
    trained = TrainedRun(source, trust=config.trust, pe=config.pe, softmax=config.softmax)
    decoder, vocabulary = trained.decoder(config.checkpoint).requires_grad_(False), trained.vocabulary()
    name = "/".join(source.parts[-2:])
    first_token = None if trained.separate_documents else vocabulary.first_token  # nothing stood before a document
    yield ProbedDecoder(name, decoder.to(device), vocabulary.tokenizer, first_token), trained


def prompt_for(prompt: str | None, probed: ProbedModel, trained: TrainedRun | None) -> list[int]:
    """Token ids of what is looked at token by token: this text, else one with apostrophes, or an example of a task.

    UserError where the text has a word that a task's vocabulary lacks.
    """
    task = None if trained is None else trained.task()
    if task is None:
        return probed.tokens(APOSTROPHE if prompt is None else prompt)
    if prompt is None:
        return next(examples_of(task, task.train_lengths[1]))
    known = {} if isinstance(task, TextTask) else task.vocabulary().tokenizer.get_vocab()
    for word in prompt.split():
        if known and word not in known:
            raise UserError(f"prompt= has '{word}', and this task knows {', '.join(task.symbols[:8])}, ... alone")
    return probed.tokens(prompt)


def examples_of(task: Task, length: int | None) -> Iterator[list[int]]:
    """Test examples of a task without end, as token ids: of one length, or of those in training."""
    examples = Examples(task, seed=0, split="test", length=length)
    return (examples[i].tokens.tolist() for i in count())


def scored_of(trained: TrainedRun | None, length: int | None, n: int) -> list[list[bool]] | None:
    """Which tokens of the first `n` of `examples_of` are scored; None where the run learns text.

    UserError where the right tokens do not stand in the examples.
    """
    task = None if trained is None else trained.task()
    if task is None:
        return None
    examples = Examples(task, seed=0, split="test", length=length)
    if examples[0].answers is not None:
        raise UserError(
            "ablate= scores tokens of the sequence, and this task keeps its answers out of it; eval has them"
        )
    return [examples[i].scored.tolist() for i in range(n)]


def windows_for(
    config: SubjectConfig, probed: ProbedModel, trained: TrainedRun | None, peers: Peers, *, batch_tokens: int = 2048
) -> Windowed | None:
    """Running text in windows, read as `roundround eval` reads it: of a run its own, of other text where `length` is
    given. None for examples of a task, and for documents one by one.
    """
    own = config.data is None and config.texts is None and trained is not None
    if (trained is not None and trained.task() is not None) or (not own and config.length is None):
        return None
    length, most = config.length or probed.longest, config.max_tokens
    if trained is not None and own:
        data, separate = trained.held_out_text(), trained.separate_documents
        if config.max_documents is not None and config.max_documents <= data.n_held_out_documents:
            ends = np.flatnonzero(np.asarray(data.held_out) == data.end_of_document)
            end = int(ends[config.max_documents - 1])
            most = end if most is None else min(most, end)
    else:
        if trained is not None and trained.separate_documents:
            raise UserError("length= joins documents to windows, and this run's did not see each other; leave it out")
        separate = config.data is not None and build(config.data, Corpus).separate_documents  # type: ignore[type-abstract]
        data = joined(documents_of(config), vocabulary_of_model(probed, trained), most)
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


def vocabulary_of_model(probed: ProbedModel, trained: TrainedRun | None) -> Vocabulary:
    """The model's tokenizer, with the token that stands between documents. UserError where there is none."""
    if trained is not None:
        return trained.vocabulary()
    from roundround.loading.load import ProbedHuggingFaceModel  # transformers takes a second to import

    assert isinstance(probed, ProbedHuggingFaceModel), "what was not trained here is a pretrained model"
    return probed.vocabulary()


def texts_for(
    config: SubjectConfig, probed: ProbedModel, trained: TrainedRun | None, windowed: Windowed | None
) -> list[list[int]]:
    """Token ids of the texts: those that `windowed` reads, else documents, each after the model's first token (where it
    has one), or examples of a task. No more are read than needed.

    Of a run whose documents did not see each other every text is a document, or the beginning of one.
    """
    if windowed is not None:
        if trained is None or not trained.separate_documents:
            return windowed.inputs()
        data = windowed.reader.data
        return limited(cut_at(map(int, data.held_out), data.end_of_document, windowed.length), config)
    task = None if trained is None else trained.task()
    if task is not None:
        if config.data is not None or config.texts is not None:
            raise UserError("data=, text= and texts= are for a run trained on text, and this one learns a task")
        if config.max_tokens is None and config.max_documents is None:
            raise UserError("a task has examples without end; give max_tokens= or max_documents=")
        return limited(examples_of(task, config.length), config)
    return limited((probed.tokens(text)[: probed.longest] for text in documents_of(config)), config)


def documents_of(config: SubjectConfig) -> Iterator[str]:
    """The texts themselves: those of the package, or the documents of `data`, held out or not."""
    if config.data is None:
        return iter(texts_of("shakespeare" if config.texts is None else config.texts))
    corpus = build(config.data, Corpus)  # type: ignore[type-abstract]
    return islice((text for _, text in corpus.documents()), config.max_documents)


def cut_at(tokens: Iterator[int], end: int, length: int) -> Iterator[list[int]]:
    """The documents of running text, each with the token that ends it, the first `length` tokens of each."""
    document: list[int] = []
    for token in tokens:
        document.append(token)
        if token == end:
            yield document[:length]
            document = []


def limited(texts: Iterator[list[int]], config: SubjectConfig) -> list[list[int]]:
    """Texts until `max_tokens` or `max_documents` is reached; at least one."""
    found: list[list[int]] = []
    n_tokens = 0
    for text in islice(texts, config.max_documents):
        if found and config.max_tokens is not None and n_tokens + len(text) > config.max_tokens:
            break
        found.append(text)
        n_tokens += len(text)
    return found
