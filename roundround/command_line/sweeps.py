"""Values with commas: a sweep over them, or a list where the config has one; and sweeps that nobody can mean."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf

from roundround.command_line.messages import EXPLAINED
from roundround.config.composition import compose
from roundround.config.options import options_of
from roundround.support.errors import UserError

MOST_JOBS = 10_000  # of a sweep; each is composed before the first one runs


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


def bracket_lists(overrides: list[str], name: str, config_dir: str | None) -> list[str]:
    """`length=128,256` becomes `length=[128,256]` where the config of this name has a list; elsewhere it is a sweep."""
    with_commas = {override for override in overrides if has_plain_commas(override)}
    if not with_commas:
        return overrides
    config = defaults_without(with_commas, overrides, name, config_dir)
    return [
        bracketed(override) if override in with_commas and is_list(config, override) else override
        for override in overrides
    ]


def has_plain_commas(override: str) -> bool:
    if not may_sweep(override):
        return False
    try:
        value = parse(override).value()
    except HydraException:
        return False
    return isinstance(value, ChoiceSweep) and value.simple_form


def bracketed(override: str) -> str:
    key, _, value = override.partition("=")
    return f"{key}=[{value}]"


def is_list(config: DictConfig | None, override: str) -> bool:
    key = parse(override).key_or_group.replace("/", ".")
    return config is not None and isinstance(OmegaConf.select(config, key), ListConfig)


def defaults_without(
    left_out: Iterable[str], overrides: list[str], name: str, config_dir: str | None
) -> DictConfig | None:
    """The config that the other overrides give, None where they are wrong (Hydra will say so better)."""
    keys = {override.partition("=")[0] for override in left_out}
    others = [o for o in overrides if o.partition("=")[0] not in keys and not is_sweep(o)]
    try:
        return compose(name, others, config_dir)
    except EXPLAINED:  # what is wrong here is wrong again in the real run, which reports it
        return None


def is_sweep(override: str) -> bool:
    try:
        return bool(parse(override).is_sweep_override())
    except HydraException:
        return True
