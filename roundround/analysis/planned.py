"""The config that a verb would record, before it runs: so that a finished run of the same numbers is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from roundround.config.composition import compose, usual_config
from roundround.config.options import config_name
from roundround.config.recorded import as_dict, flat, own_options
from roundround.loading.models import give_default_data
from roundround.loading.reading import settle_model_and_data
from roundround.loading.start import starting_point
from roundround.runs.run import Invocation

NO_RESULT = {"outputs", "logger", "resume"}  # keys that change no number
ABOUT_MODELS = {"probe", "theory"}  # verbs that choose a text to go with the model


def planned_config(
    verb: str,
    overrides: Sequence[str],
    outputs: str,
    config_dir: str | None,
    check: Callable[[dict[str, Any]], None] = lambda composed: None,
) -> dict[str, Any]:
    """What `roundround VERB OVERRIDE ...` would record as its config; of max-retrieval where no `run` is given.

    `check` is shown what was composed before any class that it names is imported.
    """
    cfg: DictConfig = compose(config_name(verb), list(overrides), config_dir)
    choices = dict(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        del cfg["hydra"]
    OmegaConf.update(cfg, "outputs", outputs)
    invocation = Invocation(verb=verb, directory=Path(), overrides=list(overrides), choices=choices)
    check(as_dict(cfg))
    if verb in ABOUT_MODELS:
        settle_model_and_data(cfg, invocation)
    if verb == "eval":
        give_default_data(cfg, otherwise="pydoc")
    if verb == "train":
        cfg, _ = starting_point(cfg, invocation)
    return as_dict(cfg)


def has_same_numbers(manifest: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    """Whether a run was made from the config that is planned, as far as its numbers depend on it.

    A key that the program did not have yet when the run was made stood at what is its default today.
    """
    then, now = of_numbers(manifest["config"]), of_numbers(planned)
    new = now.keys() - then.keys()
    if then != {key: now[key] for key in now.keys() & then.keys()}:
        return False
    usual = usual_config(manifest["verb"], own_options(manifest)) if new else None
    defaults = {} if usual is None else of_numbers(usual[0])
    return all(key in defaults and now[key] == defaults[key] for key in new)


def of_numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values that numbers depend on, by dotted key, as they are read again from a manifest."""
    return flat(json.loads(json.dumps({k: v for k, v in config.items() if k not in NO_RESULT}, default=str)))
