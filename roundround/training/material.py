"""What a decoder learns, and how it is measured while it does: text, or a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from roundround.data.batches import Shares
from roundround.model.decoder import Decoder

Measured = dict[str, Any]  # "step", "nats_per_token" and what else is measured with it, by name


class Material(ABC):
    """A training run's data as the run uses it.

    tokens_per_step: positions of a batch, over all devices. scored_share: of them, those with a target.
    """

    n_vocab: int
    tokenizer: Tokenizer
    tokens_per_step: int
    scored_share: float = 1.0

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the manifest keeps of it."""

    @abstractmethod
    def about(self) -> str:
        """A line that says what it is."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Lines about what may not be what was meant."""

    @abstractmethod
    def batches(self, shares: Shares) -> Dataset[Any]:
        """One process's micro-batches."""

    @abstractmethod
    def loss(self, decoder: Decoder, batch: Any, step: int) -> Tensor:
        """The loss of a micro-batch, to go down; the mean over micro-batches and processes is that of the batch."""

    @abstractmethod
    def measure(self, decoder: Decoder, *, rank: int, world_size: int, device: torch.device) -> Tensor:
        """Sums over one process's share of what is held out; those of all processes are added up.

        All processes call the decoder equally often: it may wait for their shares of its parameters each time.
        """

    @abstractmethod
    def measured(self, sums: Tensor) -> Measured:
        """What the sums say: "nats_per_token", and what else there is."""

    @abstractmethod
    def is_better(self, new: Measured, best: Measured) -> bool:
        """Whether the checkpoint of `new` is to be the best so far."""

    @abstractmethod
    def said(self, measured: Measured) -> str:
        """A measurement in a few words."""

    def conclusion(self, best: Measured) -> str:
        """What is said of the best checkpoint when training has ended."""
        return self.said(best)

    def remarks(self, curve: Sequence[Measured]) -> list[str]:
        """Lines about a finished run, from all its measurements."""
        return []

    @abstractmethod
    def results(self, best: Measured, curve: Sequence[Measured]) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """The records of a finished run, and the few numbers that its manifest shows.

        best: of its best checkpoint. curve: all its measurements.
        """
