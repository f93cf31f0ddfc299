"""How attention is cut into kernel calls: tiles of query rows, and for each tile the blocks of keys that it sees.

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

MASKED_ROWS = 128  # query rows of a tile that needs a mask; small tiles spend the fewest logits on hidden keys
MASK_ELEMENTS = 2**22
CENTRED_ROWS = (256, 2048)  # fewest and most rows of a tile with a linear bias: distances count from its middle row
MAX_LOGIT_DROP = 64  # nats: the most by which a slope lowers the logits from one end of such a tile to the other


@dataclass(frozen=True)
class KeyBlock:
    """The keys [first, last) of one kernel call."""

    first: int
    last: int
    causal: bool = False
    masked: bool = False


@dataclass(frozen=True)
class Tile:
    """The query rows [a, b) of the key heads [g, h), and blocks of keys that together hold all keys these rows see."""

    a: int
    b: int
    g: int
    h: int
    key_blocks: list[KeyBlock]


@dataclass(frozen=True)
class LinearTerms:
    """The linear bias s_i (t_j - t_i) of query i and key j.

    slopes: the slopes s, [B, H, Q, 1].
    t_q, t_k: the coordinates t of the queries and of the keys, [1 or B, 1 or H, Q or K], whole numbers or floats.
    """

    slopes: Tensor
    t_q: Tensor
    t_k: Tensor

    @property
    def are_positions(self) -> bool:
        """Whether the coordinates are positions: whole numbers that increase by one from token to token."""
        return not self.t_k.is_floating_point()


def linear_terms(slopes: Tensor | None, t_q: Tensor | None, t_k: Tensor | None) -> LinearTerms | None:
    return None if slopes is None or t_q is None or t_k is None else LinearTerms(slopes, t_q, t_k)


class Operands:
    """Queries, keys and values for the kernels. A linear bias (`LinearTerms`) adds channels at the end of each.

    slope (t_j - t_i) = scale q_c k_c + constant, q_c = slope / scale, k_c = t_j - centre

    The channel c adds the bias to the logits. The centre is the coordinate of the middle row of a tile; it is
    subtracted because the product of slope and t_j would lose digits in float32.
    One more channel is 1 in the keys and 0 in the queries. In this channel a query's gradient is the sum of the row's
    logit gradients, which should be zero but is not, because of rounding. Multiplied by the distance from the row to
    the centre, this rounding error would spoil the gradient of the slope. `count_from_rows` corrects that.
    Coordinates shared by all heads take one channel. If every query head has its own coordinates, a key head has a
    channel for each of its query heads, and a query is zero in the channels of the other query heads.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, keys: Keys, linear: LinearTerms | None = None
    ) -> None:
        self.q, self.scale, self.keys, self.linear = q, scale, keys, linear
        self.n_key_heads, self.n_groups = k.shape[1], q.shape[1] // k.shape[1]
        self.may_read_values = q.device.type == "cpu"  # to choose tiles; on a GPU, reading would wait for the device
        self.k, self.v = k, v
        self.last_mask: tuple[tuple[int, ...], Tensor] | None = None
        if linear is not None:
            self.n_coordinates = 1 if linear.t_k.shape[1] == 1 else self.n_groups
            n_used = self.n_coordinates + 1
            self.n_more = n_used + -(k.shape[-1] + n_used) % 8  # kernels want a multiple of eight channels
            self.k, self.v = F.pad(k, (0, self.n_more)), F.pad(v, (0, self.n_more))
            self.k[..., -n_used] = 1

    def tiles(self) -> Iterator[Tile]:
        """All rows of all heads, in as few tiles as possible.

        The kernels align their causal mask at the top left. So the rows [a, b) see their own keys [a, b) under that
        mask, and all keys before a without a mask. Windows, chunks and padding need a mask tensor, made tile by tile.
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
        """For each key head, the number of rows in its tiles: all query rows if there is no bias.

        With a bias, the faster the bias of a head falls with distance, the fewer rows its tiles have.
        """
        if self.linear is None:
            return [max(1, self.keys.n_queries)] * self.n_key_heads
        fewest, most = CENTRED_ROWS
        if not self.may_read_values:
            return [most] * self.n_key_heads
        steepest_G = self.linear.slopes.amax((0, 2, 3)).reshape(self.n_key_heads, -1).amax(-1)
        rows = [MAX_LOGIT_DROP / fall if fall > 0 else most for fall in (steepest_G * self.fall_per_row()).tolist()]
        return [2 ** int(math.log2(min(max(r, fewest), most))) for r in rows]

    def fall_per_row(self) -> float:
        """How far the bias falls from one row to the next if the slope is 1: the growth of the keys' coordinate t.

        The growth is averaged within each stretch of `CENTRED_ROWS[0]` rows; the largest of these averages is returned.
        """
        assert self.linear is not None
        if self.linear.are_positions:
            return 1.0
        ends = self.linear.t_k[..., :: CENTRED_ROWS[0]]
        ends = torch.cat([ends, self.linear.t_k[..., -1:]], -1)
        return float(ends.diff().amax().clamp(min=0.0)) / CENTRED_ROWS[0]

    def first_keys(self, heads: range, rows: int) -> list[list[int]]:
        """For each tile and each of these key heads, the first key that must be computed.

        The weights of the keys before it are so small that rounding removes them. This follows from two bounds:
        |q_i . k_j| <= |q_i| max_l |k_l| limits every logit from above, and the logit of a row's own key limits the
        row's log-sum-exp from below. So with a slope above 0, the weights beyond some distance vanish.
        """
        keys, n_tiles = self.keys, -(-self.keys.n_queries // rows)
        offset = keys.n_keys - keys.n_queries
        nothing_left_out = [[0] * len(heads)] * n_tiles
        # with an offset below 0 some rows have no key of their own
        if self.linear is None or not self.may_read_values or offset < 0:
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
        """The arguments of the kernel call for one block of keys."""
        q = self.q[:, self.heads(tile), tile.a : tile.b]
        k, v = (x[:, tile.g : tile.h, block.first : block.last] for x in (self.k, self.v))
        if self.linear is not None:
            q = F.pad(q, (0, self.n_more))
            slopes_BHQ = self.linear.slopes[:, self.heads(tile), tile.a : tile.b, 0]
            self.own_channel(q).copy_(self.by_coordinate(slopes_BHQ / self.scale))
            t_BHK = self.of_heads(self.linear.t_k, self.heads(tile))[..., block.first : block.last] - self.centre(tile)
            t_BGKN = self.by_coordinate(t_BHK).mT  # for each key head, a channel for each coordinate
            k[..., -self.n_coordinates :] = v[..., -self.n_coordinates :] = t_BGKN.to(k.dtype)
        mask = self.mask(tile) if block.masked else None
        return {"q_BHQC": q, "k_BGKC": k, "v_BGKC": v, "scale": self.scale, "causal": block.causal, "mask": mask}

    def mask(self, tile: Tile) -> Tensor:
        """The mask added to the tile's logits, [1 or B, 1, rows, keys]: 0 where a key is visible, else -inf.

        With windows, but neither padding nor chunks, visibility depends only on distance. Then all but a few tiles have
        the same mask, which is made once.
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
        """The coordinates of these query heads: the part of `t` for them, or all of `t` if all heads share it."""
        return t if t.shape[1] == 1 else t[:, heads]

    def own_channel(self, x_BHQC: Tensor) -> Tensor:
        """A view of the channel that belongs to each query head's own coordinate.

        Its shape is [B, heads / N, N, Q], where N (`n_coordinates`) is the number of coordinates of a key head.
        """
        n_batch, n_heads, n_queries, _ = x_BHQC.shape
        n = self.n_coordinates
        channels = x_BHQC[..., -n:].view(n_batch, n_heads // n, n, n_queries, n)
        return channels.diagonal(dim1=2, dim2=4).movedim(-1, 2)

    def by_coordinate(self, x_BHQ: Tensor) -> Tensor:
        """The tensor in the shape of `own_channel`: [B, heads, Q] -> [B, heads / N, N, Q]."""
        return x_BHQ.view(x_BHQ.shape[0], -1, self.n_coordinates, x_BHQ.shape[2])

    def centre(self, tile: Tile) -> Tensor:
        """The coordinate of the tile's middle row (see `Operands`), [1 or B, 1 or heads, 1]."""
        middle = (tile.a + tile.b) // 2
        assert self.linear is not None
        return self.of_heads(self.linear.t_q, self.heads(tile))[..., middle, None]

    def to_centre(self, tile: Tile) -> Tensor:
        """The centre minus the coordinate of each of the tile's rows, [1 or B, 1 or heads, rows, 1]."""
        assert self.linear is not None
        t_BHQ = self.of_heads(self.linear.t_q, self.heads(tile))[..., tile.a : tile.b]
        return (self.centre(tile) - t_BHQ)[..., None].to(self.k.dtype)

    def shift(self, tile: Tile) -> Tensor | float:
        """The number to add to each log-sum-exp of a kernel, [B, heads, rows]; 0.0 without a linear bias.

        The kernels' bias is slope (t_j - centre); with the shift it becomes slope (t_j - t_i).
        """
        if self.linear is None:
            return 0.0
        return (self.linear.slopes[:, self.heads(tile), tile.a : tile.b] * self.to_centre(tile))[..., 0]

    def count_from_rows(self, dq: Tensor, tile: Tile) -> None:
        """Turn the tile's query gradients for the bias slope (t_j - centre) into gradients for slope (t_j - t_i).

        `dq` is changed in place.
        """
        sums_BHQ = dq[..., -self.n_coordinates - 1]
        self.own_channel(dq).add_(self.by_coordinate(sums_BHQ * self.to_centre(tile)[..., 0]))

    def linear_gradients(self, dq: Tensor, dk: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of slopes, t_q and t_k, from the gradients `dq` and `dk`, which include the added channels."""
        assert self.linear is not None
        d_slopes = self.own_channel(dq).flatten(1, 2)[..., None] / self.scale
        if self.linear.are_positions:
            return d_slopes, None, None
        d_t_k = dk[..., -self.n_coordinates :].mT.flatten(1, 2)
        d_t_q = -self.linear.slopes[..., 0] * dq[..., -self.n_coordinates - 1] / self.scale
        return d_slopes, summed_like(self.linear.t_q, d_t_q), summed_like(self.linear.t_k, d_t_k)


def summed_like(t: Tensor, grad_BHK: Tensor) -> Tensor:
    """The gradient of `t`, which was broadcast to [B, H, K]: `grad_BHK` summed over the axes that were broadcast."""
    shared = [axis for axis in (0, 1) if t.shape[axis] == 1]
    return grad_BHK.sum(shared, keepdim=True).to(t.dtype) if shared else grad_BHK.to(t.dtype)


def ranges(n: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges [0, size), [size, 2 size), ... up to n."""
    return ((a, min(a + size, n)) for a in range(0, n, size))
