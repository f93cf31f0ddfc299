"""`roundround check suite=`: write the cases of the suite, or judge an engine's answers to them.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from omegaconf import DictConfig
from rich.table import Table

from roundround.config.build import build
from roundround.distributed.device import describe_device
from roundround.engines.cases import PRECISIONS, Case, read_suite, write_case
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
    names = [*FAMILIES] if config.suite == ["all"] else list(config.suite)
    if wrong := [name for name in names if name not in FAMILIES]:
        raise UserError(f"suite={wrong[0]} is no family of the suite{nearest(wrong[0], ['all', *FAMILIES])}")
    folder = Path(os.path.abspath(home_expanded(config.to, "to")))
    if folder.exists() or not folder.parent.is_dir():
        raise UserError(f"to={config.to} is there already, or its folder is not; give another name")
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
    if config.answers is not None and not home_expanded(config.answers, "answers").is_dir():
        raise UserError(f"answers={config.answers} is not a folder; it must hold a file CASE.json for each case")
    cases = read_suite(home_expanded(config.suite[0], "suite"))
    engine = None if config.engine is None else build(config.engine, Engine)  # type: ignore[type-abstract]
    if engine is not None and engine.precision not in ("float32", *PRECISIONS):
        raise UserError(f"engine.precision={engine.precision} must be one of float32, {', '.join(PRECISIONS)}")
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(torch.device("cpu")), suite=config.suite[0])
        table = Table("case", "config.json", "largest difference", "verdict", title="answers to the suite")
        records = []
        for name, form, (value, kind, words) in (
            (case.folder.name, *one) for case in cases for one in verdicts_of(case, config, engine)
        ):
            own = {"case": name, "form": form, "verdict": kind, "words": words}
            records.append({"metric": "difference", "value": value, **own})
            table.add_row(name, form, "" if value is None else f"{value:.3g}", f"{kind}: {words}" if words else kind)
            print_status(f"{name} {form}: {kind}")
        counts = Counter(str(one["verdict"]) for one in records)
        run.results(records, **counts)
        if run.writes:
            print_table(table)
    if wrong := counts[MISTAKE] + counts[DIFFERS]:
        raise Refuted(f"{wrong} of {len(records)} answers differ from what the models expect")
    if not counts[AGREES]:
        raise NoVerdict("nothing could be compared")


def verdicts_of(case: Case, config: CheckConfig, engine: Engine | None) -> Iterator[tuple[str, Verdict]]:
    """The verdict on the file of a case; or those on an engine's answers, for each form of config.json."""
    name, said = case.folder.name, f"the engine on {case.folder.name}"
    if config.answers is not None:
        file = home_expanded(config.answers, "answers") / f"{name}.json"
        yield "", judge(case, *read_answers(file, case)) if file.is_file() else Verdict()
    if engine is None:
        return
    for checkpoint in case.forms:
        try:
            with quiet(), TemporaryDirectory() as scratch:
                answers = [float(x) for x in engine.log_probs(checkpoint, case.ids, Path(scratch))]
        except UserError:
            raise
        except Exception as error:  # whatever an engine raises is its refusal
            yield checkpoint.name, Verdict(kind=REFUSED, words=one_line(error).replace(f"{case.folder}/", "")[:200])
            continue
        yield checkpoint.name, judge(case, checked(answers, case, said), engine.precision) if answers else Verdict()
