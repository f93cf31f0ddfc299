"""A self-test that finds which channels a layer rotates as pairs, and the mean norms of these pairs.

Only the sums of the norms are kept, [layer, head, pair], so the memory does not depend on the number of tokens. A
rotation does not change a norm, so the norms of queries and keys can be measured after RoPE.
Shapes: L layers, B batch, T tokens, H heads, G key heads, C head channels, R rotated channels, P pairs.

Tested by tests/hf/test_hf_attention.py and tests/probing/test_probe.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32
from roundround.pe.rotary import RotaryEncoding, apply_rotation, rotation
from roundround.support.errors import UserError

SHIFT = 16  # positions: enough to distinguish one base from another, and within every model's context
PAIRINGS = ("half-split", "interleaved")
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-2}  # mean relative error of a pair
MARGIN = 0.6  # half precision, where rounding adds up over layers: the largest ratio of the best error to the second
N_ROWS = 3
N_TOKENS = 16
LEAK = {torch.float64: 1e-9, torch.float32: 1e-3}  # change of a causal model's output, as a share; half precision: 0.05
LENGTHS = 4  # times the training length: far enough to show an encoding that follows the length


@dataclass(frozen=True)
class Layout:
    """The channel pairs of one layer's heads.

    The first pairs are those in the model's table of frequencies, the fastest first; all other pairs follow.
    frequencies_P: the frequency of each pair in radians per token, float64 on the CPU; 0 if the pair does not rotate.
    n_rotary: the number R of channels that the model's table covers. pairing: the way in which these channels form
    pairs, `half-split` (channels m and m + R/2) or `interleaved` (channels 2m and 2m + 1); all other channels form
    pairs in the same way. first: the first of these channels; latent attention rotates the last channels.
    """

    frequencies_P: Tensor
    pairing: str
    n_rotary: int
    first: int = 0

    @property
    def n_pairs(self) -> int:
        return len(self.frequencies_P)

    @property
    def n_rotated(self) -> int:
        """The number of pairs with a frequency above 0."""
        return int((self.frequencies_P > 0).sum())

    def wavelength(self, pair: int) -> float:
        """The number of tokens in which the pair turns once; inf if it does not rotate."""
        frequency = float(self.frequencies_P[pair])
        return 2 * math.pi / frequency if frequency > 0 else math.inf

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The channels that the model's table covers, and the others: [..., C] -> [..., R] and [..., C - R]."""
        before, covered, after = x.tensor_split((self.first, self.first + self.n_rotary), -1)
        return covered, torch.cat([before, after], -1) if self.first else after

    def split(self, x: Tensor) -> Tensor:
        """Channels as pairs: [..., C] -> [..., P, 2]."""
        parts = [part for part in self.parts(x) if part.shape[-1]]
        paired = [
            part.reshape(*part.shape[:-1], part.shape[-1] // 2, 2)
            if self.pairing == "interleaved"
            else part.reshape(*part.shape[:-1], 2, part.shape[-1] // 2).mT
            for part in parts
        ]
        return paired[0] if len(paired) == 1 else torch.cat(paired, -2)

    def norms(self, x: Tensor) -> Tensor:
        """Length of each pair's 2-vector, at least float32: [..., C] -> [..., P]."""
        squares = at_least_float32(x).square()
        # slices are summed, because a norm over the strided axis of `split` took 250 times as long
        summed = [
            part[..., 0::2] + part[..., 1::2] if self.pairing == "interleaved" else torch.add(*part.tensor_split(2, -1))
            for part in self.parts(squares)
        ]
        return (summed[0] if self.n_rotary == x.shape[-1] else torch.cat(summed, -1)).sqrt()

    @property
    def rotated_channels(self) -> Tensor:
        """The channels of the pairs that rotate, int64."""
        return self.split(torch.arange(2 * self.n_pairs))[self.frequencies_P > 0].flatten()

    @property
    def is_mixed(self) -> bool:
        """Whether some pairs rotate and others do not."""
        return 0 < self.n_rotated < self.n_pairs

    def channels(self, first: int, last: int) -> Tensor:
        """The channels of the pairs from `first` up to, not including, `last`: [2 (last - first)], int64."""
        return self.split(torch.arange(2 * self.n_pairs))[first:last].flatten()


def read_layout(q_HTC: Tensor, shifted_HTC: Tensor, candidates: Sequence[Tensor]) -> Layout | None:
    """The layout of a layer, from its queries for some tokens and for the same tokens SHIFT positions later.

    candidates: the model's tables of frequencies, radians per token, one value for each pair. If the queries do not
    change, the layer has no RoPE, and all its frequencies are 0. Returns None if no table explains the change, neither
    with half-split nor with interleaved pairs.
    """
    n_channels = q_HTC.shape[-1]
    if n_channels % 2:
        return None
    possible = [Layout(torch.zeros(n_channels // 2, dtype=torch.float64), PAIRINGS[0], n_channels)]  # at rest
    for table in candidates:
        if 2 * len(table) > n_channels or not len(table):
            continue
        frequencies = torch.zeros(n_channels // 2, dtype=torch.float64)
        frequencies[: len(table)] = table.cpu().double()
        ends = {0, n_channels - 2 * len(table)}  # the first channels or the last
        possible += [Layout(frequencies, pairing, 2 * len(table), first) for first in ends for pairing in PAIRINGS]
    errors = [error_of(layout, q_HTC, shifted_HTC) for layout in possible]
    best = min(range(len(possible)), key=errors.__getitem__)
    others = [e for e, other in zip(errors, possible, strict=True) if not same(other, possible[best])]
    tolerance = TOLERANCE.get(q_HTC.dtype, MARGIN * min(others, default=1.0))
    return possible[best] if errors[best] <= tolerance else None


def same(one: Layout, other: Layout) -> bool:
    """Whether two layouts describe the same rotation. If no pair rotates, only that is compared."""
    alike = (one.pairing, one.first) == (other.pairing, other.first) or not one.n_rotated
    return alike and torch.equal(one.frequencies_P, other.frequencies_P)


def error_of(layout: Layout, q_HTC: Tensor, shifted_HTC: Tensor) -> float:
    """Relative error of a layout's prediction of the shifted queries, averaged over pairs."""
    before, after = layout.split(at_least_float32(q_HTC)), layout.split(at_least_float32(shifted_HTC))
    angles_P = layout.frequencies_P * SHIFT  # radians, counter-clockwise
    cos, sin = (x.to(device=before.device, dtype=before.dtype) for x in (angles_P.cos(), angles_P.sin()))
    first, second = before.unbind(-1)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -1)
    wrong_P = (after - turned).square().sum((0, 1, 3)).sqrt()
    right_P = before.square().sum((0, 1, 3)).sqrt()
    return float((wrong_P / right_P.clamp(min=1e-30)).mean())


class SelfTest:
    """Three short rows in the first batch of a probe, which show how layers rotate and whether the model is causal.

    Row 0 is a text. Row 1 is the same text SHIFT positions later. Row 2 has the first half of row 0 and other tokens in
    the second half.
    Rows 0 and 1 show how each layer rotates its channels; they are alike if the model has no table of frequencies, so
    that any other encoding of positions counts as no rotation. If the outputs of rows 0 and 2 differ in the first half,
    the model is not causal.
    """

    def __init__(self, tokens: Sequence[int], tables: Sequence[Tensor], name: str) -> None:
        """tokens: token ids from which the rows are made. tables: the `candidates` of `read_layout`."""
        different = list(dict.fromkeys(tokens))
        own = [different[i % len(different)] for i in range(N_TOKENS)]
        self.changed_from = N_TOKENS // 2
        changed = own[: self.changed_from] + [
            different[(i + 1) % len(different)] for i in range(N_TOKENS // 2, N_TOKENS)
        ]
        shift = SHIFT if any(map(torch.any, tables)) else 0
        self.rows = [(own, 0), (own, shift), (changed, 0)]  # tokens, and the position of the first token
        self.tables, self.name = tables, name

    def layout(self, layer: int, q_BHTC: Tensor) -> Layout:
        """The layout of a layer, from its queries in a batch whose first rows are those of this test.

        Raises UserError if no known layout explains the queries.
        """
        layout = read_layout(q_BHTC[0, :, :N_TOKENS], q_BHTC[1, :, :N_TOKENS], self.tables)
        if layout is None:
            raise UserError(
                f"layer {layer} of {self.name} rotates its channels in a way that roundround does not know "
                "(neither half-split nor interleaved RoPE at the model's own frequencies)"
            )
        return layout

    def check_causality(self, hidden_BTD: Tensor) -> None:
        """Raises UserError if outputs depend on later tokens. hidden_BTD: the outputs for a batch that begins with
        the rows of this test.
        """
        before, after = (at_least_float32(hidden_BTD[row, :N_TOKENS]) for row in (0, 2))
        leak = (before - after)[: self.changed_from].norm() / before[: self.changed_from].norm()
        if not float(leak) <= LEAK.get(hidden_BTD.dtype, 0.05):
            raise UserError(f"{self.name} is not causal: a later token changes earlier outputs; probes need a decoder")


@torch.no_grad()
def is_said_by_frequencies(encoding: RotaryEncoding) -> bool:
    """Whether `frequencies()` and the attention factor describe all that happens to embeddings, queries and keys.

    This is tested on a few vectors. It is False, for example, for xPos, which also has a decay, and for an encoding
    whose frequencies change with the length of the text. Logits and values may change too.
    """
    shape, generator = encoding.shape, torch.Generator().manual_seed(0)
    device = next((parameter.device for parameter in encoding.parameters()), torch.device("cpu"))
    q = torch.randn(1, shape.n_heads, 3, shape.head_dim, generator=generator).to(device)
    k = torch.randn(1, shape.n_key_heads, 3, shape.head_dim, generator=generator).to(device)
    x_BTD = torch.randn(1, 3, shape.d_model, generator=generator).to(device)
    last = (encoding.longest() or LENGTHS * shape.train_length) - 1
    pos_BT = torch.tensor([[0, min(1, last), last]], device=device)
    cos, sin = rotation(pos_BT, encoding.frequencies(device=device), encoding.attention_factor)
    prepared = encoding.prepare(encoding.positions(pos_BT, None), q.dtype)
    prepared = encoding.prepare_layer(x_BTD, prepared, Keys(q_pos_BQ=pos_BT, k_pos_BK=pos_BT))
    turned = [(encoding.rotate_queries(q, prepared), q), (encoding.rotate_keys(k, prepared), k)]
    plain = all(torch.allclose(own, apply_rotation(x, cos, sin), atol=1e-3) for own, x in turned)
    return plain and torch.equal(encoding.embed(x_BTD, pos_BT), x_BTD)


KINDS = ("query", "key", "value")


class PairNorms:
    """Mean norm and mean squared norm of every pair: over all tokens, and over all except the first of each text.

    Barbero et al. 2024, arXiv:2410.06205, section 4 (figures 3, 4, 10, 11, 13, 19).
    """

    def __init__(self, n_layers: int) -> None:
        self.sums: list[dict[tuple[str, str, str], Tensor]] = [{} for _ in range(n_layers)]  # kind, measure, which
        self.n_tokens = {"all": 0, "first": 0}  # the same for all layers

    def add(
        self, layer: int, layout: Layout, q_BHTC: Tensor, k_BGTC: Tensor, v_BGTC: Tensor, valid_BT: Tensor | None
    ) -> None:
        """Add one call of attention. valid_BT: False at tokens that only fill up a row; None if no token does."""
        for kind, x in zip(KINDS, (q_BHTC, k_BGTC, v_BGTC), strict=True):
            other_size = x.shape[-1] != 2 * layout.n_pairs  # values may have other sizes than queries and keys
            own = Layout(torch.zeros(x.shape[-1] // 2), PAIRINGS[0], x.shape[-1]) if other_size else layout
            norm_BHTP = own.norms(x)
            if valid_BT is not None:
                norm_BHTP = norm_BHTP.masked_fill(~valid_BT[:, None, :, None], 0.0)
            for measure, value in (("norm", norm_BHTP), ("square", norm_BHTP.square())):
                add_to(self.sums[layer], (kind, measure, "all"), value.sum((0, 2)))
                add_to(self.sums[layer], (kind, measure, "first"), value[:, :, 0].sum(0))

    def mean(self, kind: str, measure: str, *, first_token: bool = True) -> list[Tensor]:
        """The mean over tokens of a measure of each pair: for every layer, [H, P] for queries, [G, P] otherwise.

        kind: `query`, `key` or `value`. measure: `norm`, or `square` for the squared norm. first_token: whether to
        count the first token of each text (in some models a beginning-of-sequence token).
        """
        n = self.n_tokens["all"] - (0 if first_token else self.n_tokens["first"])
        return [
            (sums[kind, measure, "all"] - (0 if first_token else sums[kind, measure, "first"])) / n
            for sums in self.sums
        ]

    def norms_of(self, kind: str, pairs_of_layers: Sequence[Tensor]) -> list[float]:
        """The root mean square, over tokens and heads, of the norm of some pairs' channels together, for each layer.

        pairs_of_layers: for each layer, True at these pairs, [P].
        """
        squares = self.mean(kind, "square")
        return [
            float(square_HP[:, pairs_P].sum(1).mean().sqrt())
            for square_HP, pairs_P in zip(squares, pairs_of_layers, strict=True)
        ]

    def share_of_slowest(self, kind: str, *, first_token: bool = True) -> Tensor:
        """The share of the slowest quarter of the pairs in the squared norm of all heads, [L].

        kind, first_token: as in `mean`.
        """
        shares = []
        for square_HP in self.mean(kind, "square", first_token=first_token):
            square_P = square_HP.sum(0)
            n_slow = round(len(square_P) / 4)
            shares.append(square_P[len(square_P) - n_slow :].sum() / square_P.sum())
        return torch.stack(shares)


def add_to(sums: dict[Any, Tensor], key: object, value: Tensor) -> None:
    """Add a value to `sums[key]`, or start the sum with it; sums are float64 on the CPU."""
    value = value.cpu().double()
    sums[key] = sums[key] + value if key in sums else value


def stacked(layers: Sequence[Tensor], numbers: Sequence[int]) -> Tensor:
    """One float32 array with each layer's values at the index of the layer's number; all other entries are NaN."""
    size = [max(sizes) for sizes in zip(*(layer.shape for layer in layers), strict=True)]
    out = torch.full((1 + max(numbers), *size), torch.nan)
    for number, layer in zip(numbers, layers, strict=True):
        out[number][tuple(slice(n) for n in layer.shape)] = layer
    return out
