"""Batches of a task. In training they are a pure function of (seed, step), whatever the number of processes.

B batch, T inputs. A batch is as wide as its longest example. Shorter examples are padded at the end, which causal
attention from scored tokens does not reach.

Tested by tests/training/test_task_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from roundround.data.batches import Shares
from roundround.data.tasks.base import EOS, Example, Examples, Task
from roundround.data.tokenizers import content_hash


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskData:
    """A task with its vocabulary. Fields that are also in `TokenData` have the same meaning."""

    task: Task
    tokenizer: Tokenizer
    n_vocab: int
    end_of_document: int
    corpus_hash: str
    tokenizer_hash: str


def task_data(task: Task) -> TaskData:
    vocabulary = task.vocabulary()
    return TaskData(
        task=task,
        tokenizer=vocabulary.tokenizer,
        n_vocab=vocabulary.size,
        end_of_document=vocabulary.end_of_document,
        corpus_hash=task.identity(),
        tokenizer_hash=content_hash(vocabulary.tokenizer),
    )


class TaskBatch(NamedTuple):
    """A batch of examples, or one part of a global batch.

    tokens, targets: [B, T], int64. scored: True at the targets that count, [B, T]. share: the factor by which the mean
    loss of this part is multiplied. The mean of these products over all parts equals the mean loss over all scored
    targets of the global batch.
    """

    tokens: Tensor
    targets: Tensor
    scored: Tensor
    share: Tensor


class AskedBatch(NamedTuple):
    """A batch of examples of one length, no two of them equal, for `model/scoring.py`.

    `tokens`, `targets` and `scored` are as in `TaskBatch`. output: True at the scored targets that belong to the final
    output, [B, T]; False everywhere for an example without intermediate steps. times: the number of times that each
    example was drawn, [B].
    """

    tokens: Tensor
    targets: Tensor
    scored: Tensor
    output: Tensor
    times: Tensor


def padded(examples: Sequence[Example], *, width: int = 0, share: float = 1.0) -> TaskBatch:
    """Examples as a padded batch. T is one less than the tokens of the longest example, and at least `width` - 1."""
    longest = max(width, *(len(example.tokens) for example in examples))
    ids_2BL = np.full((2, len(examples), longest), EOS, dtype=np.int64)  # tokens, and targets
    counts_BL = np.zeros((len(examples), longest), dtype=np.bool_)
    for row, example in enumerate(examples):
        n = len(example.tokens)
        ids_2BL[0, row, :n], ids_2BL[1, row, :n] = example.tokens, example.targets
        counts_BL[row, :n] = example.scored
    (tokens_BL, targets_BL), scored_BL = torch.from_numpy(ids_2BL), torch.from_numpy(counts_BL)
    return TaskBatch(tokens_BL[:, :-1], targets_BL[:, 1:], scored_BL[:, 1:], torch.tensor(share))


def same_length_batches(examples: Iterable[tuple[Example, int]], batch_tokens: int) -> Iterator[AskedBatch]:
    """Batches of examples of equal length, without padding; the batches of the shortest examples come first.

    examples: pairs (example, number of its occurrences), from `distinct`.
    """
    by_length: dict[int, list[tuple[Example, int]]] = {}
    for example, times in examples:
        by_length.setdefault(len(example.tokens), []).append((example, times))
    for length, alike in sorted(by_length.items()):
        size = max(1, batch_tokens // length)
        for start in range(0, len(alike), size):
            some, times_B = zip(*alike[start : start + size], strict=True)
            begins_B1 = torch.tensor([[length if e.output_at is None else e.output_at] for e in some])
            tokens, targets, scored, _ = padded(some)
            output = scored & (torch.arange(1, length) >= begins_B1)
            yield AskedBatch(tokens, targets, scored, output, torch.tensor(times_B))


class ExampleSampler:
    """The numbers of the examples in each global batch.

    The training run reads items 0, 1, ... in order. If n is None, item i is example i, and every example is new. If
    there are n examples, item i is the example whose number is at position i % n of the permutation that
    `default_rng([seed, i // n])` draws.
    """

    def __init__(self, n: int | None, *, seed: int) -> None:
        self.n, self.seed = n, seed
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def numbers(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """The numbers of the batch's examples, [B]."""
        items = np.arange(step * batch_size, (step + 1) * batch_size, dtype=np.int64)
        if self.n is None:
            return items
        epochs, at = np.divmod(items, self.n)
        found = []
        for epoch in np.unique(epochs).tolist():
            if epoch != self._epoch:
                self._epoch, self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.n)
            found.append(self._order[at[epochs == epoch]])
        return np.concatenate(found)


class TrainingExamples(Dataset[TaskBatch]):
    """The micro-batches of one rank, in order; `shares` says which rows this rank reads.

    While the model computes a micro-batch, a thread draws the next one.
    """

    def __init__(self, task: Task, shares: Shares, *, seed: int) -> None:
        super().__init__()
        self.shares = shares
        self.examples = Examples(task, seed=seed, split="train")
        self.sampler = ExampleSampler(task.train_examples, seed=seed)
        self._kept: dict[int, Example] = {}  # filled only if training repeats examples
        self._step, self._batch = -1, list[Example]()
        self._worker = ThreadPoolExecutor(1)  # one thread, which alone uses `_kept`
        self._ahead: tuple[int, Future[TaskBatch]] | None = None

    def __len__(self) -> int:
        return len(self.shares)

    def __getitem__(self, index: int) -> TaskBatch:
        if self._ahead is None or self._ahead[0] != index:
            self._ahead = index, self._worker.submit(self.micro_batch, index)
        batch = self._ahead[1].result()
        if index + 1 < len(self):
            self._ahead = index + 1, self._worker.submit(self.micro_batch, index + 1)
        return batch

    def micro_batch(self, index: int) -> TaskBatch:
        step, rows = self.shares[index]
        batch = self.global_batch(step)
        n_scored, n_scored_here = (sum(int(e.scored.sum()) for e in examples) for examples in (batch, batch[rows]))
        return padded(batch[rows], share=self.shares.n_parts * n_scored_here / n_scored)

    def global_batch(self, step: int) -> list[Example]:
        """The examples that all ranks together read in a step."""
        if step != self._step:
            numbers = self.sampler.numbers(step, self.shares.batch_size)
            self._step, self._batch = step, [self.example(i) for i in numbers.tolist()]
        return self._batch

    def example(self, i: int) -> Example:
        if self.sampler.n is None:
            return self.examples[i]
        if i not in self._kept:
            self._kept[i] = self.examples[i]
        return self._kept[i]
