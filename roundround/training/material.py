"""What a decoder learns, text or a task, and how the decoder is measured in training.

Tested by tests/training/test_task_runs.py and tests/data/tasks/test_guessing.py.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from roundround.config.build import build
from roundround.data.batches import Shares, TrainingWindows, WindowSampler, validation_windows
from roundround.data.corpora import Corpus, Source
from roundround.data.prepared import TokenData, default_cache_dir, prepare
from roundround.data.shards import Mix
from roundround.data.tasks.base import Example, Examples, Task, distinct
from roundround.data.tasks.batches import TaskBatch, TaskData, TrainingExamples, same_length_batches, task_data
from roundround.data.tasks.text_task import TextTask
from roundround.model.decoder import Decoder
from roundround.model.scoring import AnswerScores, perplexity, score, score_answers
from roundround.support.errors import UserError
from roundround.trained.start import Start, checked_data
from roundround.verbs.train import TrainConfig

VALIDATION_TOKENS = 8192  # tokens in a batch of validation
PLATEAU = 0.5  # a share of the loss of a model that only guesses (`unread_loss`, `guessing_loss`)
Measured = dict[str, Any]  # "step", "nats_per_token" and other measurements by name


class Material(ABC):
    """The data of a training run, with its loss and its measurements.

    tokens_per_step: the number of positions in a batch, over all devices. scored_share: the share of positions that
    have a target.
    """

    n_vocab: int
    tokenizer: Tokenizer
    tokens_per_step: int
    scored_share: float = 1.0

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the manifest records about the data."""

    @abstractmethod
    def about(self) -> list[str]:
        """A line that describes the data, then lines about possible mistakes."""

    @abstractmethod
    def batches(self, shares: Shares) -> Dataset[Any]:
        """The micro-batches of one process."""

    @abstractmethod
    def loss(self, decoder: Decoder, batch: Any, step: int) -> Tensor:
        """The loss of a micro-batch. Its mean over micro-batches and processes is the loss of the batch."""

    @abstractmethod
    def text(self, batch: Any) -> Tensor:
        """A text from a micro-batch, [1, T], in which every token attends to all tokens before it."""

    @abstractmethod
    def measure(self, decoder: Decoder, *, rank: int, world_size: int, device: torch.device) -> Tensor:
        """The sums that `measured` needs, over this process's share of the held-out data.

        The caller adds up the sums of all processes. All processes must call the decoder equally often, because a call
        can wait for parameters that other processes hold.
        """

    @abstractmethod
    def measured(self, sums: Tensor) -> Measured:
        """The measurements that follow from the sums: "nats_per_token" and others, by name."""

    @abstractmethod
    def is_better(self, new: Measured, best: Measured) -> bool:
        """Whether `new` is a better measurement than `best`, so that its checkpoint becomes the best."""

    @abstractmethod
    def describe(self, measured: Measured) -> str:
        """A measurement in a few words."""

    def conclusion(self, best: Measured) -> str:
        """The best measurement in a few words, for the end of training."""
        return self.describe(best)

    def remarks(self, curve: Sequence[Measured]) -> list[str]:
        """Lines about a finished run, from all its measurements."""
        return []

    @abstractmethod
    def results(self, best: Measured, curve: Sequence[Measured]) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """(the records of a finished run, the few numbers that its manifest shows).

        best: the measurement of the best checkpoint. curve: all measurements of the run.
        """


def material_of(config: TrainConfig, start: Start) -> Material:
    """The material that the config describes: a task, or a corpus, which is tokenised now or read from the cache."""
    source, recipe = start.task or build(config.data, Source), start.tokenizer  # type: ignore[type-abstract]
    if isinstance(source, Corpus | TextTask) and recipe is None:
        raise UserError(
            "a run on text needs a tokenizer, and tokenizer has no value; give tokenizer=bpe or tokenizer=bytes"
        )
    if isinstance(source, Corpus) and recipe is not None:
        data = checked_data(prepare(source, recipe, default_cache_dir()), start.before, start.weights.n_rows)
        return TextMaterial(data, config, separate_documents=source.separate_documents)
    if isinstance(source, TextTask) and recipe is not None:
        source = source.with_vocabulary(recipe.build(source.training_texts()))
        source.check_is_read()
    assert isinstance(source, Task), "a source is one or the other"
    return TaskMaterial(checked_data(task_data(source), start.before, start.weights.n_rows), config)


@final
class TextMaterial(Material):
    """Windows of training text and of held-out text; every next token is a target of the loss.

    separate_documents: whether tokens attend only to tokens of their own document. Even then, the first token of a
    document is a target: the model predicts it from the preceding document. So the targets are the same with and
    without `separate_documents`.
    """

    def __init__(self, data: TokenData, config: TrainConfig, *, separate_documents: bool) -> None:
        self.data, self.config = data, config
        self.separator = data.end_of_document if separate_documents else None
        self.n_vocab, self.tokenizer = data.n_vocab, data.tokenizer
        self.length = int(config.model.train_length)
        self.tokens_per_step = config.batch_size * self.length
        self.windows = validation_windows(data.held_out, length=self.length, max_tokens=config.validation_tokens)

        n_windows = int(config.trainer.max_steps) * config.batch_size
        train = data.train if isinstance(data.train, Mix) else Mix((), ())
        self.passes = {  # the number of times that the run reads each source of a mixture
            name: share * n_windows / WindowSampler(own.sizes(), seed=config.seed, length=self.length).n_windows()
            for name, own, share in zip(train.names, train.streams, train.shares, strict=True)
        }

    def facts(self) -> dict[str, Any]:
        data = self.data
        return {
            "corpus_hash": data.corpus_hash,
            "tokenizer_hash": data.tokenizer_hash,
            "n_vocab": data.n_vocab,
            "end_of_document": data.end_of_document,
            "separate_documents": self.separator is not None,
            "training_tokens": len(data.train),
            "held_out_tokens": len(data.held_out),
            "held_out_bytes": data.n_held_out_bytes,
            "n_groups": data.n_groups,
            **({"passes": self.passes} if self.passes else {}),
        }

    def about(self) -> list[str]:
        data, apart = self.data, self.separator is not None
        again = ", ".join(f"{name} {n:,.1f} times" for name, n in self.passes.items() if n > 1)
        lines = (
            f"{len(data.train):,} training tokens, {len(data.held_out):,} held out, vocabulary {data.n_vocab:,}"
            + ("; documents do not see each other" if apart else ""),
            None if apart else data.about_documents("train", self.length),
            again and f"read more than once: {again}",
        )
        return [line for line in lines if line]

    def batches(self, shares: Shares) -> TrainingWindows:
        return TrainingWindows(self.data.train, shares, seed=self.config.seed, length=self.length)

    def loss(self, decoder: Decoder, batch: Tensor, step: int) -> Tensor:
        inputs_BT = batch[:, :-1]
        ends_BT = None if self.separator is None else inputs_BT == self.separator
        loss_BT: Tensor = decoder(inputs_BT, targets_BT=batch[:, 1:], step=step, ends_BT=ends_BT)
        return loss_BT.mean()

    def text(self, batch: Tensor) -> Tensor:
        """The first window, or the longest document in it if documents are separate."""
        window_T = batch[0, :-1]
        if self.separator is None:
            return window_T[None]
        ends = (window_T == self.separator).nonzero().flatten() + 1
        return max(torch.tensor_split(window_T, ends.cpu()), key=len)[None]

    def measure(self, decoder: Decoder, *, rank: int, world_size: int, device: torch.device) -> Tensor:
        batch, own = max(1, self.config.batch_size // world_size), self.windows[rank::world_size]
        n_calls = [-(-len(windows) // batch) for windows in (self.windows[::world_size], own)]
        if n_calls[1] < n_calls[0]:  # the first rank has one batch more
            score(decoder, self.windows[:1], batch=1, device=device)
        return score(decoder, own, batch=batch, device=device, separator=self.separator).sum_T.sum()

    def measured(self, sums: Tensor) -> Measured:
        return {"nats_per_token": float(sums) / self.windows[:, 1:].numel()}

    def is_better(self, new: Measured, best: Measured) -> bool:
        return bool(new["nats_per_token"] < best["nats_per_token"])

    def describe(self, measured: Measured) -> str:
        return f"held-out perplexity {perplexity(measured['nats_per_token']):.3f}"

    def conclusion(self, best: Measured) -> str:
        values = self.in_three_units(best)
        return (
            f"held-out perplexity {values['perplexity']:.3f} (loss {values['nats_per_token']:.4f} nats per "
            f"token, {values['nats_per_byte']:.4f} per byte)"
        )

    def in_three_units(self, measured: Measured) -> dict[str, float]:
        token_loss, n_targets = measured["nats_per_token"], self.windows[:, 1:].numel()
        return {
            "perplexity": perplexity(token_loss),
            "nats_per_token": token_loss,
            "nats_per_byte": token_loss * n_targets / self.data.bytes_of_targets(n_targets),
        }

    def results(self, best: Measured, curve: Sequence[Measured]) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """The best held-out loss. Its targets include the tokens between documents, which `eval` does not score."""
        values = self.in_three_units(best)
        scored = {"length": self.length, "joints": "targets", "step": best["step"]}
        return [{"metric": name, **scored, "value": value} for name, value in values.items()], values


@final
class TaskMaterial(Material):
    """Examples of a task. The scored targets of training examples give the loss; validation counts right answers."""

    def __init__(self, data: TaskData, config: TrainConfig) -> None:
        self.data, self.config, self.task = data, config, data.task
        self.n_vocab, self.tokenizer = data.n_vocab, data.tokenizer
        self.length = int(config.model.train_length)
        self.tokens_per_step = config.batch_size * self.length
        drawn = Examples(self.task, seed=config.seed, split="validation")
        wanted = self.task.validation_examples
        examples = [drawn[i] for i in range(wanted if drawn.n is None else min(wanted, drawn.n))]
        self.n_validated, self.validation, self.n_shared = len(examples), distinct(examples), drawn.n_shared
        self.scored_share = float(np.mean([example.scored.sum() for example in examples])) / self.length
        self.plateau_bound = PLATEAU * min(unread_loss(examples), guessing_loss(self.task, examples))
        self.n_train = self.task.train_examples or Examples(self.task, seed=config.seed, split="train").n

    def facts(self) -> dict[str, Any]:
        data = self.data
        return {
            "corpus_hash": data.corpus_hash,
            "tokenizer_hash": data.tokenizer_hash,
            "n_vocab": data.n_vocab,
            "end_of_document": data.end_of_document,
            "training_tokens": 0,  # there is no corpus
            "train_lengths": list(self.task.train_lengths),
            "train_examples": self.task.train_examples,
            "validation_examples": self.n_validated,
            "distinct_validation_examples": len(self.validation),
        }

    def about(self) -> list[str]:
        n, (shortest, longest) = self.n_train, self.task.train_lengths
        examples = "new examples in every batch" if n is None else f"{n:,} training examples"
        line = (
            f"{examples} of length {shortest} to {longest}, up to {self.length:,} tokens; {self.n_validated:,} to "
            f"validate on; vocabulary {self.n_vocab:,}"
        )
        shared = (
            f"{self.n_shared:,} of {self.n_validated:,} validation examples may also be in training: at their lengths, "
            "the task has too few different examples"
        )
        return [line for line in (line, self.n_shared and shared, self.task.shared_with_test()) if line]

    def batches(self, shares: Shares) -> TrainingExamples:
        return TrainingExamples(self.task, shares, seed=self.config.seed)

    def loss(self, decoder: Decoder, batch: TaskBatch, step: int) -> Tensor:
        loss_BT: Tensor = decoder(batch.tokens, targets_BT=batch.targets, scored_BT=batch.scored, step=step)
        return loss_BT.sum() / batch.scored.sum() * batch.share

    def text(self, batch: TaskBatch) -> Tensor:
        """The first example up to its last scored target."""
        return batch.tokens[:1, : int(batch.scored[0].nonzero().max()) + 1]

    def measure(self, decoder: Decoder, *, rank: int, world_size: int, device: torch.device) -> Tensor:
        batches = list(same_length_batches(self.validation, VALIDATION_TOKENS // world_size))
        own = batches[rank::world_size]
        if len(own) < len(batches[::world_size]):  # the first rank has one more
            score_answers(decoder, batches[:1], device=device)
        return score_answers(decoder, own, device=device).sums

    def measured(self, sums: Tensor) -> Measured:
        return AnswerScores(sums).values()

    def is_better(self, new: Measured, best: Measured) -> bool:
        """Whether `new` has more fully right examples than `best`, or the same number of them and a lower loss.

        False if the loss of `new` is not finite.
        """
        if not math.isfinite(new["nats_per_token"]):
            return False
        new_rank, best_rank = ((m.get("exact_match", -math.inf), -m["nats_per_token"]) for m in (new, best))
        return new_rank > best_rank

    def describe(self, measured: Measured) -> str:
        return f"exact match {measured['exact_match']:.3f}, loss {measured['nats_per_token']:.4f}"

    def remarks(self, curve: Sequence[Measured]) -> list[str]:
        left, bound = left_plateau(curve, self.plateau_bound), f"loss below {self.plateau_bound:.3f}"
        if left is None:
            return [f"training never left the loss plateau ({bound}); it may need more steps or another optim.lr"]
        return [f"training left the loss plateau at step {left} ({bound})"]

    def results(self, best: Measured, curve: Sequence[Measured]) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """As for `Material`. The record `plateau` is the first measured step with a loss below the bound, or inf.

        The bound is PLATEAU times the loss of a model that only guesses.
        """
        values = {name: value for name, value in best.items() if name != "step"}
        scored = {
            "split": "validation",
            "examples": self.n_validated,
            "distinct": len(self.validation),
            "step": best["step"],
        }
        records = [{"metric": name, **scored, "value": value} for name, value in values.items()]
        left = left_plateau(curve, self.plateau_bound)
        plateau = math.inf if left is None else float(left)
        headline = values if left is None else {**values, "plateau": plateau}
        return [*records, {"metric": "plateau", "value": plateau}], headline


def unread_loss(examples: Sequence[Example]) -> float:
    """The loss of a model that guesses without reading the example, in nats per target.

    It knows the frequencies of the scored targets, so its loss is their entropy.
    """
    _, counts = np.unique(np.concatenate([example.targets[example.scored] for example in examples]), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def guessing_loss(task: Task, examples: Sequence[Example]) -> float:
    """The loss of the guesser that `Task.guessing_nats` describes, in nats per target; inf if this loss is 0."""
    nats = sum(task.guessing_nats(example) for example in examples)
    return nats / sum(int(example.scored.sum()) for example in examples) or math.inf


def left_plateau(curve: Sequence[Measured], bound: float) -> int | None:
    """The first measured step at which the loss is below the bound; None if the loss is never below the bound."""
    return next((line["step"] for line in curve if line["nats_per_token"] < bound), None)
