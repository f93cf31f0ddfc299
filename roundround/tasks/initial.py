"""`roundround train init=hf:DIR`: a run whose model, encoding and tokenizer are those of a Llama-type checkpoint.

What the checkpoint brings is written into the run's own config, so that the run is rebuilt without it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from omegaconf import DictConfig, OmegaConf, open_dict

from roundround.build import build, target_class
from roundround.data.tokenizers import HuggingFace, Saved, TokenizerRecipe
from roundround.data.tokens import TokenData
from roundround.directories import read_manifest
from roundround.errors import UserError
from roundround.pe.base import PositionalEncoding
from roundround.pe.rotary import RotaryEncoding
from roundround.schema import TrainConfig
from roundround.tasks.assembly import decoder_of, overridden
from roundround.training import checkpoints

if TYPE_CHECKING:
    from roundround.hf.initial import Initial

NOT_IN_WEIGHTS = {"model.train_length", "model.initializer_range"}  # may be given beside init=


def take_over(cfg: DictConfig, overrides: list[str], choices: dict[str, str]) -> tuple[Initial, dict[str, str]]:
    """Read the checkpoint of `cfg.init` and put what it brings into `cfg`; with the choices that this makes.

    `pe` and `softmax` stay where the command line gives them, except that a rotary encoding takes the checkpoint's
    theta unless it gives that too. UserError where the command line says something else about the model.
    """
    from roundround.hf.initial import PREFIX, initial  # transformers takes seconds to import

    keys = overridden(overrides)
    start = initial(cfg.init)
    brought = sorted(k for k in keys if k.partition(".")[0] in ("model", "tokenizer") and k not in NOT_IN_WEIGHTS)
    if brought:
        raise UserError(f"init= brings the model and the tokenizer; leave out {', '.join(brought)}")
    given = {key.partition(".")[0] for key in keys}
    model = start.described.model | {
        name: OmegaConf.select(cfg, f"model.{name}")
        for name in ("train_length", "initializer_range")
        if f"model.{name}" in keys
    }
    tokenizer = {"_target_": f"{HuggingFace.__module__}.{HuggingFace.__qualname__}", "name": str(start.folder)}
    nodes = {"model": model, "tokenizer": tokenizer, "init": f"{PREFIX}{start.folder}"}
    choices = choices | {"model": start.folder.name, "tokenizer": "hf"}
    own = start.described.pe
    if not given & {"pe", "experiment"}:
        nodes["pe"] = own
        choices["pe"] = str(own["_target_"]).split(".")[-2]
    elif "theta" in own and "theta" in cfg.pe and not keys & {"pe.theta", "experiment"} and is_rotary(cfg.pe):
        nodes["pe"] = {**cfg.pe, "theta": own["theta"]}
    with open_dict(cfg):
        for name, node in nodes.items():
            OmegaConf.update(cfg, name, node, merge=False)
    return start, choices


def is_rotary(pe: DictConfig) -> bool:
    return issubclass(target_class(pe, PositionalEncoding), RotaryEncoding)


def check_fits(start: Initial, config: TrainConfig) -> None:
    """Raises UserError where the weights are not those of the model that the config describes; costs no memory."""
    with torch.device("meta"):
        start.check(decoder_of(config.model, config.pe, config.softmax, n_vocab=start.described.n_vocab))


def start_again(config: TrainConfig, directory: Path) -> Initial | None:
    """The checkpoint that a run began from, for one that was stopped before it had its own; None where it needs none.

    UserError where the checkpoint is gone or another one.
    """
    if config.init is None or checkpoints.newest(directory / "checkpoints") is not None:
        return None
    from roundround.hf.initial import initial

    start = initial(config.init)
    before = read_manifest(directory).get("init") or {}
    if before.get("sha256", start.sha256) != start.sha256:
        raise UserError(f"{start.folder} is no longer the checkpoint that {directory} began from; start a new run")
    return start


def recipe_of(config: TrainConfig, directory: Path) -> TokenizerRecipe:
    """The tokenizer; that of a resumed run which began from a checkpoint is the one it kept."""
    if config.resume is not None and config.init is not None:
        data = read_manifest(directory)["data"]
        if data is not None:
            return Saved(directory / "tokenizer.json", data["end_of_document"])
    return build(config.tokenizer, TokenizerRecipe)  # type: ignore[type-abstract]


def with_vocabulary(data: TokenData, config: TrainConfig, start: Initial | None, directory: Path) -> TokenData:
    """The data with the number of rows that the checkpoint's embeddings have: more, perhaps, than tokens in use.

    UserError where they have fewer.
    """
    if config.init is None:
        return data
    n_vocab = start.described.n_vocab if start else int(read_manifest(directory)["data"]["n_vocab"])
    if data.n_vocab > n_vocab:
        raise UserError(
            f"{config.init}: the tokenizer has ids up to {data.n_vocab - 1} and the embeddings {n_vocab} rows"
        )
    return replace(data, n_vocab=n_vocab)
