"""Hydra as it is, in less of its time: most of what a command costs here is the composition of its config.

Hydra composes a config twice, first to look whether it says that this is a sweep. Where only the packages' yamls are
read, and none of those that do, it is not asked: 60 to 80 of the 400 ms of a tiny training run. Each yaml of the
packages is parsed once a session and copied from there on, 20 to 30 ms; those that tests write are read each time.
Commands in processes of their own run without all this.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.hydra import Hydra
from omegaconf import OmegaConf

from roundround.config.options import conf_dir

PACKAGES = (f"{conf_dir()}/", f"{Path(hydra.__file__).parent}/")
PACKAGED = ("hydra", "main", "schema")  # the providers of Hydra's search path without a folder of the user's own
MAY_BE_A_SWEEP = ("experiment", "hydra")  # groups and keys that can set hydra.mode


@pytest.fixture(scope="session", autouse=True)
def quick_hydra() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        kept: dict[str, Any] = {}
        load, get_mode = OmegaConf.load, Hydra.get_mode

        def loaded(file: Any) -> Any:
            name = str(getattr(file, "name", file))
            if not name.startswith(PACKAGES):
                return load(file)
            if name not in kept:
                kept[name] = load(file)
            return copy.deepcopy(kept[name])

        patch.setattr(OmegaConf, "load", staticmethod(loaded))

        def mode(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
            providers = {path.provider for path in self.config_loader.get_search_path().get_path()}
            plain = providers <= set(PACKAGED) and not any(may_be_a_sweep(override) for override in overrides)
            return None if plain else get_mode(self, config_name, overrides)

        patch.setattr(Hydra, "get_mode", mode)
        yield


def may_be_a_sweep(override: str) -> bool:
    return override.lstrip("+~").startswith(MAY_BE_A_SWEEP)
