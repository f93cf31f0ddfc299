"""RoPE over randomly spaced positions."""

from __future__ import annotations

import hashlib
from typing import final

import torch
from torch import Tensor

from roundround.attention.compilation import outside_compilation
from roundround.attention.keys import AttentionShape
from roundround.pe.rotary import RotaryEncoding, ladder


@final
class RoPERandom(RotaryEncoding):
    """RoPE trained on an ordered random subset of a longer range of positions, so that long distances are nothing new.

    position of token t = the t-th smallest of T draws without replacement from 0 .. max_position - 1

    Ruoss et al. 2023, arXiv:2305.16843, section 3.

    One draw serves the whole batch, as in the paper, and all layers. It depends on (`seed`, step) alone: ranks agree, a
    resumed run repeats it, and no global generator is touched. The paper also draws at test time; here evaluation
    keeps the plain positions, so that it is deterministic and has no limit of length.
    """

    def __init__(self, shape: AttentionShape, *, theta: float, max_position: int, seed: int) -> None:
        super().__init__(shape, theta=theta)
        if max_position < shape.train_length:
            raise ValueError(
                f"max_position={max_position} must be at least the training length, {shape.train_length}: "
                "positions are drawn without replacement"
            )
        self.max_position = max_position
        self.seed = seed

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        head_dim = self.shape.head_dim
        return ladder(head_dim // 2, head_dim, self.theta, dtype, device)

    def positions(self, pos_BT: Tensor, step: int | None) -> Tensor:
        if step is None:
            return pos_BT
        n_tokens = pos_BT.shape[1]
        if n_tokens > self.max_position:
            raise ValueError(
                f"{n_tokens} tokens exceed max_position={self.max_position}: positions are drawn without replacement"
            )
        drawn = drawn_positions(self.seed, step, self.max_position, n_tokens)
        return drawn.to(pos_BT.device, non_blocking=True)[pos_BT]


@outside_compilation  # a graph holds no generator
def drawn_positions(seed: int, step: int, max_position: int, n_tokens: int) -> Tensor:
    """n_tokens of the positions below max_position, ascending, int64, on the CPU: every machine draws the same."""
    generator = torch.Generator(device="cpu").manual_seed(mixed(seed, step))
    return torch.randperm(max_position, generator=generator, device="cpu")[:n_tokens].sort().values


def mixed(seed: int, step: int) -> int:
    """One 32-bit seed from two numbers; the CPU generator ignores higher bits, and a sum would make seeds overlap."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:4], "little")
