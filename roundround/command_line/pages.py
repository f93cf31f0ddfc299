"""The pages of help: what roundround can do, a verb with its keys, the groups, one group, one option of it.

Text that fits the terminal and breaks no word. It imports neither Hydra nor torch. Tested by
tests/command_line/test_pages.py.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from roundround.command_line.catalogue import (
    GROUPS,
    Key,
    as_typed,
    chosen_by,
    group_names,
    groups_of,
    keys_of,
    named_option,
    offered,
    options,
)
from roundround.config.options import checked_config_dir, config_name
from roundround.config.verb import Verb
from roundround.support import console
from roundround.support.console import print_document
from roundround.support.errors import UserError, escaped, nearest
from roundround.verbs import VERBS

WIDEST = 100  # columns: longer lines are hard to read
NAMES = 28  # columns for what is typed; what is longer stands in a line of its own
FLAGS_OF_HYDRA = [
    ("-m, --multirun", "run every combination: pe=rope,p_rope seed=1,2,3"),
    ("-c, --cfg job", "print the config and stop"),
    ("-cd, --config-dir DIR", "your own conf folder: its variants join the groups"),
]
HELP = ("-h, --help", "this page")
FLAGS = [
    ("--version", "print the version"),
    ("--install-completion", "let TAB complete verbs, groups and keys"),
    ("--show-completion", "print the script that does this"),
    HELP,
]
PARAGRAPHS = r"[ \n](?=(?:Contrast|Margin|Expected|Found)\b)"  # of the comment of an experiment
SENTENCES = r"(?<=[.?]) (?=[A-Z])"
ROTATES = "rotates {} pairs of a head of 64 channels; the slowest of them turns once in {} tokens"


# -- lines of a page


def columns() -> int:
    return max(40, min(shutil.get_terminal_size((80, 24)).columns, WIDEST))


def wrapped(text: str, indent: int) -> list[str]:
    """A text in lines that begin at a column; no word and no command is broken."""
    return console.wrapped(text, columns(), " " * indent)


def rows(pairs: Iterable[tuple[str, str]], widest: int = NAMES, column: int | None = None) -> Iterator[str]:
    """What is typed, and what it means in a column beside it."""
    pairs = list(pairs)
    column = column or 4 + min(widest, max((len(name) for name, _ in pairs), default=0))
    for name, text in pairs:
        lines = wrapped(text, column)
        if lines and len(name) <= column - 4:
            yield f"  {name}".ljust(column) + lines.pop(0).lstrip()
        else:
            yield f"  {name}"
        yield from lines


def show(lines: Iterable[str]) -> None:
    print_document("".join(f"{escaped(line)}\n" for line in lines))


# -- all verbs


def print_verbs() -> None:
    """Print a sentence on each verb."""
    sections = [
        (purpose, [(", ".join([verb.name, *verb.aliases]), verb.help) for verb in verbs])
        for purpose, verbs in groupby(VERBS, key=lambda verb: verb.purpose)
    ]
    look_up = [
        ("list [GROUP [NAME]]", "The groups, the options of one, or what one option is."),
        ("VERB --help", "The groups and keys that a verb takes; also: help VERB."),
    ]
    lines = ["roundround VERB [KEY=VALUE ...] [FLAGS]", ""]
    lines += wrapped(
        "Where attention looks, and how sharply: experiments on positional encodings and attention normalisers.", 0
    )
    for heading, pairs in [*sections, ("Look up", look_up), ("Flags", FLAGS)]:
        lines += ["", heading, *rows(pairs, column=25)]
    lines += ["", *wrapped("After the verb comes Hydra's grammar: key=value, group=option, -m, --cfg job.", 0)]
    lines += wrapped("For a start: roundround train pe=p_rope, and when it is done roundround eval.", 0)
    show(lines)


# -- one verb


def print_verb(verb: Verb, words: list[str]) -> None:
    """Print the groups and keys that a verb takes, each with its default and a sentence.

    words: what is typed beside --help. GROUP=OPTION shows the keys of that option, and --config-dir adds the user's own
    options; all else says nothing here. UserError for an option that does not exist.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-cd", "--config-dir")
    known, rest = parser.parse_known_args(words)
    config_dir = checked_config_dir(known.config_dir)
    groups = {} if verb.config is None else groups_of(verb)
    chosen = {group: option for group, (option, _) in groups.items() if "@" not in group}
    for group, equals, option in (word.partition("=") for word in rest):
        if equals and group in chosen and re.fullmatch(r"[\w./-]+", option):
            names = offered(verb, group, config_dir)
            if option not in (*names, "null"):
                raise UserError(f"no {group}={option}{nearest(option, names)}")
            chosen[group] = option
    word = f"[{word_of(verb)} ...] " if verb.words else "[RUN] " if verb.config is None else ""
    lines = [f"roundround {verb.name} {word}[KEY=VALUE ...]{' [FLAGS]' if verb.config else ''}", ""]
    lines += wrapped(f"{verb.help} {verb.more}", 0)
    if groups:
        lines += ["", "Groups and their options: GROUP=OPTION"]
        lines += lines_of_groups(verb, chosen, groups, config_dir)
    lines += ["", "Keys and their defaults: KEY=VALUE", *rows_of_keys(own_keys(verb).values())]
    for group, option in chosen.items():
        keys = keys_of(group, option, "" if group == "experiment" else group, config_dir) if option != "null" else {}
        lines += ["", *rows_of_keys(keys.values())] if keys else []
    if verb.config is not None:
        lines += ["", "Flags", *rows([*FLAGS_OF_HYDRA, HELP, *own_words(verb)]), ""]
        lines += wrapped(
            "roundround list GROUP NAME explains an option. GROUP=OPTION --help shows the keys of that option.", 0
        )
    show(lines)


def own_keys(verb: Verb) -> dict[str, Key]:
    """The keys of a verb that are in no group."""
    if verb.config is None:
        return {name: Key(name, default, comment) for name, (default, comment) in verb.reads.items()}
    own = keys_of("", config_name(verb.name), "", None, verb=True)
    return own | {"outputs": own.pop("outputs")}  # which all verbs have, last


def lines_of_groups(
    verb: Verb, chosen: dict[str, str], groups: dict[str, tuple[str, str]], config_dir: str | None
) -> Iterator[str]:
    """Each group with its default, a sentence, and the options that the verb takes."""
    for group, option in chosen.items():
        yield from rows([(f"{group}={option}", groups[group][1] or GROUPS.get(group, ""))], widest=20)
        yield from wrapped(", ".join(offered(verb, group, config_dir)), 6)
    placed = {group: option for group, (option, _) in groups.items() if "@" in group}
    for node, members in groupby(placed, key=lambda group: group.rpartition(".")[0]):
        names = [group.rpartition(".")[2] for group in members]
        yield from rows([(f"+{node}.NAME=OPTION", f"one more beside {', '.join(names)}")], widest=20)


def rows_of_keys(keys: Iterable[Key]) -> Iterator[str]:
    return rows([(f"{key.name}={key.default}", key.comment) for key in keys])


def own_words(verb: Verb) -> Iterator[tuple[str, str]]:
    """What a verb takes beside keys, and what it is rewritten to."""
    if verb.words:
        word = word_of(verb)
        yield f"{word} ...", f"the same as {verb.words}=[{word},...]"
    if verb.filters:
        yield "other KEY=VALUE", f"the same as {verb.filters}=[KEY=VALUE,...]"
    for name, flag in verb.flags.items():
        short = "".join(f"; {word} is {name}" for word, name in flag.short.items())
        several = f"the same as {flag.override}=[{','.join([*flag.first, 'NAME', 'NAME'])}]{short}"
        yield (f"{name} NAME,NAME", several) if flag.needs else (name, f"the same as {flag.override}")


def word_of(verb: Verb) -> str:
    """What a bare word of a verb is: PATH of paths=[...]."""
    return verb.words.removesuffix("s").upper()


# -- groups and options


def print_groups() -> None:
    """Print the groups, with a sentence each."""
    show([*rows((group, GROUPS[group]) for group in group_names()), "", "roundround list GROUP lists its options."])


def print_group(group: str, config_dir: str | None) -> None:
    """Print the options of a group: idea, paper, numbers; through a pipe in a line each, for grep.

    UserError for a group that there is not.
    """
    if group not in group_names():
        raise UserError(f"no group '{group}'{nearest(group, group_names())}")
    found = options(group, config_dir)
    column = max(len(option.name) for option in found) + 2
    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    lines = []
    for option in found:
        parts = [re.split(SENTENCES, option.idea.partition("\n")[0])[0], option.paper, option.numbers]
        if is_wide:
            lines.append(f"{option.name:<{column}}" + "  ".join(filter(None, parts)))
            continue
        first, *rest = [line for part in parts for line in wrapped(part, column)] or [""]
        lines += [f"{option.name:<{column}}{first.lstrip()}", *rest]
    show([*lines, f"roundround list {group} NAME explains one of them."])


def print_option(group: str, name: str, config_dir: str | None) -> None:
    """Print what one option is: its idea, formula and paper, its keys, and the command that uses it.

    UserError for a group or a name that does not exist.
    """
    option = named_option(group, name, config_dir)
    is_setting = group in ("bench", "experiment")  # which give values to keys of others
    keys = keys_of(group, name, "" if is_setting else group, config_dir)
    lines = [f"{group}={name}"]
    for paragraph in dict.fromkeys([*re.split(PARAGRAPHS, option.idea), *option.docstring]):
        lines.append("")
        for line in paragraph.split("\n"):  # one of a shell is not broken: it is there to be copied
            lines += [f" {line}"] if line.startswith(" ") else wrapped(line, 2)
    if option.layers:
        lines += ["", f"  layers: {option.layers}"]
    chosen = chosen_by(option, group)
    if option.rotates:
        pairs, _, slowest = option.rotates.partition(", ")
        lines += ["", *wrapped(ROTATES.format(pairs, slowest), 2)]
    if chosen:
        lines += ["", "Options", *rows([(f"{name}={choice}", "") for name, choice in chosen.items()])]
    keys = {name: key for name, key in keys.items() if not any(node.endswith(f"@{name}") for node in chosen)}
    if keys:
        lines += ["", "Values" if is_setting else "Keys and their defaults", *rows_of_keys(keys.values())]
    swept: Any = option.values
    for part in ("hydra", "sweeper", "params"):
        swept = swept.get(part) if isinstance(swept, dict) else None
    if isinstance(swept, dict):
        lines += ["", "Sweep", *rows([(f"{key}={as_typed(values)}", "") for key, values in swept.items()])]
    show([*lines, *(["", "Command", *wrapped(option.command, 2)] if option.command else [])])
