"""Errors of Hydra and OmegaConf as one line each: what is wrong, where, and the most similar valid name.

Tested by tests/command_line/test_command_line.py.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from roundround.command_line.pages import NO_KEYS
from roundround.config.build import without_place
from roundround.config.options import as_path, options_of
from roundround.config.recorded import flat
from roundround.support.errors import UserError, nearest, one_line

EXPLAINED = (UserError, HydraException, OmegaConfBaseException, YAMLError)  # errors that the user can fix


def explain(error: BaseException, config_dir: str | None) -> str | None:
    """One line about an error raised while the config was composed. config_dir: the user's own conf folder, if any.

    Returns None if the cause is not wrong input, but a fault of this project or of a library.
    """
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None:
        chain.append(link)
        link = link.__cause__ or link.__context__
    own = next((link for link in chain if isinstance(link, UserError)), None)  # raised by a resolver of this project
    if own is not None:
        return one_line(own)
    if isinstance(error, MissingConfigException):
        return missing_choice(error, config_dir)
    text = one_line(error)
    for link in chain:
        if isinstance(link, OmegaConfBaseException) and link.full_key:
            return wrong_key(link)
    if several := re.match(r"Ambiguous value for argument '([^']*)'", text):
        return f"{several[1]} gives several values; add -m to run each of them"
    if group := re.match(r"Could not override '([^']+)'\. No match in the defaults list", text):
        return f"this verb takes no {group[1]}=...; roundround VERB --help lists its groups"
    for link in chain:
        if isinstance(link, OSError):  # also the cause if logging cannot open its file
            return f"{link.filename}: {link.strerror}" if link.filename else one_line(link)
    wrong_yaml = isinstance(error, ValueError) or text.startswith("Invalid plugin")  # errors of Hydra about a yaml
    return without_advice(text) if isinstance(error, EXPLAINED) or wrong_yaml else None


def missing_choice(error: MissingConfigException, config_dir: str | None) -> str:
    """The line about an option that is not in its group, with similar names from the group and its subfolders."""
    group, _, name = (error.missing_cfg_file or "").partition("/")
    choices = set(options_of(group, config_dir)) if name else set()
    if not choices:
        return without_advice(one_line(error))
    advice = as_path(group, name) or nearest(name, choices)
    own = "" if config_dir or not advice.startswith(" (") else "; one of your own needs --config-dir FOLDER"
    return f"no {group}={name}{own}{advice}"


def wrong_key(cause: OmegaConfBaseException) -> str:
    """The line for a key that the config lacks, or for a value that a key cannot have."""
    key, parent = str(cause.full_key), cause.parent_node
    if "not in struct" not in str(cause) or not isinstance(parent, DictConfig):
        text = without_place(cause)
        return f"{key}: {text}" if key not in text else text
    name = key.rpartition(".")[2]
    advice = nearest(name, [str(other) for other in parent if other not in NO_KEYS])
    if "did you mean" not in advice:  # the key may be in a node: lr for optim.lr
        values: Any = OmegaConf.to_container(parent, resolve=False)
        ends = {key.rpartition(".")[2]: key for key in flat(values)}
        near = [name, f"max_{name}", *difflib.get_close_matches(name, ends, n=1, cutoff=0.8)]
        deeper = next((ends[end] for end in near if end in ends), None)
        advice = advice if deeper is None else f"; did you mean '{key.removesuffix(name)}{deeper}'?{advice}"
    added = f"; its yaml lacks it: +{key}= adds it" if not advice.startswith("; did") and "_target_" in parent else ""
    return f"no config key '{key}'{added}{advice}"


def without_advice(text: str) -> str:
    """Hydra's message up to the first link or the first advice, such as to append a key to the config."""
    return re.split(r" (?:See https|Set the environment variable|To append to your config)", text)[0]
