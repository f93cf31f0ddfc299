"""The shape of a run.json: which fields the program reads, and what each of them may hold.

A run directory may be anybody's. What `checked` lets through can be used without a second look; every string is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from roundround.support.errors import printable

DEEPEST = 32  # levels of nesting; a config has five
MOST_TYPED = 100_000  # a word may have 128 kB, all together two MB
MOST_TOKENS = 2**31
OLDEST = (0, 2)  # version whose runs are read
RELEASE = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)  # what a version begins with


@dataclass(frozen=True)
class Kind:
    """What a field may hold: in words, and as a test of the value."""

    words: str
    fits: Callable[[Any], bool]

    def or_null(self) -> Kind:
        return Kind(f"{self.words} or null", lambda value: value is None or self.fits(value))


def is_date(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return False
    return True


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_size(value: Any) -> bool:
    return value is None or (is_whole(value) and value >= 0)


def is_word(value: Any) -> bool:
    return is_text(value) and re.fullmatch(r"[\w.-]+", value) is not None


def is_by_name(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(fits(item) for item in value.values())


TEXT = Kind("a text", is_text)
VERSION = Kind("a version", lambda value: is_text(value) and RELEASE.match(value) is not None)
VERB = Kind("the name of a verb", lambda value: is_text(value) and re.fullmatch("[a-z]+(-[a-z]+)*", value) is not None)
STATUS = Kind(
    "running, done, interrupted or failed: WHY",
    lambda value: is_text(value) and re.match(r"(running|done|interrupted|failed)(:|\Z)", value) is not None,
)
DATE = Kind("a date and time", is_date)
WHOLE = Kind("a whole number", is_whole)
TOKENS = Kind(f"a whole number from 0 to {MOST_TOKENS:,}", lambda value: is_whole(value) and 0 <= value <= MOST_TOKENS)
BYTES = Kind("numbers of bytes by name", lambda value: is_by_name(value, is_size))
YES_NO = Kind("true or false", lambda value: isinstance(value, bool))
WORDS = Kind(
    f"a list of texts that one command can take, {MOST_TYPED:,} characters together",
    lambda value: isinstance(value, list) and all(map(is_text, value)) and len(" ".join(value)) <= MOST_TYPED,
)
VALUES = Kind("values by name", lambda value: isinstance(value, dict))
OPTIONS = Kind("texts by name", lambda value: is_by_name(value, TEXT.or_null().fits))
HASHES = Kind("hashes by class and file", lambda value: is_by_name(value, lambda files: is_by_name(files, is_text)))
LENGTHS = Kind(
    "two whole numbers, the smaller one first",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(is_whole, value)) and value[0] <= value[1],
)
NODE = Kind("values by name, _target_ first", lambda value: VALUES.fits(value) and is_text(value.get("_target_")))
NODES = Kind(  # the names become names of files
    "nodes by name, each a word", lambda value: is_by_name(value, NODE.fits) and all(map(is_word, value))
)

NEEDED = {
    "verb": VERB,
    "status": STATUS,
    "started": DATE,
    "roundround": VERSION,
    "command": TEXT,
    "overrides": WORDS,
    "config": VALUES,
    "seed": WHOLE.or_null(),
    "data": VALUES.or_null(),
    "facts": VALUES,
    "headline": VALUES,
    "wandb": VALUES.or_null(),
    "sweep": TEXT.or_null(),
}
# written later in a run's life, or by some verbs
OPTIONAL = {
    "ended": DATE.or_null(),
    "resumed": DATE.or_null(),
    "choices": OPTIONS,
    "variants": HASHES,
    "run": TEXT.or_null(),
    "init": OPTIONS.or_null(),
    "fit": VALUES,
    "peak_memory": BYTES.or_null(),
    "cwd": TEXT,
    "git": VALUES.or_null(),
    "versions": OPTIONS,
    "device": TEXT.or_null(),
    "trains_as_softmax": YES_NO,
    "job": TEXT.or_null(),
}
NEEDED_BY_VERB = {
    "train": {
        **dict.fromkeys([f"config.{name}" for name in ("model", "pe", "softmax", "data")], NODE),
        "config.tokenizer": NODE.or_null(),  # a task brings its vocabulary
        "config.seed": WHOLE,
        "config.model.train_length": WHOLE,
    },
    "max-retrieval": {"config.model": NODE, "config.normalisers": NODES},
}
DATA_OF_TRAIN = {
    "data.corpus_hash": TEXT,
    "data.tokenizer_hash": TEXT,
    "data.n_vocab": TOKENS,
    "data.end_of_document": TOKENS,
    "data.training_tokens": WHOLE,
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
    if deeper_than(manifest, DEEPEST):
        return f"it is nested more than {DEEPEST} deep"
    found = fault_in(manifest, NEEDED) or fault_in(manifest, {k: v for k, v in OPTIONAL.items() if k in manifest})
    if found is not None:
        return found
    of_verb = NEEDED_BY_VERB.get(manifest["verb"], {})
    if "train_lengths" in (manifest["data"] or {}):
        of_verb = {**of_verb, "data.train_lengths": LENGTHS}
    if manifest["verb"] == "train" and manifest["data"] is not None:
        of_verb = {**of_verb, **DATA_OF_TRAIN}
    return fault_in(manifest, of_verb)


def fault_in(manifest: dict[str, Any], kinds: Mapping[str, Kind]) -> str | None:
    """The first field, by its dotted name, that is missing or of another kind. Those around it have been checked."""
    for name, kind in kinds.items():
        *parents, last = name.split(".")
        node = manifest
        for parent in parents:
            node = node[parent]
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


def deeper_than(value: Any, limit: int) -> bool:
    """Whether dicts and lists lie in each other more than `limit` deep; without recursion."""
    level = [value]
    for _ in range(limit):
        inner = [v for v in level if isinstance(v, dict | list)]
        level = [v for container in inner for v in (container.values() if isinstance(container, dict) else container)]
        if not level:
            return False
    return True


def time_of(started: str) -> datetime:
    """When a run started, to compare runs by. A time without a zone is taken for one of this machine's."""
    time = datetime.fromisoformat(started)
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.now().astimezone().tzinfo)
