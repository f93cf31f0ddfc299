"""How well a model predicts text and answers examples: the loss in nats at each position, and the right answers.

Under greedy decoding an answer is fully right if and only if each of its tokens has the largest logit given the right
tokens before it. So one forward pass over the whole example shows whether the answer is right. If positions are drawn,
an example is scored in this way at the positions of each draw, and its scores are the means over the draws.

Shapes: B windows, texts or examples, T targets, N some targets, S scored targets, D model width, V vocabulary.

Tested by tests/model/test_scoring.py and tests/training/test_task_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundround.kernels.precision import at_least_float32
from roundround.model.decoder import Decoder

FEWEST = 100  # targets; the standard error of a mean loss is about 0.2 nats there


class Windows(Protocol):
    """Rows of token ids [n, T + 1], in memory or on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class Share:
    """One process's share of the windows: every n-th window, beginning with number `first`."""

    def __init__(self, windows: Windows, *, first: int, n: int) -> None:
        self.windows, self.first, self.n = windows, first, n

    def __len__(self) -> int:
        return len(range(self.first, len(self.windows), self.n))

    def __getitem__(self, rows: slice, /) -> Tensor:
        return self.windows[self.among_all(rows)]

    def among_all(self, rows: slice) -> slice:
        """The slice of all windows that contains the same windows as the slice `rows` of this share."""
        start, stop, _ = rows.indices(len(self))
        return slice(self.first + start * self.n, self.first + stop * self.n, self.n)


def nats_of(logits_BNV: Tensor, targets_BN: Tensor) -> Tensor:
    """The loss of each target, [B, N], in float32, or in float64 for float64 logits."""
    # classes are the last axis: as a middle axis they are added one by one, too low by 4e-4 nats at 262,144 classes
    logits_RV = at_least_float32(logits_BNV).flatten(0, 1)
    return F.cross_entropy(logits_RV, targets_BN.flatten(), reduction="none").view_as(targets_BN)


def perplexity(token_loss: float) -> float:
    """exp of a loss in nats per token; inf above 709 nats, where it exceeds the range of a float."""
    return float(torch.tensor(token_loss, dtype=torch.float64).exp())


class PositionLoss:
    """Summed loss in nats and number of targets at each position, float64.

    A joint is the token between two documents. joint_sum, n_joints: the summed loss of the joints and the number of
    joints. If joints are counted separately, they are not among the targets.
    """

    def __init__(self, n_positions: int) -> None:
        self.sum_T = torch.zeros(n_positions, dtype=torch.float64)
        self.count_T = torch.zeros(n_positions, dtype=torch.float64)
        self.joint_sum, self.n_joints = 0.0, 0

    def add(self, loss_BT: Tensor, target_BT: Tensor | None = None, joint_BT: Tensor | None = None) -> None:
        """Add the losses of a batch. target_BT: True at the tokens to score. joint_BT: True at the joints."""
        loss_BT, n = loss_BT.cpu().double(), loss_BT.shape[1]
        target_BT = torch.ones_like(loss_BT, dtype=torch.bool) if target_BT is None else target_BT.cpu()
        if joint_BT is not None:
            joint_BT = joint_BT.cpu() & target_BT
            self.joint_sum += float(loss_BT[joint_BT].sum())
            self.n_joints += int(joint_BT.sum())
            target_BT = target_BT & ~joint_BT
        self.sum_T[:n] += loss_BT.masked_fill(~target_BT, 0.0).sum(0)
        self.count_T[:n] += target_BT.sum(0)

    def add_all(self, others: Iterable[PositionLoss]) -> None:
        """Add the sums and numbers of other instances."""
        for other in others:
            self.sum_T[: len(other.sum_T)] += other.sum_T
            self.count_T[: len(other.sum_T)] += other.count_T
            self.joint_sum += other.joint_sum
            self.n_joints += other.n_joints

    @property
    def n_targets(self) -> int:
        return int(self.count_T.sum())

    @property
    def n_scored(self) -> int:
        """The number of targets and joints."""
        return self.n_targets + self.n_joints

    def token_loss(self, first: int = 0, last: int | None = None) -> float:
        """Mean loss in nats of the targets at the positions [first, last); NaN if there is no target."""
        return float(self.sum_T[first:last].sum() / self.count_T[first:last].sum())

    def perplexity(self, first: int = 0, last: int | None = None) -> float:
        """exp of `token_loss`; inf if the result exceeds the range of a float."""
        return perplexity(self.token_loss(first, last))

    def perplexity_with_joints(self) -> float:
        """The perplexity over targets and joints together; inf if it exceeds the range of a float."""
        return perplexity(float((self.sum_T.sum() + self.joint_sum) / self.n_scored))

    def share_at_joints(self) -> float:
        """The summed loss of the joints, divided by the summed loss of targets and joints."""
        return self.joint_sum / (float(self.sum_T.sum()) + self.joint_sum)

    @property
    def by_position(self) -> list[float | None]:
        """Mean loss in nats of the targets at each position; None at a position without targets."""
        pairs = zip(self.sum_T.tolist(), self.count_T.tolist(), strict=True)
        return [total / count if count else None for total, count in pairs]


def n_targets(loss: PositionLoss, first: int = 0, last: int | None = None) -> int:
    """Number of targets at the positions [first, last)."""
    return int(loss.count_T[first:last].sum())


def bins(loss: PositionLoss, first: int = 64) -> list[tuple[int, int]]:
    """Ranges [a, b) of positions, whose ends double from `first` up to the length: (0, 64), (64, 128), (128, 256), ...

    A range with fewer than FEWEST targets is merged with the next ranges until it has FEWEST. If too few targets remain
    at the end, they go to the range before.
    """
    longest = len(loss.sum_T)
    ends, found = [min(first, longest)], list[tuple[int, int]]()
    while ends[-1] < longest:
        ends.append(min(2 * ends[-1], longest))
    begin = 0
    for end in ends:
        if n_targets(loss, begin, end) >= FEWEST:
            found.append((begin, end))
            begin = end
    if begin < longest:
        found.append((found.pop()[0] if found else begin, longest))
    return found


@torch.no_grad()
def score(
    model: nn.Module,
    windows: Windows,
    *,
    batch: int,
    device: torch.device,
    scored: Callable[[slice], Tensor] | None = None,
    joints: Callable[[slice], Tensor] | None = None,
    separator: int | None = None,
) -> PositionLoss:
    """Score windows [N, T + 1] of token ids (T inputs and, shifted by one, T targets), `batch` windows at a time.

    `model(tokens_BT, targets_BT=...)` gives the loss in nats of each target, as `Decoder` does.
    scored: a function from a slice of rows of `windows` to a mask [n, T], True at the targets to score; None for all.
    joints: a function from such a slice to a mask [n, T], True at the targets that are tokens between two documents;
    the losses of these targets are summed separately. None sums the losses of all targets together.
    separator: the token that ends a document, for a `Decoder` in which documents do not see each other; None if they
    see each other.
    """
    was_training = model.training
    model.eval()
    loss = PositionLoss(windows[:1].shape[1] - 1)
    for start in range(0, len(windows), batch):
        rows = slice(start, start + batch)
        on_device_BT1 = windows[rows].to(device)
        inputs_BT = on_device_BT1[:, :-1]
        ends = {} if separator is None else {"ends_BT": inputs_BT == separator}
        loss_BT = model(inputs_BT, targets_BT=on_device_BT1[:, 1:], **ends)
        loss.add(loss_BT, scored and scored(rows), joints and joints(rows))
    model.train(was_training)
    return loss


COUNTED = (
    *("examples", "exact", "output", "with_output", "targets", "hits", "nats"),  # over all drawn examples
    # over the distinct examples: how often each was drawn (times), its hits and its targets
    *("distinct", "times_squared", "hits_squared", "hits_by_targets", "targets_squared"),
)
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # tokens, targets, scored, output [B, T], times [B]


class AnswerScores:
    """Sums over examples, [len(COUNTED)], float64. The sums of batches and of processes can be added.

    An example that was drawn n times is one observation with the weight n. For written answers, `targets` is the number
    of references of an example, `hits` is the number of references found in the answer, and `exact` is 1 if all were
    found.
    """

    def __init__(self, sums: Tensor | None = None, *, written: bool = False) -> None:
        self.written = written
        self.sums = torch.zeros(len(COUNTED), dtype=torch.float64) if sums is None else sums.cpu().double()

    def add(self, times_B: Tensor, **of_each: Tensor) -> None:
        """Add distinct examples. times_B: the number of times that each example was drawn.

        of_each: for each name in COUNTED from `exact` to `nats`, a tensor [B] with one value for each example.
        """
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
        """The share of scored targets and of whole examples that are right, and the loss in nats per scored target.

        `output_match` is the share of examples with a right output among the examples that have an output; the output
        is computed from the right tokens before it. For written answers the values are the share of examples with all
        references found (`exact_match`), and the share of references found (`string_match`).
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
    """A model that answers under teacher forcing, such as `Decoder`."""

    def draws(self, tokens_BT: Tensor) -> Sequence[Any]:
        """The draws of positions over which the scores are averaged, as in `Decoder.draws`."""

    def marked(self, tokens_BT: Tensor, targets_BT: Tensor, scored_BT: Tensor, step: Any) -> tuple[Tensor, Tensor]:
        """For each scored target, its loss in nats, and whether its logit is the largest; elsewhere 0 and False."""


@torch.no_grad()
def score_answers(model: Answering, batches: Iterable[Batch], *, device: torch.device) -> AnswerScores:
    """Scores of the model's answers to examples; each target is predicted from the right tokens before it."""
    scores, module = AnswerScores(), model if isinstance(model, Decoder) else nn.Module()
    was_training = module.training
    module.eval()
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
    module.train(was_training)
    return scores
