"""What a run's config says that the defaults of its verb do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roundround.analysis.past_run import PastRun
from roundround.config.composition import usual_config
from roundround.config.recorded import flat, own_options

NOT_SETTINGS = ("outputs", "resume")


@dataclass(frozen=True)
class Change:
    """A setting of a run: its key, its value, and the default that it replaces."""

    key: str
    value: Any
    default: Any


def changed_settings(run: PastRun) -> list[Change] | None:
    """Options of groups first, then the values that are not those of these options.

    None where today's program lacks the verb or an option, so that nothing can be compared.
    """
    usual = usual_config(run.verb, {})
    if usual is None:
        return None
    options = [Change(group, option, usual[1].get(group)) for group, option in own_options(run.manifest).items()]
    options = [change for change in options if change.value != change.default and not change.key.startswith("hydra/")]
    chosen = usual_config(run.verb, {change.key: change.value for change in options})
    if chosen is None:
        return None
    own, default = flat(run.manifest["config"]), flat(chosen[0])
    values = [Change(key, value, default.get(key)) for key, value in own.items() if key not in NOT_SETTINGS]
    return options + [change for change in values if change.value != change.default]
