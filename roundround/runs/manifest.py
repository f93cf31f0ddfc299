"""The shape of a run.json: which fields the program reads, and what each of them may hold.

A run directory may be anybody's. What passes here can be used without a second look; every string is text.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from roundround.support.errors import printable

MOST_TYPED = 100_000  # a word may have 128 kB, all together two MB
MOST_TOKENS = 2**31
OLDEST = (0, 2)  # version whose runs are read
RELEASE = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)  # what a version begins with


class Kind(NamedTuple):
    """What a field may hold: in words, and as a test of the value."""

    words: str
    fits: Callable[[Any], bool]


def or_null(kind: Kind) -> Kind:
    return Kind(f"{kind.words} or null", lambda value: value is None or kind.fits(value))


def like(words: str, pattern: str) -> Kind:
    """Text that begins with the pattern."""
    return Kind(words, lambda value: isinstance(value, str) and re.match(pattern, value) is not None)


def by_name(words: str, fits: Callable[[Any], bool]) -> Kind:
    return Kind(words, lambda value: isinstance(value, dict) and all(map(fits, value.values())))


def is_date(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return False
    return True


TEXT = Kind("a text", lambda value: isinstance(value, str))
DATE = Kind("a date and time", is_date)
WHOLE = Kind("a whole number", lambda value: type(value) is int)  # True is an int too
SIZE = Kind("a whole number from 0", lambda value: WHOLE.fits(value) and value >= 0)
TOKENS = Kind(f"a whole number from 0 to {MOST_TOKENS:,}", lambda value: SIZE.fits(value) and value <= MOST_TOKENS)
VALUES = Kind("values by name", lambda value: isinstance(value, dict))
TEXTS = by_name("texts by name", or_null(TEXT).fits)
NODE = Kind("values by name, _target_ first", lambda value: VALUES.fits(value) and TEXT.fits(value.get("_target_")))

NEEDED = {
    "verb": like("the name of a verb", r"[a-z]+(-[a-z]+)*\Z"),
    "status": like("running, done, interrupted or failed: WHY", r"(running|done|interrupted|failed)(:|\Z)"),
    "started": DATE,
    "roundround": like("a version", RELEASE.pattern),
    "command": TEXT,
    "overrides": Kind(
        f"a list of texts that one command can take, {MOST_TYPED:,} characters together",
        lambda value: isinstance(value, list) and all(map(TEXT.fits, value)) and len(" ".join(value)) <= MOST_TYPED,
    ),
    "config": VALUES,
    "seed": or_null(WHOLE),
    "data": or_null(VALUES),
    "facts": VALUES,
    "headline": VALUES,
    "wandb": or_null(VALUES),
    "sweep": or_null(TEXT),
}
# written later in a run's life, or by some verbs
OPTIONAL = {
    "ended": or_null(DATE),
    "resumed": or_null(DATE),
    "choices": TEXTS,
    "variants": by_name("hashes by class and file", by_name("hashes by file", TEXT.fits).fits),
    "run": or_null(TEXT),
    "init": or_null(TEXTS),
    "fit": VALUES,
    "peak_memory": or_null(by_name("numbers of bytes by name", or_null(SIZE).fits)),
    "cwd": TEXT,
    "git": or_null(VALUES),
    "versions": TEXTS,
    "device": or_null(TEXT),
    "trains_as_softmax": Kind("true or false", lambda value: isinstance(value, bool)),
    "job": or_null(TEXT),
}
NEEDED_BY_VERB = {
    "train": {
        **dict.fromkeys([f"config.{name}" for name in ("model", "data")], NODE),
        **dict.fromkeys([f"config.{name}" for name in ("pe", "softmax")], or_null(NODE)),  # a pattern may name them
        "config.tokenizer": or_null(NODE),  # a task brings its vocabulary
        "config.seed": WHOLE,
        "config.model.train_length": WHOLE,
    },
    "max-retrieval": {
        "config.model": NODE,
        "config.normalisers": Kind(  # the names become names of files
            "nodes by name, each a word",
            lambda value: by_name("", NODE.fits).fits(value) and all(re.fullmatch(r"[\w.-]+", name) for name in value),
        ),
    },
}
DATA_OF_TRAIN = {
    "data.corpus_hash": TEXT,
    "data.tokenizer_hash": TEXT,
    "data.n_vocab": TOKENS,
    "data.end_of_document": TOKENS,
    "data.training_tokens": WHOLE,
}
DATA_OF_TASK = {
    "data.train_lengths": Kind(
        "two whole numbers, the smaller one first",
        lambda value: isinstance(value, list) and [*map(type, value)] == [int, int] and value[0] <= value[1],
    )
}


def too_old(manifest: Any) -> str | None:
    """The version that wrote a manifest, where it is one whose runs are no longer read."""
    version = manifest.get("roundround") if isinstance(manifest, dict) else None
    found = RELEASE.match(version) if isinstance(version, str) else None
    return version if found is not None and tuple(map(int, found.groups())) < OLDEST else None


def fault(manifest: Any) -> str | None:
    """What is wrong with the content of a run.json in a few words, field first; None where nothing is."""
    if not isinstance(manifest, dict):
        return "it holds no values by name"
    return next((wrong for kinds in kinds_of(manifest) if (wrong := fault_in(manifest, kinds))), None)


def kinds_of(manifest: dict[str, Any]) -> Iterator[Mapping[str, Kind]]:
    """What the fields of a manifest may hold, in this order: what comes last depends on what is first."""
    yield NEEDED
    yield {name: kind for name, kind in OPTIONAL.items() if name in manifest}
    yield NEEDED_BY_VERB.get(manifest["verb"], {})
    data = manifest["data"] or {}
    yield DATA_OF_TASK if "train_lengths" in data else {}
    yield DATA_OF_TRAIN if manifest["verb"] == "train" and manifest["data"] is not None else {}


def fault_in(values: dict[str, Any], kinds: Mapping[str, Kind]) -> str | None:
    """The first field, by its dotted name, that is missing or of another kind. Those around it have been checked."""
    for name, kind in kinds.items():
        *parents, last = name.split(".")
        node = functools.reduce(operator.getitem, parents, values)
        if last not in node:
            return f"{name} is missing"
        if not kind.fits(node[last]):
            return f"{name} is {brief(node[last])} and must be {kind.words}"
    return None


def brief(value: Any) -> str:
    """A value in a few printable characters."""
    if isinstance(value, dict | list):
        return f"{'an empty' if not value else 'a'} {'mapping' if isinstance(value, dict) else 'list'}"
    return "null" if value is None else printable(repr(value), 40)


def time_of(started: str) -> datetime:
    """When a run started, to compare runs by. A time without a zone is taken for one of this machine's."""
    time = datetime.fromisoformat(started)
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.now().astimezone().tzinfo)
