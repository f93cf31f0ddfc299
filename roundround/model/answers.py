"""How well a decoder does a task: what it answers to examples, counted.

Under greedy decoding an answer is right as a whole exactly where each of its tokens has the largest logit given the
right ones before it, so that one forward pass of the whole example tells. Where positions are drawn, an example counts
as the mean of its draws, each of which is greedy decoding at the positions drawn for the whole example.

Shapes: B examples, T targets, S scored ones, D model width.

Tested by tests/training/test_task_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, final

import torch
import torch.nn.functional as F
from torch import Tensor

from roundround.kernels.precision import at_least_float32
from roundround.model.decoder import LOGITS_AT_ONCE, Decoder

COUNTED = (
    *("examples", "exact", "output", "with_output", "targets", "hits", "nats"),  # over all that were drawn
    # over the distinct ones, of how often each was drawn (times), its hits and its targets
    *("distinct", "times_squared", "hits_squared", "hits_by_targets", "targets_squared"),
)
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # tokens, targets, scored, output [B, T], times [B]


class AnswerScores:
    """Sums over examples, [len(COUNTED)], float64: they add up over batches and processes.

    An example that was drawn several times is one observation with so much weight. Where models were scored by what
    they wrote, `targets` are the references of an example, `hits` the ones that were found, `exact` whether all were.
    """

    def __init__(self, sums: Tensor | None = None, *, written: bool = False) -> None:
        self.written = written
        self.sums = torch.zeros(len(COUNTED), dtype=torch.float64) if sums is None else sums.cpu().double()

    def add(self, times_B: Tensor, **of_each: Tensor) -> None:
        """Take in different examples: how often each was drawn, and what is in COUNTED from `exact` to `nats`, [B]."""
        w = times_B.cpu().double()
        sums = {name: w * value_B.cpu().double() for name, value_B in of_each.items()}
        hits, targets = sums["hits"], sums["targets"]
        sums |= {"examples": w, "distinct": torch.ones_like(w), "times_squared": w**2}
        sums |= {"hits_squared": hits**2, "hits_by_targets": hits * targets, "targets_squared": targets**2}
        self.sums += torch.stack([sums[name].sum() for name in COUNTED])

    def __getitem__(self, name: str) -> float:
        return float(self.sums[COUNTED.index(name)])

    @property
    def n_examples(self) -> int:
        return int(self["examples"])

    @property
    def n_distinct(self) -> int:
        return int(self["distinct"])

    def values(self) -> dict[str, float]:
        """Shares of scored targets and of whole examples that are right; the loss per token is per scored target.

        `output_match` is the share of examples whose output is right, given the right tokens before it. For
        written answers: the shares of examples with all references, and of the references.
        """
        if self.written:
            shares = {"exact_match": self["exact"] / self["examples"]}
            return shares | {"string_match": self["hits"] / self["targets"]}
        found = {
            "exact_match": self["exact"] / self["examples"],
            "token_accuracy": self["hits"] / self["targets"],
            "nats_per_token": self["nats"] / self["targets"],
        }
        return found | ({"output_match": self["output"] / self["with_output"]} if self["with_output"] else {})


class Answering(Protocol):
    """A model that answers under teacher forcing."""

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        """The draws of positions over whose answers is averaged, as `Decoder.draws`."""

    def marked(self, tokens_BT: Tensor, targets_BT: Tensor, scored_BT: Tensor, step: Any) -> tuple[Tensor, Tensor]:
        """For each scored target the loss in nats, and whether it has the largest logit; 0 and False elsewhere."""


@final
class AnsweringDecoder:
    """A decoder of this project that answers."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        return self.decoder.draws(tokens_BT)

    def marked(self, tokens_BT: Tensor, targets_BT: Tensor, scored_BT: Tensor, step: Any) -> tuple[Tensor, Tensor]:
        n_rows = max(1, LOGITS_AT_ONCE // 8 // self.decoder.embed_tokens.num_embeddings)
        x_SD, nats, right = self.decoder.hidden(tokens_BT, step=step)[scored_BT], [], []
        rows = zip(torch.split(x_SD, n_rows), torch.split(targets_BT[scored_BT], n_rows), strict=True)
        for x_RD, targets_R in rows:
            logits_RV = at_least_float32(self.decoder.unembed(x_RD))
            nats.append(F.cross_entropy(logits_RV, targets_R, reduction="none"))
            right.append(logits_RV.argmax(-1) == targets_R)
        nats_BT = nats[0].new_zeros(scored_BT.shape).masked_scatter(scored_BT, torch.cat(nats))
        return nats_BT, torch.zeros_like(scored_BT).masked_scatter(scored_BT, torch.cat(right))


@torch.no_grad()
def score_answers(model: Decoder | Answering, batches: Iterable[Batch], *, device: torch.device) -> AnswerScores:
    """What the model answers to examples, all of whose tokens before a target are the right ones."""
    if isinstance(model, Decoder):
        was_training = model.training
        scores = score_answers(AnsweringDecoder(model.eval()), batches, device=device)
        model.train(was_training)
        return scores
    scores = AnswerScores()
    for tokens_BT, targets_BT, scored_BT, output_BT, times_B in batches:
        inputs_BT, scored_BT, output_BT = tokens_BT.to(device), scored_BT.to(device), output_BT.to(device)
        has_output_B = output_BT.any(-1)
        found: dict[str, list[Tensor]] = {"exact": [], "output": [], "hits": [], "nats": []}
        for step in model.draws(tokens_BT):
            nats_BT, right_BT = model.marked(inputs_BT, targets_BT.to(device), scored_BT, step)
            found["exact"].append((right_BT | ~scored_BT).all(-1))
            found["output"].append((right_BT | ~output_BT).all(-1) & has_output_B)
            found["hits"].append(right_BT.sum(-1))
            found["nats"].append(nats_BT.cpu().double().sum(-1))
        means = {name: torch.stack(draws).cpu().double().mean(0) for name, draws in found.items()}
        scores.add(times_B, with_output=has_output_B, targets=scored_BT.sum(-1), **means)
    return scores
