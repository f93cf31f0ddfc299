"""What the tests of the encodings share: building one from its yaml, and positions and keys to feed it.

Shapes: B batch, T tokens, Q queries, K keys, H heads, C head channels.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from conftest import class_of, tunables, variants_alone
from torch import Tensor

from roundround.kernels.keys import AttentionShape, Keys
from roundround.kernels.precision import at_least_float32
from roundround.pe.base import PositionalEncoding

ROOT = Path(__file__).resolve().parents[1]
NAMES = variants_alone("pe")


def golden(name: str) -> Any:
    """The values of tests/golden/<name>.json, which also says where they came from."""
    return json.loads((ROOT / "tests" / "golden" / f"{name}.json").read_text())["value"]


def attention_shape(**sizes: int) -> AttentionShape:
    usual = {"n_heads": 4, "n_key_heads": 4, "head_dim": 16, "d_model": 64, "layer": 0, "train_length": 160}
    return AttentionShape(**(usual | sizes))


def build(name: str, shape: AttentionShape | None = None, **overrides: Any) -> PositionalEncoding:
    """The encoding that conf/pe/<name>.yaml describes, with some of its tunables replaced."""
    values = {key: value for key, value in tunables("pe", name).items() if key != "_target_"}
    assert overrides.keys() <= values.keys(), f"{name} has no tunable {overrides.keys() - values.keys()}"
    encoding: PositionalEncoding = class_of("pe", name)(shape or attention_shape(), **(values | overrides))
    return encoding


def positions(n_tokens: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + n_tokens)[None]


def keys_at(pos_BT: Tensor, n_queries: int | None = None, **options: Any) -> Keys:
    """Keys at these positions; the queries are the last `n_queries` of them, all by default."""
    return Keys(q_pos_BQ=pos_BT[:, -(n_queries or pos_BT.shape[1]) :], k_pos_BK=pos_BT, **options)


def layer_input(encoding: PositionalEncoding, keys: Keys) -> Tensor:
    """Noise of the encoding's precision, [1, K, D]."""
    parameter = next(encoding.parameters(), torch.zeros(0, dtype=torch.float64))
    return noise(1, keys.n_keys, encoding.shape.d_model, dtype=parameter.dtype, seed=3)


def prepared_of_layer(encoding: PositionalEncoding, keys: Keys, dtype: torch.dtype, x_BTD: Tensor | None = None) -> Any:
    """What the hooks of a layer with this input are given, as the decoder makes it; by default the input is noise."""
    if x_BTD is None:
        x_BTD = layer_input(encoding, keys)
    return encoding.prepare_layer(x_BTD, encoding.prepare(keys.k_pos_BK, dtype), keys)


def layer_bias(
    encoding: PositionalEncoding, keys: Keys, x_BTD: Tensor | None = None, qk: tuple[Tensor, Tensor] | None = None
) -> Any:
    """The bias of a layer with this input and these queries and keys; None where it has none.

    By default all of them are noise of the encoding's precision, the same for a token whatever the queries are.
    """
    if x_BTD is None:
        x_BTD = layer_input(encoding, keys)
    if qk is None:
        shape, n_batch = encoding.shape, max(len(x_BTD), len(keys.k_pos_BK))
        sizes = [(n_batch, n_heads, keys.n_keys, shape.head_dim) for n_heads in (shape.n_heads, shape.n_key_heads)]
        q, k = (noise(*size, dtype=x_BTD.dtype, seed=seed) for seed, size in enumerate(sizes, 4))
        qk = q[:, :, keys.n_keys - keys.n_queries :], k
    return encoding.bias(*qk, prepared_of_layer(encoding, keys, x_BTD.dtype, x_BTD))


def bias_of(encoding: PositionalEncoding, n_tokens: int, start: int = 0) -> Tensor:
    """What logits of 0 become [H, T, T] over consecutive positions, which is the bias if one is added; detached."""
    keys = keys_at(positions(n_tokens, start))
    zeros = torch.zeros(1, encoding.shape.n_heads, n_tokens, n_tokens, dtype=layer_input(encoding, keys).dtype)
    return layer_bias(encoding, keys).applied(at_least_float32(zeros), keys, 0, n_tokens).detach()[0]


def rotated(encoding: PositionalEncoding, x_BHTC: Tensor, pos_BT: Tensor) -> Tensor:
    """Vectors rotated as queries are."""
    return encoding.rotate_queries(x_BHTC, prepared_of_layer(encoding, keys_at(pos_BT), x_BHTC.dtype))


def rotated_keys(encoding: PositionalEncoding, x_BGTC: Tensor, pos_BT: Tensor) -> Tensor:
    """Vectors rotated as keys are."""
    return encoding.rotate_keys(x_BGTC, prepared_of_layer(encoding, keys_at(pos_BT), x_BGTC.dtype))


def logits(
    encoding: PositionalEncoding, q_BHTC: Tensor, k_BHTC: Tensor, pos_BT: Tensor, x_BTD: Tensor | None = None
) -> Tensor:
    """q . k after rotation, plus the bias of a layer with input `x_BTD`: [B, H, T, T], unmasked."""
    keys = keys_at(pos_BT)
    prepared = prepared_of_layer(encoding, keys, q_BHTC.dtype, x_BTD)
    qk = encoding.rotate_queries(q_BHTC, prepared), encoding.rotate_keys(k_BHTC, prepared)
    q_dot_k, bias = qk[0] @ qk[1].mT, encoding.bias(*qk, prepared)
    return q_dot_k if bias is None else bias.applied(q_dot_k, keys, 0, pos_BT.shape[1])


def wave(*sizes: int, step: float) -> Tensor:
    """sin(step n + 0.3), n the flat index."""
    return torch.sin(torch.arange(math.prod(sizes), dtype=torch.float64) * step + 0.3).view(sizes)


def noise(*sizes: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
