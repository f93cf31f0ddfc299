"""`roundround check suite=`: write the cases of the suite, or judge an engine's answers to them.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from omegaconf import DictConfig
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from roundround.config.build import build
from roundround.distributed.device import describe_device
from roundround.engines.cases import Case, read_suite, write_case
from roundround.engines.engine import Engine, checked_answers, read_answers
from roundround.engines.families import FAMILIES
from roundround.engines.verdicts import AGREES, DIFFERS, MISSING, MISTAKE, REFUSED, Verdict, judge
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
    for name in names:
        if name not in FAMILIES:
            raise UserError(f"suite={name} is no family of the suite{nearest(name, ['all', *FAMILIES])}")
    folder = Path(os.path.abspath(home_expanded(config.to, "to")))
    if folder.exists() or not folder.parent.is_dir():
        raise UserError(f"to={config.to} is there already, or its folder is not; give another name")
    disable_progress_bar()
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
    disable_progress_bar()
    cases = read_suite(home_expanded(config.suite[0], "suite"))
    engine = None if config.engine is None else build(config.engine, Engine)
    found = [
        (case, form, verdict)
        for case in cases
        for form, verdict in (of_answers(case, config) if engine is None else of_engine(case, engine))
    ]
    counts = Counter(verdict.kind for _, _, verdict in found)
    with opened_run(invocation, cfg) as run:
        run.note(choices=invocation.given, device=describe_device(torch.device("cpu")), suite=config.suite[0])
        run.results(
            [
                {
                    "metric": "difference",
                    "value": verdict.difference,
                    "case": case.name,
                    "form": form,
                    "verdict": verdict.kind,
                    "words": verdict.words,
                }
                for case, form, verdict in found
            ],
            **counts,
        )
        if run.writes:
            table = Table("case", "config.json", "largest difference", "verdict", title="answers to the suite")
            for case, form, verdict in found:
                size = "" if verdict.difference is None else f"{verdict.difference:.3g}"
                words = f"{verdict.kind}: {verdict.words}" if verdict.words else verdict.kind
                table.add_row(case.name, form, size, words)
            print_table(table)
    if wrong := counts[MISTAKE] + counts[DIFFERS]:
        raise Refuted(f"{wrong} of {len(found)} answers differ from what the models expect")
    if not counts[AGREES]:
        raise NoVerdict("no answer could be compared")


def of_answers(case: Case, config: CheckConfig) -> Iterator[tuple[str, Verdict]]:
    """The verdict on the file of a case, if there is one."""
    assert config.answers is not None
    folder = home_expanded(config.answers, "answers")
    if not folder.is_dir():
        raise UserError(f"answers={config.answers} is not a folder; it must hold a file CASE.json for each case")
    file = folder / f"{case.name}.json"
    yield "", judge(case, *read_answers(file, case)) if file.is_file() else Verdict(kind=MISSING)


def of_engine(case: Case, engine: Engine) -> Iterator[tuple[str, Verdict]]:
    """The verdict on an engine's answers, for each form of the case's config.json."""
    for checkpoint in case.forms:
        try:
            with quiet():
                answers = torch.tensor(list(engine.log_probs(checkpoint, case.ids)), dtype=torch.float32)
        except UserError:
            raise
        except Exception as error:  # whatever an engine raises is its refusal
            yield checkpoint.name, Verdict(kind=REFUSED, words=one_line(error)[:200])
            continue
        if len(answers) != len(case.ids) - 1:
            raise UserError(f"the engine gave {len(answers)} numbers for {len(case.ids) - 1} tokens of {case.name}")
        yield checkpoint.name, judge(case, checked_answers(answers, case, case.name), engine.precision)
