"""Max retrieval's model and its training: two encoders, one attention head with one query a set, an output network.

All seeds are one model: every parameter has a leading axis for the seed, and no two seeds ever meet. One optimizer
trains them, for Adam works number by number. Several processes train and ask some of the seeds each, and a checkpoint
holds all of them: nothing passes between them but what is recorded. Every tensor of the training state, weights and
moments of Adam alike, has the seeds as its first axis; scalars, such as the count of steps, are the same for all.
Shapes: S seeds, B sets, N items, D width, K classes, M normalisers.

Tested by tests/papers/test_retrieval_model.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from roundround.kernels.keys import AttentionShape
from roundround.papers.max_retrieval.sets import Sets, TrainingSets
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError

MOST_CLASSES = 256  # a class is one byte
STD_OF_CUT_NORMAL = 0.87962566103423978  # of a standard normal that is cut at -2 and 2


class StackedLinear(nn.Module):
    """`n_seeds` linear layers side by side: x_SBI -> x_SBO. rounds: with the factors of its product in bfloat16."""

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
    """To bfloat16 and back, with the gradient passed straight through; in bfloat16 it is what it was."""
    return x + (x.bfloat16().to(x.dtype) - x).detach()


class MaxRetrieval(nn.Module):
    """Names the class of the item of the largest priority by one attention head.

    h_i = psi_x(x_i), e_i = (Q psi_q(q)) . (K h_i), alpha = softmax(e), logits = phi(sum_i alpha_i V h_i)

    Velickovic et al. 2024, arXiv:2410.01104, appendix A, equations 9 to 14. psi_x, psi_q and phi have one hidden layer
    with GELU; x_i is the priority and the one-hot class.

    What the paper leaves open: `scaled_logits` divides the logits by sqrt(width); `tanh_gelu` is JAX's default GELU
    instead of the exact one; `haiku_init` and `uniform_init` are the initialisations of Haiku and of torch.nn.Linear
    instead of Flax's, a truncated normal of standard deviation 1 / sqrt(fan in) with zero biases; `bfloat16_products`
    rounds the factors of matrix products to bfloat16 and leaves all else in float32, gradients included: what JAX does
    on a TPU where no precision is asked for. A seed's weights are a function of the seed alone.
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
        if width < 1:
            raise ValueError(f"width={width} must be at least 1")
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
        """From now on the factors of matrix products are rounded to bfloat16.

        It goes by the definition then, because the fast form, equal in exact numbers, is rounded at other places.
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
                else:  # cut at two standard deviations, and stretched by Flax so that what is left has the right one
                    std = std / STD_OF_CUT_NORMAL if stretched else std
                    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)
                    nn.init.zeros_(bias)

    @property
    def device(self) -> torch.device:
        return self.item_in.weight.device

    def only(self, place: int) -> MaxRetrieval:
        """A copy with one of the seeds alone."""
        alone = copy.deepcopy(self)
        for parameter in alone.parameters():
            parameter.data = parameter.data[place : place + 1].clone()
        return alone

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate=self.gelu)

    # -- the definition

    def definition(self, sets: Sets, softmax: AttentionSoftmax) -> Tensor:
        """Logits of the classes [S, B, K], every item pushed forward through encoder, K and V."""
        e_SBN, v_SBND = self.logits_and_values(sets)
        alpha_SBN = self.factor(weights_of(softmax, e_SBN, sets.present_SBN))
        return self.answer((alpha_SBN[:, :, None] @ v_SBND)[:, :, 0])

    def factor(self, x: Tensor) -> Tensor:
        """What goes into a product of matrices that no layer makes."""
        return rounded(x) if self.rounds else x

    def logits_and_values(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """e [S, B, N] and V h [S, B, N, D]."""
        one_hot = F.one_hot(sets.classes_SBN, self.n_classes).to(sets.priorities_SBN.dtype)
        x_SBNI = torch.cat([sets.priorities_SBN[..., None], one_hot], -1)
        h_SBND = self.each(self.item_out, self.activation(self.each(self.item_in, x_SBNI)))
        e_SB1N = self.factor(self.query_of(sets)) @ self.factor(self.each(self.to_key, h_SBND)).mT * self.scale
        return e_SB1N[:, :, 0], self.factor(self.each(self.to_value, h_SBND))

    def each(self, layer: StackedLinear, x_SBNI: Tensor) -> Tensor:
        """The layer on every item."""
        s, b, n, _ = x_SBNI.shape
        return layer(x_SBNI.reshape(s, b * n, -1)).view(s, b, n, -1)  # type: ignore[no-any-return]

    def query_of(self, sets: Sets) -> Tensor:
        """Q psi_q(q), [S, B, 1, D]."""
        g_SBD = self.query_out(self.activation(self.query_in(sets.queries_SB[..., None])))
        return self.to_query(g_SBD)[:, :, None]  # type: ignore[no-any-return]

    def answer(self, z_SBD: Tensor) -> Tensor:
        """phi(z), [S, B, K]."""
        return self.answer_out(self.activation(self.answer_in(z_SBD)))  # type: ignore[no-any-return]

    # -- the same with one query a set: what is linear goes to the query's side, or behind the weighted sum

    def forward(self, sets: Sets, softmax: AttentionSoftmax) -> Tensor:
        """`definition`, by the fast way: [S, B, K]."""
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
        """Items [S, B, N, K + 1] and the weight that takes them into the GELU; the bias goes with the one-hot class."""
        one_hot = F.one_hot(sets.classes_SBN, self.n_classes).to(sets.priorities_SBN.dtype)
        of_classes = F.pad(self.item_in.bias.expand(-1, self.n_classes, -1), (0, 0, 1, 0))
        return torch.cat([sets.priorities_SBN[..., None], one_hot], -1), self.item_in.weight + of_classes

    def queries_of_hidden(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Queries [S, B, D] whose products with the hidden items are the logits, but for a constant [S, B, 1].

        e_i = (Q g) . (K (W a_i + b) + c) = (W^T K^T Q g) . a_i + (K^T Q g) . b + (Q g) . c
        """
        query_SBD = self.query_of(sets)[:, :, 0] * self.scale
        at_item_SBD = query_SBD @ self.to_key.weight.mT
        constant_SB1 = query_SBD @ self.to_key.bias.mT + at_item_SBD @ self.item_out.bias.mT
        return at_item_SBD @ self.item_out.weight.mT, constant_SB1

    def answer_from(self, mean_SBD: Tensor, total_SB: Tensor) -> Tensor:
        """Logits of the classes from the weighted sum of hidden items and of the weights, whatever B counts: [S, B, K].

        sum_i alpha_i (V (W a_i + b) + c) = V (W sum_i alpha_i a_i + sum_i alpha_i b) + sum_i alpha_i c
        """
        if self.rounds:  # the values are weighted already
            return self.answer(mean_SBD.to(self.answer_in.weight.dtype))
        total_SB1 = total_SB[..., None]
        z_SBD = mean_SBD @ self.item_out.weight + total_SB1 * self.item_out.bias
        return self.answer(z_SBD @ self.to_value.weight + total_SB1 * self.to_value.bias)

    @torch.no_grad()
    def attended(self, sets: Sets) -> tuple[Tensor, Tensor]:
        """Attention logits [S, B, N] and hidden items [S, B, N, D], for evaluation by several normalisers.

        Where products are rounded, values in place of hidden items.
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

    Gives sum_i alpha_i a_i [S, B, D] and sum_i alpha_i [S, B]. Autograd does the same with more passes over
    [S, B, N, D], which take a fifth of a step's time. `weights` holds no parameters.
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
    """What the normalisers need to know about this head."""
    return AttentionShape(n_heads=1, n_key_heads=1, head_dim=width, d_model=width, layer=0, train_length=train_length)


def weights_of(softmax: AttentionSoftmax, e_SBN: Tensor, present_SBN: Tensor | None) -> Tensor:
    """Attention weights of one row a set, [S, B, N]."""
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
    """Updates first_step + 1 to n_steps; after each its number and every seed's loss in nats, [S]."""
    for step in range(first_step, n_steps):
        loss_S = model.loss(sets.batch(step).to(model.device), softmax)
        optimizer.zero_grad()
        loss_S.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield step + 1, loss_S.detach()


def seeds_of(rank: int, n_processes: int, n_seeds: int) -> slice:
    """The seeds of one process, by place: as many as the others', or one more. UserError where one would have none."""
    if n_seeds < n_processes:
        raise UserError(f"seeds={n_seeds} are fewer than the {n_processes} processes; start {n_seeds}, or give more")
    places = np.array_split(np.arange(n_seeds), n_processes)[rank]
    return slice(int(places[0]), int(places[-1]) + 1)


def share_of(state: Any, seeds: slice) -> Any:
    """The part of a training state, nested dicts and lists, that belongs to these seeds."""
    if isinstance(state, Tensor):
        return state[seeds].clone() if state.ndim else state
    if isinstance(state, dict):
        return {key: share_of(value, seeds) for key, value in state.items()}
    return state


def joined(states: Sequence[Any]) -> Any:
    """The training state of all seeds, from the shares of the processes in order."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat([state.cpu() for state in states]) if first.ndim else first
    if isinstance(first, dict):
        return {key: joined([state[key] for state in states]) for key in first}
    return first
