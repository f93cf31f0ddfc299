"""Runs, and files of measurements, as one long table: a row for each number, with the replicate that it belongs to.

A replicate is one seed of one setting, in one run or one file. Beside its metric and value, a record of `results.json`
has settings (what the model is) and coordinates (where the number was taken: context length, task, layer, head).

A csv or jsonl file has the columns settings, seed, metric, length, value. A row is one number: `value` is needed;
`metric` (else "value"), `seed`, `verb` and the coordinates (COORDINATES, such as `length`) mean the same as in
`results.json`; every other column is a setting.

Tested by tests/analysis/test_measurement_files.py (files) and tests/analysis/test_compare.py (runs).
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from pandas import DataFrame, factorize

from roundround.analysis.past_run import (
    OF_RUNS,
    SIZES,
    Filters,
    PastRun,
    directories_of_all,
    is_number,
    is_same,
    runs_in,
)
from roundround.config.recorded import flat
from roundround.config.verb import HOW, MEASURED, REPLICATE, WHERE, is_below
from roundround.records.run import NAMES, cell
from roundround.support.errors import UserError, nearest, one_line, printable
from roundround.support.files import parse_json, read_text
from roundround.verbs import VERBS, keys_of, verb_named

Coordinates = tuple[tuple[str, Any], ...]

COORDINATES = (
    "length",
    "n",
    "prefix",
    "phenomenon",
    "task",
    "texts",
    "distance",
    "layer",
    "head",
    "ablate",
)  # where a number was taken, though a config may have a key of this name
GROUPS = (*NAMES, "tokenizer", "optim", "schedule")  # whose option is a setting
ENDINGS = (".csv", ".jsonl")
NO_SETTINGS = ("metric", "value", "seed", "verb", *COORDINATES)  # columns of a file
OF_RECORDS = ("seed", "softmax")  # a run of several seeds and normalisers names them in its records alone
# keys that change no number of a model, or that a record knows better; the last two may be typed and are in no config
NOT_SETTINGS = {*keys_of(REPLICATE, MEASURED, HOW, WHERE), *COORDINATES, "hydra", "experiment"}
# fields of a record that say how it was measured, and what was found beside the number
NOT_COORDINATES = {"metric", "value", "verb", "run", "seed", "low", "high", "step", "targets", "joints"}
NOT_COORDINATES |= {"joining_token", "pair", "source", "separate_documents", "special_tokens", "examples", "distinct"}
NOT_COORDINATES |= {"split", "context", "pairs", "phenomena", "sample"}  # context: a task's length in tokens
NOT_COORDINATES |= {"stderr", "of"}  # in records of tasks of lm_eval


@dataclass(eq=False)
class Replicate:
    """One seed of one setting. The facts must be equal among replicates for a fair comparison.

    origin: the run directory, or the file. source: the run that made the model, or that measured a pretrained model;
    None in a file.
    """

    verb: str | None
    settings: dict[str, Any]
    seed: int | str | None
    origin: str
    started: datetime | None = None
    facts: dict[str, str] = field(default_factory=dict)
    source: PastRun | None = None


Number = tuple[Replicate, str, Coordinates, float]


@dataclass
class LongTable:
    """A row for each number: replicate (its position in `replicates`), metric, coordinates and value.

    The rest is what was passed over, and why.
    """

    replicates: list[Replicate] = field(default_factory=list)
    numbers: DataFrame = field(default_factory=DataFrame)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # run directory, why
    not_finite: dict[tuple[str, Coordinates], list[str]] = field(default_factory=dict)  # metric, where: run directories
    lost: list[str] = field(default_factory=list)  # run directories whose model's run is not there
    remarks: list[str] = field(default_factory=list)

    def fill(self, numbers: Iterable[Number]) -> None:
        """Take these numbers in place of its own."""
        frame = DataFrame(numbers, columns=["replicate", "metric", "coordinates", "value"])
        frame["replicate"], replicates = factorize(frame["replicate"])
        self.replicates, self.numbers = list(replicates), frame


def load(words: Sequence[str], where: Mapping[str, str], outputs: str) -> LongTable:
    """The numbers of finished runs and of files, as far as they pass the filters. UserError where there is none."""
    files = [Path(word) for word in words if Path(word).suffix in ENDINGS and Path(word).is_file()]
    others = [word for word in words if Path(word) not in files]
    filters = Filters({key: text for key, text in where.items() if key not in COORDINATES}, of_records=OF_RECORDS)
    table = LongTable()
    measuring = [verb.name for verb in VERBS if verb.measures]
    directories = directories_of_all(others, outputs, *measuring) if others or not files else []
    of_runs = numbers_of_runs(runs_in(directories, filters, table.skipped), table)
    numbers = [number for number in of_runs if number[0].verb != "max-retrieval" or filters.admit(fields_of(number[0]))]
    for file in files:
        if asked := where.keys() & {*OF_RUNS} - {"verb"}:
            raise UserError(f"{min(asked)}= chooses among runs, and {file} holds none")
        own = [number for number in numbers_of_file(file) if filters.admit(fields_of(number[0]))]
        numbers += [number for number in own if filters.verbs is None or number[0].verb in filters.verbs]
    filters.check()
    if not numbers:
        example = f"{len(table.skipped):,} named, such as {': '.join(table.skipped[0])}" if table.skipped else ""
        choices = " ".join(f"{key}={text}" for key, text in where.items())
        none = f"none with {choices}" if choices else "none chosen"
        raise UserError(f"no finished run has results to compare ({example or none})")
    for key in [key for key in where if key in COORDINATES]:
        wanted = {where[key], *where[key].split(",")}  # a name may have a comma
        values = [dict(coordinates).get(key) for _, _, coordinates, _ in numbers]
        numbers = [
            number for number, value in zip(numbers, values, strict=True) if any(is_same(value, t) for t in wanted)
        ]
        if not numbers:
            measured = {str(value) for value in values if value is not None}
            raise UserError(f"nothing was measured at {key}={where[key]}{nearest(where[key], measured)}")
    table.fill(numbers)
    return table


def fields_of(replicate: Replicate) -> dict[str, Any]:
    """What a filter may ask of a replicate beside the facts of its run."""
    return replicate.settings | {"seed": replicate.seed}


# -- runs


def numbers_of_runs(runs: Iterable[PastRun], table: LongTable) -> Iterator[Number]:
    """The numbers of finished runs that measure a model; the table gets a remark about the others."""
    others: Counter[str] = Counter()
    for run in runs:
        if not verb_named(run.verb).measures:
            others[run.verb] += 1
        elif run.status != "done":
            table.skipped.append((str(run.directory), run.status))
        else:
            try:
                yield from numbers_of(run, table)
            except UserError as error:
                table.skipped.append((str(run.directory), str(error)))
    odd: dict[str, dict[str, None]] = {}
    for (metric, _), directories in table.not_finite.items():
        odd.setdefault(metric, {}).update(dict.fromkeys(directories))
    for metric, (first, *more) in odd.items():
        also = f" and of {len(more):,} more run{'s' * (len(more) > 1)}" if more else ""
        table.remarks.append(f"{metric} of {first}{also} is not finite somewhere, and left out there")
    if table.lost:
        also = f" and {len(table.lost) - 1:,} more runs" if len(table.lost) > 1 else ""
        known = "only the settings that were typed are known"
        table.remarks.append(f"{table.lost[0]}{also} measured a training run that is not there: {known}")
    if others:
        listed = ", ".join(f"{n:,} of {verb}" for verb, n in others.items())
        table.remarks.append(f"passed over: runs that measure no model ({listed})")


def numbers_of(run: PastRun, table: LongTable) -> list[Number]:
    """The numbers of one finished run. UserError for damaged results."""
    records, directory = run.results(), str(run.directory)
    if not records:
        table.skipped.append((directory, "it has no results.json"))
    trained = run if run.verb == "train" else run.measured
    settings = {
        key: as_cell(value)
        for key, value in run.settings.items()
        if not (is_below(key, NOT_SETTINGS) or "/" in key or "@" in key or key.endswith(("._target_", ".kind")))
    }
    facts, model = facts_of(run, trained), trained or run
    lost = trained is None and run.manifest.get("run") is not None  # then only the records say what the model is
    if lost:
        table.lost.append(directory)
    replicates: dict[tuple[Any, ...], Replicate] = {}
    found: dict[tuple[Replicate, str, Coordinates], set[float]] = {}
    training = verb_named("train").keys
    known = {*run.settings, *NOT_COORDINATES, *NOT_SETTINGS} - {*COORDINATES}  # what says nothing of where

    @cache  # most records have the same fields
    def split(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
        """The fields that name the model, and the fields that say where it was measured."""
        of_training = {n for n in names if lost and not is_below(n, NOT_SETTINGS) and ("." in n or n in training)}
        own = [name for name in names if name in NAMES or name.startswith("softmax.") or name in of_training]
        return own, sorted(n for n in names if n in COORDINATES or not (n in known or n in own or "." in n))

    for record in records:
        value, metric, seed = record["value"], record["metric"], as_cell(record.get("seed"))
        is_odd = not is_number(value)
        if is_odd and str(value) not in ("nan", "inf", "-inf"):
            continue
        if run.verb != "max-retrieval" or "seed" in record:  # else it is over all seeds
            of_model, of_place = split(tuple(record))
            own = {key: as_cell(record[key]) for key in of_model}
            there = {key: as_cell(record[key]) for key in of_place if record[key] is not None}
            if not isinstance(there.get("first_token"), bool):
                there.pop("first_token", None)  # in eval it says how the text was read
            if is_odd:
                table.not_finite.setdefault((metric, tuple(there.items())), []).append(directory)
                continue
            if (which := (seed, *own.values())) not in replicates:
                replicates[which] = Replicate(run.verb, settings | own, seed, directory, run.started, facts, model)
            found.setdefault((replicates[which], metric, tuple(there.items())), set()).add(float(value))
    twice = dict.fromkeys(key[1:] for key, values in found.items() if len(values) > 1)
    for metric in dict.fromkeys(metric for metric, _ in twice):
        table.remarks.append(f"{directory} has two values of {metric} at one place, which is left out")
    return [(*key, min(values)) for key, values in found.items() if key[1:] not in twice]


def as_cell(value: Any) -> Any:
    """A value by which a table can group: lists and mappings become text."""
    return str(value) if isinstance(value, dict) else cell(value)


def facts_of(run: PastRun, trained: PastRun | None) -> dict[str, str]:
    """The facts, in words, that must be equal among runs that are compared."""
    manifest, made = run.manifest, (trained or run).manifest
    git, text = made.get("git") or {}, (manifest.get("data") or {}).get("corpus_hash", "")
    commit = f"{str(git.get('commit'))[:10]}{' with changes' if git.get('dirty') else ''}"
    read = [f"{key.replace('_', ' ')} {manifest[key]}" for key in ("first_token", "joining_token") if key in manifest]
    read += ["documents apart"] if read and manifest.get("separate_documents") else []
    read += ["special tokens read"] if read and manifest.get("special_tokens") == "read" else []  # else plain, as ever
    facts = {
        "version of roundround": str(made["roundround"]),
        "version of torch": str((made.get("versions") or {}).get("torch")),
        "version of the code (git commit)": commit if git.get("commit") else "",
        "text that was measured (corpus hash)": "" if trained is run else str(text)[:12],
        "reading of the text": ", ".join(read),
    }
    if trained is not None and trained.verb == "train":
        data, tokens, task = made["data"] or {}, trained.tokens_seen, trained.learns_a_task
        own = trained.settings
        measured = f"{data.get('validation_examples')} examples" if task else f"{own.get('validation_tokens')} tokens"
        facts |= {
            f"{'task' if task else 'training text'} (corpus hash)": str(data.get("corpus_hash"))[:12],
            "tokenizer (hash)": str(data.get("tokenizer_hash"))[:12],
            "end of the training": trained.status.partition(":")[0],
            "device of the training": str(made.get("device")),
            "tokens seen in training": "unknown" if tokens is None else f"{tokens:,}",
            "rule for the best checkpoint": f"validated every {own.get('validate_every')} steps on {measured}",
        }
    return {name: fact for name, fact in facts.items() if fact}


# -- files


def numbers_of_file(path: Path) -> list[Number]:
    """The numbers of a file. UserError for an unreadable file, a row without a number, and two values of one number."""
    replicates: dict[tuple[Any, ...], Replicate] = {}
    found: dict[tuple[Replicate, str, Coordinates], tuple[int, float]] = {}
    for line, raw in rows_of(path):
        row = {key: item if key == "value" else cell(item) for key, item in raw.items()}
        for key in ("value", *SIZES):
            if not is_number(row.get(key)) and (key == "value" or row.get(key) is not None):
                raise UserError(f"{path}, line {line}: {key}={printable(str(row[key]), 40)} must be a finite number")
        settings = {key: item for key, item in row.items() if key not in NO_SETTINGS}
        which = (row.get("verb"), row.get("seed"), *settings.items())
        replicate = replicates.setdefault(which, Replicate(row.get("verb"), settings, row.get("seed"), str(path)))
        coordinates = tuple((key, row[key]) for key in sorted(COORDINATES) if row.get(key) is not None)
        metric, value = str(row.get("metric") or "value"), float(row["value"])
        first, before = found.setdefault((replicate, metric, coordinates), (line, value))
        if before != value:
            raise UserError(
                f"{path}, lines {first} and {line}: two values of {metric} for the same settings, seed and place; "
                "tell them apart by a column"
            )
    if not found:
        raise UserError(f"{path} has no row with a value")
    return [(*key, value) for key, (_, value) in found.items()]


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file by their columns, each with its line. UserError where it cannot be read."""
    try:
        text = read_text(path).removeprefix("\ufeff")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error
    yield from rows_of_jsonl(path, text) if path.suffix == ".jsonl" else rows_of_csv(path, text)


def rows_of_jsonl(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: no json: {one_line(error)}") from error
        if not isinstance(row, dict) or "value" not in row:
            raise UserError(
                f"{path}, line {number}: a row names a value: metric, value, seed, length, and its settings"
            )
        settings = row.pop("settings", None)
        own, nested = flat(row), flat(settings) if isinstance(settings, dict) else {}
        if both := own.keys() & nested.keys():
            raise UserError(f"{path}, line {number}: {min(both)} stands in settings and beside it; leave one out")
        yield number, own | nested


def rows_of_csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = list(reader.fieldnames or [])
        if "value" not in columns:
            raise UserError(f"{path} has no column 'value'; its columns are {', '.join(columns)}")
        for name in columns:
            if not name or columns.count(name) > 1:
                wrong = f"the column {name} twice" if name else "a column without a name"
                raise UserError(f"{path} has {wrong}; leave one out")
        for row in reader:
            if None in row or None in row.values():
                raise UserError(f"{path}, line {reader.line_num}: not as many cells as there are columns")
            yield reader.line_num, {key: read(item) for key, item in row.items()}
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {one_line(error)}") from error


def read(text: str) -> Any:
    """A cell as a number where it is one, as None where it is empty."""
    text = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text or None
