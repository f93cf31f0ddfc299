"""A run directory and what a command leaves in it: manifest, metrics, results.

run.json        the manifest, written at the start and rewritten at the end, always atomically
metrics.jsonl   one line per logging step, flushed, whatever the logger
results.json    the numbers that the run measured: a flat list of records

The records of every verb have these fields, which distinguish the records of different runs:

verb             the verb that measured
run              the directory of the run that trained the model; null for a pretrained model
model, pe, softmax, data   the names of the model, its encoding, its normaliser and the data
seed             the random seed
texts            the name of the package's texts, if a probe read them instead of data
checkpoint       the checkpoint that was measured, if another run trained the model
pe.*, softmax.*  the numbers of the encoding and of the normaliser, such as pe.p
source           "changed" if the code of a user's class differs from the run's copy (see provenance.py)

A value from the command line of the training run or of the run itself, such as optim.lr, is a field too.

Tested by tests/records/test_run.py and tests/records/test_identity.py.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundround.config.recorded import flat, overridden
from roundround.config.verb import WHERE, is_below
from roundround.distributed.peers import Peers
from roundround.records.directories import MANIFEST, METRICS, RESULTS, read_manifest
from roundround.records.loggers.base import Logger
from roundround.records.provenance import REBUILT, changes, taken_over
from roundround.support.console import print_status
from roundround.support.errors import one_line
from roundround.support.files import write_atomically, write_json, write_records
from roundround.verbs import keys_of, verb_named

REPLACED = ("pe", "softmax", "data")  # nodes of the training run that a measuring verb may replace
NAMES = ("model", "pe", "softmax", "data")
OF_THE_MODEL = ("pe.", "softmax.", "data.path", "data.name")
NOT_OF_THE_RESULT = {*keys_of(WHERE), "device", "hydra"}  # other keys of role HOW are in a record if they were typed


class Run:
    """An open run, which `opening.opened` yields. Only rank 0 writes its files."""

    def __init__(self, directory: Path, manifest: dict[str, Any], *, writes: bool) -> None:
        self.directory = directory
        self.manifest = manifest
        self.writes = writes
        self.loggers: list[Logger] = []  # the loggers that have started
        self.has_logged = False

    def note(self, **facts: Any) -> None:
        """Add facts to the manifest and write it."""
        self.manifest.update(facts)
        if self.writes:
            write_json(self.directory / MANIFEST, self.manifest)

    def log(self, step: int, **metrics: float) -> None:
        """Append one line to metrics.jsonl and call the loggers. A number that is not finite is written as a string."""
        if not self.writes:
            return
        with open(self.directory / METRICS, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **named(metrics)}) + "\n")
        self.has_logged = True
        for logger in list(self.loggers):
            try:
                logger.log(metrics, step)
            except ConnectionError as error:  # a job's SIGTERM also reaches a process that the logger has started
                print_status(f"the logger's own process is gone ({one_line(error)}); the run continues without it")
                self.loggers.remove(logger)

    def forget_after(self, step: int) -> None:
        """Drop an incomplete last line and the metrics of all steps after `step`; a resumed run computes them again."""
        if not self.writes:
            return
        path = self.directory / METRICS
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            write_atomically(path, "".join(f"{line}\n" for line in lines if step_of(line) <= step))
        for logger in self.loggers:
            logger.forget_after(step)

    def results(self, records: list[dict[str, Any]], **headline: float) -> None:
        """Write the records to results.json, and put the headline numbers into the manifest.

        Each record gets the fields of `identity`, so that the records of many runs can share a table.
        """
        self.manifest["headline"] = named(headline)
        if self.writes:
            common = identity(self.directory, self.manifest)
            whole = [{"metric": r["metric"], **common, **of_normaliser(self.manifest, r), **r} for r in records]
            write_records(self.directory / RESULTS, [named(record) for record in whole])


def named(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, but a number that is not finite becomes a string such as "nan": JSON has no such numbers."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in numbers.items()
    }


def step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """How a verb was called: everything that the command line gave, apart from the config.

    directory: the run's directory, already created. overrides: the overrides as Hydra parsed them. choices: the option
    of each config group. sweep: the directory of the sweep to which this run belongs, if any. config_dir: the user's
    own conf folder. command: the typed command, quoted for a shell. peers: the processes that work on the run together.
    """

    verb: str
    directory: Path
    overrides: list[str]
    choices: dict[str, str | None]
    sweep: Path | None = None
    config_dir: str | None = None
    command: str = "roundround"
    peers: Peers = field(default_factory=Peers)

    @property
    def given(self) -> dict[str, str]:
        """The option of each config group, without the groups that have none."""
        return {group: choice for group, choice in self.choices.items() if choice is not None}

    @property
    def resume_line(self) -> str:
        """The command to type after an interruption, and for a job of a sweep also how to continue the sweep."""
        own = f"resume with: roundround {self.verb} {shlex.quote(f'resume={self.directory}')}"
        return (
            own
            if self.sweep is None
            else f"{own}; to continue the sweep, give its command again with hydra.sweep.dir={self.sweep}"
        )


# -- the fields that distinguish a run's records from those of other runs


def identity(directory: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The fields that every record of the run in `directory` gets. Lists become text, by which tables can group."""
    trains = verb_named(manifest["verb"]).trains
    source: str | None = manifest.get("run") or (str(directory) if trains else None)
    fields = {"verb": manifest["verb"], "run": source}
    if trains and source is not None and manifest.get("run"):  # max retrieval with the models of an earlier run
        trained, own = read_manifest(Path(source)), manifest["overrides"]
        fields |= of_manifest({**manifest, "overrides": [*trained["overrides"], *own]})
        return fields | source_is(Path(source), trained, taken_over(manifest["config"], trained["config"], own))
    if trains:
        return fields | of_manifest(manifest)
    if source is not None:
        trained, own = read_manifest(Path(source)), manifest["config"]
        replaced = {name: own[name] for name in REPLACED if own.get(name) is not None}  # by what the measuring run has
        choices = {**trained.get("choices", {}), **manifest.get("choices", {})}
        kept = {name: node for name, node in trained["config"].items() if name in REBUILT and name not in replaced}
        return (
            fields
            | of_manifest({**trained, "config": {**trained["config"], **replaced}, "choices": choices})
            | {"checkpoint": own.get("checkpoint")}
            | of_texts(own)
            | source_is(Path(source), trained, kept)
            | typed(manifest)
        )
    config = manifest["config"]
    if "model" not in config:
        return fields
    choices = manifest.get("choices", {})  # a pretrained model
    own = {"pe": "its own", "softmax": "its own", **choices}
    own["model"] = manifest["facts"].get("model", choices.get("model"))
    fields |= of_manifest({**manifest, "choices": own}) | {"model.path": (config.get("model") or {}).get("path")}
    if "texts" in config and config.get("data") is None:
        fields["texts"] = "shakespeare"
    return fields | of_texts(config)


def of_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The fields of a run whose own manifest describes the model."""
    config, choices = manifest["config"], manifest.get("choices", {})
    names = {name: choices[name] for name in NAMES if choices.get(name) is not None}
    seed = {} if "seeds" in config else {"seed": manifest.get("seed")}  # with several seeds, each record has its own
    return names | seed | numbers(config) | typed(manifest)


def source_is(source: Path, trained: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """The field `source`, if the code of a class in `kept` differs from the copy in the run directory `source`.

    trained: the manifest of that run. kept: the nodes of its config whose classes this run uses again.
    """
    return {"source": "changed"} if changes(source, trained, kept) else {}


def of_texts(config: dict[str, Any]) -> dict[str, Any]:
    """The fields for the package's own texts, which a probe may read in place of the data."""
    return {"data": None, "texts": config["texts"]} if config.get("texts") is not None else {}


def numbers(config: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the encoding and of the normaliser, and the path or name of the data."""
    values = flat({name: config[name] for name in REPLACED if isinstance(config.get(name), dict)})
    return {
        key: cell(value)
        for key, value in values.items()
        if key.startswith(OF_THE_MODEL) and not key.endswith("._target_")
    }


def typed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The values, and the options of config groups, that were typed on the command line of a run."""
    keys, values = overridden(manifest["overrides"]), flat(manifest["config"])
    keys = {key for key in keys if not is_below(key, NOT_OF_THE_RESULT)}
    choices = {
        key: value
        for key, value in manifest.get("choices", {}).items()
        if key.rpartition("@")[2].replace("/", ".") in keys and key not in NAMES
    }
    return choices | {key: cell(values[key]) for key in sorted(keys & values.keys()) if key not in NAMES}


def of_normaliser(manifest: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the normaliser that is named in a record of max retrieval, including fitted numbers."""
    node = manifest["config"].get("normalisers", {}).get(record.get("softmax"))
    if node is None:
        return {}
    fitted = manifest.get("fit", {}) if record["softmax"] == "fitted" else {}
    return numbers({"softmax": {key: fitted.get(key, value) for key, value in node.items()}})


def cell(value: Any) -> Any:
    """The value in a form by which a table can group: nan becomes None, and a list becomes text."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return ",".join(map(str, value)) if isinstance(value, list) else value
