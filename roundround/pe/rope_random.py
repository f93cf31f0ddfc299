"""RoPE over randomly spaced positions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.torch_internals import outside_compilation
from roundround.pe.rotary import RotaryEncoding, ladder

N_DRAWS = 5  # of each example in an evaluation
DRAWN, CONSECUTIVE = "drawn", "consecutive"


@final
class RoPERandom(RotaryEncoding):
    """RoPE over a sorted random subset of a longer range of positions, so that training also sees long distances.

    position of token t = the t-th smallest of T draws without replacement from 0 .. max_position - 1

    Ruoss et al. 2023, arXiv:2305.16843, section 3.

    In training, all layers and, as in the paper, the whole batch share one draw. The draw depends only on (`seed`,
    step): ranks agree, a resumed run repeats the draw, and no global generator is used. `positions` sets the positions
    of an evaluation. With `drawn`, as in the paper, the evaluation takes the mean of five draws. They depend only on
    (`seed`, the example's tokens), not on batches or processes. An example shorter than the training length gets the
    beginning of a draw of the training length, as in a training batch. With `consecutive`, positions are 0, 1, 2, ...,
    and the length has no limit. Other calls, such as `model(tokens)`, always use consecutive positions.
    """

    def __init__(
        self, shape: AttentionShape, *, theta: float | None, max_position: int, positions: str, seed: int
    ) -> None:
        super().__init__(shape, theta=theta)
        if max_position < shape.train_length:
            raise ValueError(
                f"max_position={max_position} must be at least the training length, {shape.train_length}: "
                "positions are sampled without replacement"
            )
        if positions not in (DRAWN, CONSECUTIVE):
            raise ValueError(f"positions={positions} must be {DRAWN} or {CONSECUTIVE}")
        self.max_position = max_position
        self.draws_outside_training = positions == DRAWN
        self.seed = seed

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        head_dim = self.shape.head_dim
        return ladder(head_dim // 2, head_dim, self.theta, dtype, device)

    def draws(self, tokens_BT: Tensor) -> Sequence[list[str] | None]:
        return names_of_draws(tokens_BT) if self.draws_outside_training else [None]

    def positions(self, pos_BT: Tensor, step: int | list[str] | None) -> Tensor:
        if step is None:
            return pos_BT
        n_tokens = pos_BT.shape[1]
        if n_tokens > self.max_position:
            raise ValueError(
                f"{n_tokens} tokens exceed max_position={self.max_position}: positions are sampled without replacement"
            )
        n_drawn = max(n_tokens, self.shape.train_length)  # the same draw, whatever the longest example of the batch
        if isinstance(step, list):  # an evaluation: a draw for each row
            rows = [drawn_positions(self.seed, name, self.max_position, n_drawn) for name in step]
            return torch.stack(rows).to(pos_BT.device).gather(1, pos_BT.expand(len(rows), -1))
        drawn = drawn_positions(self.seed, step, self.max_position, n_drawn)
        return drawn.to(pos_BT.device, non_blocking=True)[pos_BT]

    def longest(self) -> int | None:
        return self.max_position if self.draws_outside_training else None

    def facts(self) -> dict[str, int]:
        return super().facts() | ({"draws_an_example": N_DRAWS} if self.draws_outside_training else {})


@outside_compilation  # a compiled graph cannot contain a generator
def drawn_positions(seed: int, name: int | str, max_position: int, n_tokens: int) -> Tensor:
    """n_tokens random positions below max_position, ascending, int64; drawn on the CPU, so all machines draw the same.

    `name` distinguishes the draws of a seed: it is a training step, or the name of an example's draw.
    """
    generator = torch.Generator(device="cpu").manual_seed(mixed(seed, name))
    return torch.randperm(max_position, generator=generator, device="cpu")[:n_tokens].sort().values


@outside_compilation
def names_of_draws(tokens_BT: Tensor) -> list[list[str]]:
    """The name of each draw of each row in an evaluation, [N_DRAWS][B]; a name depends on the row's tokens."""
    rows = tokens_BT.tolist()
    return [[f"{draw} {row}" for row in rows] for draw in range(N_DRAWS)]


def mixed(seed: int, name: int | str) -> int:
    """A 32-bit seed from a seed and a name, by a hash; the CPU generator ignores higher bits."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:4], "little")
