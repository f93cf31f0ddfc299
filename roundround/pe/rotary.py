"""The rotation that all RoPE variants share; each variant defines only its frequencies.

Pairing is half-split, as in Hugging Face's Llama and Gemma's JAX code: of the 2P rotated channels, channel m pairs with
channel m + P. Channels beyond the first 2P pass through unchanged.

Shapes: B batch, T tokens, H heads, C head channels, P pairs, R = 2P.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape
from roundround.kernels.precision import wide_dtype
from roundround.pe.base import PositionalEncoding


def ladder(n_pairs: int, width: int, theta: float, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """The first `n_pairs` of RoPE's geometric frequencies theta^(-2k / width), radians per token, fastest first.

    Su et al. 2021, arXiv:2104.09864, equation 15. In float32 the operations and their order are those of Hugging
    Face's `modeling_rope_utils`, so the results are equal to the last bit.
    """
    exponents = torch.arange(0, 2 * n_pairs, 2, dtype=torch.int64, device=device).to(dtype) / width
    return 1.0 / theta**exponents


def checked_theta(theta: float | None, shape: AttentionShape) -> float:
    """The base of the frequencies; None gives the model's base. Raises ValueError unless it is finite and above 1."""
    theta = shape.theta if theta is None else theta
    if not (theta > 1 and math.isfinite(theta)):
        raise ValueError(f"theta={theta} must be a finite number above 1")
    return theta


def check_head_dim(shape: AttentionShape) -> None:
    """Raises ValueError unless the channels of a head come in pairs."""
    if shape.head_dim % 2:
        raise ValueError(f"head_dim={shape.head_dim} is odd; rotary encodings pair channels, so it must be even")


def rotation(pos_BT: Tensor, frequencies_P: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [1 or B, T, 2P] of position times frequency, as `apply_rotation` takes them.

    `factor` multiplies both, so a logit is multiplied by the square of `factor`.
    """
    angles_BTP = pos_BT[..., None].to(frequencies_P.dtype) * frequencies_P
    cos_BTP, sin_BTP = angles_BTP.cos(), angles_BTP.sin()
    if factor != 1:
        cos_BTP, sin_BTP = cos_BTP * factor, sin_BTP * factor
    return torch.cat([cos_BTP, cos_BTP], dim=-1), torch.cat([-sin_BTP, sin_BTP], dim=-1)


def apply_rotation(x_BHTC: Tensor, cos_BTR: Tensor, sin_BTR: Tensor) -> Tensor:
    """Rotate channel pairs (m, m + P) of the first R = 2P channels; the rest passes through.

    Cosines and sines are [1 or B, T, R], or [B, H, T, R] if heads have angles of their own.

    first' = first cos - second sin, second' = second cos + first sin. The first half of `sin_BTR` is negative, so one
    shift by P aligns every channel with its partner (1.6 times as fast as slicing the halves apart).
    """
    n_rotated = cos_BTR.shape[-1]
    cos, sin = ((x if x.dim() == 4 else x[:, None]).to(x_BHTC.dtype) for x in (cos_BTR, sin_BTR))
    rotating = x_BHTC if n_rotated == x_BHTC.shape[-1] else x_BHTC[..., :n_rotated]
    rotated = torch.addcmul(rotating * cos, rotating.roll(n_rotated // 2, -1), sin)
    return rotated if n_rotated == x_BHTC.shape[-1] else torch.cat([rotated, x_BHTC[..., n_rotated:]], dim=-1)


class RotaryEncoding(PositionalEncoding):
    """Base of the RoPE family: rotates pairs of channels by position times frequency.

    In every variant `frequencies` determines the rotation: queries and keys are rotated alike, only `attention_factor`
    changes the length of vectors, and a logit depends only on the distance. Exports, patches and ablations rely on
    this. An encoding that also scales (xPos), or rotates queries and keys differently, derives from
    `PositionalEncoding` and calls `apply_rotation`.

    Frequencies are computed at each use and never stored, so that no cast of the module can round them: in bfloat16 the
    slowest pairs would be 10 radians off at position 8191.

    `theta`: the base of the frequencies. None gives the model's base, `shape.theta`, which is 10,000 unless a loaded
    model sets it.
    """

    attention_factor: float = 1.0  # multiplies cosines and sines, as in YaRN

    def __init__(self, shape: AttentionShape, *, theta: float | None) -> None:
        super().__init__(shape)
        check_head_dim(shape)
        self.theta = checked_theta(theta, shape)

    def frequencies(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """Frequency of each pair, radians per token: [P], in the order of the channels."""
        raise NotImplementedError

    def prepare(self, pos_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        wide = wide_dtype(dtype)  # bfloat16 would be radians off at long distances
        return rotation(pos_BT, self.frequencies(wide, pos_BT.device), self.attention_factor)

    def rotate_queries(self, q_BHTC: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        return apply_rotation(q_BHTC, *prepared)

    def rotate_keys(self, k_BGTC: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        return apply_rotation(k_BGTC, *prepared)

    def facts(self) -> dict[str, int]:
        rotating = self.frequencies(torch.float64).detach()
        rotating = rotating[rotating != 0].abs()
        slowest = {"slowest_wavelength": round(2 * math.pi / float(rotating.min()))} if len(rotating) else {}
        return {"rotated_pairs": len(rotating), "pairs": self.shape.head_dim // 2, **slowest}
