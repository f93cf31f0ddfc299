"""Runs written by hand for their pages, and a page taken apart again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

VOID = {"meta", "input", "br", "hr", "img", "link"}
PLACES = ("diagonal", "previous", "sink", "offset", "semantic", "local", "diffuse")


def write_run(directory: Path, verb: str, records: list[dict[str, Any]] | None, **fields: Any) -> Path:
    """A finished run with these records; `fields` replace those of its manifest."""
    manifest = {
        "roundround": "0.2.0",
        "verb": verb,
        "status": "done",
        "started": "2026-01-01T12:00:00+00:00",
        "ended": "2026-01-01T12:01:30+00:00",
        "command": f"roundround {verb}",
        "overrides": [],
        "config": {"outputs": "outputs"},
        "choices": {},
        "seed": 3,
        "data": None,
        "facts": {},
        "headline": {},
        "wandb": None,
        "sweep": None,
    }
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(manifest | fields))
    if records is not None:
        (directory / "results.json").write_text(json.dumps(records))
    return directory


def train_config(**values: Any) -> dict[str, Any]:
    """The nodes that a training run's manifest must have."""
    nodes = {name: {"_target_": f"roundround.{name}"} for name in ("model", "pe", "softmax", "data", "tokenizer")}
    nodes["model"]["train_length"] = 32  # type: ignore[assignment]
    return {**nodes, "seed": 3, **values}


def write_probe(directory: Path, n_layers: int = 2, n_heads: int = 2, n_pairs: int = 3, n_tokens: int = 4) -> Path:
    """A probe with every array, whose heads have labels and shares drawn at random."""
    random, shape = np.random.default_rng(0), (n_layers, n_heads)
    distances = np.array([0, 1, 2, 3, 4, 6, 8, 12], dtype=np.float32)
    places = random.dirichlet(np.ones(7), size=shape).astype(np.float32)
    weights = np.tril(random.random((*shape, n_tokens, n_tokens))) + 1e-9 * np.eye(n_tokens)
    arrays = {
        "frequencies": np.tile(1 / 10.0 ** np.arange(n_pairs), (n_layers, 1)),
        "distances": distances,
        "logit_by_pair": random.normal(size=(*shape, n_pairs, len(distances))),
        **{f"{kind}_norm{first}": random.random((*shape, n_pairs))
           for kind in ("query", "key", "value") for first in ("", "_without_first")},
        **{f"places_without_{band}": places[..., ::-1] for band in ("fastest", "fast", "slow", "slowest")},
    }  # fmt: skip
    records = []
    for layer, head in np.ndindex(shape):
        where = {"layer": layer, "head": head}
        shares = places[layer, head].tolist()
        records += [{"metric": f"share_on_{p}", **where, "value": s} for p, s in zip(PLACES, shares, strict=True)]
        records.append({"metric": "label", **where, "share": max(shares), "value": PLACES[int(np.argmax(shares))]})
        records.append({"metric": "entropy", **where, "value": float(random.random())})
    run = write_run(directory, "probe", records, facts={"model": "small", "texts": 2, "tokens": 77})
    words = {"words": json.dumps([f"w{i}" for i in range(n_tokens)])}
    as_floats = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in arrays.items()}
    save_file(as_floats, run / "probe.safetensors")
    alpha = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    save_file({"weights": np.ascontiguousarray(alpha)}, run / "prompt.safetensors", metadata=words)
    return run


class Page(HTMLParser):
    """A page: its elements as (tag, attributes), its text, its tables as rows of cells. Tags that do not fit fail."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.said: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(dict(attrs).get("data-value") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> ends nothing"
        assert self.open[-1] == tag, f"</{tag}> ends {self.open}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.said.append(data)
            if self.open and {"td", "th"} & set(self.open) and self.tables[-1] and self.tables[-1][-1]:
                self.tables[-1][-1][-1] = self.tables[-1][-1][-1] or data.strip()

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).split())

    def column(self, name: str) -> list[str]:
        """The cells below a heading of the first table that has it: exact values where a cell carries one."""
        for rows in self.tables:
            if rows and name in rows[0]:
                return [row[rows[0].index(name)] for row in rows[1:]]
        raise AssertionError(f"no column {name}")

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == tag]


def eval_records(values: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
    """Perplexities by context length, as `eval` records them."""
    common = {"verb": "eval", "model": "tiny", "pe": "rope", "softmax": "softmax", "seed": 3}
    return [{"metric": "perplexity", **common, "length": length, "value": value} for length, value in values]
