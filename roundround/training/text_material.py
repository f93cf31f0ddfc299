"""Text to learn: windows of a tokenised corpus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from roundround.config.schema import TrainConfig
from roundround.data.batches import Shares, TrainingWindows, passes, validation_windows
from roundround.data.stream import Mix
from roundround.data.tokens import TokenData
from roundround.model.decoder import Decoder
from roundround.model.scoring import perplexity, score
from roundround.training.material import Material, Measured


@final
class TextMaterial(Material):
    """Windows of training text for the loss of every next token, and of held-out text for the same.

    separate_documents: whether no document in a window sees another. The first token of a document is a target all the
    same, of the token that ends the document before it, which has seen that one alone: so the targets, and with them
    the mean over micro-batches, processes and held-out text, are those of a run in which documents see each other.
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
        self.passes = passes(train, seed=config.seed, length=self.length, n_windows=n_windows)

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

    def about(self) -> str:
        data = self.data
        line = f"{len(data.train):,} training tokens, {len(data.held_out):,} held out, vocabulary {data.n_vocab:,}"
        return line if self.separator is None else f"{line}; documents do not see each other"

    def notes(self) -> list[str]:
        line = self.data.about_documents("train", self.length) if self.separator is None else None
        again = ", ".join(f"{name} {n:,.1f} times" for name, n in self.passes.items() if n > 1)
        return [note for note in (line, again and f"read more than once: {again}") if note]

    def batches(self, shares: Shares) -> TrainingWindows:
        return TrainingWindows(self.data.train, shares, seed=self.config.seed, length=self.length)

    def loss(self, decoder: Decoder, batch: Tensor, step: int) -> Tensor:
        inputs_BT = batch[:, :-1]
        ends_BT = None if self.separator is None else inputs_BT == self.separator
        loss_BT: Tensor = decoder(inputs_BT, targets_BT=batch[:, 1:], step=step, ends_BT=ends_BT)
        return loss_BT.mean()

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

    def said(self, measured: Measured) -> str:
        return f"held-out perplexity {readable(perplexity(measured['nats_per_token']))}"

    def conclusion(self, best: Measured) -> str:
        values = self.in_three_units(best)
        return (
            f"held-out perplexity {readable(values['perplexity'])} (loss {values['nats_per_token']:.4f} nats per "
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
        """The best held-out loss; `eval` leaves the tokens that join documents out."""
        values = self.in_three_units(best)
        scored = {"length": self.length, "joints": "targets", "step": best["step"]}
        return [{"metric": name, **scored, "value": value} for name, value in values.items()], values


def readable(perplexity: float) -> str:
    """To three decimals; that of a diverged run, which can have hundreds of digits, to four digits."""
    return f"{perplexity:.3f}" if perplexity < 1e6 else f"{perplexity:.4g}"
