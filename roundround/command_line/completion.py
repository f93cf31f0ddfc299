"""Shell completion: flags by their names, groups, options and keys by Hydra's own completer.

Tested by tests/command_line/test_command_line.py and tests/command_line/test_theory_words.py.
"""

from __future__ import annotations

import importlib
import os
import re

from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from roundround.analysis.past_run import STATUSES
from roundround.command_line.arguments import (
    ALONE,
    FLAG_CHOICES,
    WITH_VALUE,
    WITHOUT_VALUE,
    CommandLine,
    is_sweep,
    read_command_line,
)
from roundround.command_line.catalogue import GROUPS, NO_KEYS, as_typed, groups_of, offered
from roundround.command_line.messages import EXPLAINED
from roundround.config.options import compose, config_loader, config_name, options_of
from roundround.config.verb import Flag, Verb
from roundround.verbs import VERBS, verb_named


def complete_override(name: str, words: list[str], incomplete: str) -> list[str]:
    """What may stand in place of the word under the cursor, given the words before it.

    Bash breaks words at `=`, so `pe=p_` arrives as `pe`, `=`, `p_`; the answers then begin after the `=`. What Hydra's
    completer cannot read beside it is left out: sweeps, and values with spaces. A wrong line has no completions.
    """
    verb = verb_named(name)
    if incomplete == "" and under_cursor() == "=":
        words = [*words, "="]
    words, prefix = joined(words)
    try:
        flag = prefix.removesuffix("=") or (words[-1] if words else "")
        if flag in verb.flags and verb.flags[flag].choices:
            return names_of_flag(verb, verb.flags[flag], incomplete)
        if verb.names and prefix in ("", f"{verb.words}="):
            start = f"{verb.words}=" if incomplete.startswith(f"{verb.words}=") else ""
            module, _, function = verb.names.partition(":")
            names: list[str] = getattr(importlib.import_module(module), function)()
            found = [start + name for name in names if (start + name).startswith(incomplete)]
            if found:
                return found
        if flag in FLAG_CHOICES:
            return [choice for choice in FLAG_CHOICES[flag] if choice.startswith(incomplete)]
        if incomplete.startswith("-"):
            flags = [*WITH_VALUE, *WITHOUT_VALUE, *verb.flags]
            flags.remove("--config-path")  # which is refused
            return [flag for flag in flags if flag.startswith(incomplete)]
        line = read_command_line(words, verb)
        if (prefix + incomplete).startswith("logger=["):
            return [word.removeprefix(prefix) for word in complete_list(prefix + incomplete, line.config_dir)]
        beside = [word for word in line.overrides if not is_sweep(word) and len(word.split()) == 1]
        found = matches(verb, line, beside, prefix + incomplete)
    except EXPLAINED:  # among others a flag that is still being typed
        return []
    return [word.removeprefix(prefix) for word in found]


def matches(verb: Verb, line: CommandLine, beside: list[str], begun: str) -> list[str]:
    """What a word may become: groups, their options, keys and defaults. beside: the other words."""
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    key, equals, _ = begun.partition("=")
    if equals and key in groups_of(verb):  # Hydra knows no options in folders, nor what the verb refuses
        names = offered(verb, key, line.config_dir)
        return [f"{key}={name}" for name in names if f"{key}={name}".startswith(begun)]
    loader = config_loader(line.config_dir)
    config = loader.load_configuration(line.config_name, beside, run_mode=RunMode.RUN)
    default = default_of(config, key) if equals else None
    if default is not None:  # Hydra has none for null, and takes a list apart
        return [f"{key}={default}"] if f"{key}={default}".startswith(begun) else []
    loader.load_configuration = lambda *args, **options: config  # type: ignore[method-assign]  # once is enough
    found = DefaultCompletionPlugin(loader)._query(config_name=line.config_name, line=" ".join([*beside, begun]))
    own = {*groups_of(verb), *(GROUPS if verb.filters else [])}  # a filter may name any
    found = [f"{name}=" if name in own else name for name in found if name in own or name not in GROUPS]
    found = [name for name in found if name.removesuffix("=").rpartition(".")[2] not in NO_KEYS]
    found = [f"{name[:-1]}=" if default_of(config, name[:-1]) else name for name in found]
    if len(found) == 1 and found[0].endswith((".", "=")):  # behind a single answer a shell would put a space
        found += [word for word in matches(verb, line, beside, found[0]) if word != found[0]]
    return found


def default_of(config: DictConfig, key: str) -> str | None:
    """The value of a key as it is typed; None where the config has no such key, or keys below it."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if not isinstance(node, DictConfig) or name not in [*node]:
        return None
    if OmegaConf.is_missing(node, name):
        return "???"
    value = node[name]
    if isinstance(value, DictConfig):
        return None
    return as_typed(OmegaConf.to_container(value) if isinstance(value, ListConfig) else value)


def complete_reader(name: str, words: list[str], incomplete: str) -> list[str]:
    """What may stand in place of the word under the cursor of a verb that only reads runs."""
    _, prefix = joined([*words, "="] if incomplete == "" and under_cursor() == "=" else words)
    known = {
        "verb": [verb.name for verb in VERBS if verb.config is not None],
        "status": list(STATUSES),
        "format": ["table", "json"],
        "open": ["true", "false"],
    }
    own = verb_named(name).reads
    values = {key: known.get(key, [default] if default else []) for key, (default, _) in own.items()}
    if name == "runs":  # whose other keys choose runs by their settings
        values |= {group: list(options_of(group)) for group in ("pe", "softmax", "model", "data")}
    whole = prefix + incomplete
    keys = ["last", *(f"{key}=" for key in values)]
    typed = [f"{key}={value}" for key in values for value in values[key]]
    found = [word for word in (typed if "=" in whole else keys) if word.startswith(whole)]
    if len(found) == 1 and found[0].endswith("="):  # alone it would get a space
        found += [word for word in typed if word.startswith(found[0])] or [f"{found[0]}..."]
    return [word.removeprefix(prefix) for word in found]


def complete_list(word: str, config_dir: str | None) -> list[str]:
    """What `logger=[wandb,te` may become: the same with a whole name at its end."""
    before, separator, begun = re.fullmatch(r"(.*)([\[,])(.*)", word).groups()  # type: ignore[union-attr]
    given = before.partition("[")[2].split(",")
    names = sorted(options_of("logger", config_dir).keys() - ALONE - set(given))
    return [f"{before}{separator}{name}" for name in names if name.startswith(begun)]


def names_of_flag(verb: Verb, flag: Flag, incomplete: str) -> list[str]:
    """What a flag may name, such as `--temp`, behind the names and the comma that are there already."""
    before, comma, name = incomplete.rpartition(",")
    names = [*compose(config_name(verb.name), [], None)[flag.choices], *flag.short, "all"]
    return [f"{before}{comma}{choice}" for choice in names if choice.startswith(name)]


def under_cursor() -> str:
    """The word under the cursor as bash has it: Typer passes a lone `=` on as nothing."""
    words, number = os.environ.get("COMP_WORDS", "").split(), os.environ.get("COMP_CWORD", "")
    return words[int(number)] if number.isdigit() and int(number) < len(words) else ""


def joined(words: list[str]) -> tuple[list[str], str]:
    """The words with those that bash broke at `=` joined again, and what stands before the cursor in its own word."""
    whole: list[str] = []
    after_equals = False
    for word in words:
        if word == "=" and whole:
            whole[-1] += "="
        elif after_equals:
            whole[-1] += word
        else:
            whole.append(word)
        after_equals = word == "="
    return (whole[:-1], whole[-1]) if after_equals else (whole, "")
