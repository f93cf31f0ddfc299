"""`roundround compare PATH...`: runs compared, with means over seeds, intervals and paired tests."""

from __future__ import annotations

from omegaconf import DictConfig

from roundround.analysis.compare import compare as compared
from roundround.analysis.comparison import Comparison, training_curves
from roundround.config.checked import checked
from roundround.config.lab_book import CompareConfig
from roundround.config.recorded import as_dict
from roundround.report import comparison_figures, comparison_records, comparison_tables
from roundround.runs.loggers.several import build_logger
from roundround.runs.opening import opened
from roundround.runs.run import Invocation, Run
from roundround.support.console import print_document, print_result, print_status, print_table
from roundround.support.errors import UserError
from roundround.support.files import write_atomically, write_json


def compare(cfg: DictConfig, invocation: Invocation) -> None:
    """Compare the runs that are named, and leave tables and figures."""
    config = checked(CompareConfig, cfg)
    where = dict(pair(word) for word in config.where)
    found = compared(config.paths, baseline=config.baseline, metric=config.metric, where=where, outputs=config.outputs)
    document = config.format != "table"
    tell = print_status if document else print_result
    with opened(invocation, config=as_dict(cfg), logger=build_logger(config.logger), tell=tell) as run:
        leave(run, found)
        if run.writes:
            show(run, found, config.format)


def pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise UserError(f"where={word}: give key=value, such as verb=eval")
    return key, value


def leave(run: Run, found: Comparison) -> None:
    """Everything that is kept in the run directory."""
    curves, damaged = training_curves(found.groups)
    found.remarks += damaged
    records = [{**record, "value": record["mean"]} for record in found.records()]
    run.results(records, runs=len({trial.origin for group in found.groups for trial in group.trials}))
    if not run.writes:
        return
    figures = comparison_figures.draw(found, curves, run.directory / "figures")
    write_json(run.directory / "comparison.json", comparison_records.summary(found, curves, figures))
    sheets, _ = comparison_tables.sheets(found)
    for ending, text in {
        "csv": comparison_tables.as_csv(found),
        "md": comparison_tables.markdown(sheets, found.remarks),
        "tex": comparison_tables.latex(sheets, found.remarks),
    }.items():
        write_atomically(run.directory / f"comparison.{ending}", text)


def show(run: Run, found: Comparison, form: str) -> None:
    """The tables or the document on standard output, and what is to be known on standard error."""
    sheets, left_out = comparison_tables.sheets(found)
    if form == "table":
        print_table(*comparison_tables.rich_tables(sheets), on_output=True)
    elif form in ("csv", "json"):
        print_document({"csv": comparison_tables.as_csv, "json": comparison_tables.as_json}[form](found))
    else:
        write = comparison_tables.markdown if form == "markdown" else comparison_tables.latex
        print_document(write(sheets, found.remarks))
    if found.baseline is not None and found.baseline.taken:
        print_status(f"baseline: {found.baseline}, the plain attention; baseline=none leaves differences out")
    for remark in found.remarks:
        print_status(remark)
    if left_out and form not in ("csv", "json"):
        listed = ", ".join(left_out)
        print_status(f"not shown, all in {run.directory / 'comparison.csv'} (metric=NAME shows one): {listed}")
