"""Shell completion of groups, options and keys, answered by Hydra's own completer."""

from __future__ import annotations

import os

from roundround.command_line.arguments import config_loader, expand_sugar, flag_value, split_flags
from roundround.config.options import config_name
from roundround.errors import UserError


def complete_override(verb: str, words: list[str], incomplete: str) -> list[str]:
    """What may stand in place of the word under the cursor, given the words before it.

    Bash breaks words at `=`, so `pe=p_` arrives as `pe`, `=`, `p_`; the answers then begin after the `=`.
    """
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    if incomplete == "" and under_cursor() == "=":
        words = [*words, "="]
    words, prefix = joined(words)
    try:
        overrides, flags = split_flags(expand_sugar(words, verb))
    except UserError:  # a flag still being typed
        return []
    loader = config_loader(flag_value(flags, "--config-dir"))
    line = " ".join([*overrides, prefix + incomplete])
    found = DefaultCompletionPlugin(loader)._query(config_name=config_name(verb), line=line)
    return [word.removeprefix(prefix) for word in found]


def under_cursor() -> str:
    """The word under the cursor as bash has it: Typer passes a lone `=` on as nothing."""
    words, place = os.environ.get("COMP_WORDS", "").split(), os.environ.get("COMP_CWORD", "")
    return words[int(place)] if place.isdigit() and int(place) < len(words) else ""


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
    if after_equals:
        return whole[:-1], whole[-1]
    return whole, ""
