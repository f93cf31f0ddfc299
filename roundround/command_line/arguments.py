"""From what people type to what Hydra can read: flags anywhere, words without a key, aliases, odd strings, commas.

Tested by tests/command_line/test_arguments.py.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException
from omegaconf import ListConfig, OmegaConf

from roundround.command_line.catalogue import ALONE, FLAG_CHOICES, WITH_VALUE, WITHOUT_VALUE
from roundround.config.options import checked_config_dir, compose, config_name, in_quotes, options_of
from roundround.config.verb import Verb
from roundround.support.errors import UserError, nearest, one_line

TEXTS = {"prompt", "outputs", "run", "resume", "to"}  # keys whose value is a text, also where it is like a number
OUTSIDE = r",(?![^\[]*\])"  # a comma in no list
NEXT_PAIR = r",(?=[^,=]+=)"  # a comma before key=value


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
    """What a user typed after the verb. Raises UserError for what cannot be read."""
    overrides, flags = split_flags(expand_sugar(args, verb), verb)
    config_dir = checked_config_dir(flag_value(flags, "--config-dir"))
    if config_dir is not None:
        flags = [*flags, "--config-dir", config_dir]  # argparse takes the last one
    name = flag_value(flags, "--config-name") or config_name(verb.name)
    overrides = expand_loggers(expand_aliases(overrides, verb.name), config_dir)
    if "init" not in verb.keys or any(override.startswith("init=run:") for override in overrides):
        overrides = add_below(overrides, verb.partly)  # without init= a run has no pattern but the one that it is given
    for word in overrides:
        if "=" not in word and not word.startswith("~"):
            is_run = "run" in verb.keys and (re.fullmatch(r"last(~\d+)?", word) or os.path.lexists(word))
            form = f"run={word}" if is_run else "key=value"
            raise UserError(f"'{word}' is no override; write {shlex.quote(form)}")
    overrides = [quote_odd(override, config_dir) for override in overrides]
    overrides = read_commas(overrides, name, config_dir, jobs="--multirun" in flags)
    return CommandLine(overrides, flags, config_dir, name)


# -- flags


def split_flags(args: list[str], verb: Verb) -> tuple[list[str], list[str]]:
    """Overrides and flags apart: argparse inside hydra-core 1.3 fails where they are mixed, so flags go last.

    verb: whose flags and keys a wrong one may mean. Raises UserError for a flag that does not exist or lacks its value.
    """
    long = {short: name for name, short in (WITH_VALUE | WITHOUT_VALUE).items()}
    overrides, flags, rest = [], [], iter(args)
    for arg in rest:
        if not arg.startswith("-"):
            overrides.append(arg)
            continue
        name, equals, value = arg.partition("=")
        name = long.get(name, name)
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
            key = name.lstrip("-")
            form = f"; write {key}={value or next(rest, 'VALUE')}" if key.partition(".")[0] in verb.keys else ""
            raise UserError(f"no flag {name}{form or nearest(name, [*WITH_VALUE, *WITHOUT_VALUE, *verb.flags])}")
    return overrides, flags


def flag_value(flags: list[str], name: str) -> str | None:
    """The value of a flag in what `split_flags` returned, as argparse the last; None where it is not given."""
    return next((flags[i + 1] for i in reversed(range(len(flags))) if flags[i] == name), None)


# -- what verbs take beside Hydra's grammar, rewritten to overrides


def expand_sugar(args: list[str], verb: Verb) -> list[str]:
    """The verb's own flags and its words without a key as overrides. UserError where a name is missing.

    `--temp NAME[,NAME]` is `evaluate=[softmax,NAME,...]`; `rope.thm_6_1` of theory is `claim=[rope.thm_6_1]`;
    `DIR last~1` is `paths=['DIR','last~1']`; of a verb that filters, `pe=rope` is `where=['pe=rope']`.
    """
    rest: list[str] = []
    lists: dict[str, list[str]] = {}
    own, words = {*verb.keys, "hydra"}, iter(args)
    for arg in words:
        name, equals, value = arg.partition("=")
        key, flag = re.split("[./@]", name.lstrip("+~"))[0], verb.flags.get(name)
        if flag is not None and flag.needs:
            given = [flag.short.get(word, word) for word in (value if equals else next(words, "")).split(",")]
            if not all(given):
                raise UserError(f"{name} needs {flag.needs}")
            lists[flag.override] = list(dict.fromkeys([*lists.get(flag.override, flag.first), *given]))
        elif flag is not None and not equals:
            rest.append(flag.override)
        elif arg.startswith("-") or not verb.words:
            rest.append(arg)
            if arg in WITH_VALUE or arg in WITH_VALUE.values():
                rest += [word for word in [next(words, None)] if word is not None]
        elif not equals or (not verb.names and os.path.lexists(arg)):
            lists.setdefault(verb.words, []).append(arg if verb.names else in_quotes(arg))
        elif verb.filters and key not in own:
            lists.setdefault(verb.filters, []).append(arg)
        elif key in verb.pairs:
            given = re.split(NEXT_PAIR, re.sub(r"^\[(.*)\]$", r"\1", value))
            rest.append(f"{key}=[{','.join(map(in_quotes, given))}]")
        else:
            rest.append(arg)
    filters = lists.pop(verb.filters, [])
    if filters and verb.sweeps_filters and {"-m", "--multirun"} & {*args}:  # a job for each combination of their values
        parts = (word.partition("=") for word in filters)
        each = ([f"{name}={value}" for value in re.split(OUTSIDE, values)] for name, _, values in parts)
        jobs = (f"[{','.join(map(in_quotes, job))}]" for job in itertools.product(*each))
        rest.append(f"{verb.filters}=choice({','.join(jobs)})")
    elif filters:
        lists[verb.filters] = [in_quotes(word) for word in filters]
    return [*rest, *(f"{key}=[{','.join(names)}]" for key, names in lists.items())]


def expand_aliases(overrides: list[str], verb: str) -> list[str]:
    """`text=FILE` is `data=text data.path=FILE`, and `preset=NAME` is `experiment=<verb>/NAME`."""
    expanded = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "text":
            expanded += ["data=text", f"data.path={value}"]
        elif key == "preset":
            expanded.append(f"experiment={','.join(f'{verb}/{name}' for name in value.split(','))}")
        else:
            expanded.append(override)
    return expanded


def expand_loggers(overrides: list[str], config_dir: str | None) -> list[str]:
    """`logger=[a,b]` is `logger=several +logger@logger.a=a +logger@logger.b=b`; the last `logger=` is what counts.

    So each has a node of its own, and `logger.a.project=NAME` reaches it. UserError for a wrong name or the same twice.
    """
    given = [override for override in overrides if override.startswith("logger=")]
    rest = [override for override in overrides if not override.startswith("logger=[")]
    if not given or given[-1] in rest:
        return rest
    names = [name.strip("'\" ") for name in given[-1].removeprefix("logger=[").removesuffix("]").split(",")]
    choices = options_of("logger", config_dir).keys() - ALONE
    for name in names:
        if name not in choices:
            raise UserError(f"no logger={name} in a list{nearest(name, choices)}")
        if names.count(name) > 1:
            raise UserError(f"{given[-1]} names {name} twice")
    keys = [re.sub(r"\W", "_", name) for name in names]  # the name of an option in a folder has a slash
    nodes = [f"+logger@logger.{key}={name}" for key, name in zip(keys, names, strict=True)]
    return [*rest, "logger=several", *nodes]


def add_below(overrides: list[str], groups: Collection[str]) -> list[str]:
    """Overrides of keys below these groups as Hydra takes them where its own config has none: a run's has them.

    A group that is given whole is there.
    """
    whole = {override.partition("=")[0] for override in overrides}
    added = []
    for override in overrides:
        key = override.partition("=")[0]
        group, at, package = key.rpartition("@")
        below = [name for name in groups if package.startswith(f"{name}.") and name not in whole]
        added.append((f"+{override}" if at else f"++{override}") if below and not group.startswith("+") else override)
    return added


def quote_odd(override: str, config_dir: str | None = None) -> str:
    """The override as it is where Hydra can lex it, else with its value in quotes (paths with ~ = ( ) or accents)."""
    key, equals, value = override.partition("=")
    if equals and not key.strip("+~ "):
        raise UserError(f"'{override}' names no key; write key=value")
    try:
        parsed = parse(override)
    except HydraException as error:
        if value[:1] in ("[", "{", "'", '"'):
            text = shlex.quote(f"{key}={in_quotes(value)}" if '"' in value else f'{key}="{value}"')
            raise UserError(f"cannot read '{override}': {one_line(error)}; a text is typed as {text}") from error
        return f"{key}={in_quotes(value)}"
    read = parsed.value()
    is_text = isinstance(read, str)
    if key.lstrip("+") in TEXTS and (isinstance(read, bool | int | float) or (is_text and value != value.strip())):
        return f"{key}={in_quotes(value)}"  # as it was typed: Hydra cuts blanks at the ends
    named = parsed.is_delete() or parsed.is_sweep_override() or isinstance(read, str | QuotedString)
    choices = {} if named else options_of(parsed.key_or_group, config_dir)
    if choices:  # Hydra fails on pe=null with a traceback
        raise UserError(f"{override}: {key} takes the name of one option{nearest('', choices)}")
    # Hydra reads a backslash before some characters as an escape; a regular expression must arrive as typed
    if "\\" in override and is_text and read != value and value[:1] not in ("'", '"') and "'" not in value:
        return f"{key}='{value}'"
    return override


def parse(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


# -- values with commas: a sweep, or a list where the config has one


def read_commas(overrides: list[str], name: str, config_dir: str | None, *, jobs: bool = False) -> list[str]:
    """`length=128,256` as the list `length=[128,256]` where the config of this name has one; elsewhere it is a sweep.

    jobs: it is a sweep, so that what is given of a group that is swept belongs to its jobs: Hydra would try it on the
    group's default too. Raises what is wrong with the other overrides, as Hydra's compose does.
    """
    with_commas = {override for override in overrides if has_plain_commas(override)}
    if not with_commas:
        return overrides
    parsed = {override: parse(override) for override in overrides}
    keys = {override: str(parsed[override].key_or_group) for override in overrides}
    sweeps = {override for override in overrides if parsed[override].is_sweep_override()}
    groups = {override for override in sweeps if options_of(keys[override], config_dir)}
    values = {override: parsed[override].value() for override in groups}
    firsts = {o: value.list[0] for o, value in values.items() if isinstance(value, ChoiceSweep)}
    first = [f"{o.partition('=')[0]}={v.text if isinstance(v, QuotedString) else v}" for o, v in firsts.items()]
    left_out = {keys[override] for override in with_commas | groups}
    others = [override for override in overrides if keys[override] not in left_out and override not in sweeps]
    config = compose(name, [*first, *others], config_dir)
    swept = tuple("" if keys[group] == "experiment" else f"{keys[group]}." for group in groups)
    found = []
    for override in overrides:
        key, _, value = override.partition("=")
        is_list = isinstance(OmegaConf.select(config, keys[override].replace("/", ".")), ListConfig)
        if override in with_commas and (is_list or (key == "prompt" and not jobs)):
            value = f"[{value}]" if is_list else in_quotes(value)
        of_job = jobs and value and "." in keys[override] and keys[override].startswith(swept)
        if of_job and (is_list or override not in sweeps):
            value = f"choice({value})"  # a sweep over one value
        found.append(f"{key}={value}" if value else override)
    return found


def has_plain_commas(override: str) -> bool:
    """Whether it is `a,b`, but for `[1,2],[3,4]`, which is a list for each job."""
    with suppress(HydraException):
        value = parse(override).value() if "," in override else None  # parsing takes longer than all else here
        return isinstance(value, ChoiceSweep) and value.simple_form and not isinstance(value.list[0], list)
    return False
