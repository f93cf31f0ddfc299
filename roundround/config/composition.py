"""Hydra's composition of a config without running anything: to read a command line, and to complete it."""

from __future__ import annotations

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig

from roundround.config.options import conf_dir


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
