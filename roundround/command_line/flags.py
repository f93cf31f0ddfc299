"""The flags of Hydra's that a verb takes, and what stands between them."""

from __future__ import annotations

from collections.abc import Iterable

from roundround.support.errors import UserError, nearest

WITH_VALUE = {
    "--cfg": "-c",
    "--package": "-p",
    "--config-path": "-cp",
    "--config-name": "-cn",
    "--config-dir": "-cd",
    "--info": "-i",
}
WITHOUT_VALUE = {
    "--help": "-h",
    "--hydra-help": None,
    "--version": None,
    "--resolve": None,
    "--run": "-r",
    "--multirun": "-m",
}
MODES = ("--run", "--multirun", "--cfg", "--info")  # what Hydra does, one at a time

FLAG_CHOICES = {
    "--cfg": ["job", "hydra", "all"],
    "--info": ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"],
}


def split_flags(args: list[str], own: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Overrides and flags apart: argparse inside hydra-core 1.3 fails where they are mixed, so flags go last.

    own: flags of the verb's, which a misspelt one may mean. Raises UserError for a flag that does not exist or lacks
    its value.
    """
    short = {s: long for long, s in (WITH_VALUE | WITHOUT_VALUE).items() if s}
    overrides, flags, rest = [], [], iter(args)
    for arg in rest:
        if not arg.startswith("-"):
            overrides.append(arg)
            continue
        name, equals, value = arg.partition("=")
        name = short.get(name, name)
        if name in WITHOUT_VALUE and not equals:
            flags.append(name)
        elif name in WITH_VALUE:
            given = value if equals else next(rest, None)
            if given is None:
                raise UserError(f"{name} needs a value")
            if given not in FLAG_CHOICES.get(name, [given]):
                raise UserError(f"no {name} {given}{nearest(given, FLAG_CHOICES[name])}")
            flags += [name, given]
        else:
            raise UserError(f"no flag {arg}{nearest(name, [*WITH_VALUE, *WITHOUT_VALUE, *own])}")
    given_modes = [mode for mode in MODES if mode in flags]
    if len(given_modes) > 1:
        raise UserError(f"Only one of {', '.join(given_modes)} can be given")
    return overrides, flags


def flag_value(flags: list[str], name: str) -> str | None:
    """The value of a flag in what `split_flags` returned, as argparse the last; None where it is not given."""
    return next((flags[i + 1] for i in reversed(range(len(flags))) if flags[i] == name), None)
