"""`roundround reproduce`: the figures and tables of both papers, made again by the other verbs and compared.

Tested by tests/verbs/test_reproduce.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig

from roundround.analysis.repetition import Runner
from roundround.config.build import build, checked
from roundround.config.options import load_option
from roundround.data.hub import hub_is_reachable, is_cached
from roundround.distributed.child import VerbFailed
from roundround.distributed.device import pick_device
from roundround.papers import FIGURES, item_names
from roundround.papers.claim import (
    AGREES,
    DIFFERS,
    Entry,
    Figure,
    Finding,
    Subject,
    figures_of,
    newest_entries,
    write_entries,
)
from roundround.records.opening import now, opened_run
from roundround.records.run import Invocation
from roundround.report import papers as report
from roundround.support.console import print_result, print_status
from roundround.support.errors import Refuted, UserError, nearest
from roundround.verbs.reproduce import ReproduceConfig


def reproduce(cfg: DictConfig, invocation: Invocation) -> None:
    """List the figures, or make some; write the docs page on request. Raises Refuted if one differs from the paper."""
    config = checked(ReproduceConfig, cfg)
    differing = make(chosen(config.item), cfg, config, invocation) if config.item else []
    found = newest_entries(config.outputs)
    if config.write_docs:
        print_result(str(report.write_docs(figures_of(FIGURES), found)))
    elif not config.item:
        report.show_all(figures_of(FIGURES), found)
    if differing:
        raise Refuted(f"{len(differing)} differ from the paper: {', '.join(differing)}")


def chosen(wanted: Sequence[str]) -> dict[str, Figure]:
    """The figures with these names; `all` stands for all figures. Raises UserError for an unknown name."""
    for name in wanted:
        if name not in item_names():
            raise UserError(f"no item '{name}'{nearest(name, item_names())}")
    return figures_of(dict.fromkeys(FIGURES if "all" in wanted else wanted))


def make(figures: Mapping[str, Figure], cfg: DictConfig, config: ReproduceConfig, invocation: Invocation) -> list[str]:
    """Make the requested figures; returns the names of those that differ from the paper.

    In a run of all figures, a figure that the model cannot make does not end the run. Results are recorded after each
    figure, because a later figure may take hours.
    """
    pick_device(config.device)
    if config.model is not None:
        if all(figure.model is None for figure in figures.values()):
            raise UserError(f"model= is only for figures that show a pretrained model; {', '.join(figures)} shows none")
        from roundround.hf.load import Pretrained  # transformers takes seconds, and the list needs none of it

        build(config.model, Pretrained)
    if config.data is not None and not any(figure.trains for figure in figures.values()):
        raise UserError(
            f"data= is only for rope.table2, which trains on this text; {', '.join(figures)} reads no text of yours"
        )
    subjects = {name: subject_of(figure, cfg, invocation) for name, figure in figures.items()}
    everything = "all" in config.item
    missing = {name: why for name, figure in figures.items() if (why := why_not(figure, subjects[name], everything))}
    if missing and not everything:
        raise UserError(" ".join(next(iter(missing.items()))))
    with opened_run(invocation, cfg) as run:
        report.tell_plan(figures, missing)
        entries: list[Entry] = []
        for name, figure in figures.items():
            if name in missing:
                continue
            began, subject = time.monotonic(), subjects[name]
            runner = Runner(
                config.outputs, invocation.config_dir, config.device, config.trust, given(invocation, "data")
            )
            try:
                found = figure.make(runner, subject)
            except (VerbFailed, UserError) as error:
                if not everything:
                    raise
                found = Finding(ours="none", remark=f"{error}.")
            entry = Entry(
                name=name,
                verdict=found.verdict,
                ours=found.ours,
                comparisons=found.comparisons,
                remark=found.remark,
                untested=found.untested,
                model=None if subject is None else subject.name,
                is_the_papers=subject is None or subject.is_the_papers,
                runs=runner.made,
                figure=name if found.panels else None,
                seconds=time.monotonic() - began,
                ended=now(),
            )
            entries.append(entry)
            verdicts = [entry.verdict for entry in entries]
            run.results(report.records(entries), agree=verdicts.count(AGREES), differ=verdicts.count(DIFFERS))
            if run.writes:
                report.draw(entry, figure, found.panels, run.directory / "figures", config.figures)
                print_status(f"{entry.verdict}  {name}: {report.ours_of(entry)}")
                write_entries(entries, run.directory)
        report.show(figures, entries)
        return [entry.name for entry in entries if entry.verdict == DIFFERS]


def subject_of(figure: Figure, cfg: DictConfig, invocation: Invocation) -> Subject | None:
    """The model for a figure: the command line's model, or else the paper's; None if the figure shows no model."""
    if figure.model is None:
        return None
    words = given(invocation, "model")
    if not words:
        return Subject(figure.model, (f"model={figure.model}",), is_the_papers=True)
    name = invocation.choices["model"]
    assert name is not None
    elsewhere = any(word.startswith("model.path=") for word in words)  # another model under the option's name
    shown = Path(str(cfg.model.path)).name if elsewhere else name
    return Subject(shown, words, is_the_papers=name == figure.model and not elsewhere)


def given(invocation: Invocation, group: str) -> tuple[str, ...]:
    """The words of the command line that choose the option of a config group or set a key of the option."""
    keys = {word: word.partition("=")[0].lstrip("+~").partition(".")[0] for word in invocation.overrides}
    return tuple(word for word, key in keys.items() if key == group)


def why_not(figure: Figure, subject: Subject | None, for_all: bool) -> str | None:
    """The reason why a figure cannot be made here; None if it can be made.

    for_all: whether all figures were requested; then no model is downloaded.
    """
    if figure.needs:
        return f"needs {figure.needs}"
    if subject is None or not subject.is_the_papers:
        return None
    path = str(load_option("model", subject.name).path)
    if is_cached(path) or (not for_all and hub_is_reachable()):
        return None
    return (
        f"needs the weights of {path}, which are not in the cache of the Hugging Face hub; download them, or give "
        "another model, such as model=stories260k"
    )
