"""Hydra as it is, in less of its time: most of what a command costs here is the composition of its config.

Hydra composes a config twice, first to look whether it says that this is a sweep. Where only the packages' yamls are
read, and none of those that do, it is not asked: 60 to 80 of the 400 ms of a tiny training run. Each yaml of the
packages is parsed once a session and copied from there on, 20 to 30 ms; those that tests write are read each time.
And what Hydra makes of the defaults lists is made once for each choice of options, a fifth of such a run; the values
of a command are set in a copy of it. Copies are taken by pickle, a third of the time of OmegaConf's own; and what
Hydra copies so that its sources can be replaced, sources and their configs, is copied shallowly: it replaces the list.
Commands in processes of their own run without all this.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import pytest
from hydra._internal import config_loader_impl, config_repository
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList, Overrides
from hydra._internal.hydra import Hydra
from hydra.core import utils
from omegaconf import OmegaConf

from roundround.config.options import conf_dir

PACKAGES = (f"{conf_dir()}/", f"{Path(hydra.__file__).parent}/")
PACKAGED = ("hydra", "main", "schema")  # the providers of Hydra's search path without a folder of the user's own
MAY_BE_A_SWEEP = ("experiment", "hydra")  # groups and keys that can set hydra.mode


@pytest.fixture(scope="session", autouse=True)
def quick_hydra() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        kept: dict[str, bytes] = {}
        load, get_mode = OmegaConf.load, Hydra.get_mode

        def loaded(file: Any) -> Any:
            name = str(file if isinstance(file, Path) else getattr(file, "name", file))  # a Path's name has no folder
            if not name.startswith(PACKAGES):
                return load(file)
            if name not in kept:
                kept[name] = pickle.dumps(load(file))
            return pickle.loads(kept[name])

        patch.setattr(OmegaConf, "load", staticmethod(loaded))

        def mode(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
            sources = self.config_loader.get_search_path().get_path()
            plain = is_packaged(sources) and not any(may_be_a_sweep(override) for override in overrides)
            return None if plain else get_mode(self, config_name, overrides)

        patch.setattr(Hydra, "get_mode", mode)
        lists: dict[Any, DefaultsList] = {}
        composed: dict[str, bytes] = {}
        list_defaults, compose = (
            config_loader_impl.create_defaults_list,
            ConfigLoaderImpl._compose_config_from_defaults_list,
        )

        def listed(repo: Any, config_name: str | None, overrides_list: list[Any], **options: Any) -> DefaultsList:
            if not is_packaged(repo.get_sources()):
                return list_defaults(repo, config_name, overrides_list, **options)
            values = Overrides(repo, overrides_list).config_overrides
            choices = [override.input_line for override in overrides_list if override not in values]
            key = (config_name, *choices, *options.items())
            if key not in lists:
                lists[key] = list_defaults(repo, config_name, overrides_list, **options)
            return replace(lists[key], config_overrides=values)

        def composition(self: ConfigLoaderImpl, defaults: list[Any], repo: Any) -> Any:
            if not is_packaged(repo.get_sources()):
                return compose(self, defaults, repo)
            key = repr(defaults)
            if key not in composed:
                composed[key] = pickle.dumps(compose(self, defaults, repo))
            return pickle.loads(composed[key])

        patch.setattr(config_loader_impl, "create_defaults_list", listed)
        patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", composition)
        patch.setattr(config_repository, "copy", SimpleNamespace(deepcopy=copy.copy))
        patch.setattr(utils, "copy", SimpleNamespace(deepcopy=lambda config: pickle.loads(pickle.dumps(config))))
        yield


def is_packaged(sources: Iterable[Any]) -> bool:
    """Whether a config comes from the packages alone, of Hydra's sources or the search path to them."""
    return {source.provider for source in sources} <= {*PACKAGED}


def may_be_a_sweep(override: str) -> bool:
    return override.lstrip("+~").startswith(MAY_BE_A_SWEEP)
