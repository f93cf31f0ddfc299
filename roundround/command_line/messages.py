"""Hydra's and OmegaConf's errors in one line each: what, where, and the nearest right name.

Tested by tests/command_line/test_command_line.py.
"""

from __future__ import annotations

import difflib
import re
from itertools import chain
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import Container, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from roundround.command_line.catalogue import NO_KEYS, group_names, read_yaml
from roundround.config.build import without_place
from roundround.config.options import as_path, options_in, options_of
from roundround.support.errors import UserError, nearest, one_line

# other programs' words, each with the keys that it may stand for
MEANT = {
    **dict.fromkeys(("encoding", "positional_encoding", "rope"), ("pe",)),
    **dict.fromkeys(("normaliser", "normalizer", "attention"), ("softmax",)),
    **dict.fromkeys(("dataset", "corpus", "task"), ("data",)),
    **dict.fromkeys(("context", "context_length", "seq_len", "length"), ("length", "train_length")),
    **dict.fromkeys(("epochs", "iterations"), ("max_steps",)),
}
EXPLAINED = (UserError, HydraException, OmegaConfBaseException, YAMLError)  # for the user to mend, in one line


def explain(error: BaseException, config_dir: str | None) -> str | None:
    """One line about an error raised while the config was composed, with the user's own conf folder or none.

    None where the error is not wrong input, but a fault of ours or of a library's.
    """
    chain = causes(error)
    for link in chain:
        if isinstance(link, UserError):  # raised inside one of our resolvers
            return one_line(link)
    if isinstance(error, MissingConfigException):
        return missing_choice(error, config_dir)
    if isinstance(error, MarkedYAMLError):
        at = error.problem_mark
        where = f"{at.name.strip(chr(34))}, line {at.line + 1}, column {at.column + 1}" if at else "a yaml file"
        return f"{where}: not valid yaml: {error.problem or error.context}"
    if isinstance(error, OverrideParseException):
        why = re.sub(
            "LexerNoViableAltException: .*",
            "one of its signs cannot stand there; put it in quotes, or rename it",
            one_line(error).split(" See https")[0],
        )
        return f"cannot read '{error.override}': {why}"
    for link in chain:
        if isinstance(link, OmegaConfBaseException) and link.full_key:
            return wrong_key(link, error)
    several = re.match(r"Ambiguous value for argument '([^']*)'", one_line(error))
    if several:
        return f"{several[1]} gives several values; add -m to run each of them"
    group = re.match(r"Could not override '([^']+)'\. No match in the defaults list", one_line(error))
    if group:
        return f"this verb takes no {group[1]}=...; roundround VERB --help lists its groups"
    unreadable = None if config_dir is None or isinstance(error, EXPLAINED) else unreadable_yaml(config_dir)
    if unreadable is not None:
        return unreadable
    if isinstance(error, RecursionError):
        return "a yaml or a value is nested too deeply, or a yaml names itself in its defaults"
    for link in chain:
        if isinstance(link, OSError):  # also behind a log that cannot be opened
            return f"{link.filename}: {link.strerror}" if link.filename else one_line(link)
    wrong_yaml = isinstance(error, ValueError) or one_line(error).startswith("Invalid plugin")  # in Hydra's words
    if not isinstance(error, EXPLAINED) and not wrong_yaml:
        return None
    return without_advice(one_line(error))


def causes(error: BaseException | None) -> list[BaseException]:
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def missing_choice(error: MissingConfigException, config_dir: str | None) -> str:
    """A choice that a group does not have, with the group's choices, those in its folders included."""
    group, _, name = (error.missing_cfg_file or "").partition("/")
    choices = set(options_of(group, config_dir)) if name else set()
    if not choices:
        return without_advice(one_line(error))
    if name.count("/") == 0:
        choices |= set(error.options or [])
    own = "" if config_dir else "; --config-dir DIR adds your own"
    return f"no {group}={name}{as_path(group, name) or nearest(name, choices) + own}"


def wrong_key(cause: OmegaConfBaseException, error: BaseException) -> str:
    key = str(cause.full_key)
    parent = cause.parent_node
    if "not in struct" in str(cause) and parent is not None:
        if key in group_names():
            return f"'{key}' has no keys until its option is named too: {key}=NAME; roundround list {key} has the names"
        choices = [str(name) for name in parent if name not in NO_KEYS]
        name = key.rpartition(".")[2]
        advice, deeper = nearest("" if name in MEANT else name, choices), nested_key(name, parent._get_root())
        if deeper is not None and "did you mean" not in advice:
            advice = f"; did you mean '{deeper}'?{advice}"
        return f"no config key '{key}'{advice}"
    text = without_place(cause)
    return f"{key}: {text}" if key not in text else text


def nested_key(name: str, config: Container) -> str | None:
    """The key inside the config's nodes that the name is short for: optim.lr for lr, trainer.max_steps for steps."""
    ends: dict[str, str] = {}
    for key in dotted_keys(OmegaConf.to_container(config, resolve=False)):
        ends.setdefault(key.rpartition(".")[2], key)
    near = difflib.get_close_matches(name, ends, n=1, cutoff=0.8)
    return next((ends[end] for end in (name, f"max_{name}", *MEANT.get(name, near)) if end in ends), None)


def dotted_keys(values: Any) -> list[str]:
    """The keys below a node, `optim.lr` and the like."""
    if not isinstance(values, dict):
        return []
    inner = {str(key): value for key, value in values.items() if key not in NO_KEYS}
    return [*inner, *(f"{key}.{rest}" for key, value in inner.items() for rest in dotted_keys(value))]


def without_advice(text: str) -> str:
    """Hydra's message without its links and its longer advice."""
    return re.split(r" (?:See https|Set the environment variable|To append to your config)", text)[0]


def unreadable_yaml(config_dir: str) -> str | None:
    """A line about the first yaml in the folder that cannot be read, None where all can: Hydra does not name it."""
    own = [options_in(Path(config_dir) / group).values() for group in group_names()]
    for path in [*Path(config_dir).glob("*.yaml"), *chain.from_iterable(own)]:
        try:
            read_yaml(path)
        except UserError as error:
            return one_line(error)
    return None
