"""Rewrites typed words that Hydra would refuse or misread.

These are flags among the overrides, words without a key, aliases, values that need quotes, and lists without brackets.

Tested by tests/command_line/test_arguments.py.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Collection

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import HydraException
from omegaconf import ListConfig, OmegaConf

from roundround.command_line.pages import WITH_VALUE, WITHOUT_VALUE
from roundround.config.options import checked_config_dir, compose, config_name, in_quotes, options_of
from roundround.config.verb import Verb
from roundround.support.errors import UserError, nearest, one_line

TEXTS = {"prompt", "outputs", "run", "resume", "to"}  # keys whose value is a text, even if it reads as a number
OUTSIDE = r",(?![^\[]*\])"  # a comma outside a list
NEXT_PAIR = r",(?=[^,=]+=)"  # a comma before key=value


def read_command_line(args: list[str], verb: Verb) -> tuple[list[str], list[str], str | None]:
    """Rewrite the words after the verb for Hydra; returns the overrides, the flags, and the user's own conf folder.

    Raises UserError for words that cannot be read.
    """
    words, flags = split_flags(args, verb)
    config_dir = checked_config_dir(flag_value(flags, "--config-dir"))
    if config_dir is not None:
        flags = [*flags, "--config-dir", config_dir]  # argparse takes the last value
    overrides = expand_aliases(expand_words(words, verb, jobs="--multirun" in flags), verb.name)
    if "init" not in verb.keys or any(override.startswith("init=run:") for override in overrides):
        overrides = add_below(overrides, verb.partly)  # the given run may have a pattern with more keys
    for before, word in itertools.pairwise(["", *overrides]):
        if "=" not in word and not word.startswith("~"):
            form = f"run={word}" if "run" in verb.keys else "key=value"
            quoted = f", or in quotes {shlex.quote(f'{before} {word}')}" if "=" in before else ""
            raise UserError(f"'{word}' has no value; write {shlex.quote(form)}{quoted}")
    name = flag_value(flags, "--config-name") or config_name(verb.name)
    overrides = read_commas(list(map(quote_odd, overrides)), name, config_dir, jobs="--multirun" in flags)
    return overrides, flags, config_dir


def split_flags(args: list[str], verb: Verb) -> tuple[list[str], list[str]]:
    """Split the words into overrides and Hydra's flags: argparse inside hydra-core 1.3 fails if they are mixed.

    The verb's own flags become overrides: `--temp NAME,NAME` becomes `evaluate=[softmax,NAME,NAME]`. Raises UserError
    for a flag that does not exist.
    """
    long = {short: name for name, short in (WITH_VALUE | WITHOUT_VALUE).items()}
    words, flags, rest = [], [], iter(args)
    for arg in rest:
        name, equals, value = arg.partition("=")
        name, own = long.get(name, name), verb.flags.get(name)
        if not arg.startswith("-"):
            words.append(arg)
        elif own is not None:
            given = (value if equals else next(rest, "")) if "{}" in own.override else ""
            words.append(own.override.format(",".join(own.short.get(word, word) for word in given.split(","))))
        elif name in WITHOUT_VALUE and not equals:
            flags.append(name)
        elif name in WITH_VALUE:
            given = value if equals else next(rest, "")
            if not given:
                raise UserError(f"{name} needs a value")
            flags += [name, given]
        else:
            key = name.lstrip("-")
            form = f"; write {key}={value or next(rest, 'VALUE')}" if key.partition(".")[0] in verb.keys else ""
            raise UserError(f"no flag {name}{form or nearest(name, [*WITH_VALUE, *WITHOUT_VALUE, *verb.flags])}")
    return words, flags


def flag_value(flags: list[str], name: str) -> str | None:
    """The value of a flag in the flags from `split_flags`; None if the flag is not among them.

    If the flag was given twice, the last value counts, as in argparse.
    """
    return next((value for flag, value in reversed(list(itertools.pairwise(flags))) if flag == name), None)


# -- rewriting words to overrides


def expand_words(words: list[str], verb: Verb, *, jobs: bool) -> list[str]:
    """Rewrite the words without a key to overrides: `DIR last~1` becomes `paths=['DIR','last~1']`.

    If the verb has filters, a KEY=VALUE whose key is no key of the verb is a filter: `pe=rope` becomes
    `where=['pe=rope']`. jobs: whether the command is a sweep, which runs several jobs. In a sweep of a verb with
    `sweeps_filters`, each combination of the filters' values becomes a job.
    """
    if not verb.words:
        return words
    named, filters, rest = [], [], []
    for word in words:
        name, equals, value = word.partition("=")
        key = re.split("[./@]", name.lstrip("+~"))[0]
        if not equals or (not verb.names and os.path.lexists(word)):
            named.append(word if verb.names else in_quotes(word))
        elif verb.filters and key not in {*verb.keys, "hydra"}:
            filters.append(word)
        elif key in verb.pairs:
            given = re.split(NEXT_PAIR, re.sub(r"^\[(.*)\]$", r"\1", value))
            rest.append(f"{key}=[{','.join(map(in_quotes, given))}]")
        else:
            rest.append(word)
    if named:
        rest.append(f"{verb.words}=[{','.join(named)}]")
    if filters and jobs and verb.sweeps_filters:
        parts = (word.partition("=") for word in filters)
        each = ([f"{name}={value}" for value in re.split(OUTSIDE, values)] for name, _, values in parts)
        lists = (f"[{','.join(map(in_quotes, job))}]" for job in itertools.product(*each))
        rest.append(f"{verb.filters}=choice({','.join(lists)})")
    elif filters:
        rest.append(f"{verb.filters}=[{','.join(map(in_quotes, filters))}]")
    return rest


DIFFERENCES = ("softmax=diff", "softmax=diff_v1")


def expand_aliases(overrides: list[str], verb: str) -> list[str]:
    """Replace aliases: `text=FILE` by `data=text data.path=FILE`, and `preset=NAME` by `experiment=<verb>/NAME`.

    `train softmax=diff softmax.of=NAME` becomes `attention=diff softmax=NAME`, because the layer takes the difference.
    `logger=[a,b]` becomes `logger=several +logger@logger.a=a +logger@logger.b=b`, so that the config has both loggers.
    """
    expanded, given = [], [override.partition("=")[0] for override in overrides]
    n_of, n_differences = given.count("softmax.of"), sum(override in DIFFERENCES for override in overrides)
    alone = n_differences == 1 and n_of < 2 and given.count("softmax") == 1 and "attention" not in given
    if verb == "train" and (n_differences or n_of) and not alone:
        raise UserError(
            "softmax=diff softmax.of=NAME means attention=diff softmax=NAME; leave out other words on attention and "
            "softmax"
        )
    for override in overrides:
        key, _, value = override.partition("=")
        if key == "text":
            expanded += ["data=text", f"data.path={value}"]
        elif verb == "train" and override in DIFFERENCES:
            expanded.append(f"attention={value}")
        elif verb == "train" and key == "softmax.of":
            expanded.append(f"softmax={value}")
        elif key == "preset":
            expanded.append(f"experiment={','.join(f'{verb}/{name}' for name in value.split(','))}")
        elif key == "logger" and value.startswith("["):
            keys = {name: re.sub(r"\W", "_", name) for name in re.findall(r"[\w/-]+", value)}
            expanded += ["logger=several", *(f"+logger@logger.{key}={name}" for name, key in keys.items())]
        else:
            expanded.append(override)
    return expanded


def add_below(overrides: list[str], groups: Collection[str]) -> list[str]:
    """Put + or ++ before the keys below `groups`, such as pattern.local.window.

    The verb's yaml does not contain these keys, and Hydra would refuse them without the sign. If the command line
    chooses an option of a group (pattern=NAME), the keys below that group stay as they are.
    """
    whole = {override.partition("=")[0] for override in overrides}
    added = []
    for override in overrides:
        key = override.partition("=")[0]
        group, at, package = key.rpartition("@")
        below = [name for name in groups if package.startswith(f"{name}.") and name not in whole]
        added.append((f"+{override}" if at else f"++{override}") if below and not group.startswith("+") else override)
    return added


def quote_odd(override: str) -> str:
    """The override, with its value in quotes if Hydra would misread the value (such as a path with ~ = ( ) \\)."""
    key, _, value = override.partition("=")
    try:
        read = parse(override).value()
    except HydraException as error:
        if value[:1] in ("[", "{", "'", '"'):
            raise UserError(f"cannot read '{override}': {one_line(error)}") from error
        return f"{key}={in_quotes(value)}"
    is_number = key.lstrip("+") in TEXTS and isinstance(read, bool | int | float)
    is_changed = isinstance(read, str) and read != value  # Hydra drops a \ before a sign, and spaces at the ends
    if is_number or (is_changed and value[:1] not in ("'", '"')):
        return f"{key}={in_quotes(value)}"
    return override


def parse(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


# -- values with commas: a list if the config has a list at this key, else a sweep


def read_commas(overrides: list[str], name: str, config_dir: str | None, *, jobs: bool = False) -> list[str]:
    """Rewrite `length=128,256` to the list `length=[128,256]` if the config has a list at this key.

    If the config has no list there, the override stays as it is, and Hydra sweeps over the values. jobs: whether the
    command is a sweep. In a sweep over the options of a group (pe=alibi,p_rope), a value of a key below the group
    (pe.p=0.5) becomes a sweep over this one value; otherwise Hydra would set the key in the group's default option too.
    The config is composed to find its lists, so Hydra's errors can be raised.
    """
    parsed = {override: parse(override) for override in overrides}
    sweeps = {override: read.value() for override, read in parsed.items() if read.is_sweep_override()}
    choices = {override: value for override, value in sweeps.items() if isinstance(value, ChoiceSweep)}
    with_commas = {o for o, value in choices.items() if value.simple_form and not isinstance(value.list[0], list)}
    if not with_commas:  # [1,2],[3,4] sweeps over lists: one list for each job
        return overrides
    keys = {override: str(read.key_or_group) for override, read in parsed.items()}
    groups = {override for override in sweeps if options_of(keys[override], config_dir)}
    firsts = {override: value.list[0] for override, value in choices.items() if override in groups}
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
