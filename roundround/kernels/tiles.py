"""How attention is cut into calls of the kernels: tiles of query rows, and for each the blocks of keys that it sees.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.

Tested by tests/softmax/test_softmax.py and tests/softmax/test_normalisers.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from roundround.kernels import sdpa
from roundround.kernels.keys import Keys

MASKED_ROWS = 128  # query rows of a tile that needs a mask, which is added to every logit: small ones waste least
MASK_ELEMENTS = 2**22
CENTRED_ROWS = (256, 2048)  # fewest and most where distances count from the middle of the tile's rows
MAX_LOGIT_DROP = 64  # nats: the most by which a slope lowers the logits from one end of such a tile to the other


@dataclass(frozen=True)
class KeyBlock:
    """The keys first..last, by one call of a kernel."""

    first: int
    last: int
    causal: bool = False
    masked: bool = False


@dataclass(frozen=True)
class Tile:
    """The query rows a..b of the key heads g..h, and the blocks of keys that are together all that they see."""

    a: int
    b: int
    g: int
    h: int
    key_blocks: list[KeyBlock]


@dataclass(frozen=True)
class LinearTerms:
    """A bias slope (t_j - t_i): slopes [B, H, Q, 1]; coordinates [1 or B, 1 or H, Q or K], whole numbers or floats."""

    slopes: Tensor
    t_q: Tensor
    t_k: Tensor

    @property
    def are_positions(self) -> bool:
        """Whether the coordinates are whole numbers, which grow by one a token."""
        return not self.t_k.is_floating_point()


def linear_terms(slopes: Tensor | None, t_q: Tensor | None, t_k: Tensor | None) -> LinearTerms | None:
    return None if slopes is None or t_q is None or t_k is None else LinearTerms(slopes, t_q, t_k)


class Operands:
    """Queries, keys and values for the kernels; with a linear bias their last channels are for its coordinate.

    slope (t_j - t_i) = q_c k_c + constant, q_c = slope / scale, k_c = t_j - centre

    The centre is the coordinate of the row in the middle of a tile: slope times t would lose its digits in float32.
    One more channel of the keys is 1 and of the queries 0: its gradient is the sum of the gradients of a row's logits,
    as rounded. A row's own coordinate takes it back, or what should be zero would count times the coordinates.
    Coordinates shared by all heads take one channel. Where every query head has its own, a key head carries a channel
    for each of its query heads, and a query is zero in those of the others.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, keys: Keys, linear: LinearTerms | None = None
    ) -> None:
        self.q, self.scale, self.keys, self.linear = q, scale, keys, linear
        self.n_key_heads, self.n_groups = k.shape[1], q.shape[1] // k.shape[1]
        self.may_read_values = q.device.type == "cpu"  # to choose tiles; elsewhere that would wait for the device
        self.k, self.v = k, v
        self.last_mask: tuple[tuple[int, ...], Tensor] | None = None
        if linear is not None:
            self.n_coordinates = 1 if linear.t_k.shape[1] == 1 else self.n_groups
            n_used = self.n_coordinates + 1
            self.n_more = n_used + -(k.shape[-1] + n_used) % 8  # kernels want eights
            self.k, self.v = F.pad(k, (0, self.n_more)), F.pad(v, (0, self.n_more))
            self.k[..., -n_used] = 1

    def tiles(self) -> Iterator[Tile]:
        """All rows of all heads, as few tiles as need be.

        The kernels align their causal mask at the top left. So the rows a..b see their own keys a..b under that mask,
        and all keys before a under none. Only windows and padding need a mask tensor, that of one tile at a time.
        """
        keys, n_heads = self.keys, self.n_key_heads
        offset = keys.n_keys - keys.n_queries
        if not keys.is_unmasked and (keys.valid_BK is not None or keys.is_local):
            at_once = 1 if keys.valid_BK is None else self.q.shape[0] * keys.n_keys
            for a, b in ranges(keys.n_queries, max(1, min(MASKED_ROWS, MASK_ELEMENTS // at_once))):
                yield Tile(a, b, 0, n_heads, [KeyBlock(*keys.span(a, b), masked=True)])
            return
        g = 0
        for rows, alike in groupby(self.rows_of_heads()):
            heads = range(g, g := g + len(list(alike)))
            for (a, b), first_keys in zip(ranges(keys.n_queries, rows), self.first_keys(heads, rows), strict=True):
                start = heads.start
                for first, sharing in groupby(first_keys):
                    end = start + len(list(sharing))
                    if keys.is_unmasked:
                        blocks = [KeyBlock(first, keys.n_keys)]
                    else:
                        square, past = KeyBlock(a + offset, b + offset, causal=True), KeyBlock(first, a + offset)
                        blocks = [square, past] if first < a + offset else [square]
                    yield Tile(a, b, start, end, blocks)
                    start = end

    def rows_of_heads(self) -> list[int]:
        """Query rows of a tile for each key head: all of them, or fewer the faster its bias falls."""
        if self.linear is None:
            return [max(1, self.keys.n_queries)] * self.n_key_heads
        fewest, most = CENTRED_ROWS
        if not self.may_read_values:
            return [most] * self.n_key_heads
        steepest_G = self.linear.slopes.amax((0, 2, 3)).reshape(self.n_key_heads, -1).amax(-1)
        rows = [MAX_LOGIT_DROP / fall if fall > 0 else most for fall in (steepest_G * self.fall_per_row()).tolist()]
        return [2 ** int(math.log2(min(max(r, fewest), most))) for r in rows]

    def fall_per_row(self) -> float:
        """How much the coordinate of the keys grows from one row to the next, at most over stretches of a tile."""
        assert self.linear is not None
        if self.linear.are_positions:
            return 1.0
        ends = self.linear.t_k[..., :: CENTRED_ROWS[0]]
        ends = torch.cat([ends, self.linear.t_k[..., -1:]], -1)
        return float(ends.diff().amax().clamp(min=0.0)) / CENTRED_ROWS[0]

    def first_keys(self, heads: range, rows: int) -> list[list[int]]:
        """For each tile of these key heads, and each head, a key before which all weigh less than a row's last digit.

        |q_i . k_j| <= |q_i| max_l |k_l| bounds every logit from above, and a row's own key bounds its log-sum-exp from
        below, so a slope leaves nothing to keys beyond some distance.
        """
        keys, n_tiles = self.keys, -(-self.keys.n_queries // rows)
        offset = keys.n_keys - keys.n_queries
        nothing_left_out = [[0] * len(heads)] * n_tiles
        if self.linear is None or not self.may_read_values or offset < 0:  # with an offset below 0 rows lack a key
            return nothing_left_out
        own = slice(heads.start * self.n_groups, heads.stop * self.n_groups)
        t_q, t_k = (self.of_heads(t, own) for t in (self.linear.t_q, self.linear.t_k))
        if not bool((t_k.diff() >= 0).all()):
            return nothing_left_out
        q, slopes = self.q[:, own], self.linear.slopes[:, own, :, 0]
        k = self.k[:, heads.start : heads.stop, :, : -self.n_more]
        k_own = sdpa.repeated(k[:, :, offset:], q)
        longest = sdpa.repeated(k.norm(dim=-1).amax(-1), q)
        spread_BHQ = self.scale * (q.norm(dim=-1) * longest[..., None] - torch.linalg.vecdot(q, k_own))
        digits = -math.log(torch.finfo(q.dtype).eps) + math.log(keys.n_keys) + 3
        reach_BHQ = ((spread_BHQ + digits) / slopes).where(slopes > 0, torch.inf).nan_to_num(torch.inf)
        padded_BHQ = F.pad(reach_BHQ, (0, n_tiles * rows - keys.n_queries))
        reach_BHN = padded_BHQ.reshape(*padded_BHQ.shape[:2], n_tiles, rows).amax(-1)
        wanted_BHN = t_q[..., ::rows] - reach_BHN
        sorted_BHK = t_k.to(wanted_BHN.dtype).expand(*wanted_BHN.shape[:2], -1).contiguous()
        first_HN = torch.searchsorted(sorted_BHK, wanted_BHN.contiguous()).amin(0)
        first_GN = first_HN.reshape(len(heads), self.n_groups, -1).amin(1)
        step = max(1, rows // 2)  # so that heads share tiles
        found: list[list[int]] = (first_GN // step * step).mT.tolist()
        return found

    def kernel_arguments(self, tile: Tile, block: KeyBlock) -> dict[str, Any]:
        """What the kernels take for one block of keys."""
        q = self.q[:, self.heads(tile), tile.a : tile.b]
        k, v = (x[:, tile.g : tile.h, block.first : block.last] for x in (self.k, self.v))
        if self.linear is not None:
            q = F.pad(q, (0, self.n_more))
            slopes_BHQ = self.linear.slopes[:, self.heads(tile), tile.a : tile.b, 0]
            self.own_channel(q).copy_(self.by_coordinate(slopes_BHQ / self.scale))
            t_BHK = self.of_heads(self.linear.t_k, self.heads(tile))[..., block.first : block.last] - self.centre(tile)
            t_BGKN = self.by_coordinate(t_BHK).mT  # of each key head, a channel for each coordinate
            k[..., -self.n_coordinates :] = v[..., -self.n_coordinates :] = t_BGKN.to(k.dtype)
        mask = self.mask(tile) if block.masked else None
        return {"q_BHQC": q, "k_BGKC": k, "v_BGKC": v, "scale": self.scale, "causal": block.causal, "mask": mask}

    def mask(self, tile: Tile) -> Tensor:
        """What is added to the tile's logits, [1 or B, 1, rows, keys]: 0 where a key is visible, else -inf.

        Inside a window visibility goes by distance alone, so all tiles but the first few share one mask.
        """
        first, last = self.keys.span(tile.a, tile.b)
        place = (tile.b - tile.a, tile.a - first, last - first)
        by_distance = self.keys.valid_BK is None and self.keys.chunk is None
        if by_distance and self.last_mask is not None and self.last_mask[0] == place:
            return self.last_mask[1]
        visible_B1QK = self.keys.visible(tile.a, tile.b)
        mask = self.q.new_zeros(visible_B1QK.shape).masked_fill_(~visible_B1QK, -torch.inf)
        self.last_mask = place, mask
        return mask

    def heads(self, tile: Tile) -> slice:
        """The tile's query heads."""
        return slice(tile.g * self.n_groups, tile.h * self.n_groups)

    def of_heads(self, t: Tensor, heads: slice) -> Tensor:
        """Coordinates of these query heads, or the one that all heads share."""
        return t if t.shape[1] == 1 else t[:, heads]

    def own_channel(self, x_BHQC: Tensor) -> Tensor:
        """The channel of each query head's own coordinate, from tensors with all: a view [B, heads / N, N, Q]."""
        n_batch, n_heads, n_queries, _ = x_BHQC.shape
        n = self.n_coordinates
        channels = x_BHQC[..., -n:].view(n_batch, n_heads // n, n, n_queries, n)
        return channels.diagonal(dim1=2, dim2=4).movedim(-1, 2)

    def by_coordinate(self, x_BHQ: Tensor) -> Tensor:
        """[B, heads, Q] -> [B, heads / N, N, Q], as `own_channel` has it."""
        return x_BHQ.view(x_BHQ.shape[0], -1, self.n_coordinates, x_BHQ.shape[2])

    def centre(self, tile: Tile) -> Tensor:
        """Coordinate from which the tile's distances count, [1 or B, 1 or heads, 1]."""
        middle = (tile.a + tile.b) // 2
        assert self.linear is not None
        return self.of_heads(self.linear.t_q, self.heads(tile))[..., middle, None]

    def to_centre(self, tile: Tile) -> Tensor:
        """The centre minus the coordinate of each of the tile's rows, [1 or B, 1 or heads, rows, 1]."""
        assert self.linear is not None
        t_BHQ = self.of_heads(self.linear.t_q, self.heads(tile))[..., tile.a : tile.b]
        return (self.centre(tile) - t_BHQ)[..., None].to(self.k.dtype)

    def shift(self, tile: Tile) -> Tensor | float:
        """Add to the kernels' log-sum-exps, [B, heads, rows]: the bias counts from the row, not the tile's centre."""
        if self.linear is None:
            return 0.0
        return (self.linear.slopes[:, self.heads(tile), tile.a : tile.b] * self.to_centre(tile))[..., 0]

    def count_from_rows(self, dq: Tensor, tile: Tile) -> None:
        """Change the tile's gradient of queries to coordinates that count from each row, not from the centre."""
        sums_BHQ = dq[..., -self.n_coordinates - 1]
        self.own_channel(dq).add_(self.by_coordinate(sums_BHQ * self.to_centre(tile)[..., 0]))

    def linear_gradients(self, dq: Tensor, dk: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of slopes, t_q and t_k from those of queries and keys with all channels."""
        assert self.linear is not None
        d_slopes = self.own_channel(dq).flatten(1, 2)[..., None] / self.scale
        if self.linear.are_positions:
            return d_slopes, None, None
        d_t_k = dk[..., -self.n_coordinates :].mT.flatten(1, 2)
        d_t_q = -self.linear.slopes[..., 0] * dq[..., -self.n_coordinates - 1] / self.scale
        return d_slopes, summed_like(self.linear.t_q, d_t_q), summed_like(self.linear.t_k, d_t_k)


def summed_like(t: Tensor, grad_BHK: Tensor) -> Tensor:
    """The gradient of a tensor that was broadcast to [B, H, K]."""
    shared = [axis for axis in (0, 1) if t.shape[axis] == 1]
    return grad_BHK.sum(shared, keepdim=True).to(t.dtype) if shared else grad_BHK.to(t.dtype)


def ranges(n: int, size: int) -> Iterator[tuple[int, int]]:
    """0..size, size..2 size, ... up to n."""
    return ((a, min(a + size, n)) for a in range(0, n, size))
