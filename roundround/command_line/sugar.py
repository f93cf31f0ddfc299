"""What verbs take beside Hydra's grammar: words without a key, and a few flags. Each is rewritten to an override."""

from __future__ import annotations

import os
import re

from roundround.command_line.flags import WITH_VALUE
from roundround.config.verbs import Verb
from roundround.support.errors import UserError


def expand_sugar(args: list[str], verb: Verb) -> list[str]:
    """The words as overrides and flags. UserError where a name is missing."""
    args = expand_flags(args, verb)
    flags = {*WITH_VALUE, *WITH_VALUE.values()}
    values = {n for n in range(1, len(args)) if args[n - 1] in flags}
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
    rest, paths, filters = [], [], []
    own = {*verb.keys, "hydra"}
    for n, arg in enumerate(args):
        key = arg.partition("=")[0].lstrip("+~").split(".")[0].split("@")[0]
        if n in values or arg.startswith("-"):
            rest.append(arg)
        elif "=" not in arg or os.path.lexists(arg):
            paths.append(arg)
        elif verb.filters and key not in own:
            filters.append(arg)
        elif key in verb.pairs:
            rest.append(f"{key}=[{','.join(map(in_quotes, arg.partition('=')[2].strip('[]').split(',')))}]")
        else:
            rest.append(arg)
    lists = [(verb.words, paths), (verb.filters, filters)]
    return [*rest, *(f"{key}=[{','.join(map(in_quotes, words))}]" for key, words in lists if words)]


def in_quotes(value: str) -> str:
    """A text as Hydra's grammar reads it back, whatever is in it."""
    quoted = re.sub(r"(\\*)'", r"\1\1\\'", value)
    trailing = len(quoted) - len(quoted.rstrip("\\"))
    return f"'{quoted}{chr(92) * trailing}'"
