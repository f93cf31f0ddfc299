"""Reads runs and csv files into one long table: a row for each number, with the model that was measured.

A model has one combination of settings and one seed, and it is from one run or one file. A record of `results.json` has
a metric, a value, settings (what the model is) and coordinates (where the number was taken: context length, task,
layer, head).

A csv file has one number in each row. The column `value` is required. The columns `metric` (by default "value"),
`seed` and `verb`, and the coordinates (COORDINATES, such as `length`), mean the same as in `results.json`. Every other
column is a setting.

Tested by tests/analysis/test_measurement_files.py (files) and tests/analysis/test_compare.py (runs).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pandas import DataFrame

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
from roundround.config.verb import HOW, MEASURED, REPLICATE, WHERE, is_below
from roundround.records.run import NAMES, cell
from roundround.support.errors import UserError, nearest, one_line, printable
from roundround.support.files import read_text
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
)  # these say where a number was measured, even if a config has a key of this name
GROUPS = (*NAMES, "tokenizer", "optim", "schedule")  # groups whose option is a setting
NO_SETTINGS = ("metric", "value", "seed", "verb", *COORDINATES)  # columns of a file that are not settings
OF_RECORDS = ("seed", "softmax")  # a run of max-retrieval has several of each, and only its records name them
# keys that change no number of a model, or that records state better; the last two can be typed but are in no config
NOT_SETTINGS = {*keys_of(REPLICATE, MEASURED, HOW, WHERE), *COORDINATES, "hydra", "experiment"}
# fields of a record that say how the number was measured, and further results beside it
NOT_COORDINATES = {
    "metric", "value", "verb", "run", "seed", "low", "high", "step", "targets", "joints",
    "joining_token", "pair", "source", "separate_documents", "special_tokens", "examples", "distinct",
    "split", "context", "pairs", "phenomena", "sample",  # context: a task's length in tokens
    "stderr", "of",  # in records of tasks of lm_eval
}  # fmt: skip


@dataclass(eq=False)
class Model:
    """A model with one combination of settings and one seed.

    facts: a dict from names to texts; a comparison of two models is fair only if their texts are equal. origin: the
    path of the run directory or of the file. source: the run that trained the model or, if that run is not known, the
    run that measured the model; None for a file.
    """

    verb: str | None
    settings: dict[str, Any]
    seed: int | str | None
    origin: str
    started: datetime | None = None
    facts: dict[str, str] = field(default_factory=dict)
    source: PastRun | None = None


Number = tuple[Model, str, Coordinates, float]


@dataclass
class LongTable:
    """Numbers and the models to which they belong.

    numbers: a row for each number, with the columns model (a position in `models`), metric, coordinates and value (NaN
    if it is not finite).
    """

    models: list[Model]
    numbers: DataFrame
    skipped: Sequence[tuple[str, str]]  # the run directory, and why the run was left out


def long_table(numbers: Sequence[Number], skipped: Sequence[tuple[str, str]] = ()) -> LongTable:
    position = {model: n for n, model in enumerate(dict.fromkeys(model for model, *_ in numbers))}
    rows = [(position[model], *number) for model, *number in numbers]
    return LongTable(list(position), DataFrame(rows, columns=["model", "metric", "coordinates", "value"]), skipped)


def load(words: Sequence[str], where: Mapping[str, str], outputs: str) -> LongTable:
    """The numbers of finished runs and of files, filtered by `where`. Raises UserError if no number is left."""
    files = [Path(word) for word in words if Path(word).suffix == ".csv" and Path(word).is_file()]
    others = [word for word in words if Path(word) not in files]
    filters = Filters({key: text for key, text in where.items() if key not in COORDINATES}, of_records=OF_RECORDS)
    measuring = [verb.name for verb in VERBS if verb.measures]
    directories = directories_of_all(others, outputs, *measuring) if others or not files else []
    skipped: list[tuple[str, str]] = []
    numbers: list[Number] = []
    for run in runs_in(directories, filters, skipped):
        if run.verb in measuring and run.status != "done":
            skipped.append((str(run.directory), run.status))
        elif run.verb in measuring:
            try:
                own = numbers_of(run)
            except UserError as error:
                skipped.append((str(run.directory), str(error)))
                continue
            numbers += [one for one in own if run.verb != "max-retrieval" or is_admitted(one[0], filters)]
    for file in files:
        if asked := where.keys() & {*OF_RUNS} - {"verb"}:
            raise UserError(f"{min(asked)}= chooses among runs, and {file} contains no runs; leave this filter out")
        numbers += [
            one
            for one in numbers_of_file(file)
            if is_admitted(one[0], filters) and (filters.verbs is None or one[0].verb in filters.verbs)
        ]
    filters.check()
    if not numbers:
        example = f"{len(skipped):,} named, such as {': '.join(skipped[0])}" if skipped else "there are none"
        choices = " ".join(f"{key}={text}" for key, text in where.items())
        raise UserError(f"no finished run has results to compare ({f'none with {choices}' if choices else example})")
    for key in [key for key in where if key in COORDINATES]:
        wanted = {where[key], *where[key].split(",")}  # a name may have a comma
        measured = {dict(coordinates).get(key) for _, _, coordinates, _ in numbers}
        chosen = {value for value in measured if any(is_same(value, text) for text in wanted)}
        if not chosen:
            raise UserError(f"nothing was measured at {key}={where[key]}{nearest(where[key], map(str, measured))}")
        numbers = [number for number in numbers if dict(number[2]).get(key) in chosen]
    return long_table(numbers, skipped)


def is_admitted(model: Model, filters: Filters) -> bool:
    return filters.admit(model.settings | {"seed": model.seed})


# -- runs


def numbers_of(run: PastRun) -> list[Number]:
    """The numbers of a finished run that measures a model. Raises UserError if results are missing or damaged."""
    records = run.results()
    if not records:
        raise UserError("it has no results.json")
    trained = run if run.verb == "train" else run.measured
    lost = trained is None and run.manifest.get("run") is not None  # then only the records say what the model is
    settings = {
        key: as_cell(value)
        for key, value in run.settings.items()
        if not (is_below(key, NOT_SETTINGS) or "/" in key or "@" in key or key.endswith(("._target_", ".kind")))
    }
    facts, source = facts_of(run, trained), trained or run
    training = verb_named("train").keys
    known = {*run.settings, *NOT_COORDINATES, *NOT_SETTINGS} - {*COORDINATES}  # fields that are not coordinates

    def names_the_model(name: str) -> bool:
        typed = lost and not is_below(name, NOT_SETTINGS) and ("." in name or name in training)
        return name in NAMES or name.startswith("softmax.") or typed

    models: dict[tuple[Any, ...], Model] = {}
    found = []
    for record in records:
        value, seed = record["value"], as_cell(record.get("seed"))
        is_odd = str(value) in ("nan", "inf", "-inf")
        if not (is_odd or is_number(value)) or (run.verb == "max-retrieval" and "seed" not in record):  # all seeds
            continue
        own = {name: as_cell(item) for name, item in record.items() if names_the_model(name)}
        model = Model(run.verb, settings | own, seed, str(run.directory), run.started, facts, source)
        model = models.setdefault((seed, *own.values()), model)
        there = tuple(
            (name, as_cell(value))
            for name, value in sorted(record.items())
            if (name in COORDINATES or not (name in known or "." in name or names_the_model(name)))
            and value is not None
            and (name != "first_token" or isinstance(value, bool))  # in eval it says how the text was read
        )
        found.append((model, record["metric"], there, math.nan if is_odd else float(value)))
    return found


def as_cell(value: Any) -> Any:
    """The value in a form by which table rows can be grouped: lists and mappings become text."""
    return str(value) if isinstance(value, dict) else cell(value)


def facts_of(run: PastRun, trained: PastRun | None) -> dict[str, str]:
    """The facts that must be equal among compared runs: a dict from the names of the facts to texts."""
    manifest, made = run.manifest, (trained or run).manifest
    git, text = made.get("git") or {}, (manifest.get("data") or {}).get("corpus_hash", "")
    commit = f"{str(git.get('commit'))[:10]}{' with changes' if git.get('dirty') else ''}"
    read = [f"{key.replace('_', ' ')} {manifest[key]}" for key in ("first_token", "joining_token") if key in manifest]
    read += ["documents apart"] if read and manifest.get("separate_documents") else []
    read += ["special tokens read"] if read and manifest.get("special_tokens") == "read" else []  # else plain text
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
    """The numbers of a csv file. Raises UserError if a row has no number."""
    models: dict[tuple[Any, ...], Model] = {}
    found = []
    for line, raw in rows_of(path):
        row = {key: item if key == "value" else cell(item) for key, item in raw.items()}
        for key in ("value", *SIZES):
            if not is_number(row.get(key)) and (key == "value" or row.get(key) is not None):
                raise UserError(f"{path}, line {line}: {key}={printable(str(row.get(key)), 40)} must be a number")
        settings = {key: item for key, item in row.items() if key not in NO_SETTINGS}
        model = Model(row.get("verb"), settings, row.get("seed"), str(path))
        model = models.setdefault((model.verb, model.seed, *settings.items()), model)
        coordinates = tuple((key, row[key]) for key in sorted(COORDINATES) if row.get(key) is not None)
        found.append((model, str(row.get("metric") or "value"), coordinates, float(row["value"])))
    return found


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row of a csv file: the line number, and a dict from columns to cells.

    Raises UserError if the file cannot be read.
    """
    try:
        text = read_text(path).removeprefix("\ufeff")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = list(reader.fieldnames or [])
        if "" in columns or len({*columns}) < len(columns):
            raise ValueError(f"a column has no name, or two columns have the same name: {', '.join(columns)}")
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"line {reader.line_num} has more or fewer cells than there are columns")
            yield reader.line_num, {key: read(item) for key, item in row.items()}
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from error


def read(text: str) -> Any:
    """A cell as a number if it is one, as None if it is empty, else as text."""
    text = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text or None
