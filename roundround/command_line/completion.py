"""Shell completion: flags, groups, their options, and the keys of a verb. It imports neither Hydra nor torch.

Tested by tests/command_line/test_arguments.py and tests/command_line/test_theory_words.py.
"""

from __future__ import annotations

import importlib
import os
import re

from roundround.analysis.past_run import STATUSES
from roundround.command_line.catalogue import ALONE, FLAG_CHOICES, GROUPS, WITH_VALUE, WITHOUT_VALUE, groups_of, offered
from roundround.command_line.pages import own_keys, words_beside_help
from roundround.config.options import options_of
from roundround.config.verb import Verb
from roundround.support.errors import UserError
from roundround.verbs import VERBS, verb_named


def complete_override(name: str, words: list[str], incomplete: str) -> list[str]:
    """What the word under the cursor may become, given the words before it.

    Bash breaks words at `=`, so `pe=p_` arrives as `pe`, `=`, `p_`; the answers then begin after the `=`.
    """
    words, prefix = joined([*words, "="] if incomplete == "" and under_cursor() == "=" else words)
    typed = prefix + incomplete
    try:
        found = candidates(verb_named(name), words, prefix, typed)
    except UserError:  # a wrong line has no completions
        return []
    return [word.removeprefix(prefix) for word in found if word.startswith(typed)]


def candidates(verb: Verb, words: list[str], prefix: str, typed: str) -> list[str]:
    """Words that the word under the cursor may become; not all of them begin as it does."""
    flag = prefix.removesuffix("=") or (words[-1] if words else "")
    if flag in verb.flags and verb.flags[flag].choices:  # such as --temp, which takes names with commas between
        before = typed.removeprefix(prefix).rpartition(",")[0]
        parts = [group.rpartition(".") for group in groups_of(verb)]
        names = [name for node, _, name in parts if node.endswith(f"@{verb.flags[flag].choices}")]
        return [prefix + f"{before},{choice}".lstrip(",") for choice in [*names, *verb.flags[flag].short, "all"]]
    if flag in FLAG_CHOICES:
        return [prefix + choice for choice in FLAG_CHOICES[flag]]
    if typed.startswith("-"):
        return [*WITH_VALUE, *WITHOUT_VALUE, *verb.flags]
    _, config_dir = words_beside_help(words, verb)
    if typed.startswith("logger=["):
        before, separator, _ = re.fullmatch(r"(.*)([\[,])(.*)", typed).groups()  # type: ignore[union-attr]
        given = before.partition("[")[2].split(",")
        names = sorted(options_of("logger", config_dir).keys() - ALONE - set(given))
        return [f"{before}{separator}{name}" for name in names]
    groups = [*groups_of(verb), *(GROUPS if verb.filters else ())]
    key = typed.partition("=")[0]
    if "=" in typed and key in groups:
        return [f"{key}={option}" for option in offered(verb, key, config_dir)]
    found = [f"{group}=" for group in dict.fromkeys(groups)]
    found += [f"{name}={own.default}" for name, own in own_keys(verb).items()]
    if verb.names:
        module, _, function = verb.names.partition(":")
        start = f"{verb.words}=" if "=" in typed else ""
        found += [start + name for name in getattr(importlib.import_module(module), function)()]
    matching = [word for word in found if word.startswith(typed)]
    if len(matching) == 1 and matching[0].endswith("="):  # behind a single answer a shell would put a space
        found += [f"{matching[0]}{option}" for option in offered(verb, matching[0][:-1], config_dir)]
    return found


def complete_reader(name: str, words: list[str], incomplete: str) -> list[str]:
    """What the word under the cursor may become after a verb that only reads runs."""
    _, prefix = joined([*words, "="] if incomplete == "" and under_cursor() == "=" else words)
    known = {
        "verb": [verb.name for verb in VERBS if verb.config is not None],
        "status": list(STATUSES),
        "format": ["table", "json"],
        "open": ["true", "false"],
    }
    values = {key: known.get(key, [default]) for key, (default, _) in verb_named(name).reads.items()}
    if name == "runs":  # whose other keys choose runs by their settings
        values |= {group: list(options_of(group)) for group in ("pe", "softmax", "model", "data")}
    found = ["last", *(f"{key}={value}" for key in values for value in values[key])]
    return [word.removeprefix(prefix) for word in found if word.startswith(prefix + incomplete)]


def under_cursor() -> str:
    """The word under the cursor as bash has it: Typer passes a lone `=` on as nothing."""
    words, number = os.environ.get("COMP_WORDS", "").split(), os.environ.get("COMP_CWORD", "")
    return words[int(number)] if number.isdigit() and int(number) < len(words) else ""


def joined(words: list[str]) -> tuple[list[str], str]:
    """The words with the pieces that bash broke at `=` joined again, and the part of the last one before the cursor."""
    whole = re.sub(r"\0=(\0|$)", "=", "\0".join(words)).split("\0") if words else []
    if whole and whole[-1].endswith("=") and words[-1] == "=":
        return whole[:-1], whole[-1]
    return whole, ""
