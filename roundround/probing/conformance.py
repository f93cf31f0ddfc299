"""Vectors of conformance: what an encoding makes of known queries and keys, to hold other implementations against.

Shapes: N positions, H heads, G key heads, C head channels, P pairs.

Tested by tests/loading/test_check.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roundround.attention.keys import AttentionShape, Keys
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.pe.scaled import FollowsLength

GIVEN = ("positions", "q", "k")  # what the others are made from
MADE = ("inv_freq", "cos", "sin", "q_rotated", "k_rotated", "logits")
ULP = 2.0**-23  # of float32


@dataclass(frozen=True, kw_only=True)
class Held:
    """One tensor held against ours: the largest difference, and the largest share of what rounding allows there."""

    name: str
    difference: float
    share: float

    @property
    def agrees(self) -> bool:
        return self.share <= 1


def check_conformable(encoding: PositionalEncoding) -> None:
    """Raises ValueError for an encoding that queries, keys and positions do not determine."""
    own, name = type(encoding), type(encoding).__name__
    if own.embed is not PositionalEncoding.embed:
        raise ValueError(f"{name} adds positions to the embeddings; queries and keys do not show it")
    if own.prepare_layer is not PositionalEncoding.prepare_layer:
        raise ValueError(f"{name} reads what a layer reads; queries and keys do not determine it")
    if next(encoding.parameters(), None) is not None:
        raise ValueError(f"{name} learns parameters; its vectors are those of a trained model alone")


def drawn(shape: AttentionShape, positions: Sequence[int], seed: int) -> dict[str, Tensor]:
    """Positions, and normal queries [H, N, C] and keys [G, N, C] in float32 at them."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (
        torch.randn(n, len(positions), shape.head_dim, generator=generator) for n in (shape.n_heads, shape.n_key_heads)
    )
    return {"positions": torch.tensor(positions), "q": q, "k": k}


@torch.no_grad()
def made(encoding: PositionalEncoding, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the encoding makes of `given`, by the names of MADE, in float32; no frequencies of one that has none.

    inv_freq: radians per token [P]. cos, sin: of each pair, times the attention factor, [N, P]. q_rotated, k_rotated:
    as q and k. logits: scale q . k plus the bias, [H, N, N]; 0 where the key comes after the query.
    """
    pos_1N, q, k = given["positions"][None], given["q"][None], given["k"][None]
    prepared = encoding.prepare(pos_1N, torch.float32)
    found = {}
    if isinstance(encoding, RotaryEncoding):
        if isinstance(encoding, FollowsLength):
            found["inv_freq"] = encoding.frequencies_at(int(pos_1N.max()) + 1, torch.float32, "cpu")
        else:
            found["inv_freq"] = encoding.frequencies()
        n_pairs = len(found["inv_freq"])
        cos, sin = prepared
        found["cos"], found["sin"] = cos[0, :, :n_pairs], sin[0, :, n_pairs:]
    q_turned, k_turned = encoding.rotate_queries(q, prepared), encoding.rotate_keys(k, prepared)
    shape = encoding.shape
    keys = Keys(q_pos_BQ=pos_1N, k_pos_BK=pos_1N)
    each_head = k_turned.repeat_interleave(shape.n_heads // shape.n_key_heads, 1)
    logits = q_turned @ each_head.mT * shape.scale
    bias = encoding.bias(q_turned, k_turned, prepared)
    if bias is not None:
        logits = logits + bias.block(keys, 0, pos_1N.shape[1])
    found |= {"q_rotated": q_turned[0], "k_rotated": k_turned[0], "logits": logits[0].tril()}
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in found.items()}  # for a file


def held_against(encoding: PositionalEncoding, theirs: Mapping[str, Tensor]) -> list[Held]:
    """Each tensor of `theirs` that the encoding makes of its positions, queries and keys, held against ours."""
    ours, allowed = made(encoding, theirs), allowances(encoding, theirs)
    held = []
    for name in MADE:
        if name in theirs and name in ours:
            apart = (theirs[name].double() - ours[name].double()).abs()
            share = float((apart / allowed[name].expand_as(apart)).max()) if apart.numel() else 0.0
            held.append(Held(name=name, difference=float(apart.max()) if apart.numel() else 0.0, share=share))
    return held


def allowances(encoding: PositionalEncoding, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How far two float32 implementations may lie apart: a frequency rounds by a few units in its last place, an angle
    by as much times the position, and what follows by that times the vectors it multiplies.
    """
    ours = made(encoding, given)
    pos_N1 = given["positions"].double()[:, None]
    rotates = type(encoding).rotate_queries is not PositionalEncoding.rotate_queries
    frequencies_P = ours["inv_freq"].double().abs() if "inv_freq" in ours else torch.full((1,), float(rotates))
    factor = getattr(encoding, "attention_factor", 1.0)
    angle_NP = factor * 8 * ULP * (1 + pos_N1 * frequencies_P)
    angle_N = angle_NP.amax(1) if angle_NP.numel() else torch.full_like(pos_N1[:, 0], 8 * ULP)
    largest_q, largest_k = (ours[name].double().abs().amax((0, 2)) for name in ("q_rotated", "k_rotated"))
    q_N, k_N = 2 * angle_N * largest_q, 2 * angle_N * largest_k
    width = given["q"].shape[-1] * factor
    logits_NN = encoding.shape.scale * width * (q_N[:, None] * largest_k + largest_q[:, None] * k_N)
    biases = ours["logits"].double().abs().amax(0) * 8 * ULP
    return {
        "inv_freq": 8 * ULP * frequencies_P.clamp(min=ULP**2),
        "cos": angle_NP,
        "sin": angle_NP,
        "q_rotated": q_N[:, None],
        "k_rotated": k_N[:, None],
        "logits": logits_NN + biases,
    }


def as_interleaved(theirs: Mapping[str, Tensor], n_rotated: int) -> dict[str, Tensor]:
    """The same vectors with the pairs (2m, 2m + 1) of the first channels put into the order (m, m + R/2)."""
    order = torch.cat([torch.arange(0, n_rotated, 2), torch.arange(1, n_rotated, 2)])

    def put(x: Tensor) -> Tensor:
        return torch.cat([x[..., order], x[..., n_rotated:]], -1)

    moved = ("q", "k", "q_rotated", "k_rotated")
    return {name: put(x) if name in moved else x for name, x in theirs.items()}
