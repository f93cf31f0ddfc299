"""What a verb's entry says, the roles of the keys of its config, and the bounds that values of several verbs keep.

The entries stand in `verbs/<name>/__init__.py`, each beside its typed config. They import the standard library and this
file alone, so that every room may read them. --help reads them all: a config has neither repr nor eq, which takes half
of that time.

Tested by tests/config/test_verbs.py; each verb as a whole by tests/test_every_verb.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roundround.support.errors import UserError, nearest

if TYPE_CHECKING:
    from omegaconf import DictConfig

    T = TypeVar("T")

    class Node(DictConfig, Generic[T]):
        """A node of a config that describes a T: `_target_` and the values of its constructor, which `build` checks.

        Only type checkers read this name and T: an entry waits neither for OmegaConf nor for torch.
        """


# the role of a key of a config; one for which none is written is a setting: the result depends on it
SETTING = "setting"
REPLICATE = "replicate"  # the seed: another draw of the same setting
MEASURED = "measured"  # which numbers are asked for: lengths, rows; asking for more changes none of them
HOW = "how"  # how it is computed, without another result than rounding
WHERE = "where"  # where things come from and go, and what is trusted: of the command, not of the result


def key(role: str, default: Any = MISSING, **below: str) -> Any:
    """A key of a config with its role; `below` gives the roles of keys of a node, such as the devices of `trainer`."""
    return field(default=default, metadata={"role": role, "below": below})


# what verbs are for: headings of --help
TRAIN = "Train a model"
MEASURE = "Measure a model"
PAPERS = "Check the papers"
PAST = "Read past runs"
ELSEWHERE = "Use a model elsewhere"

# how the names of classes begin that some verbs refuse
PRETRAINED = ("roundround.hf.",)  # of model=
ARCHITECTURES = ("roundround.model.",)
PAIRS = ("roundround.data.minimal_pairs.",)  # of data=
TASKS = ("roundround.data.tasks.",)


@dataclass(kw_only=True, repr=False, eq=False)
class FigureStyle:
    """The values of `figures` in the config of every verb that draws some; conf/figures.yaml says what they are."""

    style: str = "screen"
    font: str = "sans"

    def check(self) -> None:
        for name, allowed in (("style", ("screen", "paper")), ("font", ("sans", "times"))):
            if getattr(self, name) not in allowed:
                raise UserError(f"no figures.{name}={getattr(self, name)}{nearest(getattr(self, name), allowed)}")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag of a verb's own, which is rewritten to an override.

    override: what the flag stands for, with {} where the flag takes names, as in `--temp A,B`. short: names that stand
    for others.
    """

    override: str
    short: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb of the command line. What stands as "module:function" is imported when it is called.

    name: what is typed. run: its function, of config and invocation, or of names and values where it only reads runs.
    purpose: its heading in --help, where `order` is its number among all verbs. help: a sentence on it;
    more: what its own page says beside. config: its typed config; None where it only reads runs, without Hydra or a run
    directory. reads: its keys then, each with its default, empty where that cannot be typed, and a sentence.

    refuses: for a group, how the names of the classes begin that the verb does not take; neither --help nor TAB offers
    their options.

    partly: groups of a run's config that may be changed in part: keys below them are added to what the verb's own yaml
    has.

    words: the key whose list takes words without `=`. names: whether these words are names, not paths. filters: the key
    whose list takes every key=value that is not the verb's own; sweeps_filters: with --multirun each combination of
    their values is a job. pairs: keys whose value is key=value itself. flags: its own ones.

    parallel: the processes of a launcher share its work. measures: its records are numbers of a model, which `compare`
    can put side by side. repeats: `rerun` can do it again and compare. title: of its page. page: what its page shows,
    as "module:function"; empty where its runs get none unasked.
    """

    name: str
    run: str
    order: int
    help: str
    purpose: str = "Other"
    more: str = ""
    aliases: tuple[str, ...] = ()
    config: type | None = None
    reads: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    refuses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    partly: tuple[str, ...] = ()
    words: str = ""
    names: bool = False
    filters: str = ""
    sweeps_filters: bool = False
    pairs: tuple[str, ...] = ()
    flags: Mapping[str, Flag] = field(default_factory=dict)
    parallel: bool = False
    measures: bool = False
    repeats: bool = False
    title: str = ""
    page: str = ""

    @property
    def keys(self) -> set[str]:
        """The keys of its config."""
        return set() if self.config is None else {key.name for key in fields(self.config)}

    def keys_of(self, *roles: str) -> set[str]:
        """The keys of its config that have one of these roles; a key below a node has its dotted name."""
        found = {}
        for node in () if self.config is None else fields(self.config):
            found[node.name] = node.metadata.get("role", SETTING)
            found |= {f"{node.name}.{name}": role for name, role in node.metadata.get("below", {}).items()}
        return {name for name, role in found.items() if role in roles}

    @property
    def trains(self) -> bool:
        """Whether it trains: its runs leave checkpoints and can be resumed."""
        return "resume" in self.keys


def is_below(key: str, keys: Collection[str]) -> bool:
    """Whether a dotted key is one of these, or stands below one of the first level."""
    return key in keys or key.partition(".")[0] in keys


# -- bounds that values of several verbs must keep


def check_checkpoint(name: str) -> None:
    """Raises UserError where it names no checkpoint."""
    if not re.fullmatch(r"best|last|step-\d+", name):
        raise UserError(f"no checkpoint={name}{nearest(name, ['best', 'last', 'step-00000100'])}")


def at_least_one(**values: int | None) -> None:
    """Raises UserError for the first value below 1, or that is no whole number; None is no value."""
    for name, value in values.items():
        if value is not None and not isinstance(value, int):
            raise UserError(f"{name}={value} must be a whole number")
        if value is not None and value < 1:
            raise UserError(f"{name}={value} must be at least 1")


def check_seed(seed: int) -> None:
    """Raises UserError for a seed that not all generators of random numbers take."""
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise UserError(f"seed={seed} must lie between 0 and 2^32 - 1, as a whole number")


def checked_bos(bos: str) -> str:
    """auto, true or false; the latter two come as True and False."""
    if bos.lower() not in ("auto", "true", "false"):
        raise UserError(f"bos={bos.lower()} must be auto, true or false")
    return bos.lower()
