"""The entry of a verb, the roles of the keys of its config, and checks of values that several verbs share.

Each entry is in `verbs/<name>/__init__.py`, with its typed config. Entries import only the standard library and this
file, so that every package can import them. --help imports all entries; their config dataclasses have neither repr nor
eq, which halves the time of this import.

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

        Only type checkers evaluate `Node` and `T`, so an entry imports neither OmegaConf nor torch.
        """


# the roles of keys of a config; a key without an explicit role is a setting: the result depends on it
SETTING = "setting"
REPLICATE = "replicate"  # the seed: another draw of the same setting
MEASURED = "measured"  # which numbers are measured: lengths, rows; measuring more numbers changes none of the others
HOW = "how"  # how the result is computed; it changes the result by no more than rounding
WHERE = "where"  # where inputs come from and outputs go, and what is trusted; it does not change the result


def key(role: str, default: Any = MISSING, **below: str) -> Any:
    """A key of a config with its role. below: the roles of keys inside a node, such as the devices of `trainer`."""
    return field(default=default, metadata={"role": role, "below": below})


# what verbs are for: headings of --help
TRAIN = "Train a model"
MEASURE = "Measure a model"
PAPERS = "Check the papers"
PAST = "Read past runs"
ELSEWHERE = "Use a model elsewhere"

# prefixes of the names of classes that some verbs refuse
PRETRAINED = ("roundround.hf.",)  # of model=
ARCHITECTURES = ("roundround.model.",)
PAIRS = ("roundround.data.minimal_pairs.",)  # of data=
TASKS = ("roundround.data.tasks.",)


@dataclass(kw_only=True, repr=False, eq=False)
class FigureStyle:
    """The values of `figures` in the config of every verb that draws figures. conf/figures.yaml explains them."""

    style: str = "screen"
    font: str = "sans"

    def check(self) -> None:
        for name, allowed in (("style", ("screen", "paper")), ("font", ("sans", "times"))):
            if getattr(self, name) not in allowed:
                raise UserError(f"no figures.{name}={getattr(self, name)}{nearest(getattr(self, name), allowed)}")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag of a verb that stands for an override.

    override: the override, with {} for the names that follow the flag, as in `--temp A,B`. short: the full name of each
    abbreviation.
    """

    override: str
    short: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb of the command line. A function is given as "module:function", and imported only when it is called.

    name: the word that is typed. run: the function of the verb, which takes config and invocation; if the verb only
    reads runs, it takes names and values. order: the position of the verb in --help. help: one sentence about the verb.
    purpose: the heading under which --help lists the verb. more: further text for the verb's own help page. aliases:
    other words for the verb. config: the dataclass of the verb's config; None if the verb only reads runs, and so needs
    neither Hydra nor a run directory. reads: for a verb without a config, its keys, each with its default (empty if the
    default cannot be typed) and a sentence about the key.

    refuses: for each group, prefixes of class names. The verb refuses classes with these prefixes, and neither --help
    nor TAB offers options that name such a class. partly: the groups whose single keys can be changed, as in
    pattern.global.theta=500, although only the given run has these keys.

    words: the key whose value is the list of the words without `=`. names: whether these words are names; if False,
    they are paths. filters: the key whose value is the list of the filters, each a KEY=VALUE whose key is no key of the
    verb. sweeps_filters: whether --multirun makes a job of each combination of the filters' values. pairs: the keys
    whose value itself has the form KEY=VALUE, as in baseline=pe=rope. flags: the flags of the verb.

    parallel: whether the processes of a launcher share the verb's work. measures: whether the verb's records are
    numbers of a model, which `compare` can show side by side. repeats: whether `rerun` can repeat a run of the verb.
    title: the title of the verb's page. page: the function that makes the page; empty if there is no page by default.
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
        """The keys of the verb's config."""
        return set() if self.config is None else {key.name for key in fields(self.config)}

    def keys_of(self, *roles: str) -> set[str]:
        """The keys of the verb's config that have one of these roles. A key inside a node has its dotted name."""
        found = {}
        for node in () if self.config is None else fields(self.config):
            found[node.name] = node.metadata.get("role", SETTING)
            found |= {f"{node.name}.{name}": role for name, role in node.metadata.get("below", {}).items()}
        return {name for name, role in found.items() if role in roles}

    @property
    def trains(self) -> bool:
        """Whether the verb trains, so that its runs leave checkpoints and can be resumed."""
        return "resume" in self.keys


def is_below(key: str, keys: Collection[str]) -> bool:
    """Whether a dotted key, or the part before its first dot, is among `keys`."""
    return key in keys or key.partition(".")[0] in keys


# -- checks of values that several verbs share


def check_checkpoint(name: str) -> None:
    """Raises UserError if no checkpoint can have this name."""
    if not re.fullmatch(r"best|last|step-\d+", name):
        raise UserError(f"no checkpoint={name}{nearest(name, ['best', 'last', 'step-00000100'])}")


def at_least_one(**values: int | None) -> None:
    """Raises UserError for the first value that is not a whole number of at least 1; None is allowed."""
    for name, value in values.items():
        if value is not None and not isinstance(value, int):
            raise UserError(f"{name}={value} must be a whole number")
        if value is not None and value < 1:
            raise UserError(f"{name}={value} must be at least 1")


def check_seed(seed: int) -> None:
    """Raises UserError for a seed outside the range that every generator of random numbers accepts."""
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise UserError(f"seed={seed} must lie between 0 and 2^32 - 1, as a whole number")


def checked_bos(bos: str) -> str:
    """`bos` in lower case: auto, true or false. Raises UserError for any other value."""
    if bos.lower() not in ("auto", "true", "false"):
        raise UserError(f"bos={bos.lower()} must be auto, true or false")
    return bos.lower()
