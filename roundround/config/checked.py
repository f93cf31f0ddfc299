"""What Hydra composed, merged into the typed config of a verb once more, because `+typo=1` passes Hydra.

Tested by tests/config/test_recorded.py and tests/command_line/test_command_line.py.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from roundround.config.build import assign, plain, without_place
from roundround.support.errors import UserError, nearest

T = TypeVar("T")


def checked(schema: type[T], cfg: DictConfig) -> T:
    """The composed config as the verb's dataclass, whose nodes stay DictConfig until `build` takes them.

    Raises UserError for an unknown key, a wrong type or a value out of range.
    """
    names = [field.name for field in fields(schema)]  # type: ignore[arg-type]
    for key in map(str, cfg):
        if key not in names:
            raise UserError(f"no config key '{key}'{nearest(key, names)}")
    typed = OmegaConf.structured(schema)
    for key in map(str, cfg):
        try:
            given = OmegaConf.select(cfg, key, throw_on_missing=True)
            assign(typed, key, given)
        except OmegaConfBaseException as error:
            raise UserError(f"{key}: {without_place(error)}") from error
        if isinstance(given, str) and not given.isascii() and isinstance(typed[key], int):
            raise UserError(f"{key}={given}: a number is written with the digits 0 to 9")
    values: dict[str, Any] = {}
    for field in fields(schema):  # type: ignore[arg-type]
        if OmegaConf.is_missing(typed, field.name):
            raise UserError(f"{field.name} has no value; give {field.name}=...")
        try:
            value = typed[field.name]
            values[field.name] = value if isinstance(value, DictConfig) else plain(value)
        except OmegaConfBaseException as error:  # a text like an interpolation, where none can stand
            raise UserError(f"{field.name}: {without_place(error)}") from error
        absent = value is None and field.default is None
        if field.type == "Any" and not absent and not isinstance(value, DictConfig):
            raise UserError(f"{field.name} must give values by name, _target_ first; it is {values[field.name]}")
    config = schema(**values)
    config.check()  # type: ignore[attr-defined]
    return config
