"""Several loggers at once: `logger=[wandb,csv]`, a list of the names of options, which Hydra would merge into one."""

from __future__ import annotations

import re
from typing import Any

from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from roundround.command_line.sweeps import parse
from roundround.config.options import options_of
from roundround.support.errors import UserError, nearest

ALONE = {"none", "several"}  # options that stand in no list


def expand_loggers(overrides: list[str], config_dir: str | None) -> list[str]:
    """`logger=[a,b]` is `logger=several +logger@logger.a=a +logger@logger.b=b`; the last `logger=` is what counts.

    So each has a node of its own, and `logger.a.project=NAME` reaches it. UserError for a list that nobody can mean.
    """
    places = [n for n, override in enumerate(overrides) if override.partition("=")[0] == "logger"]
    lists = {n: names for n in places if (names := list_of(overrides[n])) is not None}
    rest = [override for n, override in enumerate(overrides) if n not in lists]
    if not places or places[-1] not in lists:
        return rest
    names = lists[places[-1]]
    check_names(overrides[places[-1]], names, config_dir)
    return [*rest, "logger=several", *(f"+logger@logger.{key_of(name)}={name}" for name in names)]


def list_of(override: str) -> list[Any] | None:
    """What an override lists; None where it gives something else, or cannot be read. UserError for a sweep of lists."""
    try:
        parsed = parse(override)
    except (HydraException, ValueError):  # said where all overrides are read
        return None
    value: Any = parsed.value()
    if parsed.is_sweep_override() and "[" in override:
        raise UserError(f"{override}: a sweep takes single loggers; give one list, and every job gets all of it")
    return (
        [item.text if isinstance(item, QuotedString) else item for item in value] if isinstance(value, list) else None
    )


def check_names(override: str, names: list[Any], config_dir: str | None) -> None:
    """Raises UserError for a list without a name, with a wrong one, or with one twice."""
    choices = options_of("logger", config_dir).keys() - ALONE
    if not names:
        raise UserError(f"{override} names no logger; logger=none turns them off{nearest('', choices)}")
    if "none" in names:
        raise UserError(f"{override}: none is no logger beside others; leave it out, or give logger=none")
    for name in names:
        if not isinstance(name, str) or name not in choices:
            raise UserError(f"no logger={name}{nearest(str(name), choices)}")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{override} names {twice[0]} twice")


def key_of(name: str) -> str:
    """The name as a key of a config; that of an option in a folder has a slash."""
    return re.sub(r"\W", "_", name)


def complete_list(word: str, config_dir: str | None) -> list[str]:
    """What `logger=[wandb,te` may become: the same with a whole name at its end."""
    before, mark, begun = re.fullmatch(r"(.*)([\[,])(.*)", word).groups()  # type: ignore[union-attr]
    given = before.partition("[")[2].split(",")
    names = sorted(options_of("logger", config_dir).keys() - ALONE - set(given))
    return [f"{before}{mark}{name}" for name in names if name.startswith(begun)]
