"""A task to learn: examples drawn as they are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from roundround.config.schema import TrainConfig
from roundround.data.batches import Shares
from roundround.data.tasks.base import Example, Examples, Task, distinct
from roundround.data.tasks.batches import TaskBatch, TaskData, TrainingExamples, same_length_batches
from roundround.model.decoder import Decoder
from roundround.model.marks import Marks, mark
from roundround.training.material import Material, Measured

VALIDATION_TOKENS = 8192  # measured at once
PLATEAU = 0.5  # of the loss of an answer that does not depend on the question, or is guessed from what stands there


@final
class TaskMaterial(Material):
    """Training examples for the loss of their scored targets, and validation examples for how many are all right."""

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

    def about(self) -> str:
        n, (shortest, longest) = self.n_train, self.task.train_lengths
        examples = "new examples in every batch" if n is None else f"{n:,} training examples"
        n_distinct = len(self.validation)
        same = "" if n_distinct == self.n_validated else f", {n_distinct:,} of them distinct"
        return (
            f"{examples} of length {shortest} to {longest}, up to {self.length:,} tokens; {self.n_validated:,} to "
            f"validate on{same}; vocabulary {self.n_vocab:,}"
        )

    def notes(self) -> list[str]:
        found = []
        if self.n_shared:
            found.append(
                f"{self.n_shared:,} of {self.n_validated:,} validation examples may be in training too: the task "
                "has too few of their length"
            )
        shared = self.task.shared_with_test()
        return found if shared is None else [*found, shared]

    def batches(self, shares: Shares) -> TrainingExamples:
        return TrainingExamples(self.task, shares, seed=self.config.seed)

    def loss(self, decoder: Decoder, batch: TaskBatch, step: int) -> Tensor:
        loss_BT: Tensor = decoder(batch.tokens, targets_BT=batch.targets, scored_BT=batch.scored, step=step)
        return loss_BT.sum() / batch.scored.sum() * batch.share

    def measure(self, decoder: Decoder, *, rank: int, world_size: int, device: torch.device) -> Tensor:
        batches = list(same_length_batches(self.validation, VALIDATION_TOKENS // world_size))
        own = batches[rank::world_size]
        if len(own) < len(batches[::world_size]):  # the first rank has one more
            mark(decoder, batches[:1], device=device)
        return mark(decoder, own, device=device).sums

    def measured(self, sums: Tensor) -> Measured:
        return Marks(sums).values()

    def is_better(self, new: Measured, best: Measured) -> bool:
        """More examples all right, or, where it is as many, a lower loss."""
        return ranked(new) > ranked(best)

    def said(self, measured: Measured) -> str:
        return f"exact match {measured['exact_match']:.3f}, loss {measured['nats_per_token']:.4f}"

    def remarks(self, curve: Sequence[Measured]) -> list[str]:
        scores = {line["exact_match"] for line in curve}
        left, bound = left_plateau(curve, self.plateau_bound), f"loss below {self.plateau_bound:.3f}"
        found = [f"training left the loss plateau at step {left} ({bound})"]
        if left is None:
            found = [f"training never left the loss plateau ({bound}); it may need more steps or another optim.lr"]
        if len(scores) == 1 and len(curve) > 1:
            found.append(
                f"exact match was {scores.pop():.3f} in all {len(curve)} measurements: the best checkpoint is that of "
                "the lowest loss"
            )
        return found

    def results(self, best: Measured, curve: Sequence[Measured]) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """`plateau`: the first measured step below half of what an answer costs unread or guessed; inf without one."""
        values = {name: value for name, value in best.items() if name != "step"}
        scored = {"split": "validation", "examples": self.n_validated, "distinct": len(self.validation)}
        scored["step"] = best["step"]
        records = [{"metric": name, **scored, "value": value} for name, value in values.items()]
        left = left_plateau(curve, self.plateau_bound)
        plateau = math.inf if left is None else float(left)
        headline = values if left is None else {**values, "plateau": plateau}
        return [*records, {"metric": "plateau", "value": plateau}], headline


def unread_loss(examples: Sequence[Example]) -> float:
    """What a scored target costs who knows how often each token is one, and reads nothing: their entropy, nats."""
    _, counts = np.unique(np.concatenate([example.targets[example.scored] for example in examples]), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def guessing_loss(task: Task, examples: Sequence[Example]) -> float:
    """What a scored target costs who guesses among the answers to an example, nats; inf where that is the right one."""
    nats = sum(task.guessing_nats(example) for example in examples)
    return nats / sum(int(example.scored.sum()) for example in examples) or math.inf


def left_plateau(curve: Sequence[Measured], bound: float) -> int | None:
    """The first measured step at which the loss is below the bound; None where it never is."""
    return next((line["step"] for line in curve if line["nats_per_token"] < bound), None)


def ranked(measured: Measured) -> tuple[float, float]:
    return measured.get("exact_match", -math.inf), -measured["nats_per_token"]
