"""The options of a config group: where their yamls lie, and one of them as a node.

Tested by tests/command_line/test_arguments.py and tests/test_own_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from roundround.config.build import maker
from roundround.support.errors import UserError, nearest
from roundround.support.files import home_expanded

T = TypeVar("T")


def conf_dir() -> Path:
    """The packaged conf/ of an installed wheel, else the top-level conf/ of a checkout."""
    here = Path(__file__).resolve().parents[1]
    return next(path for path in (here / "conf", here.parent / "conf") if path.is_dir())


def config_name(verb: str) -> str:
    return verb.replace("-", "_")


def options_in(folder: Path) -> dict[str, Path]:
    """The yamls below a group's folder by the names of the options, such as rope and rope/table2."""
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}


def options_of(group: str, config_dir: str | None = None) -> dict[str, Path]:
    """The options of a group, those of the user's own conf folder included."""
    own = {} if config_dir is None else options_in(Path(config_dir) / group)
    return own | options_in(conf_dir() / group)


def checked_config_dir(given: str | None) -> str | None:
    """The absolute path of the user's own conf folder, so that jobs and other ranks find it from anywhere.

    Raises UserError where there is none, or where one of its yamls has the name of a packaged one, which Hydra prefers.
    """
    if given is None:
        return None
    own = home_expanded(given, "--config-dir").absolute()
    if not given.strip() or not own.is_dir():
        raise UserError(f"--config-dir {given or 'is empty'}: there is no such folder")
    for packaged in sorted(conf_dir().rglob("*.yaml")):
        name = packaged.relative_to(conf_dir())
        if (own / name).is_file() and (own / name).read_bytes() != packaged.read_bytes():
            raise UserError(f"{own / name} would be ignored: roundround has a {name} of its own; rename yours")
    return str(own)


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
