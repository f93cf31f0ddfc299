"""A training run's model, rebuilt from its manifest, with what the command line replaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from roundround.build import build
from roundround.data.corpora import Corpus
from roundround.data.tokenizers import Saved, TokenizerRecipe, Vocabulary
from roundround.data.tokens import TokenData, default_cache_dir, prepare
from roundround.directories import read_manifest
from roundround.errors import UserError
from roundround.model.decoder import Decoder
from roundround.tasks.assembly import decoder_of, refuse_foreign
from roundround.training import checkpoints

PARTS_WITH_PARAMETERS = {"pe": "encodings.", "softmax": ".softmax."}  # how their parameters are named


def own_config(manifest: dict[str, Any], *, trust: bool, **replaced: DictConfig | None) -> DictConfig:
    """The run's own config with the nodes that replace its own; None keeps the run's."""
    own = OmegaConf.create(manifest["config"])
    assert isinstance(own, DictConfig)
    refuse_foreign(own, trust=trust)
    for name, node in replaced.items():
        if node is not None:
            own[name] = node
    return own


def load_decoder(
    own: DictConfig,
    manifest: dict[str, Any],
    source: Path,
    *,
    checkpoint: str,
    replaced: set[str] = frozenset(),  # type: ignore[assignment]
) -> Decoder:
    """The run's decoder with its weights; UserError for a parameter that a `replaced` part needs and they lack."""
    if not manifest.get("data"):
        raise UserError(f"{source} stopped before its model was built; there is nothing to evaluate")
    weights = checkpoints.load_weights(checkpoints.find(source, checkpoint))
    decoder = decoder_of(own.model, own.pe, own.softmax, manifest["data"]["n_vocab"])
    for part, mark in PARTS_WITH_PARAMETERS.items():
        if part not in replaced:
            continue
        weights = {name: value for name, value in weights.items() if mark not in name}
        needed = sorted(name for name in decoder.state_dict() if mark in name)
        if needed:
            raise UserError(f"{part} has parameters that the checkpoint lacks: {', '.join(needed)}; train with it")
    decoder.load_state_dict(weights)
    return decoder


def decoder_of_run(
    source: Path,
    *,
    checkpoint: str,
    trust: bool,
    pe: DictConfig | None = None,
    softmax: DictConfig | None = None,
) -> tuple[Decoder, Vocabulary]:
    """A run's decoder in evaluation mode, with the tokenizer that the run kept."""
    manifest = read_manifest(source)
    if manifest["verb"] != "train":
        raise UserError(f"{source} is a run of {manifest['verb']}; only a training run holds a model")
    own = own_config(manifest, trust=trust, pe=pe, softmax=softmax)
    replaced = {name for name, node in (("pe", pe), ("softmax", softmax)) if node is not None}
    decoder = load_decoder(own, manifest, source, checkpoint=checkpoint, replaced=replaced)
    kept = Saved(source / "tokenizer.json", manifest["data"]["end_of_document"])
    return decoder.eval(), kept.build([])


def held_out_text(own: DictConfig, manifest: dict[str, Any], source: Path) -> TokenData:
    """The corpus in the run's own tokens; from the cache where the run left them, else with the tokenizer it kept."""
    corpus = build(own.data, Corpus)  # type: ignore[type-abstract]
    began_elsewhere = own.get("init") is not None  # its tokenizer came from a folder that need not be there any more
    if corpus.identity() == manifest["data"]["corpus_hash"] and not began_elsewhere:
        data = prepare(corpus, build(own.tokenizer, TokenizerRecipe), default_cache_dir())  # type: ignore[type-abstract]
        if data.tokenizer_hash == manifest["data"]["tokenizer_hash"]:
            return data
    kept = Saved(source / "tokenizer.json", manifest["data"]["end_of_document"])
    return prepare(corpus, kept, default_cache_dir())


def held_out_tokens(source: Path, *, trust: bool) -> NDArray[np.unsignedinteger[Any]]:
    """The held-out stream of a run, in its own tokens."""
    manifest = read_manifest(source)
    own = own_config(manifest, trust=trust)
    return held_out_text(own, manifest, source).held_out
