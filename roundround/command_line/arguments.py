"""From what people type to what Hydra can read: flags anywhere, words without a key, aliases, odd strings, commas."""

from __future__ import annotations

import itertools
import math
import os
import posixpath
import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf import ListConfig, OmegaConf

from roundround.command_line.catalogue import rests
from roundround.config.options import as_path, checked_config_dir, compose, config_name, in_quotes, options_of
from roundround.config.verb import Verb
from roundround.support.errors import UserError, nearest, one_line, printable

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
MOST_JOBS = 10_000  # of a sweep; each is composed before the first one runs
ALONE = {"none", "several"}  # options that stand in no list
TEXTS = {"prompt", "outputs", "run", "resume", "to"}  # keys whose value is a text, also where it is like a number
OUTSIDE = r",(?![^\[]*\])"  # a comma in no list
NEXT_PAIR = r",(?=[^,=]+=)"  # a comma before key=value
MODES = ("--run", "--multirun", "--cfg", "--info")  # what Hydra does, one at a time
FLAG_CHOICES = {
    "--cfg": ["job", "hydra", "all"],
    "--info": ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"],
}


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
    if flag_value(flags, "--config-path") is not None:
        raise UserError("--config-path would replace roundround's own yamls; --config-dir DIR adds yours to them")
    config_dir = checked_config_dir(flag_value(flags, "--config-dir"))
    if config_dir is not None:
        flags = [*flags, "--config-dir", config_dir]  # argparse takes the last one
    name = flag_value(flags, "--config-name") or config_name(verb.name)
    overrides = expand_loggers(expand_aliases(overrides, verb.name), config_dir)
    if "init" not in verb.keys or any(override.startswith("init=run:") for override in overrides):
        overrides = add_below(overrides, verb.partly)  # without init= a run has no pattern but the one that it is given
    overrides = [override for override in overrides if not (override.endswith("=null") and rests(override, verb))]
    for word in overrides:
        if "=" not in word and not word.startswith("~"):
            raise UserError(f"'{word}' is no override; write {form_of(word, verb)}")
    overrides = [quote_odd(override, config_dir) for override in overrides]
    check_sweeps(overrides, config_dir)
    check_folders(overrides)
    overrides = read_commas(overrides, name, config_dir, jobs="--multirun" in flags)
    return CommandLine(overrides, flags, config_dir, name)


# -- flags


def split_flags(args: list[str], verb: Verb) -> tuple[list[str], list[str]]:
    """Overrides and flags apart: argparse inside hydra-core 1.3 fails where they are mixed, so flags go last.

    verb: whose flags and keys a wrong one may mean. Raises UserError for a flag that does not exist or lacks its value.
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
            known, key = [*{*WITH_VALUE} - {"--config-path"}, *WITHOUT_VALUE, *verb.flags], name.lstrip("-")
            form = f"; write {key}={value or next(rest, 'VALUE')}" if key.partition(".")[0] in verb.keys else ""
            raise UserError(f"no flag {name}{form or nearest(name, known)}")
    given_modes = [mode for mode in MODES if mode in flags]
    if len(given_modes) > 1:
        raise UserError(f"Only one of {', '.join(given_modes)} can be given")
    return overrides, flags


def flag_value(flags: list[str], name: str) -> str | None:
    """The value of a flag in what `split_flags` returned, as argparse the last; None where it is not given."""
    return next((flags[i + 1] for i in reversed(range(len(flags))) if flags[i] == name), None)


# -- what verbs take beside Hydra's grammar, rewritten to overrides


def expand_sugar(args: list[str], verb: Verb) -> list[str]:
    """The words as overrides and flags. UserError where a name is missing."""
    args = expand_flags(args, verb)
    values = {n for n in range(1, len(args)) if args[n - 1] in {*WITH_VALUE, *WITH_VALUE.values()}}
    if not verb.words:
        return args
    return expand_names(args, values, verb) if verb.names else expand_paths(args, values, verb)


def expand_flags(args: list[str], verb: Verb) -> list[str]:
    """The verb's own flags as overrides: `--temp NAME[,NAME]` is `evaluate=[softmax,NAME,...]`.

    Raises UserError where a name is missing.
    """
    expanded: list[str] = []
    lists: dict[str, list[str]] = {}
    words = iter(args)
    for arg in words:
        name, equals, value = arg.partition("=")
        flag = verb.flags.get(name)
        if equals and f"--{name}" in verb.flags and name not in verb.keys:
            raise UserError(f"{name} is a flag; write --{name} {value}")
        if flag is None or (equals and not flag.needs):
            expanded.append(arg)
        elif not flag.needs:
            expanded.append(flag.override)
        else:
            given = [flag.short.get(word, word) for word in (value if equals else next(words, "")).split(",")]
            if not all(given):
                raise UserError(f"{name} needs {flag.needs}")
            lists[flag.override] = [*lists.get(flag.override, flag.first), *given]
    return [*expanded, *(f"{key}=[{','.join(dict.fromkeys(names))}]" for key, names in lists.items())]


def expand_names(args: list[str], values: set[int], verb: Verb) -> list[str]:
    """Words such as `rope.thm_6_1` of theory are `claim=[rope.thm_6_1]`."""
    bare = {n for n, arg in enumerate(args) if re.fullmatch(r"[\w.]+", arg) and n not in values}
    rest = [arg for n, arg in enumerate(args) if n not in bare]
    return [*rest, f"{verb.words}=[{','.join(args[n] for n in sorted(bare))}]"] if bare else rest


def expand_paths(args: list[str], values: set[int], verb: Verb) -> list[str]:
    """`DIR last~1` is `paths=['DIR','last~1']`; of a verb that filters, `pe=rope` is `where=['pe=rope']`."""
    rest, paths, filters, own = [], [], [], {*verb.keys, "hydra"}
    for n, arg in enumerate(args):
        key = re.split("[./@]", arg.partition("=")[0].lstrip("+~"))[0]
        if n in values or arg.startswith("-"):
            rest.append(arg)
        elif "=" not in arg or os.path.lexists(arg):
            paths.append(arg)
        elif verb.filters and key not in own:
            filters.append(arg)
        elif key in verb.pairs:
            given = re.sub(r"^\[(.*)\]$", r"\1", arg.partition("=")[2])
            rest.append(f"{key}=[{','.join(map(in_quotes, re.split(NEXT_PAIR, given)))}]")
        else:
            rest.append(arg)
    if filters and verb.sweeps_filters and {"-m", "--multirun"} & {*args}:  # a job for each combination of their values
        if any(arg.startswith("to=") for arg in rest):
            raise UserError("to= is one folder, and -m runs a job for each variant; give pe=a,b without -m, or no to=")
        parts = (word.partition("=") for word in filters)
        each = ([f"{name}={value}" for value in re.split(OUTSIDE, values)] for name, _, values in parts)
        jobs = (f"[{','.join(map(in_quotes, job))}]" for job in itertools.product(*each))
        rest, filters = [*rest, f"{verb.filters}=choice({','.join(jobs)})"], []
    lists = [(verb.words, paths), (verb.filters, filters)]
    return [*rest, *(f"{key}=[{','.join(map(in_quotes, words))}]" for key, words in lists if words)]


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


def form_of(word: str, verb: Verb) -> str:
    """What a word without `=` is probably meant to be."""
    if "model" in verb.keys and os.path.isfile(f"{word}/config.json"):  # as transformers keeps one
        return f"model=hf {shlex.quote(f'model.path={word}')}"
    is_run = "run" in verb.keys and (re.fullmatch(r"last(~\d+)?", word) or os.path.lexists(word))
    otherwise = f"run={word}" if is_run else f"prompt={word}" if "prompt" in verb.keys else "key=value"
    return shlex.quote(f"{word}=VALUE" if word in verb.keys else otherwise)


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
        if value[:1] in ("[", "{", "'", '"'):
            text = shlex.quote(f"{key}={in_quotes(value)}" if '"' in value else f'{key}="{value}"')
            raise UserError(f"cannot read '{override}': {one_line(error)}; a text is typed as {text}") from error
        return f"{key}={in_quotes(value)}"
    of_text, read = key.lstrip("+") in TEXTS, parsed.value()
    if of_text and (isinstance(read, bool | int | float) or (isinstance(read, str) and value != value.strip())):
        return f"{key}={in_quotes(value)}"  # as it was typed: Hydra cuts blanks at the ends
    named = parsed.is_delete() or parsed.is_sweep_override() or isinstance(parsed.value(), str | QuotedString)
    twisted = any(not is_plain(name) for name in value.split(","))
    choices = {} if named and not twisted else options_of(parsed.key_or_group, config_dir)
    if not named and parsed.key_or_group.split("/")[0] == "hydra":
        raise UserError(f"{override}: {parsed.key_or_group} takes the name of one option of Hydra's")
    if choices:  # Hydra fails on pe=null with a traceback, and takes pe=rope.yaml and pe=./rope for other options
        advice = as_path(key, value) or nearest("", choices)
        raise UserError(f"{override}: {key} takes the name of one option{advice}")
    # Hydra reads a backslash before some characters as an escape; a regular expression must arrive as typed
    typed = isinstance(parsed.value(), str) and parsed.input_line is not None
    if "\\" in override and typed and parsed.value() != value and value[:1] not in ("'", '"'):
        return f"{key}='{value}'" if "'" not in value else override
    return override


def parse(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


def is_plain(name: str) -> bool:
    """Whether Hydra reads a name in one way only: it leads nowhere else and is as short as it can be."""
    return not name.endswith(".yaml") and name in ("", posixpath.normpath(name)) and ".." not in name.split("/")


def check_folders(overrides: list[str]) -> None:
    """Raises UserError for a folder of Hydra's without a name, which would mean the current one."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+") in ("hydra.run.dir", "hydra.sweep.dir") and not value.strip("'\" "):
            raise UserError(f"{override} is empty; give a folder")


# -- values with commas: a sweep, or a list where the config has one


def check_sweeps(overrides: list[str], config_dir: str | None) -> None:
    """Raises UserError for a sweep over nothing, which would launch nothing, and for one that never ends."""
    n_jobs = 1
    for override in filter(may_sweep, overrides):
        n_values = n_swept(parse(override), config_dir)
        if n_values == 0:
            raise UserError(f"{override} is a sweep over no value")
        n_jobs *= n_values
    if n_jobs > MOST_JOBS:
        raise UserError(f"this sweep has {n_jobs:,} runs, and one may have {MOST_JOBS:,}")


def may_sweep(override: str) -> bool:
    """Whether an override can be a sweep, `a,b` or a function: parsing each again takes longer than all else here."""
    return "," in override or "(" in override


def n_swept(override: Override, config_dir: str | None) -> int:
    """Over how many values an override sweeps; 1 where it is none."""
    value: Any = override.value()
    if isinstance(value, ChoiceSweep):
        return len(value.list)
    if isinstance(value, Glob):
        return len(value.filter(list(options_of(override.key_or_group, config_dir))))
    if isinstance(value, RangeSweep):
        if not value.step or value.start is None or value.stop is None:
            raise UserError(f"{override.input_line}: a range has a start, a stop and a step that is not 0")
        return max(0, math.ceil((value.stop - value.start) / value.step))
    return 1


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
    left_out = {keys[override] for override in with_commas} | {keys[override] for override in groups}
    others = [override for override in overrides if keys[override] not in left_out and override not in sweeps]
    config = compose(name, [*first, *others], config_dir)
    found = []
    for override in overrides:
        key, _, value = override.partition("=")
        is_list = isinstance(OmegaConf.select(config, keys[override].replace("/", ".")), ListConfig)
        if override in with_commas and (is_list or (key == "prompt" and not jobs)):
            value = f"[{value}]" if is_list else in_quotes(value)
        swept = tuple("" if keys[group] == "experiment" else f"{keys[group]}." for group in groups)
        of_job = jobs and value and "." in keys[override] and keys[override].startswith(swept)
        if of_job and (is_list or override not in sweeps):
            value = f"choice({value})"  # a sweep over one value
        found.append(f"{key}={value}" if value else override)
    return found


def has_plain_commas(override: str) -> bool:
    """Whether it is `a,b`, but for `[1,2],[3,4]`, which is a list for each job."""
    with suppress(HydraException):
        value = parse(override).value() if may_sweep(override) else None
        return isinstance(value, ChoiceSweep) and value.simple_form and not isinstance(value.list[0], list)
    return False


def is_sweep(override: str) -> bool:
    with suppress(HydraException):
        return bool(parse(override).is_sweep_override())
    return True


# -- logger=[wandb,csv], which Hydra would merge into one


def expand_loggers(overrides: list[str], config_dir: str | None) -> list[str]:
    """`logger=[a,b]` is `logger=several +logger@logger.a=a +logger@logger.b=b`; the last `logger=` is what counts.

    So each has a node of its own, and `logger.a.project=NAME` reaches it. UserError for a list that makes no sense.
    """
    given = [n for n, override in enumerate(overrides) if override.partition("=")[0] == "logger"]
    lists = {n: names for n in given if (names := list_of(overrides[n])) is not None}
    rest = [override for n, override in enumerate(overrides) if n not in lists]
    if not given or given[-1] not in lists:
        return rest
    names = lists[given[-1]]
    check_names(overrides[given[-1]], names, config_dir)
    return [*rest, "logger=several", *(f"+logger@logger.{key_of(name)}={name}" for name in names)]


def list_of(override: str) -> list[Any] | None:
    """What an override lists; None where it gives something else, or cannot be read. UserError for a sweep of lists."""
    try:
        parsed = parse(override)
    except (HydraException, ValueError):  # reported where all overrides are read
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
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{override} names {twice[0]} twice")


def key_of(name: str) -> str:
    """The name as a key of a config; that of an option in a folder has a slash."""
    return re.sub(r"\W", "_", name)
