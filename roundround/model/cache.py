"""The keys and values that a decoder keeps, so that it need not compute the earlier tokens again for each next token.

Shapes: B batch, T new tokens, N all tokens so far, K keys of a layer, G key heads, C head channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from roundround.kernels.keys import Keys
from roundround.kernels.precision import wide_dtype
from roundround.pe.base import PositionalEncoding


@final
class LayerCache:
    """The keys and values of one layer that later queries can see, and what else the layer keeps of earlier tokens.

    window, chunk: the number of tokens in the layer's window and in its chunks, as in `LayerKind`; None if the layer
    has no window or no chunks.

    A buffer has spare room, half as large as the room in use. So adding a token seldom copies the earlier tokens, and
    memory stays linear in length.
    """

    def __init__(self, window: int | None = None, chunk: int | None = None) -> None:
        self.window, self.chunk = window, chunk
        self.n_read = 0  # tokens read so far
        self.padded = False  # whether some texts begin after padding
        self.first = 0  # the first token whose key is kept
        self.kept: dict[str, Tensor] = {}  # [B, ...]: what the encoding, the mix or a recurrent layer keeps
        self.buffers: list[Tensor] = []  # of keys and of values, [B, G, room, C]
        self.start = 0  # index of the first kept key in the buffers
        self.k_norm: float | None = 0.0  # an upper bound of the norm of all keys together; None if unknown

    def first_kept(self) -> int:
        """The index of the first token to keep. The next query sees no earlier token in any text of the batch.

        With padding, chunks begin at different indices in different texts; the result is early enough for all texts.
        """
        if self.chunk is not None and not self.padded:  # a window within the chunk drops no keys
            return self.n_read // self.chunk * self.chunk
        reach = self.window if self.chunk is None else self.chunk
        return 0 if reach is None else max(self.first, self.n_read - reach + 1)  # dropped keys stay dropped

    def extend(self, k_BGTC: Tensor, v_BGTC: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens; returns all kept keys and values [B, G, K, C], the new ones last."""
        first, n_new = self.first_kept(), k_BGTC.shape[2]
        start, end = self.start + first - self.first, self.start + self.n_read - self.first
        new = [k_BGTC, v_BGTC]
        of_new = norm_on_cpu(k_BGTC)  # so that a new token need not read all earlier keys: `fused.all_logits_finite`
        self.k_norm = None if of_new is None or self.k_norm is None else math.hypot(self.k_norm, of_new)
        if self.buffers and end + n_new <= self.buffers[0].shape[2] and not torch.is_grad_enabled():
            for buffer, x_BGTC in zip(self.buffers, new, strict=True):
                buffer[:, :, end : end + n_new] = x_BGTC
        else:
            if self.buffers:
                new = [torch.cat([old[:, :, start:end], x], 2) for old, x in zip(self.buffers, new, strict=True)]
            # under autograd a buffer that has been read must not be changed in place
            room = 0 if torch.is_grad_enabled() else max(32, new[0].shape[2] // 2)
            sizes = [(*x.shape[:2], room, x.shape[3]) for x in new]
            self.buffers = [torch.cat([x, x.new_empty(size)], 2) for x, size in zip(new, sizes, strict=True)]
            start, end = 0, end - start
        self.start, self.first, self.n_read = start, first, self.n_read + n_new
        k_BGKC, v_BGKC = (buffer[:, :, start : end + n_new] for buffer in self.buffers)
        return k_BGKC, v_BGKC

    def narrowed(self, keys: Keys) -> Keys:
        """`keys`, limited to the tokens that `extend` returned and to the layer's window and chunks.

        keys: the `Keys` of all tokens so far.
        """
        kept = keys.within(None, self.chunk).since(self.first).within(self.window)
        return replace(kept, k_norm=self.k_norm)

    def keep(self, name: str, x: Tensor) -> None:
        """Keep a tensor [B, ...] until the next call, in place of the one of this name; branches do not share it."""
        self.kept = {**self.kept, name: x}

    def continue_layer(self, encoding: PositionalEncoding, x_BTD: Tensor, prepared: Any, keys: Keys) -> Any:
        """What the encoding's hooks need from these new tokens; keeps what the encoding carries on."""
        prepared, carried = encoding.continue_layer(x_BTD, prepared, keys, self.kept.get("encoding"))
        if carried is not None:
            self.keep("encoding", carried)
        return prepared

    def select(self, texts: Tensor) -> None:
        """Keep these texts of the batch, in this order; a text may occur several times."""
        self.buffers = [buffer.index_select(0, texts.to(buffer.device)) for buffer in self.buffers]
        for k_BGKC in self.buffers[:1]:
            self.k_norm = norm_on_cpu(k_BGKC[:, :, self.start : self.start + self.n_read - self.first])
        self.kept = {name: kept.index_select(0, texts.to(kept.device)) for name, kept in self.kept.items()}

    def clear(self) -> None:
        """Forget all tokens."""
        self.n_read = self.first = self.start = 0
        self.padded = False
        self.k_norm = 0.0
        self.kept, self.buffers = {}, []


def norm_on_cpu(k_BGKC: Tensor) -> float | None:
    """The Euclidean norm of all numbers in the keys; None if the keys are on a GPU: reading would wait for the GPU."""
    if k_BGKC.device.type != "cpu":
        return None
    return float(torch.linalg.vector_norm(k_BGKC.detach(), dtype=wide_dtype(k_BGKC.dtype)))


@final
class Cache:
    """The cache that `Decoder.hidden` reads and extends: a `LayerCache` for each layer, and all tokens' positions.

    length: the number of tokens that the text will have in all, prompt included; None if unknown. Encodings that depend
    on the text's length (see `PositionalEncoding.prepare_part`) read it here, so that no logit depends on how the text
    is split into calls.
    """

    def __init__(self, layers: Sequence[LayerCache], *, length: int | None = None) -> None:
        self.layers, self.length = list(layers), length
        self.valid_BN: Tensor | None = None  # None if no token is padding
        self.pos_BN: dict[int, Tensor] = {}  # by the index of the encoding

    @property
    def n_read(self) -> int:
        """The number of tokens so far, padding included."""
        return self.layers[0].n_read

    @property
    def n_texts(self) -> int | None:
        """The number of texts in the batch; None before the first call."""
        first = next(iter((*self.layers[0].buffers, *self.layers[0].kept.values())), None)
        return None if first is None else len(first)

    @property
    def n_bytes(self) -> int:
        """Size of what is kept: keys and values, with spare room, and what layers keep besides."""
        return sum(x.nbytes for layer in self.layers for x in (*layer.buffers, *layer.kept.values()))

    def place(self, tokens_BT: Tensor, pos_BT: Tensor | None, valid_BT: Tensor | None) -> Tensor:
        """Record the padding of the new tokens, and return the tokens' positions, [1 or B, T].

        They are `pos_BT` if given; otherwise they continue the positions of the earlier tokens.
        """
        (n_texts, n_new), device = tokens_BT.shape, tokens_BT.device
        if valid_BT is not None or self.valid_BN is not None:
            every = torch.ones(n_texts, 1, dtype=torch.bool, device=device)
            before = every.expand(-1, self.n_read) if self.valid_BN is None else self.valid_BN
            new = every.expand(-1, n_new) if valid_BT is None else valid_BT
            self.valid_BN = torch.cat([before, new], 1)
            for layer in self.layers:
                layer.padded = True
        if pos_BT is not None:
            return pos_BT
        if self.valid_BN is None:
            return torch.arange(self.n_read, self.n_read + n_new, device=device)[None]
        return (self.valid_BN.cumsum(-1) - 1).clamp(min=0)[:, -n_new:]

    def keys(self, encoding: int, new: Keys) -> Keys:
        """The `Keys` of all tokens for the encoding with this index, from the `Keys` of the new tokens."""
        if (before := self.pos_BN.get(encoding)) is not None:
            n_rows = max(len(before), len(new.q_pos_BQ))
            rows = [pos.expand(n_rows, -1) for pos in (before, new.q_pos_BQ)]
            new = replace(new, k_pos_BK=torch.cat(rows, 1))
        self.pos_BN[encoding] = new.k_pos_BK
        return replace(new, valid_BK=self.valid_BN)

    def select(self, texts: Tensor) -> None:
        """Keep these texts of the batch, in this order; a text may occur several times, for samples of one prompt."""
        for layer in self.layers:
            layer.select(texts)
        self.valid_BN = None if self.valid_BN is None else self.valid_BN[texts.to(self.valid_BN.device)]
        self.pos_BN = {own: pos if len(pos) == 1 else pos[texts.to(pos.device)] for own, pos in self.pos_BN.items()}

    def branch(self) -> Cache:
        """A cache with the same tokens that can be extended separately; the keys are not copied.

        All branches share the buffers, so extending a branch overwrites the tokens that were added to any other branch.
        Use only the newest branch.
        """
        own = copy(self)
        own.layers, own.pos_BN = [copy(layer) for layer in self.layers], dict(self.pos_BN)
        return own

    def clear(self) -> None:
        """Forget all tokens."""
        for layer in self.layers:
            layer.clear()
        self.valid_BN, self.pos_BN = None, {}
