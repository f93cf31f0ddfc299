"""What the tests of the encodings share: building one from its yaml, and positions and keys to feed it.

Shapes: B batch, T tokens, Q queries, K keys, H heads, C head channels.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from roundround.attention.keys import AttentionShape, Keys
from roundround.pe.base import PositionalEncoding

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))


def golden(name: str) -> Any:
    """The values of tests/golden/<name>.json, which also says where they came from."""
    return json.loads((ROOT / "tests" / "golden" / f"{name}.json").read_text())["value"]


def attention_shape(**sizes: int) -> AttentionShape:
    usual = {"n_heads": 4, "n_key_heads": 4, "head_dim": 16, "d_model": 64, "layer": 0, "train_length": 160}
    return AttentionShape(**(usual | sizes))


def tunables(name: str) -> dict[str, Any]:
    """The yaml of an encoding as a plain dict, `_target_` included."""
    node = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "pe" / f"{name}.yaml"))
    assert isinstance(node, dict)
    return {str(key): value for key, value in node.items()}


def encoding_class(name: str) -> type[PositionalEncoding]:
    module, _, attribute = tunables(name)["_target_"].rpartition(".")
    cls: type[PositionalEncoding] = getattr(importlib.import_module(module), attribute)
    return cls


def build(name: str, shape: AttentionShape | None = None, **overrides: Any) -> PositionalEncoding:
    """The encoding that conf/pe/<name>.yaml describes, with some of its tunables replaced."""
    values = {key: value for key, value in tunables(name).items() if key != "_target_"}
    assert overrides.keys() <= values.keys(), f"{name} has no tunable {overrides.keys() - values.keys()}"
    return encoding_class(name)(shape or attention_shape(), **(values | overrides))


def positions(n_tokens: int, start: int = 0) -> Tensor:
    return torch.arange(start, start + n_tokens)[None]


def keys_at(pos_BT: Tensor, n_queries: int | None = None, **options: Any) -> Keys:
    """Keys at these positions; the queries are the last `n_queries` of them, all by default."""
    return Keys(q_pos_BQ=pos_BT[:, -(n_queries or pos_BT.shape[1]) :], k_pos_BK=pos_BT, **options)


def bias_of(encoding: PositionalEncoding, n_tokens: int, start: int = 0) -> Tensor:
    """The whole bias [H, T, T] over consecutive positions, detached."""
    bias = encoding.bias()
    assert bias is not None
    return bias.block(keys_at(positions(n_tokens, start)), 0, n_tokens).detach()[0]


def rotated(encoding: PositionalEncoding, x_BHTC: Tensor, pos_BT: Tensor) -> Tensor:
    return encoding.rotate(x_BHTC, encoding.prepare(pos_BT, x_BHTC.dtype))


def logits(encoding: PositionalEncoding, q_BHTC: Tensor, k_BHTC: Tensor, pos_BT: Tensor) -> Tensor:
    """q . k after rotation, plus the bias: [B, H, T, T], unmasked."""
    n_tokens = pos_BT.shape[1]
    q_dot_k = rotated(encoding, q_BHTC, pos_BT) @ rotated(encoding, k_BHTC, pos_BT).mT
    bias = encoding.bias()
    return q_dot_k if bias is None else q_dot_k + bias.block(keys_at(pos_BT), 0, n_tokens)


def noise(*sizes: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
