"""Conformance vectors: the results of an encoding on known queries and keys, for comparing implementations.

Shapes: N positions, H heads, G key heads, C head channels, P pairs.

Tested by tests/asking/test_applied_rotations.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roundround.kernels.keys import AttentionShape, Keys
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.pe.scaled import FollowsLength
from roundround.support.errors import UserError

GIVEN = ("positions", "q", "k")  # the inputs
MADE = ("inv_freq", "cos", "sin", "q_rotated", "k_rotated", "logits")
ULP = 2.0**-23  # of float32
AGREES, DIFFERS, HIDDEN = "agrees", "differs", "hidden by rounding"  # verdicts on a tensor


@dataclass(frozen=True, kw_only=True)
class Held:
    """The result of comparing one tensor of another implementation with the tensor that our encoding computes.

    name: the tensor's name, one of MADE. difference: the largest absolute difference between two corresponding values.
    share: the largest ratio of such a difference to the difference that rounding allows (`allowances`). n_hidden: the
    number of values that cannot be compared, because rounding allows any difference.
    """

    name: str
    difference: float
    share: float
    n_hidden: int

    @property
    def verdict(self) -> str:
        agrees = HIDDEN if self.n_hidden else AGREES
        return agrees if self.share <= 1 else DIFFERS  # a share of NaN gives DIFFERS


def check_conformable(encoding: PositionalEncoding) -> None:
    """Raises UserError if the encoding depends on more than queries, keys and positions, such as learned parameters."""
    own, plain = type(encoding), PositionalEncoding
    hooked = own.embed is not plain.embed or own.prepare_layer is not plain.prepare_layer
    if hooked or next(encoding.parameters(), None) is not None:
        raise UserError(f"{own.__name__} depends on more than queries, keys and positions, so it cannot be compared")


def drawn(shape: AttentionShape, positions: Sequence[int], seed: int) -> dict[str, Tensor]:
    """The positions, and normally distributed float32 queries [H, N, C] and keys [G, N, C] at these positions."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (
        torch.randn(n, len(positions), shape.head_dim, generator=generator) for n in (shape.n_heads, shape.n_key_heads)
    )
    return {"positions": torch.tensor(positions), "q": q, "k": k}


@torch.no_grad()
def made(encoding: PositionalEncoding, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that the encoding computes from `given`, in float32, by their names in MADE.

    Only a rotary encoding has inv_freq, cos and sin. inv_freq: the frequency of each pair in radians per token, [P].
    cos, sin: the cosine and the sine of each pair's angle, times the attention factor, [N, P]. q_rotated, k_rotated:
    the rotated queries and keys, in the shapes of q and k. logits: scale q . k plus the bias, [H, N, N]; 0 if the key
    comes after the query.
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
        logits = bias.applied(logits, keys, 0, pos_1N.shape[1])
    found |= {"q_rotated": q_turned[0], "k_rotated": k_turned[0], "logits": logits[0].tril()}
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in found.items()}  # to save


def held_against(encoding: PositionalEncoding, theirs: Mapping[str, Tensor]) -> list[Held]:
    """Compares the results (MADE) in `theirs` with those that our encoding computes from the same inputs (GIVEN)."""
    ours, allowed = made(encoding, theirs), allowances(encoding, theirs)
    held = []
    for name in MADE:
        if name in theirs and name in ours:
            apart = (theirs[name].double() - ours[name].double()).abs()
            difference, share = (float(x.max()) if x.numel() else 0.0 for x in (apart, apart / allowed[name]))
            n_hidden = int(allowed[name].isinf().sum())
            held.append(Held(name=name, difference=difference, share=share, n_hidden=n_hidden))
    return held


def allowances(encoding: PositionalEncoding, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The difference that rounding allows between two float32 implementations, for each value.

    A frequency has an error of a few units in its last place. The angle of a pair has that error times the position,
    and a rotated vector has the error of the angle times its own length. A logit has the errors of its query and its
    key. If the error can exceed the largest possible size of the value, the allowance is infinite, and the value is not
    compared.
    """
    ours = made(encoding, given)
    pos_N1, n_channels = given["positions"].double()[:, None], given["q"].shape[-1]
    rotates = float(type(encoding).rotate_queries is not PositionalEncoding.rotate_queries)
    # an encoding that gives no frequencies: assumed to rotate by at most one radian per token
    frequencies_P = ours.get("inv_freq", torch.full((n_channels // 2,), rotates)).double().abs()
    factor = getattr(encoding, "attention_factor", 1.0)
    angle_NP = 8 * ULP * (1 + pos_N1 * frequencies_P)
    n = len(frequencies_P)
    angle_NC = torch.cat([angle_NP, angle_NP, angle_NP.new_full((len(pos_N1), n_channels), 8 * ULP)], 1)[:, :n_channels]
    q_HNC, k_GNC = (  # the larger channel of each pair
        torch.maximum(x, torch.cat([x[..., n : 2 * n], x[..., :n], x[..., 2 * n :]], -1))
        for x in (ours["q_rotated"].double().abs(), ours["k_rotated"].double().abs())
    )
    q_error_HNC, k_error_GNC = (x * (2 * angle_NC).clamp(max=2) for x in (q_HNC, k_GNC))
    k_HNC, k_error_HNC = (x.repeat_interleave(len(q_HNC) // len(x), 0) for x in (k_GNC, k_error_GNC))
    products = q_error_HNC @ k_HNC.mT + q_HNC @ k_error_HNC.mT + n_channels * ULP * q_HNC @ k_HNC.mT
    logits_HNN = ours["logits"].double().abs()
    if "inv_freq" not in ours:  # it is unknown which channels form a pair
        q_HNC, q_error_HNC, k_GNC, k_error_GNC = (
            x.amax(-1, keepdim=True) for x in (q_HNC, q_error_HNC, k_GNC, k_error_GNC)
        )
    found = {
        "inv_freq": (8 * ULP * frequencies_P.clamp(min=ULP**2), torch.tensor(math.inf)),
        "cos": (factor * angle_NP, torch.tensor(factor)),
        "sin": (factor * angle_NP, torch.tensor(factor)),
        "q_rotated": (q_error_HNC, q_HNC),
        "k_rotated": (k_error_GNC, k_GNC),
        "logits": (encoding.shape.scale * products.tril() + 8 * ULP * logits_HNN, logits_HNN.amax(-1, keepdim=True)),
    }
    smallest = torch.finfo(torch.float32).tiny  # for vectors that are 0
    return {
        name: error.clamp(min=smallest).masked_fill(error > size, math.inf) for name, (error, size) in found.items()
    }
