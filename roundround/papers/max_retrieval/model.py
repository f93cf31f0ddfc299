"""Max retrieval: the sets, the model and its training, and the measurements of trained models.

Each set is a pure function of a seed and a number. In training this is the number of the step; in a measurement it is
the number of the set. An item is a priority from U(0, 1) and a class; the answer to a set is the class of the item of
the largest priority. The query is a number from U(0, 1) without information. Velickovic et al. 2024, arXiv:2410.01104,
appendix A.

The model is two encoders, one attention head with one query for each set, and an output network. One module holds the
models of all seeds: every parameter has a leading axis for the seed, and the seeds never interact. One optimizer trains
them, because Adam works element by element. With several processes, each one trains and measures some of the seeds.
They exchange only what a run records, such as losses and checkpoints; a checkpoint holds all seeds. Every tensor of the
training state, such as weights and moments of Adam, has the seeds as its first axis; scalars, such as the count of
steps, are the same for all seeds.

Trained models are measured at every size with every normaliser. Two more numbers describe each head: the slope of its
logits against the priority, and the spread of its logits over the classes.

Shapes: S seeds, B sets, N items, D width, K classes, M normalisers.

Tested by tests/papers/test_retrieval_model.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from roundround.kernels.keys import AttentionShape
from roundround.kernels.row_measures import entropy_bound, largest_weight_bound, shannon_entropy
from roundround.softmax.adaptive_temperature import AdaptiveTemperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.temperature import Temperature
from roundround.support.errors import UserError

# -- sets

TRAINING, SIZES, TEST, FITTING, SIZES_OF_SETS = range(5)  # streams of random numbers
STEPS_AT_ONCE = 64  # the number of steps whose random numbers are drawn together, which is faster
ITEMS_AT_ONCE = 2**14  # the number of items in a block of an evaluation: 8 MiB of float32 with 128 channels


@dataclass(frozen=True)
class Sets:
    """Sets of up to N items for each of S seeds."""

    priorities_SBN: Tensor  # float32
    classes_SBN: Tensor  # int64
    queries_SB: Tensor  # float32
    present_SBN: Tensor | None = None  # bool; None where all sets have N items

    @property
    def largest_SB(self) -> Tensor:
        """The index of the item of the largest priority."""
        priorities = self.priorities_SBN
        if self.present_SBN is not None:
            priorities = priorities.masked_fill(~self.present_SBN, -1.0)
        return priorities.argmax(-1)

    @property
    def answers_SB(self) -> Tensor:
        """The class of the item of the largest priority."""
        return self.classes_SBN.gather(-1, self.largest_SB[..., None])[..., 0]

    def to(self, device: torch.device) -> Sets:
        moved = (self.priorities_SBN, self.classes_SBN, self.queries_SB, self.present_SBN)
        return Sets(*(None if x is None else x.to(device) for x in moved))  # type: ignore[arg-type]


class TrainingSets:
    """The batch of each step. A seed gets the same sets whether or not other seeds are trained beside it.

    All sets of a step have one size, uniform in n_min..n_max. The size is the same for all seeds, which share nothing
    else. With `size_of_each_set`, each set draws its own size.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        batch_size: int,
        n_min: int,
        n_max: int,
        n_classes: int,
        size_of_each_set: bool = False,
    ) -> None:
        self.seeds, self.batch_size, self.n_min, self.n_max = list(seeds), batch_size, n_min, n_max
        self.n_classes, self.size_of_each_set = n_classes, size_of_each_set
        self._block = -1

    def batch(self, step: int) -> Sets:
        """The sets of the step-th update, counted from 0."""
        block, place = divmod(step, STEPS_AT_ONCE)
        if block != self._block:
            self._draw(block)
            self._block = block
        if self.size_of_each_set:
            n_SB1 = self._sizes_of_sets[:, place, :, None]
            present = torch.arange(self.n_max) < n_SB1
            return Sets(self._priorities[:, place], self._classes[:, place], self._queries[:, place], present)
        n = self._sizes[place]
        return Sets(
            self._priorities[:, place, :, :n].contiguous(),
            self._classes[:, place, :, :n].contiguous(),
            self._queries[:, place],
        )

    def _draw(self, block: int) -> None:
        shape = (STEPS_AT_ONCE, self.batch_size, self.n_max)
        drawn = [draw(np.random.default_rng([TRAINING, seed, block]), shape, self.n_classes) for seed in self.seeds]
        priorities, classes, queries = zip(*drawn, strict=True)
        self._priorities, self._classes = stacked(priorities), stacked(classes).long()
        self._queries = stacked(queries)
        among = (self.n_min, self.n_max + 1)
        self._sizes = np.random.default_rng([SIZES, block]).integers(*among, STEPS_AT_ONCE).tolist()
        if self.size_of_each_set:
            rngs = [np.random.default_rng([SIZES_OF_SETS, seed, block]) for seed in self.seeds]
            self._sizes_of_sets = stacked([rng.integers(*among, shape[:2]) for rng in rngs])


def sets_of_size(seed: int, *, n: int, n_sets: int, n_classes: int, stream: int) -> Iterator[Sets]:
    """Sets of n items for one seed (S is 1), in blocks of sets.

    stream: the stream of random numbers, such as TEST. Each set is determined by its seed, n, stream and number.
    """
    at_once = max(1, ITEMS_AT_ONCE // n)
    for block, first in enumerate(range(0, n_sets, at_once)):
        rng = np.random.default_rng([stream, seed, n, block])
        drawn = draw(rng, (at_once, n), n_classes)
        priorities, classes, queries = (torch.from_numpy(x[: n_sets - first])[None] for x in drawn)
        yield Sets(priorities, classes.long(), queries)


def draw(
    rng: np.random.Generator, shape: tuple[int, ...], n_classes: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.float32]]:
    """Random priorities and classes, both of this shape, and random queries of the shape without the last axis."""
    return (
        rng.random(shape, dtype=np.float32),
        rng.integers(n_classes, size=shape, dtype=np.uint8),
        rng.random(shape[:-1], dtype=np.float32),
    )


def stacked(arrays: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.stack(arrays))


# -- the model and its training

MOST_CLASSES = 256  # a class is one byte


class StackedLinear(nn.Module):
    """`n_seeds` linear layers side by side: x_SBI -> x_SBO. rounds: whether x and weights are rounded to bfloat16."""

    rounds = False

    def __init__(self, n_seeds: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_seeds, n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_seeds, 1, n_out))

    def forward(self, x_SBI: Tensor) -> Tensor:
        if self.rounds:
            return torch.baddbmm(self.bias, rounded(x_SBI), rounded(self.weight))
        return torch.baddbmm(self.bias, x_SBI, self.weight)


def rounded(x: Tensor) -> Tensor:
    """x rounded to bfloat16 and back, with the gradient passed straight through; no change if x is in bfloat16."""
    return x + (x.bfloat16().to(x.dtype) - x).detach()


class MaxRetrieval(nn.Module):
    """Names the class of the item of the largest priority, with one attention head.

    h_i = psi_x(x_i), e_i = (Q psi_q(q)) . (K h_i), alpha = softmax(e), logits = phi(sum_i alpha_i V h_i)

    Velickovic et al. 2024, arXiv:2410.01104, appendix A, equations 9 to 14. psi_x, psi_q and phi have one hidden layer
    with GELU; x_i is the priority and the one-hot class.

    Options decide what the paper leaves open. `scaled_logits` divides the logits by sqrt(width). `tanh_gelu` takes
    JAX's default GELU instead of the exact one. The usual initialisation is Flax's: a truncated normal of standard
    deviation 1 / sqrt(fan in), and zero biases. `haiku_init` takes Haiku's instead, and `uniform_init` that of
    torch.nn.Linear. `bfloat16_products` rounds the factors of matrix products to bfloat16 and keeps all else, gradients
    included, in float32, as JAX does by default on a TPU. A seed's weights are a function of the seed alone.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        n_classes: int,
        width: int,
        scaled_logits: bool,
        tanh_gelu: bool,
        uniform_init: bool,
        haiku_init: bool = False,
        bfloat16_products: bool = False,
    ) -> None:
        super().__init__()
        if not 2 <= n_classes <= MOST_CLASSES:
            raise ValueError(f"n_classes={n_classes} must lie between 2 and {MOST_CLASSES}: a class is kept in a byte")
        if uniform_init and haiku_init:
            raise ValueError("uniform_init=true and haiku_init=true are two initialisations; give one of them")
        self.n_classes, self.width = n_classes, width
        self.scale = 1 / math.sqrt(width) if scaled_logits else 1.0
        self.gelu = "tanh" if tanh_gelu else "none"
        n, d = len(seeds), width
        self.item_in, self.item_out = StackedLinear(n, n_classes + 1, d), StackedLinear(n, d, d)
        self.query_in, self.query_out = StackedLinear(n, 1, d), StackedLinear(n, d, d)
        self.to_query, self.to_key, self.to_value = (StackedLinear(n, d, d) for _ in range(3))
        self.answer_in, self.answer_out = StackedLinear(n, d, d), StackedLinear(n, d, n_classes)
        self.initialise(seeds, uniform=uniform_init, stretched=not haiku_init)
        self.rounds = False
        if bfloat16_products:
            self.round_products()

    def round_products(self) -> None:
        """From now on, round the factors of matrix products to bfloat16.

        `forward` then calls `definition`. The fast form in `forward` multiplies different factors, so it equals
        `definition` only without rounding.
        """
        self.rounds = True
        for layer in self.children():
            assert isinstance(layer, StackedLinear)
            layer.rounds = True

    @torch.no_grad()
    def initialise(self, seeds: Sequence[int], *, uniform: bool, stretched: bool) -> None:
        for place, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))
            for layer in self.children():
                assert isinstance(layer, StackedLinear)
                weight, bias, std = layer.weight[place], layer.bias[place], layer.weight.shape[1] ** -0.5
                if uniform:
                    nn.init.uniform_(weight, -std, std, generator=generator)
                    nn.init.uniform_(bias, -std, std, generator=generator)
                else:  # cut at two standard deviations; Flax stretches it, so that the cut normal has the right one
                    std = std / 0.87962566103423978 if stretched else std  # deviation of a standard normal cut there
                    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
                    nn.init.zeros_(bias)

    @property
    def device(self) -> torch.device:
        return self.item_in.weight.device

    def only(self, place: int) -> MaxRetrieval:
        """A copy of the model that has only the seed at index `place`."""
        alone = copy.deepcopy(self)
        for parameter in alone.parameters():
            parameter.data = parameter.data[place : place + 1].clone()
        return alone

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate=self.gelu)

    # -- the definition

    def definition(self, sets: Sets, softmax: AttentionSoftmax) -> Tensor:
        """Logits of the classes, [S, B, K]; every item goes through the encoder and the key and value projections."""
        e_SBN, v_SBND = self.logits_and_values(sets)
        alpha_SBN = self.factor(weights_of(softmax, e_SBN, sets.present_SBN))
        return self.answer((alpha_SBN[:, :, None] @ v_SBND)[:, :, 0])

    def factor(self, x: Tensor) -> Tensor:
        """x, a factor of a matrix product outside `StackedLinear` layers; rounded to bfloat16 if `rounds` is set."""
        return rounded(x) if self.rounds else x

    def logits_and_values(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """The attention logits e [S, B, N] and the values V h [S, B, N, D], in the class docstring's symbols."""
        one_hot = F.one_hot(sets.classes_SBN, self.n_classes).to(sets.priorities_SBN.dtype)
        x_SBNI = torch.cat([sets.priorities_SBN[..., None], one_hot], -1)
        h_SBND = self.each(self.item_out, self.activation(self.each(self.item_in, x_SBNI)))
        e_SB1N = self.factor(self.query_of(sets)) @ self.factor(self.each(self.to_key, h_SBND)).mT * self.scale
        return e_SB1N[:, :, 0], self.factor(self.each(self.to_value, h_SBND))

    def each(self, layer: StackedLinear, x_SBNI: Tensor) -> Tensor:
        """The layer's output for every item."""
        s, b, n, _ = x_SBNI.shape
        return layer(x_SBNI.reshape(s, b * n, -1)).view(s, b, n, -1)  # type: ignore[no-any-return]

    def query_of(self, sets: Sets) -> Tensor:
        """Q psi_q(q), [S, B, 1, D]."""
        g_SBD = self.query_out(self.activation(self.query_in(sets.queries_SB[..., None])))
        return self.to_query(g_SBD)[:, :, None]  # type: ignore[no-any-return]

    def answer(self, z_SBD: Tensor) -> Tensor:
        """phi(z), [S, B, K]."""
        return self.answer_out(self.activation(self.answer_in(z_SBD)))  # type: ignore[no-any-return]

    # -- the fast form, for one query a set: linear maps move to the query's side, or behind the weighted sum

    def forward(self, sets: Sets, softmax: AttentionSoftmax) -> Tensor:
        """The same logits of the classes as `definition`, [S, B, K], in a fast form unless products are rounded.

        The fast form applies linear maps to the query or to the weighted sum, instead of to every item.
        """
        if self.rounds:
            return self.definition(sets, softmax)
        query_SBD, constant_SB1 = self.queries_of_hidden(sets)
        mean_SBD, total_SB = AttendOnce.apply(  # type: ignore[no-untyped-call]
            *self.encoder_operands(sets),
            query_SBD,
            constant_SB1,
            lambda e_SBN: weights_of(softmax, e_SBN, sets.present_SBN),
            self.gelu,
        )
        return self.answer_from(mean_SBD, total_SB)

    def encoder_operands(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Items [S, B, N, K + 1], and the weight of the encoder's first layer, which includes the layer's bias.

        Every item has one class, so the bias is added to the rows of the weight that multiply the one-hot class.
        """
        one_hot = F.one_hot(sets.classes_SBN, self.n_classes).to(sets.priorities_SBN.dtype)
        of_classes = F.pad(self.item_in.bias.expand(-1, self.n_classes, -1), (0, 0, 1, 0))
        return torch.cat([sets.priorities_SBN[..., None], one_hot], -1), self.item_in.weight + of_classes

    def queries_of_hidden(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Queries [S, B, D] and constants [S, B, 1] for `forward`, where the logit of item i is query . a_i + constant.

        a_i is the "hidden item": the encoder's hidden layer at item i. W and b are the encoder's output layer, K and c
        are the key projection, and Q g is the projected query.

        e_i = (Q g) . (K (W a_i + b) + c) = (W^T K^T Q g) . a_i + (K^T Q g) . b + (Q g) . c
        """
        query_SBD = self.query_of(sets)[:, :, 0] * self.scale
        at_item_SBD = query_SBD @ self.to_key.weight.mT
        constant_SB1 = query_SBD @ self.to_key.bias.mT + at_item_SBD @ self.item_out.bias.mT
        return at_item_SBD @ self.item_out.weight.mT, constant_SB1

    def answer_from(self, mean_SBD: Tensor, total_SB: Tensor) -> Tensor:
        """Logits of the classes, [S, B, K], from the weighted sum of hidden items a_i and the sum of weights alpha_i.

        W and b are the encoder's output layer, V and c the value projection.

        sum_i alpha_i (V (W a_i + b) + c) = V (W sum_i alpha_i a_i + sum_i alpha_i b) + sum_i alpha_i c
        """
        if self.rounds:  # mean_SBD is the weighted sum of values
            return self.answer(mean_SBD.to(self.answer_in.weight.dtype))
        total_SB1 = total_SB[..., None]
        z_SBD = mean_SBD @ self.item_out.weight + total_SB1 * self.item_out.bias
        return self.answer(z_SBD @ self.to_value.weight + total_SB1 * self.to_value.bias)

    @torch.no_grad()
    def attended(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Attention logits [S, B, N] and hidden items [S, B, N, D], from which any normaliser can be evaluated.

        If the model rounds products, the second tensor holds the values instead of the hidden items.
        """
        if self.rounds:
            e_SBN, v_SBND = self.logits_and_values(sets)
            return e_SBN, v_SBND.bfloat16()
        x_SBNI, weight_SID = self.encoder_operands(sets)
        query_SBD, constant_SB1 = self.queries_of_hidden(sets)
        a_SBND = self.activation(torch.bmm(x_SBNI.flatten(1, 2), weight_SID)).view(*x_SBNI.shape[:3], -1)
        return (a_SBND @ query_SBD[..., None])[..., 0] + constant_SB1, a_SBND

    def loss(self, sets: Sets, softmax: AttentionSoftmax) -> Tensor:
        """Cross-entropy in nats, the mean over each seed's sets: [S]."""
        logits_SBK = self(sets, softmax)
        nats = F.cross_entropy(logits_SBK.flatten(0, 1), sets.answers_SB.flatten(), reduction="none")
        return nats.view(logits_SBK.shape[:2]).mean(1)


class AttendOnce(torch.autograd.Function):
    """One query's attention over a set, from the items to the weighted sum of their hidden channels.

    a_i = gelu(x_i W), e_i = q . a_i + constant, alpha = weights(e)

    Returns sum_i alpha_i a_i [S, B, D] and sum_i alpha_i [S, B]. Autograd would need more passes over [S, B, N, D];
    they would take a fifth of a step's time. The function `weights` must have no parameters: they would get no
    gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_SBNI: Tensor,
        weight_SID: Tensor,
        query_SBD: Tensor,
        constant_SB1: Tensor,
        weights: Callable[[Tensor], Tensor],
        gelu: str,
    ) -> tuple[Tensor, Tensor]:
        s, b, n, _ = x_SBNI.shape
        before = torch.bmm(x_SBNI.flatten(1, 2), weight_SID)
        a_SBND = F.gelu(before, approximate=gelu).view(s, b, n, -1)
        e_SBN = (a_SBND @ query_SBD[..., None])[..., 0] + constant_SB1
        with torch.enable_grad():
            alpha_SBN = weights(e_SBN.requires_grad_())
        ctx.save_for_backward(x_SBNI, query_SBD, before, a_SBND)
        ctx.e_SBN, ctx.alpha_SBN, ctx.gelu = e_SBN, alpha_SBN, gelu
        alpha = alpha_SBN.detach()
        return (alpha[:, :, None] @ a_SBND)[:, :, 0], alpha.sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mean_SBD: Tensor, d_total_SB: Tensor) -> tuple[Tensor | None, ...]:
        x_SBNI, query_SBD, before, a_SBND = ctx.saved_tensors
        d_mean_SB1D = d_mean_SBD[:, :, None]
        d_alpha_SBN = (d_mean_SB1D @ a_SBND.mT)[:, :, 0] + d_total_SB[..., None]
        (de_SBN,) = torch.autograd.grad(ctx.alpha_SBN, ctx.e_SBN, d_alpha_SBN)
        d_query_SBD = (de_SBN[:, :, None] @ a_SBND)[:, :, 0]
        d_a = ctx.alpha_SBN.detach()[..., None] * d_mean_SB1D  # as a matrix product it would take three times as long
        d_a = d_a.addcmul_(de_SBN[..., None], query_SBD[:, :, None]).flatten(1, 2)
        d_before = torch.ops.aten.gelu_backward.grad_input(d_a, before, approximate=ctx.gelu, grad_input=d_a)
        d_weight_SID = torch.bmm(x_SBNI.flatten(1, 2).mT, d_before)
        return None, d_weight_SID, d_query_SBD, de_SBN.sum(-1, keepdim=True), None, None


def head_shape(width: int, train_length: int) -> AttentionShape:
    """The AttentionShape of this head, from which normalisers are built."""
    return AttentionShape(n_heads=1, n_key_heads=1, head_dim=width, d_model=width, layer=0, train_length=train_length)


def weights_of(softmax: AttentionSoftmax, e_SBN: Tensor, present_SBN: Tensor | None) -> Tensor:
    """Attention weights, one row for each set: [S, B, N]."""
    e_B11N = e_SBN.flatten(0, 1)[:, None, None]
    visible = torch.ones_like(e_SBN, dtype=torch.bool) if present_SBN is None else present_SBN
    visible_B1QN = visible.flatten(0, 1)[:, None, None]
    rows = {"n_visible": visible_B1QN.sum(-1, keepdim=True)}
    return softmax.weights(e_B11N, visible_B1QN, rows).view_as(e_SBN)


def train(
    model: MaxRetrieval,
    softmax: AttentionSoftmax,
    optimizer: torch.optim.Optimizer,
    sets: TrainingSets,
    *,
    first_step: int,
    n_steps: int,
) -> Iterator[tuple[int, Tensor]]:
    """Make the updates first_step + 1 to n_steps; after each, yield its number and every seed's loss in nats, [S]."""
    for step in range(first_step, n_steps):
        loss_S = model.loss(sets.batch(step).to(model.device), softmax)
        optimizer.zero_grad()
        loss_S.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield step + 1, loss_S.detach()


def seeds_of(rank: int, n_processes: int, n_seeds: int) -> slice:
    """The indices of one process's share of the seeds; shares are as equal as possible.

    Raises UserError if there are fewer seeds than processes.
    """
    if n_seeds < n_processes:
        raise UserError(
            f"seeds={n_seeds} is less than the number of processes, {n_processes}; start {n_seeds} processes, or give "
            "more seeds"
        )
    places = np.array_split(np.arange(n_seeds), n_processes)[rank]
    return slice(int(places[0]), int(places[-1]) + 1)


def share_of(state: Any, seeds: slice) -> Any:
    """The part of a training state that belongs to these seeds. Scalars, which all seeds share, are kept."""
    if isinstance(state, Tensor):
        return state[seeds].clone() if state.ndim else state
    if isinstance(state, dict):
        return {key: share_of(value, seeds) for key, value in state.items()}
    return state


def joined(states: Sequence[Any]) -> Any:
    """The training state of all seeds, joined from the processes' shares in the order of the processes."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat([state.cpu() for state in states]) if first.ndim else first
    if isinstance(first, dict):
        return {key: joined([state[key] for state in states]) for key in first}
    return first


# -- the measurements of trained models


@final
class InBfloat16:
    """A copy of a model that computes in bfloat16, except for its softmax.

    Weights, items and every result in between are rounded; sums inside a product are in float32, as on TPUs and GPUs.
    It computes the model's `definition`. The fast form in `forward` has different results in between, so it equals
    `definition` only without rounding. Just below 1, bfloat16 numbers are 1/256 apart; so in sets of some hundred items
    or more, several items share the largest priority.
    """

    def __init__(self, model: MaxRetrieval) -> None:
        self.model, self.n_classes, self.device = copy.deepcopy(model).bfloat16(), model.n_classes, model.device

    @torch.no_grad()
    def attended(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Attention logits [S, B, N], and the values [S, B, N, D]."""
        return self.model.logits_and_values(
            replace(sets, priorities_SBN=sets.priorities_SBN.bfloat16(), queries_SB=sets.queries_SB.bfloat16())
        )

    def answer_from(self, mean_SBD: Tensor, total_SB: Tensor) -> Tensor:
        """Logits of the classes from `mean_SBD`, the weighted sum of the values: [S, B, K]. `total_SB` is not used."""
        return self.model.answer(mean_SBD)


Means = dict[str, float]


@torch.no_grad()
def evaluate(
    model: MaxRetrieval | InBfloat16, softmaxes: Mapping[str, AttentionSoftmax], blocks: Iterable[Sets]
) -> tuple[dict[str, Means], Means]:
    """Means over the sets of one seed: first the means for each normaliser, then the means for the logits.

    All normalisers get the same logits. The means for a normaliser are `accuracy`, `entropy` in nats, `largest_weight`
    and `heaviest_class_is_right`, the share of sets in which the class with the most weight is the right one. The means
    for the logits are `logit_spread`, which is delta, the largest minus the smallest logit of a set, and
    `largest_logit_is_right`, the share of sets in which the item of the largest priority has the largest logit. There
    are also two bounds for the plain softmax by Lemma 2.1 of arXiv:2410.01104: `entropy_bound` is max(ln n - delta, 0),
    and `largest_weight_bound` is min(exp(delta) / n, 1).
    """
    totals: dict[str, Tensor] = {}
    n_sets = 0
    for block in blocks:
        sets = block.to(model.device)
        e_SBN, a_SBND = model.attended(sets)
        alpha_SBMN = torch.stack([weights_of(softmax, e_SBN, None) for softmax in softmaxes.values()], 2)
        mean_SBMD, total_SBM = alpha_SBMN.to(a_SBND.dtype) @ a_SBND, alpha_SBMN.sum(-1)
        logits = model.answer_from(mean_SBMD.flatten(1, 2), total_SBM.flatten(1, 2)).view(*total_SBM.shape, -1)
        classes_SBMN = sets.classes_SBN[:, :, None].expand_as(alpha_SBMN)
        of_class_SBMK = alpha_SBMN.new_zeros(logits.shape).scatter_add_(-1, classes_SBMN, alpha_SBMN)
        answers_SB1 = sets.answers_SB[..., None]
        spread_SB = e_SBN.amax(-1) - e_SBN.amin(-1)
        ln_n = math.log(e_SBN.shape[-1])
        measured = {
            "accuracy": logits.argmax(-1) == answers_SB1,
            "heaviest_class_is_right": of_class_SBMK.argmax(-1) == answers_SB1,
            "entropy": shannon_entropy(alpha_SBMN),
            "largest_weight": alpha_SBMN.amax(-1),
            "logit_spread": spread_SB,
            "entropy_bound": entropy_bound(ln_n, spread_SB),
            "largest_weight_bound": largest_weight_bound(ln_n, spread_SB),
            "largest_logit_is_right": e_SBN.argmax(-1) == sets.largest_SB,
        }
        for metric, value in measured.items():
            totals[metric] = totals.get(metric, torch.zeros((), device=model.device)) + value.double().sum((0, 1))
        n_sets += sets.queries_SB.numel()
    means: dict[str, Any] = {metric: (total / n_sets).tolist() for metric, total in totals.items()}
    names = ("logit_spread", "entropy_bound", "largest_weight_bound", "largest_logit_is_right")
    of_logits = {metric: means.pop(metric) for metric in names}
    return {name: {metric: means[metric][m] for metric in means} for m, name in enumerate(softmaxes)}, of_logits


@torch.no_grad()
def attention_by_priority(
    model: MaxRetrieval | InBfloat16,
    softmaxes: Mapping[str, AttentionSoftmax],
    blocks: Iterable[Sets],
    *,
    n_sets: int,
    n_items: int,
) -> dict[str, Tensor]:
    """The weights that each normaliser gives to the items of highest priority in one seed's first sets.

    The weights of one normaliser are [n_sets, n_items]; the item of the highest priority is the last.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in softmaxes}
    for sets in (block.to(model.device) for block in blocks):
        e_SBN, _ = model.attended(sets)
        order = sets.priorities_SBN.argsort(-1)[..., -n_items:]
        for name, softmax in softmaxes.items():
            found[name].append(weights_of(softmax, e_SBN, None).gather(-1, order)[0].cpu())
    return {name: torch.cat(rows)[:n_sets] for name, rows in found.items()}


def at_one_temperature(softmaxes: Mapping[str, AttentionSoftmax], entropy: float) -> dict[str, AttentionSoftmax]:
    """The same normalisers, except that an adaptive temperature is fixed at its value for this entropy (in nats)."""
    of_all = torch.tensor(entropy, dtype=torch.float64)
    return {
        name: Temperature(softmax.shape, temperature=1 / float(softmax.beta_at(of_all)))
        if isinstance(softmax, AdaptiveTemperature)
        else softmax
        for name, softmax in softmaxes.items()
    }


DEGREE = 4


@torch.no_grad()
def fit_points(model: MaxRetrieval | InBfloat16, blocks: Iterable[Sets], *, n_inputs: int) -> Tensor:
    """Entropy in nats and `best_beta` of up to `n_inputs` misordered inputs of one seed, [inputs, 2].

    An input is misordered if the item of the largest priority does not have the largest logit. `best_beta` is the
    inverse temperature that maximises this item's weight. If the item's logit is below the mean, there is no such
    inverse temperature above 0, and the input is left out.
    """
    found: list[Tensor] = []
    for block in blocks:
        sets = block.to(model.device)
        e_BN, largest_B = model.attended(sets)[0][0].double(), sets.largest_SB[0]
        wrong_B = e_BN.argmax(-1) != largest_B
        e_BN, largest_B = e_BN[wrong_B], largest_B[wrong_B]
        beta_B = best_beta(e_BN, largest_B)
        entropy_B = shannon_entropy(e_BN.softmax(-1))
        found.append(torch.stack([entropy_B, beta_B], -1)[beta_B.isfinite()].cpu())
        if sum(map(len, found)) >= n_inputs:
            break
    return torch.cat(found)[:n_inputs] if found else torch.empty(0, 2, dtype=torch.float64)


def best_beta(e_BN: Tensor, k_B: Tensor) -> Tensor:
    """The beta > 0 that maximises the weight of item k in softmax(beta e), [B]; NaN if there is none.

    The weight is largest if e_k equals the mean logit under softmax(beta e). This mean rises with beta from the plain
    mean to the largest logit. So there is one solution if e_k lies between the two; bisection finds it.
    """
    e_BN = e_BN - e_BN.amax(-1, keepdim=True)
    e_k_B = e_BN.gather(-1, k_B[:, None])[:, 0]
    low_B = torch.full_like(e_k_B, -np.log(1e6))  # inverse temperatures from 1e-6 to 1e6
    high_B = -low_B
    for _ in range(60):
        middle_B = (low_B + high_B) / 2
        mean_B = ((middle_B.exp()[:, None] * e_BN).softmax(-1) * e_BN).sum(-1)
        low_B, high_B = torch.where(mean_B < e_k_B, middle_B, low_B), torch.where(mean_B < e_k_B, high_B, middle_B)
    exists_B = (e_k_B > e_BN.mean(-1)) & (e_k_B < 0)
    return low_B.exp().where(exists_B, torch.nan)


def most_sets(n: int) -> int:
    """The largest number of sets of n items that are searched for misordered ones."""
    return max(64, 2**22 // n)


def fit_quartic(entropies: NDArray[np.float64], betas: NDArray[np.float64]) -> list[float]:
    """Coefficients, highest power first, of the least-squares quartic that maps entropy to inverse temperature.

    The paper fits it to misordered inputs, each with the inverse temperature that maximises the weight of the item of
    the largest priority. Velickovic et al. 2024, arXiv:2410.01104, section 4 and figure 5.

    Raises ValueError if there are too few points for a quartic, or if their entropies are too alike to determine one.
    """
    if len(np.unique(entropies)) <= DEGREE:
        raise ValueError(
            f"only {len(entropies)} inputs have the largest logit at a wrong item, too few for a polynomial of degree "
            f"{DEGREE}; give larger fit_sizes or more fit_inputs"
        )
    low, high = float(entropies.min()), float(entropies.max())
    powers = np.vander((2 * entropies - low - high) / (high - low), DEGREE + 1)
    if np.linalg.cond(powers) > 1e6:  # well-spread points have about 30
        raise ValueError(
            f"the entropies of {len(entropies)} inputs, {low:.3f} to {high:.3f} nats, are too alike for a polynomial "
            f"of degree {DEGREE}; train longer, or give more fit_sizes"
        )
    lowest_first = np.polynomial.Polynomial.fit(entropies, betas, DEGREE).convert().coef
    return [float(c) for c in np.pad(lowest_first, (0, DEGREE + 1 - len(lowest_first)))[::-1]]


@torch.no_grad()
def slope_and_spread(model: MaxRetrieval) -> tuple[Tensor, Tensor]:
    """Slope of the logit in nats per unit of priority, and the standard deviation of the classes' offsets: [S] each.

    For each class, a straight line is fitted to the logits at priorities from 0.9 to 1; the slope is the mean of these
    lines' slopes. The offset of a class is its mean logit at these priorities, divided by the slope, so it is in units
    of priority.
    """
    s, k = len(model.item_in.weight), model.n_classes
    priority_N = torch.linspace(0.9, 1, 101)  # the largest of many priorities lie here
    classes_SKN = torch.arange(k)[:, None].expand(s, k, len(priority_N))
    sets = Sets(priority_N.expand(s, k, -1), classes_SKN, torch.full((s, k), 0.5))  # the query carries no information
    e_SKN = model.attended(sets.to(model.device))[0].double().cpu()
    centred_N = priority_N.double() - priority_N.double().mean()
    slope_S = ((e_SKN * centred_N).sum(-1) / centred_N.square().sum()).mean(1)
    return slope_S, e_SKN.mean(-1).std(1) / slope_S.abs()
