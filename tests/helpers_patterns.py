"""Decoders with a pattern of layers, as `train` builds them, for tests of several rooms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from roundround.config.options import conf_dir, load_option
from roundround.model.decoder import Decoder
from roundround.records.run import Invocation
from roundround.trained.models import build_decoder
from roundround.trained.patterns import parts_of
from roundround.trained.start import starting_point

SMALL = {"d_model": 32, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "train_length": 16, "initializer_range": 0.3}


def config_of(*overrides: str) -> DictConfig:
    """The config with which `train` builds its decoder."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("train", list(overrides))
    return starting_point(
        config, Invocation(verb="train", directory=Path("run"), overrides=list(overrides), choices={})
    )[0]


def decoder_of(*overrides: str, n_layers: int = 6, **sizes: Any) -> Decoder:
    torch.manual_seed(0)
    model = load_option("model", "tiny", **(SMALL | sizes), n_layers=n_layers)
    return build_decoder(model, n_vocab=29, **parts_of(config_of(*overrides))).eval()
