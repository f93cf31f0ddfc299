"""`roundround rerun RUN`: repeats a run, using only its manifest, and checks that every number is the same.

Tested by tests/analysis/test_rerun.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from roundround.analysis.comparison import format_settings
from roundround.analysis.past_run import PastRun, directories_of, past_run
from roundround.analysis.repetition import (
    DIFFERENT,
    EQUAL,
    MISSING,
    VERDICTS,
    Repeated,
    check_repeatable,
    code_changes,
    compared,
    config_changes,
    folder_of,
    overrides_of,
    planned_config,
    recorded_config_dir,
    surroundings_changes,
)
from roundround.config.build import build, checked, literal
from roundround.config.options import as_value
from roundround.config.recorded import refuse_foreign
from roundround.data.corpora import Source
from roundround.distributed.child import VerbFailed, start
from roundround.records.opening import opened_run
from roundround.records.provenance import tell_changes
from roundround.records.run import Invocation, Run
from roundround.report.drawing.tables import Table
from roundround.support.console import print_status, print_table
from roundround.support.errors import Refuted, UserError
from roundround.verbs.rerun import RerunConfig

MOST_SHOWN = 20  # numbers that differ
FOLDER = "again"  # the folder of the repetition in the run directory; it is not listed as a run


def rerun(cfg: DictConfig, invocation: Invocation) -> None:
    """Print what has changed since the run, repeat the run and compare the numbers. Raises Refuted if one differs.

    Libraries could execute code from the folders that the manifest names, so these folders are used only with `trust`.
    """
    config = checked(RerunConfig, cfg)
    (word,) = config.paths
    found = directories_of(word, config.outputs, config.verb)
    if len(found) > 1:
        raise UserError(f"{word} holds {len(found)} runs, but rerun repeats one; give one of them")
    before = past_run(found[0])
    check_repeatable(before)
    if not config.trust:
        refuse_foreign(before.manifest, before.directory)
    config_dir = invocation.config_dir or recorded_config_dir(before, trust=config.trust)
    folder, made_in = folder_of(before) if config.trust else Path.cwd(), folder_of(before)
    overrides = overrides_of(before)
    changes = list(code_changes(before.directory, before.manifest))
    if folder != made_in:
        changes.append(
            f"the run is repeated in this folder, not in {made_in}, where it was made; if it names relative paths, "
            "give trust=true to repeat it there"
        )
    with chdir(folder):
        changes += changes_of_config(before, overrides, config_dir, config)
    for line in changes:
        print_status(line)
    own = [
        "logger=none",
        "hydra.mode=RUN",  # the run may be one job of a sweep
        f"trust={str(config.trust).lower()}",
        f"hydra.run.dir={as_value(invocation.directory / FOLDER)}",
    ]
    words = [before.verb, *overrides, *own, *([] if config_dir is None else ["--config-dir", config_dir])]
    with opened_run(invocation, cfg) as run:
        run.note(facts={"repeats": str(before.directory)})
        try:
            again = past_run(start(words, folder))
        except VerbFailed as error:
            raise Refuted(f"the repetition did not finish: {error}") from error
        conclude(run, before, again, config.rtol, changes)


def changes_of_config(
    before: PastRun, overrides: Sequence[str], config_dir: str | None, config: RerunConfig
) -> list[str]:
    """The config keys whose composed values have changed since the run.

    Changes that show only while the run is repeated are not included.
    Raises UserError for a foreign class that is not trusted, or if the text or task is not the one that the run read.
    """
    if config_dir is not None:
        sys.path.insert(0, config_dir)  # for this job

    def refuse(composed: dict[str, Any]) -> None:
        if not config.trust:
            refuse_foreign({"config": composed}, before.directory)

    planned = planned_config(before.verb, overrides, config.outputs, config_dir, check=refuse)
    tell_changes(before.directory, before.manifest, planned)
    check_data(before, planned)
    if before.verb == "max-retrieval" and before.manifest.get("run") is not None:
        return []  # its config comes from the run that it measures
    return config_changes(before.manifest["config"], planned)


def check_data(before: PastRun, planned: dict[str, Any]) -> None:
    """Raises UserError if the text or the task is not the one that the run recorded."""
    recorded, node = before.manifest["data"], planned.get("data")
    if node is None and before.measured is not None:
        node = before.measured.manifest["config"].get("data")
    if recorded is None or not isinstance(node, dict):
        return
    source = build(OmegaConf.create(literal(node)), Source)  # type: ignore[type-abstract]
    if source.identity() != recorded.get("corpus_hash"):
        raise UserError(f"the data has changed since {before.directory} read it: its hash differs")


def conclude(run: Run, before: PastRun, again: PastRun, rtol: float, known: Sequence[str]) -> None:
    """Compare both runs and print the result. Raises Refuted if numbers or data differ.

    known: the lines about changes that have been printed already.
    """
    then, now = before.manifest, again.manifest
    for line in (*config_changes(then["config"], now["config"]), *surroundings_changes(then, now.get("device"))):
        if line not in known:
            print_status(line)
    pairs = compared(before.results(), again.results(), then["config"], rtol)
    counts = {verdict: sum(pair.verdict == verdict for pair in pairs) for verdict in VERDICTS}
    largest = max((pair.difference for pair in pairs if pair.difference is not None), default=0.0)
    run.results(records(pairs, counts, largest), **counts)
    listed = ", ".join(f"{n:,} {verdict}" for verdict, n in counts.items() if n or verdict == EQUAL)
    summary = f"{len(pairs):,} numbers: {listed}; the largest relative difference is {largest:.2g}, rtol={rtol:g}"
    worst = [pair for pair in pairs if pair.verdict in (DIFFERENT, MISSING)]
    if run.writes:
        rows = [[pair.metric, format_settings(pair.where), pair.then, pair.now] for pair in worst]
        table = Table("numbers that differ", ["metric", "of", "then", "now"], rows)
        table.cut(MOST_SHOWN)
        if rows:
            print_table(table.rich())
        print_status(f"{before.directory}: {summary}")
    for name in ("corpus_hash", "tokenizer_hash"):
        if (then["data"] or {}).get(name) != (now["data"] or {}).get(name):
            raise Refuted(f"the {name.removesuffix('_hash')} is not the one that {before.directory} was made with")
    if worst:
        raise Refuted(f"the numbers are not the same: {summary}")


def records(pairs: Sequence[Repeated], counts: dict[str, int], largest: float) -> list[dict[str, Any]]:
    """Records of the totals, then a record for each compared number with the number's relative difference."""
    total: list[dict[str, Any]] = [{"metric": f"n_{verdict}", "value": n} for verdict, n in counts.items()]
    total.append({"metric": "largest_relative_difference", "value": largest})
    for pair in pairs:
        where = {name: value for name, value in pair.where.items() if name not in ("metric", "verb", "run")}
        about = {"of": pair.metric, "verdict": pair.verdict, "then": pair.then, "now": pair.now}
        total.append({"metric": "relative_difference", **where, **about, "value": pair.difference})
    return total
