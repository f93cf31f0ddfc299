"""What the settings are compared with: `pe=rope` is the run that differs in pe alone, for each run its own.

With every setting that varies given, as in `[pe=rope,softmax=softmax]`, it is one cell for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roundround.analysis.filters import is_same
from roundround.analysis.groups import Group, order, shown
from roundround.support.errors import UserError

PLAIN = {"pe": "rope", "softmax": "softmax"}  # what is taken where nothing is asked for


@dataclass(frozen=True)
class Baseline:
    """The settings of a baseline as they were typed. taken: nobody asked for it."""

    wanted: Mapping[str, str]
    taken: bool = False

    def __str__(self) -> str:
        return ", ".join(self.words)

    @property
    def words(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.wanted.items()]

    def is_met(self, group: Group) -> bool:
        """Whether a group has all of its settings, those that do not vary included."""
        settings = group.trials[0].settings
        return all(is_same(settings.get(key), text) for key, text in self.wanted.items())

    def of(self, group: Group, met: Sequence[Group]) -> Group | None:
        """Among the groups that meet it the one that equals `group` in all else; None where there is none.

        What belongs to a replaced node, as pe.theta to pe, need not be equal. UserError where several do.
        """
        free = {key.partition(".")[0] for key in self.wanted if "." not in key} | {*self.wanted}
        own = [key for key in group.settings if key not in free and key.partition(".")[0] not in free]
        found = [other for other in met if all(other.settings[key] == group.settings[key] for key in own)]
        if len(found) > 1:
            more = {key: other.settings[key] for other in found for key in other.settings if key not in self.wanted}
            differ = [key for key in more if len({other.settings[key] for other in found}) > 1]
            raise UserError(
                f"baseline={self} is {len(found)} settings, such as {found[0].name} and {found[1].name}; "
                f"give {' and '.join(differ)} too: baseline=[{','.join(self.words)},{differ[0]}=...]"
            )
        return found[0] if found else None


def baseline_of(given: Sequence[str], groups: Mapping[Any, Sequence[Group]]) -> Baseline | None:
    """The baseline that is asked for; with nothing given the plain attention where it is among the groups of a verb.

    `none` asks for none. UserError for what is no setting, and for a baseline that no group meets.
    """
    if list(given) == ["none"]:
        return None
    everyone = [group for some in groups.values() for group in some]
    if not given:
        vary = {key for group in everyone for key in group.settings}
        plain = {key: value for key, value in PLAIN.items() if key in vary}
        taken = Baseline(plain, taken=True)
        return taken if plain and any(taken.is_met(group) for group in everyone) else None
    wrong = [word for word in given if not word.partition("=")[0] or "=" not in word]
    if wrong:
        raise UserError(f"baseline={wrong[0]}: give a setting and its value, such as baseline=pe=rope, or none")
    keys = [word.partition("=")[0] for word in given]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"baseline={','.join(given)}: {key} is given twice, and a baseline has one value of it")
    asked = Baseline({key: value for key, _, value in (word.partition("=") for word in given)})
    if not any(asked.is_met(group) for group in everyone):
        raise UserError(f"baseline={asked} matches nothing; {choices(everyone)}")
    return asked


def choices(groups: Iterable[Group]) -> str:
    """What varies among groups, with the values."""
    values = values_of(groups)
    if not values:
        return "no setting varies among these runs"
    listed = [f"{key} ({', '.join(shown(value) for value in some)})" for key, some in values.items()]
    return f"the settings that vary are {', '.join(listed)}"


def values_of(groups: Iterable[Group]) -> dict[str, list[Any]]:
    """The settings that vary, each with its values in order."""
    found: dict[str, set[Any]] = {}
    for group in groups:
        for key, value in group.settings.items():
            found.setdefault(key, set()).add(value)
    return {key: sorted(some, key=order) for key, some in found.items()}
