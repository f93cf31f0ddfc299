"""The yamls of conf/: their folder, the options of a group, an option as a node, and configs composed by Hydra.

Tested by tests/command_line/test_arguments.py, tests/test_own_contract.py and tests/report/test_page_command.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from roundround.config.recorded import as_dict, give_theta
from roundround.support.errors import UserError, nearest
from roundround.support.files import home_expanded


def conf_dir() -> Path:
    """The packaged conf/ of an installed wheel, else the top-level conf/ of a checkout."""
    here = Path(__file__).resolve().parents[1]
    return next(path for path in (here / "conf", here.parent / "conf") if path.is_dir())


def config_name(verb: str) -> str:
    return verb.replace("-", "_")


def options_in(folder: Path) -> dict[str, Path]:
    """{option: its yaml} for the yamls below a group's folder; options are named as in rope or rope/table2."""
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}


def options_of(group: str, config_dir: str | None = None) -> dict[str, Path]:
    """{option: its yaml} for the options of a group, including the options in the user's own conf folder."""
    own = {} if config_dir is None else options_in(Path(config_dir) / group)
    return own | options_in(conf_dir() / group)


def checked_config_dir(given: str | None) -> str | None:
    """The absolute path of the user's own conf folder, for jobs and ranks that run in other directories.

    Raises UserError if the folder does not exist, or if a yaml in it has the name of a packaged yaml but not the same
    content, because Hydra would ignore the user's yaml.
    """
    if given is None:
        return None
    own = home_expanded(given, "--config-dir").absolute()
    if not given.strip() or not own.is_dir():
        raise UserError(f"--config-dir {given or 'is empty'}: there is no such folder")
    for packaged in sorted(conf_dir().rglob("*.yaml")):
        name = packaged.relative_to(conf_dir())
        if (own / name).is_file() and (own / name).read_bytes() != packaged.read_bytes():
            raise UserError(f"{own / name} would be ignored, because roundround has a {name} of its own; rename yours")
    return str(own)


def load_option(group: str, name: str, **numbers: Any) -> DictConfig:
    """The node of an option, such as softmax=ssmax. Raises UserError if there is no such option.

    numbers: new values for keys of the option's yaml, under the names of the keys.
    """
    found = options_of(group)
    if name not in found:
        raise UserError(f"no {group}={name}{nearest(name, found)}")
    node = OmegaConf.create({group: OmegaConf.merge(OmegaConf.load(found[name]), numbers)})[group]
    assert isinstance(node, DictConfig)
    return node


def in_quotes(value: str) -> str:
    """The text in quotes, so that Hydra's grammar reads it back unchanged, whatever characters it contains."""
    quoted = re.sub(r"(\\*)'", r"\1\1\\'", value)
    trailing = len(quoted) - len(quoted.rstrip("\\"))
    return f"'{quoted}{chr(92) * trailing}'"


def as_value(path: object) -> str:
    """A path as the value of an override; in quotes if a character could have a meaning in Hydra's grammar."""
    return str(path) if re.fullmatch(r"[\w./~+-]+", str(path)) else in_quotes(str(path))


BY_PATH = {"model": ("model=hf model.path",) * 2, "data": ("data=hub data.name", "data=text data.path")}


def as_path(group: str, name: str) -> str:
    """The end of a message about an unknown option: what to write if `name` is a path or a hub name; else empty."""
    is_there = os.path.lexists(name)
    if group not in BY_PATH or not (is_there or re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name)):
        return ""
    return f"; write {BY_PATH[group][is_there]}={as_value(name)}"


# -- composing a config without running a verb: to read a command line, to complete it, or to compare with a run


def compose(name: str, overrides: list[str], config_dir: str | None) -> DictConfig:
    """The config `name`, which Hydra composes with these overrides."""
    from hydra import compose as compose_with_hydra
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    running = GlobalHydra.get_state()  # the state of the job that calls this, if any
    GlobalHydra.instance().clear()
    first, second = str(conf_dir()), config_dir
    if config_dir is not None and (Path(config_dir) / f"{name}.yaml").is_file():  # Hydra reads it from the first folder
        first, second = config_dir, first
    path = [] if second is None else [f"hydra.searchpath=[{in_quotes(f'file://{second}')}]"]
    try:
        with initialize_config_dir(first, version_base="1.3"):
            return compose_with_hydra(name, [*path, *overrides], return_hydra_config=True)
    finally:
        GlobalHydra.set_state(running)


def usual_config(verb: str, choices: Mapping[str, str]) -> dict[str, Any] | None:
    """The config that a verb would record with these options and no other override. choices: the option of each group.

    None if this version has no such verb or option, or if the options leave a required value of the config missing.
    """
    from hydra.errors import HydraException

    try:
        config = compose(config_name(verb), [f"{group}={option}" for group, option in choices.items()], None)
        with open_dict(config):
            del config["hydra"]
        give_theta(config)
        return as_dict(config)
    except (HydraException, OmegaConfBaseException):
        return None
