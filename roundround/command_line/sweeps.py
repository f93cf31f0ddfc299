"""Values with commas: a sweep, a list where the config has one, or several loggers; and sweeps that nobody can mean.

Tested by tests/command_line/test_arguments.py.
"""

from __future__ import annotations

import math
import re
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, QuotedString, RangeSweep
from hydra.errors import HydraException
from omegaconf import ListConfig, OmegaConf

from roundround.config.composition import compose
from roundround.config.options import options_of
from roundround.support.errors import UserError, nearest

MOST_JOBS = 10_000  # of a sweep; each is composed before the first one runs
ALONE = {"none", "several"}  # options that stand in no list


def parse(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


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
    first = [f"{keys[override]}={option}" for override in groups for option in options(parsed[override])[:1]]
    left_out = {keys[override] for override in with_commas} | {keys[override] for override in groups}
    others = [override for override in overrides if keys[override] not in left_out and override not in sweeps]
    config = compose(name, [*first, *others], config_dir)
    found = []
    for override in overrides:
        key, _, value = override.partition("=")
        is_list = isinstance(OmegaConf.select(config, keys[override].replace("/", ".")), ListConfig)
        if override in with_commas and is_list:
            value = f"[{value}]"
        of_job = jobs and value and keys[override].startswith(tuple(f"{keys[group]}." for group in groups))
        if of_job and (is_list or override not in sweeps):
            value = f"choice({value})"  # a sweep over one value
        found.append(f"{key}={value}" if value else override)
    return found


def options(override: Override) -> list[str]:
    """The options that a sweep over a group names."""
    value = override.value()
    return [str(option) for option in value.list] if isinstance(value, ChoiceSweep) else []


def has_plain_commas(override: str) -> bool:
    if not may_sweep(override):
        return False
    try:
        value = parse(override).value()
    except HydraException:
        return False
    return isinstance(value, ChoiceSweep) and value.simple_form


def is_sweep(override: str) -> bool:
    try:
        return bool(parse(override).is_sweep_override())
    except HydraException:
        return True


# -- logger=[wandb,csv], which Hydra would merge into one


def expand_loggers(overrides: list[str], config_dir: str | None) -> list[str]:
    """`logger=[a,b]` is `logger=several +logger@logger.a=a +logger@logger.b=b`; the last `logger=` is what counts.

    So each has a node of its own, and `logger.a.project=NAME` reaches it. UserError for a list that nobody can mean.
    """
    places = [n for n, override in enumerate(overrides) if override.partition("=")[0] == "logger"]
    lists = {n: names for n in places if (names := list_of(overrides[n])) is not None}
    rest = [override for n, override in enumerate(overrides) if n not in lists]
    if not places or places[-1] not in lists:
        return rest
    names = lists[places[-1]]
    check_names(overrides[places[-1]], names, config_dir)
    return [*rest, "logger=several", *(f"+logger@logger.{key_of(name)}={name}" for name in names)]


def list_of(override: str) -> list[Any] | None:
    """What an override lists; None where it gives something else, or cannot be read. UserError for a sweep of lists."""
    try:
        parsed = parse(override)
    except (HydraException, ValueError):  # said where all overrides are read
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
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{override} names {twice[0]} twice")


def key_of(name: str) -> str:
    """The name as a key of a config; that of an option in a folder has a slash."""
    return re.sub(r"\W", "_", name)


def complete_list(word: str, config_dir: str | None) -> list[str]:
    """What `logger=[wandb,te` may become: the same with a whole name at its end."""
    before, mark, begun = re.fullmatch(r"(.*)([\[,])(.*)", word).groups()  # type: ignore[union-attr]
    given = before.partition("[")[2].split(",")
    names = sorted(options_of("logger", config_dir).keys() - ALONE - set(given))
    return [f"{before}{mark}{name}" for name in names if name.startswith(begun)]
