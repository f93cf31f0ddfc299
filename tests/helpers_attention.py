"""What the tests of attention share: encodings and normalisers from their yamls, tensors, keys and definitions.

Shapes: B batch, Q queries, K keys, H heads, G key heads, C head channels, D model width.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import class_of, own_variants, tunables, variants_alone
from helpers_pe import noise, prepared_of_layer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from roundround.kernels.bias import Bias
from roundround.kernels.keys import AttentionShape, Keys
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax

N_BATCH, N_HEADS, N_KEYS, HEAD_DIM, D_MODEL, SCALE = 3, 4, 11, 8, 32, 0.3


BIASES = ["alibi", "fox", "t5_bias", "kerple", "fire"]


VALID_BK = torch.ones(N_BATCH, N_KEYS, dtype=torch.bool)


VALID_BK[0, :3] = False  # padded on the left: the first causal rows see nothing


VALID_BK[1, -4:] = False  # on the right


def shape_of(n_key_heads: int = N_HEADS, n_heads: int = N_HEADS) -> AttentionShape:
    return AttentionShape(
        n_heads=n_heads, n_key_heads=n_key_heads, head_dim=HEAD_DIM, d_model=D_MODEL, layer=0, train_length=N_KEYS
    )


def keys_of(n_queries: int = N_KEYS, n_keys: int = N_KEYS, **options: Any) -> Keys:
    pos_1K = torch.arange(n_keys)[None]
    return Keys(q_pos_BQ=pos_1K[:, n_keys - n_queries :], k_pos_BK=pos_1K, **options)


KEYS = {
    "plain causal": keys_of(),
    "one query and its cache": keys_of(1),
    "three queries and their cache": keys_of(3),
    "both ways": keys_of(causal=False),
    "padded": keys_of(valid_BK=VALID_BK),
    "padded, both ways": keys_of(causal=False, valid_BK=VALID_BK),
    "padded, one query and its cache": keys_of(1, valid_BK=VALID_BK),
    "window": keys_of(window=4),
    "window, both ways": keys_of(causal=False, window=4),
    "window, padded, with a cache": keys_of(5, window=4, valid_BK=VALID_BK),
}


def row_counts(visible_B1QK: Tensor) -> dict[str, Tensor]:
    """What every row knows of itself."""
    return {"n_visible": visible_B1QK.sum(-1, keepdim=True)}


def encoding_of(name: str | None, n_heads: int = N_HEADS) -> PositionalEncoding:
    """The encoding of a yaml, or the base that has no bias."""
    return PositionalEncoding(shape_of()) if name is None else made("pe", name, shape_of(n_heads=n_heads), {}, 0.3)


def layer_bias(encoding: PositionalEncoding, keys: Keys, q: Tensor, k: Tensor) -> Bias | None:
    """The bias of a layer as the decoder asks for it, for an input that is the same in every call."""
    x_BTD = noise(len(q), keys.n_keys, D_MODEL, dtype=q.dtype, seed=7)
    return encoding.bias(q, k, prepared_of_layer(encoding, keys, q.dtype, x_BTD))


def inputs(keys: Keys, n_key_heads: int = N_HEADS, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys, values and a direction in which to differentiate the output."""
    generator = torch.Generator().manual_seed(1)
    sizes = [
        (N_HEADS, keys.n_queries),
        (n_key_heads, keys.n_keys),
        (n_key_heads, keys.n_keys),
        (N_HEADS, keys.n_queries),
    ]
    q, k, v, cotangent = (
        torch.randn(N_BATCH, *size, HEAD_DIM, dtype=torch.float64, generator=generator).to(dtype) for size in sizes
    )
    return [q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), cotangent]


def mask_by_loop(keys: Keys) -> Tensor:
    """[B, 1, Q, K], True where visible: queries are the last Q of the K tokens."""
    mask = torch.ones(N_BATCH, 1, keys.n_queries, keys.n_keys, dtype=torch.bool)
    for i in range(keys.n_queries):
        token = keys.n_keys - keys.n_queries + i
        for j in range(keys.n_keys):
            hidden = (keys.causal and j > token) or (keys.window is not None and abs(token - j) >= keys.window)
            mask[:, 0, i, j] = False if hidden else (True if keys.valid_BK is None else keys.valid_BK[:, j])
    return mask


def in_blocks(
    softmax: AttentionSoftmax, q: Tensor, k: Tensor, v: Tensor, keys: Keys, bias: Bias | None, scale: float = SCALE
) -> Tensor:
    """The definition over blocks of rows, whatever fused form there is."""
    return softmax.attend_in_blocks(q, k, v, scale=scale, keys=keys, bias=bias, rows={})


class Peak(TorchDispatchMode):
    """Follows every tensor made inside: the largest one, and the most that was alive at once, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.alive = self.most = 0
        self.known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.follow(tensor.untyped_storage())
        return out

    def follow(self, storage: torch.UntypedStorage) -> None:
        if storage in self.known:
            return
        size = storage.nbytes() // 4
        self.known.add(storage)
        weakref.finalize(storage, self.forget, size)
        self.alive += size
        self.largest, self.most = max(self.largest, size), max(self.most, self.alive)

    def forget(self, size: int) -> None:
        self.alive -= size


NAMES, ENCODINGS = variants_alone("softmax"), variants_alone("pe")


REPLACED: dict[str, dict[str, Any]] = {"top_k": {"k": 3}}  # of so few keys the shipped 64 are all


CHOSEN = {"hard": 1, "top_k": 3}  # weights jump where the logit of the last key chosen equals that of the next


PLAIN = ["rope", "softmax", "plain causal", "causal", False, None]  # what a combination may hold beside one variant


def covering(names: str, *values: Iterable[Any], also: Iterable[tuple[Any, ...]] = ()) -> pytest.MarkDecorator:
    """All combinations of these values; all but a sample, and what has a variant of the user's own, are slow.

    also: further cases, which are not slow.

    The sample: each value where all others are plain, and a Latin square in which each value of the longest list meets
    about three combinations of the others.
    """
    lists = [list(of_one) for of_one in values]
    every = max(3, prod(map(len, lists)) // max(map(len, lists)) // 3)
    cases, own = [], list(own_variants())
    for places in product(*map(enumerate, lists)):
        numbers, case = zip(*places, strict=True)
        flat = [part for value in case for part in (value if isinstance(value, tuple) else (value,))]
        alone = sum(value not in PLAIN for value in flat) <= 1
        often = alone or sum(numbers) % every == 0 or any(value in own for value in flat)
        cases.append(pytest.param(*flat, marks=() if often else pytest.mark.slow))
    return pytest.mark.parametrize(names.split(","), [*cases, *also])


def attention_shape(**sizes: int) -> AttentionShape:
    usual = {"n_heads": 4, "n_key_heads": 2, "head_dim": 8, "d_model": D_MODEL, "layer": 0, "train_length": 8}
    return AttentionShape(**(usual | sizes))


def made(kind: str, name: str, shape: AttentionShape, replaced: Mapping[str, Any], noise: float) -> Any:
    """What a yaml describes, its parameters moved, so that those that start at zero count."""
    values = {key: value for key, value in tunables(kind, name).items() if key != "_target_"}
    assert replaced.keys() <= values.keys(), f"{name} has no tunable {replaced.keys() - values.keys()}"
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)  # torch.manual_seed keeps a traceback a call for a GPU that may come
        module = class_of(kind, name)(shape, **(values | replaced))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += torch.randn_like(parameter) * noise
    return module.eval()


def build(name: str, shape: AttentionShape | None = None, noise: float = 0.3, **replaced: Any) -> AttentionSoftmax:
    """The normaliser of conf/softmax/<name>.yaml, out of training."""
    softmax = made("softmax", name, shape or attention_shape(), REPLACED.get(name, {}) | replaced, noise)
    assert isinstance(softmax, AttentionSoftmax)
    return softmax


def encoding_from(name: str, **sizes: int) -> PositionalEncoding:
    encoding = made("pe", name, attention_shape(**({"train_length": 1000} | sizes)), {}, 0.3)
    assert isinstance(encoding, PositionalEncoding)
    return encoding


def within_window(softmax: AttentionSoftmax, visible_B1QK: Tensor) -> Tensor:
    """What is left of a mask of the last Q of K tokens where the normaliser looks no further than its window."""
    if softmax.window is None:
        return visible_B1QK
    n_queries, n_keys = visible_B1QK.shape[-2:]
    distance_QK = torch.arange(n_keys - n_queries, n_keys)[:, None] - torch.arange(n_keys)
    return visible_B1QK & (distance_QK.abs() < softmax.window)


def changed(bias: Bias, logits_BHQK: Tensor, keys: Keys) -> Tensor:
    """The changed logits, a row at a time; 0 where a row sees nothing because of its place."""
    rows = []
    for i in range(keys.n_queries):
        first, last = keys.span(i, i + 1)
        row_BH1K = bias.applied(logits_BHQK[:, :, i : i + 1, first:last], keys, i, i + 1)
        rows.append(F.pad(row_BH1K, (first, keys.n_keys - last)))
    return torch.cat(rows, 2)


def dense(
    softmax: AttentionSoftmax,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    bias: Bias | None,
    rows: Mapping[str, Tensor],
    visible_B1QK: Tensor,
) -> Tensor:
    """sum_j weights(scale q . k + bias)_j v_j over one matrix of all logits, no further back than the window."""
    visible_B1QK = within_window(softmax, visible_B1QK)
    group = q.shape[1] // k.shape[1]
    k, v = (torch.stack([x[:, h // group] for h in range(q.shape[1])], dim=1) for x in (k, v))
    logits = SCALE * torch.einsum("bhqc,bhkc->bhqk", q, k)
    if bias is not None:
        logits = changed(bias, logits, softmax.narrowed(keys))
    counted_B1QK = visible_B1QK
    if softmax.count == "position":  # as if there were no window
        counted_B1QK = replace(keys, window=None).visible(0, keys.n_queries).expand(visible_B1QK.shape)
    weights = softmax.weights(logits, visible_B1QK, {**rows, **row_counts(counted_B1QK)})
    return torch.einsum("bhqk,bhkc->bhqc", weights, v)


def with_gradients(out: Tensor, cotangent: Tensor, leaves: list[Any]) -> list[Tensor]:
    """The output, and a gradient for each leaf: zero where the output does not depend on it."""
    value = (out * cotangent).sum()
    grads = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    return [out.detach(), *grads]


@functools.cache
def mask_of(mode: str) -> Tensor:
    return mask_by_loop(KEYS[mode])


def gaps_by_loop(logits: list[float]) -> tuple[float, int]:
    """1 / Lambda and the contact index of a row that sees all of these logits."""
    ordered = sorted(logits, reverse=True)
    least, contact = math.inf, 0
    for k in range(2, len(ordered) + 1):
        ratio = (ordered[0] - ordered[k - 1]) / math.log(k)
        if ratio <= least:
            least, contact = ratio, k
    return least, contact
