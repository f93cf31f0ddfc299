"""What verbs take beside Hydra's grammar: words without a key, and a few flags. Each is rewritten to an override."""

from __future__ import annotations

import os
import re

from omegaconf import OmegaConf

from roundround.command_line.flags import WITH_VALUE
from roundround.config.options import conf_dir, config_name
from roundround.support.errors import UserError, nearest

BARE_WORDS = {"theory": "claim", "reproduce": "item"}  # verbs whose words without a key name what is to be done
PATHS = {"compare", "rerun"}  # verbs whose words without a key, or that exist as a path, are paths=[...]
FILTERED = {"compare"}  # verbs to which a key that is not their own is a question to the runs: where=[...]
PAIRS = {"baseline"}  # keys whose value is key=value, or several of them in brackets
OF_ALL = {"logger", "hydra"}  # groups that every verb owns
SHORT_NORMALISERS = {"adaptive": "adaptive_temperature"}  # of --temp


def expand_sugar(args: list[str], verb: str) -> list[str]:
    """The words as overrides and flags. UserError where a name is missing."""
    flags = {*WITH_VALUE, *WITH_VALUE.values()}
    values = {n for n in range(1, len(args)) if args[n - 1] in flags}
    if verb in PATHS:
        return expand_paths(args, values, verb)
    if verb in BARE_WORDS:
        return expand_names(args, values, verb)
    return expand_temp(args) if verb == "max-retrieval" else args


def expand_names(args: list[str], values: set[int], verb: str) -> list[str]:
    """Words such as `rope.thm_6_1` of theory are `claim=[rope.thm_6_1]`; `--write-docs` is `write_docs=true`."""
    bare = {n for n, arg in enumerate(args) if re.fullmatch(r"[\w.]+", arg) and n not in values}
    rest = [arg for n, arg in enumerate(args) if n not in bare]
    if verb == "reproduce":
        rest = ["write_docs=true" if arg == "--write-docs" else arg for arg in rest]
    return [*rest, f"{BARE_WORDS[verb]}=[{','.join(args[n] for n in sorted(bare))}]"] if bare else rest


def expand_paths(args: list[str], values: set[int], verb: str) -> list[str]:
    """`DIR last~1` is `paths=['DIR','last~1']`; of a verb that filters, `pe=rope` is `where=['pe=rope']`."""
    rest, paths, where = [], [], []
    own = own_keys(verb)
    for n, arg in enumerate(args):
        key = arg.partition("=")[0].lstrip("+~").split(".")[0].split("@")[0]
        if n in values or arg.startswith("-"):
            rest.append(arg)
        elif "=" not in arg or os.path.lexists(arg):
            paths.append(arg)
        elif verb in FILTERED and key not in own:
            where.append(arg)
        elif key in PAIRS:
            rest.append(f"{key}=[{','.join(map(in_quotes, arg.partition('=')[2].strip('[]').split(',')))}]")
        else:
            rest.append(arg)
    lists = [("paths", paths), ("where", where)]
    return [*rest, *(f"{key}=[{','.join(map(in_quotes, words))}]" for key, words in lists if words)]


def own_keys(verb: str) -> set[str]:
    """The keys that a verb's own yaml has, and the groups of all verbs."""
    keys = OmegaConf.load(conf_dir() / f"{config_name(verb)}.yaml")
    return {str(key) for key in keys} | OF_ALL | {"outputs"}


def in_quotes(value: str) -> str:
    """A text as Hydra's grammar reads it back, whatever is in it."""
    quoted = re.sub(r"(\\*)'", r"\1\1\\'", value)
    trailing = len(quoted) - len(quoted.rstrip("\\"))
    return f"'{quoted}{chr(92) * trailing}'"


def expand_temp(args: list[str]) -> list[str]:
    """`--temp NAME[,NAME]` is `evaluate=[softmax,NAME,...]`; `adaptive` is short for its yaml's name.

    Raises UserError where a name is missing.
    """
    expanded, names, words = [], ["softmax"], iter(args)
    for arg in words:
        flag, equals, value = arg.partition("=")
        if flag != "--temp":
            if flag.startswith("--t"):  # no other flag begins like this
                raise UserError(f"no flag {flag}{nearest(flag, ['--temp'])}")
            expanded.append(arg)
            continue
        given = [SHORT_NORMALISERS.get(name, name) for name in (value if equals else next(words, "")).split(",")]
        if not all(given):
            raise UserError("--temp needs the name of a normaliser, several with commas between, or all")
        names += [name for name in given if name not in names]
    return [*expanded, f"evaluate=[{','.join(names)}]"] if len(names) > 1 else expanded
