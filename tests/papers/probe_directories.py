"""Run directories as probes leave them: one with the numbers that the paper prints, and one of an uneven model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from roundround.papers.figures.pretrained import (
    ALIGNMENTS,
    APOSTROPHE,
    DIAGONAL,
    LATE_DIAGONAL,
    PREVIOUS,
    SEMANTIC,
    Array,
    heat_map,
)
from roundround.probing.rows import PLACES

Arrays = dict[str, Array]
WORDS = ["<bos>", *"I ' m not sure . You ' re not sure . He ' s not sure .".split()]  # noqa: SIM905
N_LAYERS, N_HEADS, N_PAIRS, N_TOKENS = 28, 16, 128, len(WORDS)


def gemma_norms(queries: str = "G7B_Fig3a_query_layer") -> Arrays:
    """Norms [28, 16, 128] whose means are those of the figures; the layer that is not shown is the last."""
    layers = {"query": queries, "key": "G7B_Fig3b_key_layer", "value": "G7B_Fig13c_value_layer"}
    heads = {"query": "Fig4a_L1_query_by_head", "key": "Fig4b_L1_key_by_head"}
    arrays = {}
    for kind, name in layers.items():
        by_layer = np.vstack([heat_map(name).T, np.linspace(3, 0.5, N_PAIRS)])
        norms = np.repeat(by_layer[:, None], N_HEADS, axis=1)
        if kind in heads and queries == layers["query"]:
            norms[0] = heat_map(heads[kind]).T
        arrays[f"{kind}_norm"] = norms
        arrays[f"{kind}_norm_without_first"] = norms * np.linspace(0.5, 1.5, N_PAIRS)
    arrays["frequencies"] = np.tile(1e4 ** -(np.arange(N_PAIRS) / N_PAIRS), (N_LAYERS, 1))
    arrays["places"] = np.full((N_LAYERS, N_HEADS, len(PLACES)), 1 / len(PLACES))
    arrays["places"][26, LATE_DIAGONAL.head, 0] = 0.9
    arrays["logit_spread"] = np.tile([3.69, 7.69], (N_LAYERS, N_HEADS // 2))  # mean 5.69, deviation 2.05
    arrays["logit_spread"][0, 0], arrays["logit_spread"][0, 1] = 2.28, 14.78
    return arrays


def gemma_prompt() -> Arrays:
    """The prompt's arrays, with the heads that the paper shows where it names them."""
    arrays = {name: np.ones((N_LAYERS, N_HEADS, N_TOKENS, N_PAIRS)) for name in ("query_norms", "key_norms")}
    for name in ("logits", "weights", "bound"):
        arrays[name] = np.ones((N_LAYERS, N_HEADS, N_TOKENS, N_TOKENS))
    for named in (DIAGONAL, LATE_DIAGONAL, PREVIOUS, APOSTROPHE, SEMANTIC):
        place = named.layers[0], named.head
        arrays["query_norms"][place] = heat_map(named.queries)[:, :N_TOKENS].T
        arrays["key_norms"][place] = heat_map(named.keys)[:, :N_TOKENS].T
    arrays["weights"][0, APOSTROPHE.head] = softmax(heat_map("Fig12_L1H10_logits")[:N_TOKENS, :N_TOKENS])
    arrays["logits"][0, APOSTROPHE.head] = heat_map("Fig12_L1H10_logits")[:N_TOKENS, :N_TOKENS]
    arrays["weights"][0, SEMANTIC.head] = 1 / N_TOKENS
    for named, table in ALIGNMENTS.values():
        place, shift = (named.layers[0], named.head), int(named is PREVIOUS)
        arrays["weights"][place] = np.eye(N_TOKENS, k=-shift)
        n = len(table["bound"])
        at, below = np.arange(n), np.arange(1, n)
        arrays["bound"][place][at] = np.array(table["bound"])[:, None]
        arrays["logits"][place][at, at] = table["diagonal"]
        arrays["logits"][place][below, below - 1] = table["previous"][1:]
    return arrays


def softmax(logits_TT: Array) -> Array:
    seen = np.where(np.tril(np.ones_like(logits_TT)) > 0, np.exp(logits_TT), 0)
    found: Array = seen / seen.sum(-1, keepdims=True)
    return found


def llama_norms() -> Arrays:
    """Norms [32, 32 or 8, 64] of Llama 3.1 8B; heads 12 to 15 of the last layer are those of Figure 11."""
    n_layers, n_heads, n_key_heads, n_pairs = 32, 32, 8, 64
    arrays = {}
    for kind, name, n in (
        ("query", "L3.1_Fig10a_query", n_heads),
        ("key", "L3.1_Fig10b_key", n_key_heads),
        ("value", "L3.1_Fig10c_value", n_key_heads),
    ):
        norms = np.repeat(heat_map(name).T[:, None], n, axis=1)
        arrays[f"{kind}_norm"] = arrays[f"{kind}_norm_without_first"] = norms
    group = heat_map("Fig11_llama_L32_group4_query").T
    last = arrays["query_norm"][-1]
    rest = (last.sum(0) - group.sum(0)) / (n_heads - len(group))  # so that the mean stays
    last[:] = rest
    last[12:16] = group
    arrays["frequencies"] = np.tile(5e5 ** -(np.arange(n_pairs) / n_pairs), (n_layers, 1))
    arrays["places"] = np.zeros((n_layers, n_heads, len(PLACES)))
    arrays["places"][-1, 14, 0] = 0.8
    arrays["logit_spread"] = np.ones((n_layers, n_heads))
    return arrays


def uneven() -> tuple[Arrays, Arrays]:
    """Three layers: 4 heads on 2 key heads of 6 pairs; 2 heads on 1 of 4 pairs; and 4 on 2 of 6 without RoPE."""
    rng, nan = np.random.default_rng(0), np.nan
    n_tokens = len(WORDS)
    norms, prompt = {}, {}
    for kind, n in (("query", 4), ("key", 2), ("value", 2)):
        x = rng.uniform(1, 2, (3, n, 6))
        x[1, n // 2 :], x[1, :, 4:] = nan, nan
        norms[f"{kind}_norm"] = norms[f"{kind}_norm_without_first"] = x
        if kind != "value":
            prompt[f"{kind}_norms"] = np.repeat(x[:, :, None], n_tokens, axis=2)
    norms["frequencies"] = np.array([1e4 ** -(np.arange(6) / 6), [1, 0.1, 0.01, 0.001, nan, nan], np.zeros(6)])
    norms["places"] = rng.dirichlet(np.ones(len(PLACES)), (3, 4))
    norms["places"][1, 2:] = nan
    norms["logit_spread"] = norms["places"].max(-1)
    for name in ("logits", "weights", "bound"):
        prompt[name] = rng.uniform(0, 1, (3, 4, n_tokens, n_tokens))
        prompt[name][1, 2:] = nan
    return norms, prompt


def write(directory: Path, norms: Arrays, prompt: Arrays | None = None, words: list[str] = WORDS) -> Path:
    """The files that a probe leaves."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, arrays in (("probe", norms), ("prompt", prompt or {})):
        tensors = {key: torch.tensor(value.copy(), dtype=torch.float32) for key, value in arrays.items()}
        save_file(tensors, directory / f"{name}.safetensors", metadata={"words": json.dumps(words)})
    return directory


def always(directory: Path) -> Callable[..., Path]:
    """A runner that finds this run, whatever is asked for."""
    return lambda verb, *overrides: directory
