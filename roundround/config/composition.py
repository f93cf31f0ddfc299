"""Hydra's composition of a config without running anything: to read a command line, to complete it, to compare with.

Tested by tests/test_experiments.py and tests/test_quick_hydra.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from roundround.config.options import conf_dir, config_name
from roundround.config.recorded import as_dict, give_theta


def compose(name: str, overrides: list[str], config_dir: str | None) -> DictConfig:
    """The config of this name with these overrides."""
    from hydra.types import RunMode

    config: DictConfig = config_loader(config_dir).load_configuration(name, overrides=overrides, run_mode=RunMode.RUN)
    return config


def config_loader(config_dir: str | None) -> ConfigLoaderImpl:
    """Hydra's loader as `hydra.main` builds it, with the absolute path of the user's own conf folder."""
    from hydra import version
    from hydra._internal.utils import create_automatic_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.utils import setup_globals

    version.setbase("1.3")
    setup_globals()
    search_path = create_automatic_config_search_path(None, None, str(conf_dir()))
    if config_dir is not None:  # Hydra asserts that its schemas come last
        search_path.prepend("command-line", f"file://{config_dir}", anchor=SearchPathQuery(provider="schema"))
    return ConfigLoaderImpl(search_path)


def usual_config(verb: str, choices: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str | None]] | None:
    """What a verb would record with these options of its groups and no value given, and the option of each group.

    None where today's program has no such verb or option, or where a value must be given.
    """
    name = config_name(verb)
    try:
        config = compose(name, [f"{group}={option}" for group, option in choices.items()], None)
        options = dict(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        give_theta(config)
        return as_dict(config), options
    except (HydraException, OmegaConfBaseException):
        return None
