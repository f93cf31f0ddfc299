"""Past runs: how words and filters choose them, what a run contains, and which metrics measure quality.

A word is a run directory, a sweep, a folder of runs, a pattern such as `outputs/*/*`, or `last` or `last~3`. A filter
is `key=value`: verb=train, status=failed, since=2d, pe=rope,p_rope, optim.lr=1e-3. This module writes nothing.
Tested by tests/analysis/test_filters.py, test_runs_and_show.py and test_compare_tasks.py.
"""

from __future__ import annotations

import glob
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from roundround.config.recorded import flat
from roundround.records.directories import LOCK, MANIFEST, METRICS, RESULTS, is_date, read_manifest, time_of
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import check_is_file, home_expanded, parse_json, read_text
from roundround.verbs import VERBS, verb_named

SIZES = ("length", "n", "prefix")  # fields of a record that say at which size a number was measured
DIED = "died"  # the process was killed: the manifest still says running, but no process holds the directory
LOWER = {"perplexity", "loss", "nats", "error", "bits"}  # words in names of metrics that are better when lower
HIGHER = {"accuracy", "acc", "f1", "match", "bleu"}  # the same for metrics that are better when higher
SHARES = {"accuracy", "acc", "match", "rate"}  # the same for metrics that are shares from 0 to 1
# metrics that tables show first, in this order
FIRST = ("perplexity", "exact_match", "output_match", "accuracy", "token_accuracy", "nats_per_token", "nats_per_byte")


@dataclass(frozen=True)
class PastRun:
    """A run directory and its manifest (the content of run.json), which has at least the needed keys."""

    directory: Path
    manifest: dict[str, Any] = field(repr=False)

    @property
    def verb(self) -> str:
        return str(self.manifest["verb"])

    @cached_property
    def status(self) -> str:
        """One of done, running, interrupted, `failed: WHY`, and died (the process was killed)."""
        status = str(self.manifest["status"])
        return DIED if status.startswith("running") and not is_held(self.directory) else status

    @property
    def started(self) -> datetime:
        return time_of(self.manifest["started"])

    @property
    def seconds(self) -> float | None:
        """Seconds from the run's last start to its end, or until now if it is running; None if the end is not known."""
        start = time_of(self.manifest.get("resumed") or self.manifest["started"])
        if self.status == "running":
            return (datetime.now().astimezone() - start).total_seconds()
        ended = self.manifest.get("ended")
        return (time_of(ended) - start).total_seconds() if ended else None

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The values of the config under dotted names, and the option of each config group under the group's name.

        A run that measures the model of another run (eval, probe) also has the settings of that model's training.
        """
        own = flat(self.manifest["config"]) | self.choices
        trained = self.measured
        if trained is None:
            return own
        own = {key: value for key, value in own.items() if value is not None}
        replaced = {key.partition(".")[0] for key in own if "." in key}
        return {key: v for key, v in trained.settings.items() if key.partition(".")[0] not in replaced} | own

    @property
    def choices(self) -> dict[str, str]:
        """The option that the run took from each config group; groups without an option are left out."""
        return {k: v for k, v in self.manifest.get("choices", {}).items() if v is not None}

    @property
    def learns_a_task(self) -> bool:
        """Whether the run is a training on a task, not on text."""
        return self.verb == "train" and "train_examples" in (self.manifest["data"] or {})

    @property
    def tokens_seen(self) -> int | None:
        """Tokens that a finished training has read: steps x windows x length."""
        factors = [self.settings.get(key) for key in ("trainer.max_steps", "batch_size", "model.train_length")]
        return math.prod(factors) if all(isinstance(n, int) for n in factors) else None  # type: ignore[arg-type]

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of a training; None if the training was resumed, because only the last part is timed then."""
        seconds, tokens = self.manifest.get("seconds_of_training"), self.tokens_seen
        if tokens is None or self.manifest.get("resumed") or not isinstance(seconds, int | float) or seconds <= 0:
            return None
        return tokens / seconds

    @property
    def train_lengths(self) -> tuple[int, int] | None:
        """The smallest and the largest length of an example in a training; None if unknown.

        In a training on text, both are the context length.
        """
        if self.verb != "train":
            return None
        context = self.manifest["config"]["model"]["train_length"]
        found = (self.manifest["data"] or {}).get("train_lengths") if self.learns_a_task else (context, context)
        return None if found is None else (found[0], found[1])

    @cached_property
    def measured(self) -> PastRun | None:
        """The run whose model this run measured; None if it is not found.

        The run is searched for at the recorded path. In case both runs were moved together, the last parts of the path
        are then tried below each parent folder of this run. A run that only measured a model is never returned.
        """
        source = Path(self.manifest.get("run") or "")
        ends = [Path(*source.parts[-n_words:]) for n_words in range(len(source.parts) - 1, 1, -1)]
        for directory in [source, *(folder / end for end in ends for folder in self.directory.parents)]:
            if source.name and (directory / MANIFEST).is_file():
                with suppress(UserError):
                    found = past_run(directory)
                    is_the_one = directory == source or self.manifest["seed"] in (None, found.manifest["seed"])
                    if is_the_one and found.manifest.get("run") is None:
                        return found
        return None

    def results(self) -> list[dict[str, Any]]:
        """The records of results.json; [] if there is no such file yet. Raises UserError if the file is damaged."""
        path = self.directory / RESULTS
        try:
            records: list[dict[str, Any]] = parse_json(text_in(path) or "[]")
        except ValueError as error:
            raise UserError(f"{path} cannot be read: {one_line(error)}") from error
        if not all(isinstance(record, dict) and {"metric", "value"} <= record.keys() for record in records):
            raise UserError(f"{path} is not a list of records, each with a metric and a value")
        return records

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of the run's metrics.jsonl, in order, without the incomplete line that a killed process leaves.

        Raises UserError if the file cannot be read.
        """
        found: list[Any] = []
        for line in text_in(self.directory / METRICS).split("\n"):
            with suppress(ValueError):
                found.append(parse_json(line))
        return [line for line in found if isinstance(line, dict) and isinstance(line.get("step"), int)]


def past_run(directory: Path) -> PastRun:
    """The run in a directory. Raises UserError if there is none, or if its manifest is damaged."""
    return PastRun(directory, read_manifest(directory))


def text_in(path: Path) -> str:
    """The text of a file; empty if the file does not exist. Raises UserError if the file cannot be read."""
    try:
        return read_text(path)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def is_held(directory: Path) -> bool:
    """Whether a running process holds the lock of a run directory."""
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- what a metric says, by the words in its name


def direction(metric: str) -> int:
    """-1 if lower is better, 1 if higher is better, 0 if the name does not say."""
    words = words_of(metric)
    if "share" in words:
        return 0
    return -1 if words & LOWER else 1 if words & HIGHER else 0


def is_share(metric: str) -> bool:
    """Whether the values of the metric are shares, from 0 to 1."""
    return bool(words_of(metric) & SHARES)


def words_of(metric: str) -> set[str]:
    return set(re.split("[/ _]", metric.lower()))


def rank(metric: str) -> int:
    """The rank of a metric in tables: the most informative is first."""
    return FIRST.index(metric) if metric in FIRST else len(FIRST) + (direction(metric) == 0)


LAST = re.compile(r"last(?:~(?P<before>\d{1,9}))?")
STARTED = re.compile(rb'"started": "([^"]+)"')
HEAD = 4096  # the number of first bytes of a manifest that surely contain "started": the fields before it are short
BEGINNING = datetime.fromisoformat("0001-01-02T00:00:00+00:00")
NOT_RUNS = {"checkpoints", "figures", "variants", "conf", "wandb", "tensorboard"}  # folders inside run directories

OF_RUNS = ("verb", "status", "since")  # filters on a run that are not settings
STATUSES = ("done", "running", "interrupted", "failed", DIED)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def directories_of(word: str, outputs: str, *verbs: str | None, levels: float = math.inf) -> list[Path]:
    """The run directories that a word stands for, oldest first. Raises UserError if the word stands for none.

    verbs: the verbs whose runs under `outputs` count for the word `last`; if none are given, all runs count. levels:
    the number of levels of folders to search below a folder that the word names.
    """
    reference = LAST.fullmatch(word)
    if reference is not None and not os.path.lexists(word):
        return [last(int(reference["before"] or 0), outputs, *verbs)]
    path = home_expanded(word, "the run")
    matches = [str(path)] if os.path.exists(path) else sorted(glob.glob(str(path), recursive=True))
    found = dict.fromkeys(run for match in matches for run in runs_below(Path(match).absolute(), levels))
    if not found:
        raise UserError(
            f"there is no '{word}', or it holds no run (a folder with a {MANIFEST}); give a run directory, a sweep, "
            "a pattern in quotes, last or last~3"
        )
    return sorted(found, key=started_at)


def last(before: int, outputs: str, *verbs: str | None) -> Path:
    """The run under `outputs` that started last or, if `before` is N, the Nth run before it.

    verbs: as in `directories_of`. Raises UserError if there are too few runs.
    """
    folder = home_expanded(outputs, "outputs")
    newest = newest_first(*([folder / verb for verb in verbs if verb] or [folder]))
    if before < len(newest):
        return newest[before]
    raise UserError(f"last{f'~{before}' if before else ''}: there are {len(newest) or 'no'} runs under {folder}")


def directories_of_all(words: Sequence[str], outputs: str, *verbs: str | None) -> list[Path]:
    """The run directories that `words` stand for, newest first; without words, all run directories under `outputs`.

    verbs: as in `directories_of`. Raises UserError if a word stands for no run.
    """
    if words:
        found = dict.fromkeys(directory for word in words for directory in directories_of(word, outputs, *verbs))
        return sorted(found, key=started_at, reverse=True)
    return newest_first(home_expanded(outputs, "outputs"))


def newest_first(*folders: Path) -> list[Path]:
    """The run directories below these folders; the run that started last is first."""
    return sorted((run for folder in folders for run in runs_below(folder.absolute())), key=started_at, reverse=True)


def runs_below(folder: Path, levels: float = math.inf) -> Iterator[Path]:
    """The folder itself if it is a run, else the runs at most `levels` levels below it. Links are not followed."""
    for name, folders, files in os.walk(folder):
        path = Path(name)
        inside = MANIFEST in files or len(path.parts) - len(folder.parts) >= levels
        folders[:] = [] if inside else sorted(one for one in folders if one not in NOT_RUNS and not one.startswith("."))
        if MANIFEST in files:
            yield path


def started_at(directory: Path) -> datetime:
    """The start time of a run; BEGINNING, a time before all runs, if the start time cannot be read.

    Only the first bytes of the manifest are read, because thousands of runs may be sorted.
    """
    with suppress(OSError):
        check_is_file(directory / MANIFEST)
        with open(directory / MANIFEST, "rb") as file:
            found = STARTED.search(file.read(HEAD))
        if found is not None and is_date(text := found[1].decode(errors="replace")):
            return time_of(text)
    return BEGINNING


# -- filters


class Filters:
    """Conditions on runs; a run must meet all of them. Raises UserError if a verb, a status or a time does not exist.

    given: for each key, the accepted values as typed, such as {"verb": "eval", "pe": "rope,nope"}. A key that is not in
    OF_RUNS is a setting. of_records: the settings that are not checked for a run of max-retrieval, because such a run
    has several values of each, in different records.
    """

    def __init__(self, given: Mapping[str, str], of_records: Sequence[str] = ()) -> None:
        texts = {key: text.split(",") for key, text in given.items()}
        self.settings = {key: {given[key].strip("[]"), *texts[key]} for key in given if key not in OF_RUNS}  # lists
        self.known: set[str] = set()  # settings that the runs have, to correct a misspelt key
        self.verbs = [verb_named(verb).name for verb in texts["verb"]] if "verb" in texts else None  # None for all
        self.statuses, self.of_records = texts.get("status"), of_records
        self.since = time_since(given["since"]) if "since" in given else None
        for verb in [verb for verb in texts.get("verb", ()) if not verb_named(verb).run]:
            raise UserError(f"no verb={verb}{nearest(verb, [one.name for one in VERBS])}")
        for status in {*texts.get("status", ())} - {*STATUSES}:
            raise UserError(f"no status={status}{nearest(status, STATUSES)}")

    def take(self, run: PastRun) -> bool:
        """Whether a run meets all conditions."""
        return (
            (self.verbs is None or run.verb in self.verbs)
            and (self.since is None or run.started >= self.since)
            and (self.statuses is None or run.status.partition(":")[0] in self.statuses)
            and (not self.settings or self.admit(run.settings, self.of_records if run.verb == "max-retrieval" else ()))
        )

    def admit(self, settings: Mapping[str, Any], but: Sequence[str] = ()) -> bool:
        """Whether settings meet the conditions on settings; the keys in `but` are not checked."""
        self.known |= settings.keys()
        return all(
            key in but or (key in settings and any(is_same(settings[key], text) for text in texts))
            for key, texts in self.settings.items()
        )

    def check(self) -> None:
        """Raises UserError if a filter names a setting that no run had, so all runs must have been filtered before."""
        unmet = self.settings.keys() - self.known
        if unmet and self.known:
            guess, _, _ = nearest(min(unmet), {*OF_RUNS, *self.known}).partition(" (choices")
            raise UserError(f"no run has the setting '{min(unmet)}'{guess if guess.startswith(';') else ''}")


def time_since(text: str) -> datetime:
    """The time that `2d`, `90m` or a date such as 2026-11-20 means. Raises UserError for any other text."""
    length = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if length is not None:
        with suppress(OverflowError):  # before the year 1
            return datetime.now().astimezone() - timedelta(**{UNITS[length[2]]: int(length[1])})
    if is_date(text):
        return time_of(text)
    raise UserError(f"since={text}: give 30m, 12h, 2d, 1w, or a date such as 2026-01-31")


def is_same(value: Any, text: str) -> bool:
    """Whether a recorded value equals a typed text: 0.001 equals 1e-3, and True equals true.

    A recorded list equals the text if one of its items does.
    """
    if isinstance(value, list):
        return any(is_same(item, text) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(ValueError):
            return math.isclose(float(text), value, rel_tol=1e-12)
        return False
    word = str(value)  # a csv file may hold the text True
    return text == word or text.lower() == {"None": "null", "True": "true", "False": "false"}.get(word)


def runs_in(directories: Iterable[Path], filters: Filters, damaged: list[tuple[str, str]]) -> Iterator[PastRun]:
    """The runs that pass the filters, read one at a time; a directory that cannot be read is added to `damaged`."""
    for directory in directories:
        try:
            run = past_run(directory)
        except UserError as error:
            damaged.append((str(directory), str(error)))
            continue
        if filters.take(run):
            yield run
