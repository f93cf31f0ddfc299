"""The sizes of an attention layer (`AttentionShape`), and which query sees which key (`Keys`).

Shapes: B batch, T tokens, Q queries, K keys, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from roundround.kernels.documents import Documents


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The sizes of one attention layer. They are known only when a model is built, so no yaml contains them.

    theta: the base of RoPE for an encoding that sets none.
    logit_scale: the factor of q . k; None for 1 / sqrt(head_dim).
    """

    n_heads: int
    n_key_heads: int
    head_dim: int
    d_model: int
    layer: int
    train_length: int
    theta: float = 10_000.0  # config/recorded.py has the same
    logit_scale: float | None = None

    @property
    def scale(self) -> float:
        """The factor of q . k."""
        return self.head_dim**-0.5 if self.logit_scale is None else self.logit_scale


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Which query sees which key: positions and visibility of the keys, without an n x n mask.

    Queries are the last Q of the K tokens, so with `causal` query row i sees keys j <= i + K - Q. Visibility depends
    on the order of the tokens and not on their positions, which can be random. Only biases read the positions.

    q_pos_BQ, k_pos_BK: the positions of the queries and of the keys in tokens, int64; the batch axis is B or 1 long.
    valid_BK: False where a key is padding; None if no key is padding.
    window: the number of tokens that a query sees: itself and the `window - 1` tokens before it; None for all tokens.
    chunk: the number of tokens in a chunk, if a query sees only its own chunk; None if there are no chunks.
    begins: the index of one key at which a chunk begins, set if a cache has dropped keys: [B, 1, 1], or one number for
    all texts. If None, a chunk begins at the first key that is not padding.
    documents: the documents of the batch, if tokens see only their own document; None if each text is one document.
    Documents need a causal mask, and neither padding nor a cache.
    n_forgotten: the number of tokens, padding not counted, that a cache has dropped; int or [B, 1, 1, 1].
    k_norm: an upper bound of the Euclidean norm of all numbers in the keys; None if no cache has computed one.
    """

    q_pos_BQ: Tensor
    k_pos_BK: Tensor
    valid_BK: Tensor | None = None
    causal: bool = True
    window: int | None = None
    chunk: int | None = None
    begins: Tensor | int | None = None
    documents: Documents | None = None
    n_forgotten: Tensor | int = 0
    k_norm: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("window", self.window), ("chunk", self.chunk)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1: a query sees itself")
        alone = self.causal and self.valid_BK is None and self.n_queries == self.n_keys
        if self.documents is not None and not alone:
            raise ValueError("documents= needs causal attention, without padding and without a cache")

    @property
    def n_queries(self) -> int:
        return self.q_pos_BQ.shape[1]

    @property
    def n_keys(self) -> int:
        return self.k_pos_BK.shape[1]

    @property
    def is_plain_causal(self) -> bool:
        """Whether a kernel's causal flag describes the mask fully: one document, no padding, window, chunk or cache."""
        one = self.causal and self.documents is None and self.valid_BK is None and not self.is_local
        return one and self.n_queries == self.n_keys

    @property
    def is_local(self) -> bool:
        """Whether there is a window or a chunk, which hides keys in a long enough text."""
        return self.window is not None or self.chunk is not None

    @property
    def is_unmasked(self) -> bool:
        """Whether every query sees every key. An example is a single new query with a cache."""
        past_all = not self.causal or (self.n_queries == 1 and self.documents is None)
        hides = (self.window or self.n_keys) < self.n_keys or self.chunks_hide(self.chunk)
        return past_all and self.valid_BK is None and not hides

    def chunks_hide(self, chunk: int | None) -> bool:
        """Whether chunks of this size can hide keys.

        If the chunks are at least as long as the text, they can hide keys only if one begins after the first key.
        """
        return chunk is not None and (chunk < self.n_keys or isinstance(self.begins, Tensor) or bool(self.begins))

    def within(self, window: int | None, chunk: int | None = None) -> Keys:
        """These keys, limited to a window or a chunk of at least one token.

        A window or chunk that hides no key is left out, so that the kernels' causal flag still suffices.
        """
        if window is None and chunk is None and not self.is_local:
            return self
        if self.chunk is not None and chunk is not None and chunk != self.chunk:
            raise ValueError(
                f"a layer asks for chunks of {chunk} tokens, but the keys are already in chunks of {self.chunk} tokens"
            )
        windows = [w for w in (self.window, window) if w is not None and w < self.n_keys]
        chunks = [c for c in (self.chunk, chunk) if c is not None and self.chunks_hide(c)]
        return replace(self, window=min(windows, default=None), chunk=min(chunks, default=None))

    def since(self, first: int) -> Keys:
        """These keys without the first `first` keys, which a cache has dropped because no query sees them."""
        if first == 0:
            return self
        valid, n_forgotten = self.valid_BK, self.n_forgotten + first
        begins = None if self.chunk is None else (self.first_of_chunk() - first) % self.chunk
        if valid is not None:
            n_forgotten = self.n_forgotten + valid[:, :first].sum(-1)[:, None, None, None]
            valid = valid[:, first:]
        k_pos = self.k_pos_BK[:, first:]
        return replace(self, k_pos_BK=k_pos, valid_BK=valid, n_forgotten=n_forgotten, begins=begins)

    def of_groups(self) -> list[Keys]:
        """The keys of each group of `documents`; in a group every row is a document."""
        assert self.documents is not None, "these keys have no documents"
        of_group = [Keys(q_pos_BQ=pos_ML, k_pos_BK=pos_ML) for pos_ML in self.documents.pos_of_groups]
        return [keys.within(self.window, self.chunk) for keys in of_group]

    def of_texts(self, texts: slice) -> Keys:
        """The keys of some texts of the batch."""

        def of(x_B: Tensor) -> Tensor:
            return x_B if len(x_B) == 1 else x_B[texts]

        valid = None if self.valid_BK is None else of(self.valid_BK)
        n_forgotten = self.n_forgotten if isinstance(self.n_forgotten, int) else of(self.n_forgotten)
        begins = of(self.begins) if isinstance(self.begins, Tensor) else self.begins
        q_pos, k_pos = of(self.q_pos_BQ), of(self.k_pos_BK)
        return replace(self, q_pos_BQ=q_pos, k_pos_BK=k_pos, valid_BK=valid, n_forgotten=n_forgotten, begins=begins)

    def first_of_chunk(self) -> Tensor | int:
        """The index of one key at which a chunk begins, [B, 1, 1] with padding.

        It is `begins` if that is set, otherwise the index of the first key that is not padding.
        """
        if self.begins is not None:
            return self.begins
        return 0 if self.valid_BK is None else (~self.valid_BK).cumprod(-1).sum(-1)[:, None, None]

    @property
    def chunks_are_shifted(self) -> bool:
        """Whether chunks can begin at indices that are not multiples of `chunk` and that differ between texts."""
        return self.chunk is not None and (self.valid_BK is not None or self.begins is not None)

    def first_visible(self, row_Q: Tensor) -> Tensor:
        """The first key that each of the query rows `row_Q` sees, ignoring documents and padding: int64, at least 0.

        Its shape is [len(row_Q)], or [B, 1, len(row_Q)] if chunks begin after padding.
        """
        row_Q = row_Q + self.n_keys - self.n_queries
        first_Q = torch.zeros_like(row_Q)
        if self.window is not None:
            first_Q = first_Q.maximum(row_Q - self.window + 1)
        if self.chunk is not None:
            begins = self.first_of_chunk()
            first_Q = first_Q.maximum((row_Q - begins) // self.chunk * self.chunk + begins)
        return first_Q

    def end_visible(self, row_Q: Tensor) -> Tensor:
        """One more than the last key that each of these query rows sees, ignoring documents and padding: int64."""
        row_Q = row_Q + self.n_keys - self.n_queries
        if self.causal:
            return (row_Q + 1).clamp(min=0)
        end_Q = torch.full_like(row_Q, self.n_keys)
        if self.window is not None:
            end_Q = end_Q.minimum(row_Q + self.window)
        if self.chunk is not None:
            begins = self.first_of_chunk()
            end_Q = end_Q.minimum(((row_Q - begins) // self.chunk + 1) * self.chunk + begins)
        return end_Q

    def span(self, a: int, b: int) -> tuple[int, int]:
        """The range [first, last) of keys that holds all keys visible to the query rows [a, b)."""
        offset = self.n_keys - self.n_queries
        first, last = 0, b + offset if self.causal else self.n_keys
        if self.window is not None:
            first = max(first, a + offset - self.window + 1)
            last = min(last, b + offset + self.window - 1)
        if self.chunk is not None:
            begins = self.first_of_chunk()
            if isinstance(begins, int):
                first = max(first, (a + offset - begins) // self.chunk * self.chunk + begins)
                last = min(last, -(-(b + offset - begins) // self.chunk) * self.chunk + begins)
            else:  # each text has its own chunk borders: a range that holds any of them
                first, last = max(first, a + offset - self.chunk + 1), min(last, b + offset + self.chunk - 1)
        return first, last

    def visible(self, a: int, b: int) -> Tensor:
        """Mask [1 or B, 1, b - a, K'] of the query rows [a, b) over the K' keys of `span(a, b)`; True where visible."""
        return self.visible_to(torch.arange(a, b, device=self.k_pos_BK.device), *self.span(a, b))

    def visible_to(self, rows_R: Tensor, first: int, last: int) -> Tensor:
        """Mask [1 or B, 1, R, last - first] of R query rows over the keys [first, last); True where visible."""
        device = self.k_pos_BK.device
        row_Q1 = rows_R[:, None] + self.n_keys - self.n_queries
        column_K = torch.arange(first, last, device=device)
        mask_QK = torch.ones(len(rows_R), last - first, dtype=torch.bool, device=device)
        if self.causal:
            mask_QK &= column_K <= row_Q1
        if self.window is not None:
            mask_QK &= column_K > row_Q1 - self.window
            if not self.causal:
                mask_QK &= column_K < row_Q1 + self.window
        mask = mask_QK[None]
        if self.chunk is not None:
            begins = self.first_of_chunk()
            mask = mask & ((column_K - begins) // self.chunk == (row_Q1 - begins) // self.chunk)
        return mask[:, None] if self.valid_BK is None else mask[:, None] & self.valid_BK[:, None, None, first:last]

    def counts(self, a: int, b: int, marked: Tensor | None = None) -> Tensor:
        """The number of visible keys of each of the query rows [a, b): [1 or B, 1, b - a, 1], int64.

        With `marked`, [B, heads, K] bool, only the keys marked True are counted: [B, heads, b - a, 1]. The memory is
        linear in length.
        """
        if marked is None and self.is_unmasked:  # such as one token with a cache: one operation instead of ten
            return torch.full((1, 1, b - a, 1), self.n_keys, device=self.k_pos_BK.device)
        rows_Q = torch.arange(a, b, device=self.k_pos_BK.device)
        first_Q, end_Q = self.first_visible(rows_Q), self.end_visible(rows_Q)
        if self.documents is not None:
            # a chunk counts from its document's first token, which only the groups of documents know
            assert self.chunk is None, "with chunks, documents are computed in groups"
            first_Q = self.documents.first_BT[:, None, a:b].maximum(first_Q)
        marks = None if self.valid_BK is None else self.valid_BK[:, None]
        if marked is not None:
            marks = marked if marks is None else marked & marks
        if marks is None:
            return (end_Q - first_Q).view(-1, 1, b - a, 1)
        so_far = F.pad(marks.cumsum(-1), (1, 0))  # before each key
        after, before = (
            so_far[..., at_Q] if at_Q.dim() == 1 else so_far.take_along_dim(at_Q, -1) for at_Q in (end_Q, first_Q)
        )
        return (after - before)[..., None]
