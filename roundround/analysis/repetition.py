"""How a run is started again from its manifest alone, which may be anybody's."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from roundround.analysis.past_run import PastRun
from roundround.analysis.then_and_now import NO_RESULT
from roundround.config.options import config_name
from roundround.config.recorded import overridden
from roundround.runs.leftovers import MANIFEST, RESULTS
from roundround.support.errors import UserError

REPEATABLE = ("train", "eval", "probe", "max-retrieval", "theory")
LOOKS_AT_RUNS = {"eval", "probe", "max-retrieval", "theory"}


@dataclass(frozen=True)
class Repetition:
    """What is typed to repeat a run: its verb, its overrides, the user's conf folder, and where it was typed."""

    verb: str
    overrides: list[str]
    config_dir: str | None
    folder: Path


def check_repeatable(run: PastRun) -> None:
    """Raises UserError for a run that has nothing to be compared with."""
    verb, status = run.verb, run.status
    if verb not in REPEATABLE:
        raise UserError(f"{run.directory} is a run of {verb}; rerun repeats {', '.join(REPEATABLE)} (verb=train)")
    if status != "done":
        raise UserError(f"{run.directory} is not finished ({status}); only a finished run can be compared with")
    if not run.results():
        raise UserError(f"{run.directory} has no {RESULTS} to compare with")


def repetition_of(run: PastRun, config_dir: str | None, *, trust: bool) -> Repetition:
    """The repetition of a run. UserError where what it needs is not there any more, or cannot be repeated.

    Libraries import and obey what lies in folders, so those that the manifest names are only used with `trust`.
    """
    own_folder = config_dir or recorded_config_dir(run, trust=trust)
    folder = folder_of(run) if trust else Path.cwd()
    return Repetition(run.verb, [*own_overrides(run), *source_of(run)], own_folder, folder)


def own_overrides(run: PastRun) -> list[str]:
    """The recorded overrides that decide the numbers. UserError for one that nobody can have typed as one."""
    kept = []
    for word in run.manifest["overrides"]:
        (key,) = overridden([word])
        group = key.partition(".")[0]
        if word.startswith("-") or not group or group == "hydra":
            raise UserError(f"{run.directory / MANIFEST} has an override '{word}', which rerun does not take")
        if group not in NO_RESULT:
            kept.append(word)
    return kept


def source_of(run: PastRun) -> list[str]:
    """The run that this one looked at, as an override: never what `last` means now."""
    source = run.manifest.get("run")
    if source is None or run.verb not in LOOKS_AT_RUNS:
        return []
    if not (Path(source) / MANIFEST).is_file():
        raise UserError(f"{run.directory} looked at the run in {source}, which is not there any more")
    return [f"run={source}"]


def recorded_config_dir(run: PastRun, *, trust: bool) -> str | None:
    """The conf folder that the recorded command names. UserError where it is not there any more, or not trusted."""
    flags = recorded_flags(run.manifest["command"])
    name, folder = flags.get("--config-name"), flags.get("--config-dir")
    if name not in (None, config_name(run.verb)):
        raise UserError(f"{run.directory} was made with --config-name {name}, which rerun does not take")
    folder = None if folder is None else str(folder_of(run) / folder)
    if folder is not None and not Path(folder).is_dir():
        raise UserError(
            f"{run.directory} was made with --config-dir {folder}, which is not there any more; give --config-dir DIR"
        )
    if folder is not None and not trust:
        raise UserError(
            f"{run.directory} was made with --config-dir {folder}, whose modules would run: give trust=true to repeat "
            "it with them, or --config-dir DIR, a folder of your own"
        )
    return folder


def recorded_flags(command: str) -> dict[str, str]:
    """The flags that name the yamls of a command, with their values, however they were typed."""
    try:
        words = shlex.split(command)
    except ValueError:
        return {}
    parts = [part for word in words for part in (word.split("=", 1) if word.startswith("-") else [word])]
    short = {"-cd": "--config-dir", "-cn": "--config-name"}
    return {short.get(flag, flag): value for flag, value in pairwise(parts) if flag.startswith("-")}


def folder_of(run: PastRun) -> Path:
    """Where the command was typed, for relative paths; the current folder where that is not known or not there."""
    recorded, outputs = run.manifest.get("cwd"), run.manifest["config"].get("outputs")
    above = [parent for parent in run.directory.parents if parent / str(outputs) / run.verb in run.directory.parents]
    folder = Path(recorded) if recorded is not None else next(iter(above), Path.cwd())
    return folder if folder.is_dir() else Path.cwd()


def data_node(run: PastRun, config: dict[str, Any]) -> dict[str, Any] | None:
    """The node of the text that a run with this config reads: its own, else that of the run that it looks at."""
    node = config.get("data")
    if node is None and run.measured is not None:
        node = run.measured.manifest["config"].get("data")
    return node if isinstance(node, dict) else None
