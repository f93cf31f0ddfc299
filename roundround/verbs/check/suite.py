"""`roundround check suite=`: write the cases of the suite, or judge an engine's answers to them.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from omegaconf import DictConfig
from rich.table import Table

from roundround.config.build import build
from roundround.distributed.device import describe_device
from roundround.engines.cases import PRECISIONS, Case, read_each, read_suite, write_case
from roundround.engines.engine import Engine, checked, read_answers
from roundround.engines.families import FAMILIES
from roundround.engines.verdicts import AGREES, DIFFERS, MISTAKE, REFUSED, Verdict, judge
from roundround.hf.checkpoint import quiet
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.support.console import print_status, print_table
from roundround.support.errors import NoVerdict, Refuted, UserError, nearest, one_line
from roundround.support.files import home_expanded
from roundround.verbs.check import CheckConfig


def write(cfg: DictConfig, config: CheckConfig, invocation: Invocation) -> None:
    """Write a folder for each case that `suite=` names, below the folder of `to=`."""
    assert config.to is not None
    names = [*FAMILIES] if "all" in config.suite else [*dict.fromkeys(config.suite)]
    if wrong := [name for name in config.suite if name not in ("all", *FAMILIES)]:
        raise UserError(f"suite={wrong[0]} is no family of the suite{nearest(wrong[0], ['all', *FAMILIES])}")
    folder = Path(os.path.abspath(home_expanded(config.to, "to")))
    try:
        folder.mkdir()  # before the work
    except OSError as error:
        raise UserError(
            f"to={config.to} {'is there already' if folder.exists() else f'cannot be made: {one_line(error)}'}; "
            "give another name"
        ) from error
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(torch.device("cpu")), suite=str(folder))
        for name in names:
            with quiet():
                write_case(name, folder / name)
            print_status(f"{folder / name}")
        run.results([{"metric": "cases", "value": len(names)}])


def judge_all(cfg: DictConfig, config: CheckConfig, invocation: Invocation) -> None:
    """Judge the answers to each case: those of an engine, or those in a folder."""
    if len(config.suite) != 1:
        raise UserError(f"suite={','.join(config.suite)}: give one folder of cases")
    cases = read_suite(home_expanded(config.suite[0], "suite"))
    if config.engine is None:
        folder = home_expanded(config.answers or "", "answers")
        if not folder.is_dir():
            raise UserError(f"answers={config.answers} is not a folder; it must hold a file CASE.json for each case")
        given = read_each(partial(read_answers, folder), cases)
        if others := sorted({path.name for path in folder.iterdir()} - {f"{case.folder.name}.json" for case in cases}):
            print_status(f"{folder}: not judged, because no case has this name: {', '.join(others)}")
        verdicts: Iterable[tuple[str, str, Verdict]] = [
            (case.folder.name, "", judge(case, *said) if said else Verdict())
            for case, said in zip(cases, given, strict=True)
        ]
    else:
        engine = build(config.engine, Engine)  # type: ignore[type-abstract]
        if engine.precision not in ("float32", *PRECISIONS):
            raise UserError(f"engine.precision={engine.precision} must be one of float32, {', '.join(PRECISIONS)}")
        verdicts = verdicts_of(engine, cases)
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(torch.device("cpu")), suite=config.suite[0])
        table = Table("case", "config.json", "largest difference", "verdict", title="answers to the suite")
        records = []
        for name, form, (value, kind, words) in verdicts:
            own = {"case": name, "form": form, "verdict": kind, "words": words}
            records.append({"metric": "difference", "value": value, **own})
            table.add_row(name, form, "" if value is None else f"{value:.3g}", f"{kind}: {words}" if words else kind)
            print_status(f"{name} {form}: {kind}" if form else f"{name}: {kind}")
        counts = Counter(str(one["verdict"]) for one in records)
        run.results(records, **counts)
        if run.writes:
            print_table(table)
    if wrong := counts[MISTAKE] + counts[DIFFERS]:
        raise Refuted(f"{wrong} of {len(records)} answers differ from what the models expect")
    if not counts[AGREES]:
        raise NoVerdict("nothing could be compared")


def verdicts_of(engine: Engine, cases: list[Case]) -> Iterable[tuple[str, str, Verdict]]:
    """The case, the form of config.json and the verdict on each answer of an engine."""
    for case, form, checkpoint in ((one, *asked) for one in cases for asked in engine.checkpoints(one).items()):
        try:
            with quiet(), TemporaryDirectory() as scratch:
                said = engine.log_probs(checkpoint, case.ids, Path(scratch))
            verdict = (
                Verdict(words=said)
                if isinstance(said, str)
                else judge(case, checked([x if x is None else float(x) for x in said], case), engine.precision)
            )
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # whatever an engine raises is its refusal
            verdict = Verdict(kind=REFUSED, words=one_line(error).replace(f"{case.folder}/", "")[:200])
        yield case.folder.name, form, verdict
