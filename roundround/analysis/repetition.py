"""Compares a past run with the present program: what has changed, how to repeat the run, and whether the numbers agree.

Nothing but the manifest is used to repeat a run. The manifest can come from another person, so the overrides in it are
checked.

Tested by tests/analysis/test_rerun.py, test_planned.py, test_repetition.py and test_runs_and_show.py.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf, open_dict

from roundround.analysis.past_run import PastRun, is_held, is_number
from roundround.config.options import as_value, compose, config_name, usual_config
from roundround.config.recorded import RUN, as_dict, flat, overridden, own_options
from roundround.config.verb import WHERE
from roundround.distributed.child import start, start_warm
from roundround.records.directories import MANIFEST, all_runs, runs_of
from roundround.records.provenance import changes, git_state, versions
from roundround.support import __version__
from roundround.support.console import print_status
from roundround.support.errors import UserError, printable
from roundround.verbs import VERBS, keys_of, verb_named
from roundround.verbs.probe import SubjectConfig

NO_RESULT = keys_of(WHERE) - {"run"}  # `run` stays: numbers depend on the run that is measured
EQUAL, CLOSE, DIFFERENT, MISSING = VERDICTS = ("equal", "close", "different", "missing")
TIMING = re.compile(r"(^|_)(seconds?|minutes|hours|milliseconds|ms|speed|per_second|memory)(_|$)")
OF_ONE_RUN = {"run", "step"}  # the fields of a record in which a repetition may differ
ABSENT = "not there"
SECONDS_BETWEEN_LOOKS = 2.0  # seconds between two checks whether another process still writes a run


# -- what has changed


def code_changes(directory: Path, manifest: Mapping[str, Any]) -> list[str]:
    """A list with one line if the code's commit or uncommitted changes differ from the run's; else an empty list."""
    kept, (state, patch) = directory / "code.patch", git_state()
    then = manifest["roundround"], manifest.get("git"), kept.read_bytes() if kept.is_file() else None
    sides = then, (__version__, state, patch)
    same = [(version if git is None else git.get("commit"), changes) for version, git, changes in sides]
    words = [
        (f"commit {git['commit']}" if git else f"roundround {version}") + (" with changes" if changes else "")
        for version, git, changes in sides
    ]
    return [f"the code has changed: {words[0]} then, {words[1]} now"] * (same[0] != same[1])


def surroundings_changes(manifest: Mapping[str, Any], device: str | None) -> Iterator[str]:
    """A line if the versions of packages have changed since the run, and a line if the device has changed."""
    before, now = manifest.get("versions", {}), versions()
    other = [f"{name} {old} then, {now.get(name)} now" for name, old in before.items() if old != now.get(name)]
    if other:
        yield f"other versions: {'; '.join(other)}"
    if device is not None and manifest.get("device") not in (None, device):
        yield f"another device: {manifest['device']} then, {device} now"


def config_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each value of the config that has changed, with its dotted key."""
    before, after = (flat({k: v for k, v in config.items() if k not in keys_of(WHERE)}) for config in (then, now))
    values = {key: (before.get(key, ABSENT), after.get(key, ABSENT)) for key in sorted(before.keys() | after.keys())}
    return [
        f"the config has changed: {key} was {printable(str(was), 80)} and is {printable(str(value), 80)}"
        for key, (was, value) in values.items()
        if was != value
    ]


# -- the config that a verb would record, before it runs


def planned_config(
    verb: str,
    overrides: Sequence[str],
    outputs: str,
    config_dir: str | None,
    check: Callable[[dict[str, Any]], None] = lambda composed: None,
) -> dict[str, Any]:
    """The config that `roundround VERB OVERRIDE ...` would record. Overrides for max-retrieval must not set `run`.

    check: a function that gets the composed config before any class that the config names is imported.
    """
    # these import torch, for which `roundround show` should not wait
    from roundround.asking.reader import subject_choices
    from roundround.records.run import Invocation
    from roundround.trained.models import give_default_data
    from roundround.trained.start import starting_point

    cfg = compose(config_name(verb), list(overrides), config_dir)
    choices = dict(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        del cfg["hydra"]
    OmegaConf.update(cfg, "outputs", outputs)
    invocation = Invocation(verb=verb, directory=Path(), overrides=list(overrides), choices=choices)
    check(as_dict(cfg))
    if issubclass(verb_named(verb).config or object, SubjectConfig):
        subject_choices(cfg, invocation, with_data=True)
    if verb == "eval":
        give_default_data(cfg, otherwise="pydoc")
    if verb == "train":
        return starting_point(cfg, invocation)[1].config
    return as_dict(cfg)


def has_same_numbers(manifest: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    """Whether the config of a run and a planned config give the same numbers.

    If a key is newer than the run, and so missing from the run's config, today's default counts as the run's value.
    """
    then, now = of_numbers(manifest["config"]), of_numbers(planned)
    new = now.keys() - then.keys()
    if then != {key: now[key] for key in now.keys() & then.keys()}:
        return False
    usual = usual_config(manifest["verb"], own_options(manifest)) if new else None
    defaults = {} if usual is None else of_numbers(usual)
    return all(key in defaults and now[key] == defaults[key] for key in new)


def has_same_text(manifest: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    """Whether the text of the planned config is still the run's training text; a file can have changed since then."""
    known = (manifest.get("data") or {}).get("corpus_hash")
    if manifest["verb"] != "train" or known is None:
        return True
    from roundround.config.build import build  # torch, for which `roundround show` should not wait
    from roundround.data.corpora import Source

    return bool(build(OmegaConf.create(planned["data"]), Source).identity() == known)  # type: ignore[type-abstract]


def of_numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config that can change the numbers of a run, under dotted keys, as a manifest stores them."""
    return flat(json.loads(json.dumps({k: v for k, v in config.items() if k not in NO_RESULT}, default=str)))


# -- runs that another verb reuses, resumes or starts


@dataclass(frozen=True)
class Made:
    """A run that a verb reused or started for its own results."""

    command: str
    directory: Path
    taken: bool  # whether the run was finished before, and so reused


@dataclass
class Runner:
    """Runs verbs for another verb, each in a process of its own, and lists their run directories in `made`.

    A finished run with the same numbers is reused. A stopped run is resumed if its verb can resume. for_training: the
    words to add to the command of a verb that has no option `device` (`train` has none). log: the file that gets the
    standard error of the verbs; if it is None, the standard error is printed.
    """

    outputs: str
    config_dir: str | None
    device: str
    trust: bool
    for_training: Sequence[str] = ()
    log: Path | None = None
    made: list[Made] = field(default_factory=list)

    def __call__(self, verb: str, *overrides: str) -> Path:
        command = shlex.join(["roundround", verb, *overrides])
        entry = verb_named(verb)
        own = (f"device={self.device}",) if "device" in entry.keys else self.for_training
        usual = ["logger=none", f"trust={str(self.trust).lower()}"]
        words = [*overrides, *usual, *own]
        same = self.same(verb, planned_config(verb, words, self.outputs, self.config_dir))
        done = [path for path, status in same if status == "done"]
        stopped = [path for path, _ in same] if entry.trains else []
        if done:
            self.tell(f"{command}: uses the finished run {done[-1]}")
            directory = done[-1]
        else:
            self.tell(command if not stopped else f"{command}: resumes {stopped[-1]}")
            again = [verb, f"resume={as_value(stopped[-1])}", *usual] if stopped else [verb, *words]
            own_folder = [] if self.config_dir is None else ["--config-dir", self.config_dir]
            whole = [*again, f"outputs={as_value(self.outputs)}", *own_folder]
            directory = start(whole) if self.log is None else start_warm(whole, self.log)
        self.made.append(Made(command, directory, taken=bool(done)))
        return directory

    def same(self, verb: str, planned: dict[str, Any]) -> list[tuple[Path, str]]:
        """The runs whose config gives the same numbers as `planned`, each with its status.

        A run is left out if the code of the user's own classes has changed since the run. If no run is finished,
        another process is writing one of them, and the verb can resume, the method waits for that process.
        """
        while True:
            found = [
                (path, manifest["status"])
                for path, manifest in all_runs(runs_of(self.outputs, verb), verb)
                if has_same_numbers(manifest, planned)
                and has_same_text(manifest, planned)
                and not changes(path, manifest, planned)
            ]
            held = [path for path, status in found if status == "running" and is_held(path)]
            if not held or not verb_named(verb).trains or any(status == "done" for _, status in found):
                return found
            self.tell(f"waits for {held[0]}, which another process is writing")
            while is_held(held[0]):
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def tell(self, line: str) -> None:
        if self.log is None:
            print_status(line)


# -- the command that repeats a run


def check_repeatable(run: PastRun) -> None:
    """Raises UserError if a run cannot be repeated: rerun cannot repeat its verb, or the run is not finished."""
    if not verb_named(run.verb).repeats:
        repeatable = ", ".join(verb.name for verb in VERBS if verb.repeats)
        raise UserError(
            f"{run.directory} is a run of {run.verb}, which rerun cannot repeat; rerun can repeat {repeatable} "
            "(for the last training, give verb=train)"
        )
    if run.status != "done":
        raise UserError(f"{run.directory} is not finished ({run.status}); only a finished run can be repeated")


def overrides_of(run: PastRun) -> list[str]:
    """The recorded overrides that can change the numbers. The measured run is named by its path, never by `last`.

    Raises UserError if a recorded word is not a valid override, or if the measured run no longer exists.
    """
    kept, init = [], str(run.manifest["config"].get("init"))
    for word in run.manifest["overrides"]:
        (key,) = overridden([word])
        group = key.partition(".")[0]
        if word.startswith("-") or not group or group == "hydra":
            raise UserError(f"{run.directory / MANIFEST} has an override '{word}', which rerun does not accept")
        if group not in keys_of(WHERE):
            kept.append(f"init={as_value(init)}" if key == "init" and init.startswith(RUN) else word)
    source = run.manifest.get("run")
    if source is None or "run" not in verb_named(run.verb).keys:
        return kept
    if not (Path(source) / MANIFEST).is_file():
        raise UserError(f"{run.directory} measured the run in {source}, which no longer exists")
    return [*kept, f"run={as_value(source)}"]


def recorded_config_dir(run: PastRun, *, trust: bool) -> str | None:
    """The folder that the recorded command gives with --config-dir; None if it gives none.

    Raises UserError if the folder no longer exists, or if `trust` is False.
    """
    words = shlex.split(run.manifest["command"])
    flags = dict(pairwise(part for word in words for part in (word.split("=", 1) if word.startswith("-") else [word])))
    given = flags.get("--config-dir", flags.get("-cd"))
    if given is None:
        return None
    folder = folder_of(run) / given
    if not trust or not folder.is_dir():
        raise UserError(
            f"{run.directory} was made with --config-dir {folder}, and a repetition would run the Python modules in "
            "this folder; if the folder still exists, allow this with trust=true, or give a folder of your own with "
            "--config-dir DIR"
        )
    return str(folder)


def folder_of(run: PastRun) -> Path:
    """The folder in which the run's command was typed; the current folder if that folder is unknown or gone.

    The relative paths of the command start in this folder.
    """
    recorded = run.manifest.get("cwd")
    return Path(recorded) if recorded is not None and Path(recorded).is_dir() else Path.cwd()


# -- whether the numbers came out the same


class Repeated(NamedTuple):
    """A number with its value in a run (`then`) and in the repetition (`now`); a missing value is None.

    where: the fields of the record that say what was measured and on which data. difference: the absolute difference of
    the two values, divided by the larger absolute value; None unless both values are finite numbers.
    """

    metric: str
    where: dict[str, Any]
    then: Any
    now: Any
    difference: float | None
    verdict: str


def compared(
    then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], rtol: float
) -> list[Repeated]:
    """Compare the numbers in the records of a run and of its repetition. Numbers without a counterpart are listed too.

    Two records correspond if they are equal in all fields except the measured fields (`numbers_of`) and OF_ONE_RUN. If
    several records of the run are equal in this way, the nth of them corresponds to the nth such record of the
    repetition. settings: a dict from names to values of the config; if a field of a record has one of these names, it
    is not a measured field.
    """
    before, after = (numbers_of(records, settings) for records in (then, now))
    found: list[Repeated] = []
    for key in before | after:
        where, _ = before.get(key) or after[key]
        old, new = (side.get(key, ({}, None))[1] for side in (before, after))
        difference = abs(old - new) / (max(abs(old), abs(new)) or 1.0) if is_number(old) and is_number(new) else None
        verdict = CLOSE if difference is not None and difference <= rtol else DIFFERENT
        verdict = EQUAL if old == new else MISSING if None in (old, new) else verdict
        found.append(Repeated(key[-1], where, old, new, difference, verdict))
    return found


def numbers_of(
    records: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[tuple[Any, ...], tuple[dict[str, Any], Any]]:
    """Every number in the records except timings, with the fields that say what was measured and on which data.

    A key of the dict has three parts: these fields, a counter that distinguishes records with the same fields, and the
    name of the number. The measured fields of a record are its value, its step, and all floats that are not settings.
    """
    found = {}
    seen: Counter[tuple[Any, ...]] = Counter()
    for record in records:
        measured = {"value"} | ({"step"} if record.get("step") is not None else set())
        measured |= {k for k, v in record.items() if isinstance(v, float) and "." not in k and k not in settings}
        where = {name: value for name, value in record.items() if name not in measured}
        identity = tuple(sorted((name, repr(value)) for name, value in where.items() if name not in OF_ONE_RUN))
        seen[identity] += 1
        metric = str(record.get("metric"))
        for name in [name for name in record if name in measured]:
            if not TIMING.search(metric if name == "value" else name):
                of = metric if name == "value" else f"{metric}, {name}"
                found[*identity, seen[identity], of] = where, record[name]
    return found
