"""The long table that a comparison is made of: the numbers of each model, with its settings and its seed.

A trial is one seed of one setting, as one run (or a file of measurements) has it. What a record of `results.json` says
beside its metric and value is a setting (what the model is), or a place (where the number was taken: context length,
task, layer, head).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from roundround.analysis.past_run import PastRun, is_number
from roundround.runs.identity import NAMES, cell
from roundround.support.errors import UserError

Place = tuple[tuple[str, Any], ...]
Cell = tuple[str, Place]  # a metric and where it was taken

COMPARED = ("train", "eval", "probe", "max-retrieval")  # verbs that measure a model
PLACES = ("length", "n", "task", "texts")  # where a number was taken, though a config may have a key of this name
GROUPS = (*NAMES, "tokenizer", "optim", "schedule")  # whose option is a setting
# keys of a config, with all below them, that change no number, or that a record says better
NOT_SETTINGS = {
    *("run", "resume", "outputs", "logger", "trust", "device", "hydra", "seed", "seeds", "experiment", "compile"),
    *("table", "batch_tokens", "checkpoint_every", "normalisers", "evaluate", "test_sizes", "dispersion", "rows"),
    *("entropy", "trainer.accelerator", "trainer.devices", "trainer.log_every_n_steps", "trainer.strategy", "bos"),
    *("trainer.peak_flops", "log_every", "prompt", *PLACES),
}
# of a record: what says how it was measured, and what was found beside the number
NOT_PLACES = {"metric", "value", "verb", "run", "seed", "low", "high", "step", "targets", "joints", "joining_token"}
NOT_PLACES |= {"pair", "source", "separate_documents", "special_tokens", "examples", "distinct", "split"}
NOT_PLACES |= {"context"}  # a task's length in tokens


@dataclass(eq=False)
class Trial:
    """The numbers of one seed of one setting. The facts must be equal among trials for a fair comparison.

    origin: the run directory, or the file. source: the run that made the model; of a pretrained model the one that
    measured it; None in a file.
    """

    verb: str | None
    settings: dict[str, Any]
    seed: int | str | None
    origin: str
    started: datetime | None = None
    numbers: dict[Cell, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    source: PastRun | None = None


@dataclass
class LongTable:
    """Trials, and what was passed over: a line for each reason."""

    trials: list[Trial] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # run directory, why
    not_finite: dict[str, list[Path]] = field(default_factory=dict)  # metric: run directories
    remarks: list[str] = field(default_factory=list)


def table_of(runs: Iterable[PastRun]) -> LongTable:
    """The long table of finished runs; the others are among the skipped."""
    table = LongTable()
    others: Counter[str] = Counter()
    for run in runs:
        if run.verb not in COMPARED:
            others[run.verb] += 1
        elif run.status != "done":
            table.skipped.append((str(run.directory), run.status))
        else:
            try:
                add(run, table)
            except UserError as error:
                table.skipped.append((str(run.directory), str(error)))
    for metric, runs_there in table.not_finite.items():
        first, n_more = runs_there[0], len(runs_there) - 1
        more = f" and of {n_more:,} more run{'s' * (n_more > 1)}" if n_more else ""
        table.remarks.append(f"{metric} of {first}{more} is not finite somewhere, and left out there")
    if others:
        listed = ", ".join(f"{n:,} of {verb}" for verb, n in others.items())
        table.remarks.append(f"passed over: runs that measure no model ({listed})")
    return table


def add(run: PastRun, table: LongTable) -> None:
    """Put the records of one run into the table. UserError where its results are damaged."""
    records = run.results()
    if not records:
        table.skipped.append((str(run.directory), "it has no results.json"))
        return
    trained = run if run.verb == "train" else run.measured
    settings, facts = settings_of(run), facts_of(run, trained)
    trials: dict[tuple[Any, ...], Trial] = {}
    of_keys: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    twice: set[Cell] = set()
    odd: set[str] = set()
    for record in records:
        value = number(record["value"])
        if value is None:
            odd |= {record["metric"]} if not_finite(record["value"]) else set()
            continue
        keys = tuple(record)
        if keys not in of_keys:
            of_keys[keys] = split_keys(keys, run.settings)
        own, places = of_keys[keys]
        if run.verb == "max-retrieval" and "seed" not in record:  # over all seeds
            continue
        seed = groupable(record.get("seed"))
        which = (seed, *(groupable(record[key]) for key in own))
        if which not in trials:
            mine = settings | {key: groupable(record[key]) for key in own}
            trials[which] = Trial(
                run.verb, mine, seed, str(run.directory), run.started, facts=facts, source=trained or run
            )
        where = (record["metric"], tuple((key, groupable(record[key])) for key in places if is_place(key, record[key])))
        if trials[which].numbers.setdefault(where, value) != value:
            twice.add(where)
    for metric in sorted(odd):
        table.not_finite.setdefault(metric, []).append(run.directory)
    for where in twice:
        table.remarks.append(f"{run.directory} has two values of {where[0]} at one place, which is left out")
        for trial in trials.values():
            trial.numbers.pop(where, None)
    table.trials += [trial for trial in trials.values() if trial.numbers]


def groupable(value: Any) -> Any:
    """A value of anybody's as a table can group by it: lists and mappings as text."""
    return str(value) if isinstance(value, dict) else cell(value)


def number(value: Any) -> float | None:
    """The value as a number; None for texts, for true and false, and for what is not finite."""
    return float(value) if is_number(value) else None


def not_finite(value: Any) -> bool:
    """Whether a value is a number that is not finite, or its name, as `results.json` writes it."""
    return value in ("nan", "inf", "-inf") or (isinstance(value, float) and not math.isfinite(value))


def split_keys(keys: Iterable[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Of the keys of a record: those that name the model, which the record knows best, and those of its place.

    known: the settings of its run, which say nothing new.
    """
    own = [key for key in keys if key in NAMES or key.startswith("softmax.")]
    said = {*own, *known, *NOT_PLACES}
    return own, sorted(key for key in keys if key in PLACES or not (key in said or "." in key or key in NOT_SETTINGS))


def is_place(key: str, value: Any) -> bool:
    """Whether a field of a record says where a number was taken: `first_token` of eval is how the text was read."""
    return value is not None and (key != "first_token" or isinstance(value, bool))


def settings_of(run: PastRun) -> dict[str, Any]:
    """The settings of a run as values that a table can group by: of a look at a model, those of its training too."""
    return {key: groupable(value) for key, value in run.settings.items() if is_setting(key)}


def is_setting(key: str) -> bool:
    head = key.partition(".")[0]
    if head in NOT_SETTINGS or key in NOT_SETTINGS or "/" in key or "@" in key:
        return False
    return not key.endswith(("._target_", ".kind"))


def facts_of(run: PastRun, trained: PastRun | None) -> dict[str, str]:
    """What has to be equal among runs that are compared, in words."""
    facts = {f"version of {name}": str(value) for name, value in versions_of(trained or run).items()}
    data = run.manifest.get("data") or {}
    if trained is not run and "corpus_hash" in data:
        facts["text that was measured (corpus hash)"] = str(data["corpus_hash"])[:12]
    read = {name: run.manifest[name] for name in ("first_token", "joining_token") if name in run.manifest}
    if read:
        words = [f"{name.replace('_', ' ')} {token}" for name, token in read.items()]
        apart = ["documents apart"] if run.manifest.get("separate_documents") else []
        special = ["special tokens read"] if run.manifest.get("special_tokens") == "read" else []  # else plain, as ever
        facts["reading of the text"] = ", ".join([*words, *apart, *special])
    if trained is not None and trained.verb == "train":
        facts |= facts_of_training(trained)
    return facts


def versions_of(run: PastRun) -> dict[str, Any]:
    versions, git = (run.manifest.get(name) or {} for name in ("versions", "git"))
    found = {"roundround": run.manifest["roundround"], "torch": versions.get("torch")}
    if git.get("commit"):
        found["the code (git commit)"] = f"{str(git['commit'])[:10]}{' with changes' if git.get('dirty') else ''}"
    return found


def facts_of_training(run: PastRun) -> dict[str, str]:
    data, tokens = run.manifest["data"] or {}, tokens_seen(run)
    what = "task" if run.learns_a_task else "training text"
    measured = f"{run.settings.get('validation_tokens')} tokens"
    if run.learns_a_task:
        measured = f"{data.get('validation_examples')} examples"
    return {
        f"{what} (corpus hash)": str(data.get("corpus_hash"))[:12],
        "tokenizer (hash)": str(data.get("tokenizer_hash"))[:12],
        "end of the training": run.status.partition(":")[0],
        "device of the training": str(run.manifest.get("device")),
        "tokens seen in training": "unknown" if tokens is None else f"{tokens:,}",
        "rule for the best checkpoint": f"validated every {run.settings.get('validate_every')} steps on {measured}",
    }


def tokens_seen(run: PastRun) -> int | None:
    """Tokens that a finished training has read: steps x windows x length."""
    numbers = [run.settings.get(key) for key in ("trainer.max_steps", "batch_size", "model.train_length")]
    return math.prod(numbers) if all(isinstance(value, int) for value in numbers) else None  # type: ignore[arg-type]


def tokens_per_second(run: PastRun) -> float | None:
    """Of a training; None for one that was resumed, because only its last part is timed."""
    seconds, tokens = run.manifest.get("seconds_of_training"), tokens_seen(run)
    if tokens is None or run.manifest.get("resumed") or not isinstance(seconds, int | float) or seconds <= 0:
        return None
    return tokens / seconds
