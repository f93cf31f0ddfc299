"""`roundround reproduce`: the figures and tables of both papers, made again by the other verbs and compared."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from roundround.config.build import build
from roundround.config.checked import checked
from roundround.config.options import load_option
from roundround.config.recorded import as_dict
from roundround.config.schema import ReproduceConfig
from roundround.data.hub import hub_is_reachable, is_cached
from roundround.distributed.device import pick_device
from roundround.papers.figures import ledger, verdict
from roundround.papers.figures.catalogue import chosen, in_order
from roundround.papers.figures.item import Item, Outcome, Subject
from roundround.papers.figures.runner import Runner
from roundround.report import reproduction as report
from roundround.runs.child import VerbFailed
from roundround.runs.loggers.several import build_logger
from roundround.runs.opening import now, opened
from roundround.runs.run import Invocation, Run
from roundround.support.console import print_result, print_status
from roundround.support.errors import Refuted, UserError


def reproduce(cfg: DictConfig, invocation: Invocation) -> None:
    """List the items, or make some; write the page where it is asked for. Refuted where one differs."""
    config = checked(ReproduceConfig, cfg)
    if config.write_docs:
        report.docs_folder()  # said before hours
    differing = make(cfg, config, invocation) if config.item else []
    found = ledger.newest(config.outputs)
    if config.write_docs:
        print_result(str(report.write_docs(in_order(), found)))
    elif not config.item:
        report.show_all(in_order(), found)
    if differing:
        raise Refuted(f"{len(differing)} differ from the paper: {', '.join(differing)}")


def make(cfg: DictConfig, config: ReproduceConfig, invocation: Invocation) -> list[str]:
    """Make the items that are asked for; the names of those that differ from the paper."""
    items = chosen(config.item)
    check_used(config, items)
    subjects = {name: subject_of(item, cfg, invocation) for name, item in items.items()}
    everything = "all" in config.item
    missing = {name: why for name, item in items.items() if (why := why_not(item, subjects[name], everything))}
    if missing and not everything:
        name, why = next(iter(missing.items()))
        raise UserError(f"{name} {why}")
    with opened(invocation, config=as_dict(cfg), logger=build_logger(config.logger)) as run:
        report.tell_plan(items, missing)
        entries: list[ledger.Entry] = []
        data = given(invocation, "data")
        for name, item in items.items():
            if name not in missing:
                runner = Runner(config.outputs, invocation.config_dir, config.device, config.trust, data)
                entries.append(entry_of(name, item, subjects[name], runner, run, go_on=everything))
                conclude(run, entries)
        report.show(items, entries)
        return [entry.name for entry in entries if entry.verdict == verdict.DIFFERS]


def entry_of(name: str, item: Item, subject: Subject | None, runner: Runner, run: Run, *, go_on: bool) -> ledger.Entry:
    """Make one item, and draw it. What one model cannot do does not end a run of all items (`go_on`)."""
    began = time.monotonic()
    try:
        outcome = item.make(runner, subject)
    except (VerbFailed, UserError) as error:
        if not go_on:
            raise
        outcome = Outcome(ours="none", remark=f"{error}.")
    entry = ledger.Entry(
        name=name,
        verdict=outcome.verdict,
        ours=outcome.ours,
        comparisons=outcome.comparisons,
        remark=outcome.remark,
        untested=outcome.untested,
        model=None if subject is None else subject.name,
        is_the_papers=subject is None or subject.is_the_papers,
        runs=runner.made,
        figure=name if outcome.panels else None,
        seconds=time.monotonic() - began,
        ended=now(),
    )
    if run.writes:
        report.draw(entry, item, outcome.panels, run.directory / "figures")
        print_status(report.line(entry))
    return entry


def conclude(run: Run, entries: list[ledger.Entry]) -> None:
    """Record what there is so far: a later item may take hours."""
    verdicts = [entry.verdict for entry in entries]
    run.results(report.records(entries), agree=verdicts.count(verdict.AGREES), differ=verdicts.count(verdict.DIFFERS))
    if run.writes:
        ledger.write(entries, run.directory)


def subject_of(item: Item, cfg: DictConfig, invocation: Invocation) -> Subject | None:
    """The model to take: the one that is given, else the paper's own; None for an item without one."""
    if item.model is None:
        return None
    words = given(invocation, "model")
    if not words:
        return Subject(item.model, (f"model={item.model}",), is_the_papers=True)
    name = invocation.choices["model"]
    assert name is not None
    elsewhere = any(word.startswith("model.path=") for word in words)  # another model under the option's name
    shown = Path(str(cfg.model.path)).name if elsewhere else name
    return Subject(shown, words, is_the_papers=name == item.model and not elsewhere)


def check_used(config: ReproduceConfig, items: Mapping[str, Item]) -> None:
    """Raises UserError for what is given and none of the items would read."""
    pick_device(config.device)
    if config.model is not None:
        if all(item.model is None for item in items.values()):
            raise UserError(f"model= is for figures of a pretrained model, which {', '.join(items)} is not")
        from roundround.loading.load import Pretrained  # transformers takes seconds, and the list needs none of it

        build(config.model, Pretrained).check_there()
    if config.data is not None and not any(item.trains for item in items.values()):
        raise UserError(f"data= is for rope.table2, which trains; {', '.join(items)} reads no text of yours")


def given(invocation: Invocation, group: str) -> tuple[str, ...]:
    """The words of the command line about a group: the option and its numbers."""
    keys = {word: word.partition("=")[0].lstrip("+~").partition(".")[0] for word in invocation.overrides}
    return tuple(word for word, key in keys.items() if key == group)


def why_not(item: Item, subject: Subject | None, for_all: bool) -> str | None:
    """Why an item cannot be made here; None where it can. `all` downloads nothing."""
    if item.needs:
        return f"needs {item.needs}"
    if subject is None or not subject.is_the_papers:
        return None
    path = str(load_option("model", subject.name).path)
    if is_cached(path) or (not for_all and hub_is_reachable()):
        return None
    return (
        f"needs the weights of {path}, which are not in the cache of the Hugging Face hub; fetch them, or give another "
        "model, such as model=stories260k"
    )
