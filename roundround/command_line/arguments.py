"""From what people type to what Hydra can read: flags anywhere, aliases, odd strings."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from roundround.command_line.flags import flag_value, split_flags
from roundround.command_line.loggers import expand_loggers
from roundround.command_line.sugar import expand_sugar, in_quotes
from roundround.command_line.sweeps import check_sweeps, parse, read_commas
from roundround.config.options import checked_config_dir, config_name, options_of
from roundround.config.verbs import Verb
from roundround.support.errors import UserError, nearest, one_line, printable


@dataclass(frozen=True)
class CommandLine:
    """What stands after the verb, as Hydra can read it.

    config_dir: the absolute path of the user's own conf folder. config_name: the yaml that is composed.
    """

    overrides: list[str]
    flags: list[str]
    config_dir: str | None
    config_name: str


def read_command_line(args: list[str], verb: Verb) -> CommandLine:
    """What a user typed after the verb. Raises UserError for what nobody can read."""
    overrides, flags = split_flags(expand_sugar(args, verb), verb.flags)
    if flag_value(flags, "--config-path") is not None:
        raise UserError("--config-path would replace roundround's own yamls; --config-dir DIR adds yours to them")
    config_dir = checked_config_dir(flag_value(flags, "--config-dir"))
    if config_dir is not None:
        flags = [*flags, "--config-dir", config_dir]  # argparse takes the last one
    name = flag_value(flags, "--config-name") or config_name(verb.name)
    overrides = expand_loggers(expand_aliases(overrides, verb.name), config_dir)
    overrides = [quote_odd(override, config_dir) for override in overrides]
    check_sweeps(overrides, config_dir)
    check_folders(overrides)
    overrides = read_commas(overrides, name, config_dir, jobs="--multirun" in flags)
    return CommandLine(overrides, flags, config_dir, name)


def expand_aliases(overrides: list[str], verb: str) -> list[str]:
    """`text=FILE` is `data=text data.path=FILE`, and `preset=NAME` is `experiment=<verb>/NAME`."""
    expanded = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "text":
            expanded += ["data=text", f"data.path={value}"]
        elif key == "preset":
            expanded.append(f"experiment={verb}/{value}")
        else:
            expanded.append(override)
    return expanded


def quote_odd(override: str, config_dir: str | None = None) -> str:
    """The override as it is where Hydra can lex it, else with its value in quotes (paths with ~ = ( ) or accents)."""
    key, equals, value = override.partition("=")
    if equals and not key.strip("+~ "):
        raise UserError(f"'{override}' names no key; write key=value")
    try:
        parsed = parse(override)
    except ValueError as error:  # Python's limit for the digits of a whole number
        raise UserError(f"{key}={printable(value, 40)}: a number has more than 4,300 digits") from error
    except HydraException as error:
        if not equals:
            raise UserError(f"'{override}' is no override; write key=value") from error
        if value[:1] in ("[", "{", "'", '"'):
            raise UserError(f"cannot read '{override}': {one_line(error)}") from error
        return f"{key}={in_quotes(value)}"
    named = parsed.is_delete() or parsed.is_sweep_override() or isinstance(parsed.value(), str | QuotedString)
    twisted = any(not is_plain(name) for name in value.split(","))
    choices = {} if named and not twisted else options_of(parsed.key_or_group, config_dir)
    if not named and parsed.key_or_group.split("/")[0] == "hydra":
        raise UserError(f"{override}: {parsed.key_or_group} takes the name of one option of Hydra's")
    if choices:  # Hydra fails on pe=null with a traceback, and takes pe=rope.yaml and pe=./rope for other options
        raise UserError(f"{override}: {parsed.key_or_group} takes the name of one option{nearest('', choices)}")
    # Hydra reads a backslash before some characters as an escape; a regular expression must arrive as typed
    typed = isinstance(parsed.value(), str) and parsed.input_line is not None
    if "\\" in override and typed and parsed.value() != value and value[:1] not in ("'", '"'):
        return f"{key}='{value}'" if "'" not in value else override
    return override


def is_plain(name: str) -> bool:
    """Whether Hydra can read a name in one way only: it leads nowhere else and is written as short as it can be."""
    return not name.endswith(".yaml") and name in ("", posixpath.normpath(name)) and ".." not in name.split("/")


def check_folders(overrides: list[str]) -> None:
    """Raises UserError for a folder of Hydra's without a name, which would mean the current one."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+") in ("hydra.run.dir", "hydra.sweep.dir") and not value.strip("'\" "):
            raise UserError(f"{override} is empty; give a folder")
