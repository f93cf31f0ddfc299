"""Attention put together from calls of the flash kernels, gradients included.

It rests on one property of the kernels' backward pass: of the forward pass it needs only the output and the
log-sum-exp. So attention computed in parts, or with one more key that has no value, has exact gradients once these two
are put right.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels.
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
from torch.autograd.function import once_differentiable

from roundround.interface import Keys
from roundround.softmax import kernels

MASKED_ROWS = 256  # query rows of a tile that needs a mask, which is added to every logit: small ones waste least
MASK_ELEMENTS = 2**22
CENTRED_ROWS = (256, 2048)  # fewest and most where distances count from the middle of the tile's rows
FALL = 64  # the most, in nats, by which a slope lowers the logits from one end of such a tile to the other
LIFT = 86 * math.log(2)  # nats


@dataclass(frozen=True)
class Part:
    """The keys first..last, by one call of a kernel."""

    first: int
    last: int
    causal: bool = False
    masked: bool = False


@dataclass(frozen=True)
class Tile:
    """The query rows a..b of the key heads g..h, and the parts that are together all the keys that they see."""

    a: int
    b: int
    g: int
    h: int
    parts: list[Part]


class Operands:
    """Queries, keys and values for the kernels; with slopes their last channel is for the distance.

    slope (k_pos - q_pos) = q_c k_c + constant, q_c = slope / scale, k_c = k_pos - centre

    The centre is the middle of a tile's rows: a logit of slope times position would lose its digits in float32.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, scale: float, keys: Keys) -> None:
        self.q, self.slopes, self.scale, self.keys = q, slopes, scale, keys
        self.n_key_heads, self.n_groups = k.shape[1], q.shape[1] // k.shape[1]
        self.looks = q.device.type == "cpu"  # at numbers to decide what to do; elsewhere that would wait for the device
        self.k, self.v = k, v
        if slopes is not None:
            self.n_more = 8 - k.shape[-1] % 8  # channels; in eights, which the kernels want
            self.k, self.v = F.pad(k, (0, self.n_more)), F.pad(v, (0, self.n_more))

    def tiles(self) -> Iterator[Tile]:
        """All rows of all heads, as few tiles as need be.

        The kernels align their causal mask at the top left, so rows that follow others are a square with that mask and
        a part that needs none. Only windows and padding need a mask, and that of one tile at a time.
        """
        keys, n_heads = self.keys, self.n_key_heads
        offset = keys.n_keys - keys.n_queries
        if not keys.is_unmasked and (keys.valid_BK is not None or keys.window is not None):
            at_once = 1 if keys.valid_BK is None else self.q.shape[0] * keys.n_keys
            for a, b in ranges(keys.n_queries, max(1, min(MASKED_ROWS, MASK_ELEMENTS // at_once))):
                yield Tile(a, b, 0, n_heads, [Part(*keys.span(a, b), masked=True)])
            return
        g = 0
        for rows, alike in groupby(self.rows_of_heads()):
            heads = range(g, g := g + len(list(alike)))
            for (a, b), first_keys in zip(ranges(keys.n_queries, rows), self.first_keys(heads, rows), strict=True):
                start = heads.start
                for first, together in groupby(first_keys):
                    end = start + len(list(together))
                    if keys.is_unmasked:
                        parts = [Part(first, keys.n_keys)]
                    else:
                        square, past = Part(a + offset, b + offset, causal=True), Part(first, a + offset)
                        parts = [square, past] if first < a + offset else [square]
                    yield Tile(a, b, start, end, parts)
                    start = end

    def rows_of_heads(self) -> list[int]:
        """Query rows of a tile for each key head: all of them, or fewer the steeper its slopes."""
        if self.slopes is None:
            return [max(1, self.keys.n_queries)] * self.n_key_heads
        fewest, most = CENTRED_ROWS
        if not self.looks:
            return [most] * self.n_key_heads
        steepest = self.slopes.amax((0, 2, 3)).reshape(self.n_key_heads, -1).amax(-1)
        rows = [FALL / slope if slope > 0 else most for slope in steepest.tolist()]
        return [2 ** int(math.log2(min(max(r, fewest), most))) for r in rows]

    def first_keys(self, heads: range, rows: int) -> list[list[int]]:
        """For each tile of these key heads, and each head, a key before which all weigh less than a row's last digit.

        |q_i . k_j| <= |q_i| max_l |k_l| bounds every logit from above, and a row's own key bounds its log-sum-exp from
        below, so a slope leaves nothing to keys beyond some distance.
        """
        keys, n_tiles = self.keys, -(-self.keys.n_queries // rows)
        offset, k_pos_K = keys.n_keys - keys.n_queries, keys.k_pos_BK[0]
        known = self.looks and len(keys.k_pos_BK) == 1 and offset >= 0  # each row's own key, the same for the batch
        if self.slopes is None or not known or not bool((k_pos_K.diff() >= 0).all()):
            return [[0] * len(heads)] * n_tiles
        of_heads = slice(heads.start * self.n_groups, heads.stop * self.n_groups)
        q, slopes, k = (
            self.q[:, of_heads],
            self.slopes[:, of_heads, :, 0],
            self.k[:, heads.start : heads.stop, :, : -self.n_more],
        )
        k_own = kernels.repeated(k[:, :, offset:], q)
        longest = kernels.repeated(k.norm(dim=-1).amax(-1), q)
        spread_BHQ = self.scale * (q.norm(dim=-1) * longest[..., None] - torch.linalg.vecdot(q, k_own))
        digits = -math.log(torch.finfo(q.dtype).eps) + math.log(keys.n_keys) + 3
        reach_BHQ = ((spread_BHQ + digits) / slopes).where(slopes > 0, torch.inf).nan_to_num(torch.inf)  # tokens
        reach_GQ = reach_BHQ.amax(0).reshape(len(heads), self.n_groups, -1).amax(1)
        reach_GN = F.pad(reach_GQ, (0, n_tiles * rows - keys.n_queries)).view(len(heads), n_tiles, rows).amax(-1)
        from_N = k_pos_K[offset::rows]
        first_GN = torch.searchsorted(k_pos_K.to(reach_GN.dtype), from_N - reach_GN)
        step = max(1, rows // 2)  # so that heads share tiles
        return (first_GN // step * step).mT.tolist()

    def of(self, tile: Tile, part: Part) -> dict[str, Any]:
        """What the kernels take for one part."""
        q = self.q[:, self.heads(tile), tile.a : tile.b]
        k, v = (x[:, tile.g : tile.h, part.first : part.last] for x in (self.k, self.v))
        if self.slopes is not None:
            q = F.pad(q, (0, self.n_more))
            q[..., -1:] = self.slopes[:, self.heads(tile), tile.a : tile.b] / self.scale
            k_pos_BK = self.keys.k_pos_BK[:, part.first : part.last]
            k[..., -1] = v[..., -1] = (k_pos_BK - self.middle(tile))[:, None].to(k.dtype)
        mask = None
        if part.masked:
            visible_B1QK = self.keys.visible(tile.a, tile.b)
            mask = q.new_zeros(visible_B1QK.shape).masked_fill_(~visible_B1QK, -torch.inf)
        return {"q_BHQC": q, "k_BGKC": k, "v_BGKC": v, "scale": self.scale, "causal": part.causal, "mask": mask}

    def heads(self, tile: Tile) -> slice:
        """The tile's query heads."""
        return slice(tile.g * self.n_groups, tile.h * self.n_groups)

    def middle(self, tile: Tile) -> Tensor:
        """Position from which the tile's distances count, [1 or B, 1]."""
        return self.keys.q_pos_BQ[:, (tile.a + tile.b) // 2, None]

    def to_middle(self, tile: Tile) -> Tensor:
        """The middle minus the position of each of the tile's rows, [1 or B, 1, rows, 1]."""
        return (self.middle(tile) - self.keys.q_pos_BQ[:, tile.a : tile.b])[:, None, :, None].to(self.k.dtype)

    def shift(self, tile: Tile) -> Tensor | float:
        """What the kernels' log-sum-exps lack: the bias counts from the row, not from the middle. [B, heads, rows]."""
        if self.slopes is None:
            return 0.0
        return (self.slopes[:, self.heads(tile), tile.a : tile.b] * self.to_middle(tile))[..., 0]


class Parts(torch.autograd.Function):
    """Attention part by part, put together by the log-sum-exp, with an optional null key.

    lse = log(sum_parts exp(lse_part) + exp(null)), out = sum_parts out_part exp(lse_part - lse)

    apply(q, k, v, slopes [B, H, Q, 1] or None, null [H] or None, scale, keys) gives the output [B, H, Q, C], the
    log-sum-exp [B, H, Q] without gradient, and with slopes E_p[k_pos - q_pos] [B, H, Q, 1]. Beside a null key, slopes
    are constants: their gradient would lack what moves the log-sum-exp.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slopes: Tensor | None,
        null_H: Tensor | None,
        scale: float,
        keys: Keys,
    ) -> tuple[Tensor, Tensor, Tensor]:
        whole, log_sum_exp, distance, ctx.states = forward(Operands(q, k, v, slopes, scale, keys), null_H)
        ctx.save_for_backward(q, k, v, slopes, null_H, whole, log_sum_exp)
        ctx.scale, ctx.keys = scale, keys
        ctx.mark_non_differentiable(log_sum_exp)
        if slopes is None:
            ctx.mark_non_differentiable(distance)
        return whole[..., : v.shape[-1]], log_sum_exp, distance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, _: Tensor, grad_distance: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, slopes, null_H, whole, log_sum_exp = ctx.saved_tensors
        operands = Operands(q, k, v, slopes, ctx.scale, ctx.keys)
        if slopes is not None:
            grad_out = torch.cat([F.pad(grad_out, (0, operands.n_more - 1)), grad_distance], -1)
        d_slopes, d_null = None, None
        grads = backward(grad_out, whole, log_sum_exp, ctx.states, operands)
        if slopes is not None:
            d_slopes = grads[0][..., -1:] / ctx.scale
            grads = [grad[..., : -operands.n_more] for grad in grads]
        if null_H is not None:
            share = (null_H.to(log_sum_exp.dtype)[:, None] - log_sum_exp).exp()
            moved = torch.linalg.vecdot(grad_out.to(share.dtype), whole.to(share.dtype))
            d_null = -(moved * share).sum((0, 2)).to(null_H.dtype)
        return *grads, d_slopes, d_null, None, None


def forward(operands: Operands, null_H: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, list[Any]]:
    """Output with all channels of the operands, log-sum-exp, mean distance (with slopes) and what `backward` wants."""
    tiles, slopes, rows = list(operands.tiles()), operands.slopes, operands.q.shape[:3]
    outs, log_sum_exps, distances, states = [], [], [], []
    for tile in tiles:
        done = [kernels.forward(**operands.of(tile, part)) for part in tile.parts]
        out, log_sum_exp = together([(out, log_sum_exp) for out, log_sum_exp, _ in done])
        log_sum_exp = log_sum_exp + operands.shift(tile)
        if slopes is not None:
            distances.append(out[..., -1:] + operands.to_middle(tile))
        if null_H is not None:
            null_H1 = null_H[operands.heads(tile), None].to(log_sum_exp.dtype)
            total = torch.logaddexp(log_sum_exp, null_H1)
            out, log_sum_exp = out * (log_sum_exp - total).exp()[..., None].to(out.dtype), total
        outs.append(out)
        log_sum_exps.append(log_sum_exp)
        states.append((tile, [state for *_, state in done]))
    distance = operands.q.new_zeros(()) if slopes is None else put_together(tiles, distances, (*rows, 1))
    whole = put_together(tiles, outs, (*rows, outs[0].shape[-1]))
    return whole, put_together(tiles, log_sum_exps, rows), distance, states


def backward(
    grad_out: Tensor, whole: Tensor, log_sum_exp: Tensor, states: list[Any], operands: Operands
) -> list[Tensor]:
    """Gradients of the queries, keys and values with all channels of the operands."""
    # far keys have weights that are denormal numbers, on which a CPU takes a hundred times as long: all weights are
    # lifted by a power of two, and the gradients, which are linear in them, taken down at the end
    lift = 0.0 if operands.slopes is None else LIFT
    sums: list[Tensor] = []
    for tile, of_parts in states:
        rows = (slice(None), operands.heads(tile), slice(tile.a, tile.b))
        lse = log_sum_exp[rows] - operands.shift(tile) - lift
        for part, state in zip(tile.parts, of_parts, strict=True):
            grads = kernels.backward(grad_out[rows], whole[rows], lse, state, **operands.of(tile, part))
            if grads[0].shape == whole.shape and grads[1].shape == operands.k.shape:
                sums = list(grads)
                continue
            if not sums:
                sums = [whole.new_zeros(whole.shape), torch.zeros_like(operands.k), torch.zeros_like(operands.v)]
            columns = (slice(None), slice(tile.g, tile.h), slice(part.first, part.last))
            for total, place, grad in zip(sums, (rows, columns, columns), grads, strict=True):
                total[place] += grad
    return [total.mul_(math.exp(-lift)) for total in sums] if lift else sums


def together(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Outputs and log-sum-exps over disjoint keys as those over all of them."""
    (out, log_sum_exp), *others = parts
    for other, other_lse in others:
        total = torch.logaddexp(log_sum_exp, other_lse)
        mine, its = ((lse - total).exp()[..., None].to(out.dtype) for lse in (log_sum_exp, other_lse))
        out, log_sum_exp = out * mine + other * its, total
    return out, log_sum_exp


def put_together(tiles: list[Tile], values: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """What was computed tile by tile, in one tensor of this shape."""
    if len(values) == 1:
        return values[0]
    whole = values[0].new_empty(shape)
    n_groups = shape[1] // max(tile.h for tile in tiles)
    for tile, value in zip(tiles, values, strict=True):
        whole[:, tile.g * n_groups : tile.h * n_groups, tile.a : tile.b] = value
    return whole


def ranges(n: int, size: int) -> Iterator[tuple[int, int]]:
    """0..size, size..2 size, ... up to n."""
    return ((a, min(a + size, n)) for a in range(0, n, size))
