"""The options of a config group: where their yamls lie, and one of them as a node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from roundround.config.build import maker
from roundround.errors import UserError, nearest

T = TypeVar("T")


def conf_dir() -> Path:
    """The packaged conf/ of an installed wheel, else the top-level conf/ of a checkout."""
    here = Path(__file__).resolve().parents[1]
    return next(path for path in (here / "conf", here.parent / "conf") if path.is_dir())


def config_name(verb: str) -> str:
    return verb.replace("-", "_")


def load_option(group: str, name: str, **numbers: Any) -> DictConfig:
    """The node of an option of a group, such as softmax=ssmax, with these numbers; UserError for a wrong name."""
    folder = conf_dir() / group
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"no {group}={name}{nearest(name, [p.stem for p in folder.glob('*.yaml')])}")
    node = OmegaConf.create({group: OmegaConf.merge(OmegaConf.load(path), numbers)})[group]
    assert isinstance(node, DictConfig)
    return node


def named(group: str, name: str, family: type[T], **numbers: Any) -> Callable[..., T]:
    """A function that builds an option again and again; UserError for a name or a number that does not exist."""
    return maker(load_option(group, name, **numbers), family)
