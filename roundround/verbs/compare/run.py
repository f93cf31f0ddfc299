"""`roundround compare PATH...`: runs compared, with means over seeds, intervals and paired tests.

Tested by tests/analysis/test_compare_command.py.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from omegaconf import DictConfig

from roundround.analysis.comparison import Comparison, training_curves
from roundround.analysis.comparison import compare as compared
from roundround.config.build import checked
from roundround.records.opening import opened_run
from roundround.records.run import Invocation, Run
from roundround.report import comparison
from roundround.report.drawing.tables import Record
from roundround.report.findings import findings
from roundround.support.console import print_document, print_paragraph, print_result, print_status, print_table
from roundround.support.files import write_atomically, write_json
from roundround.verbs.compare import CompareConfig


def compare(cfg: DictConfig, invocation: Invocation) -> None:
    """Compare the named runs, and write tables and figures."""
    config = checked(CompareConfig, cfg)
    where = {key: value for key, _, value in (word.partition("=") for word in config.where)}
    found = compared(config.paths, baseline=config.baseline, metric=config.metric, where=where, outputs=config.outputs)
    tell = print_result if config.format == "table" else print_status
    with opened_run(invocation, cfg, tell=tell) as run:
        curves, damaged = training_curves(found.groups)
        found.remarks += damaged
        records = [{**record, "value": record["mean"]} for record in found.table]
        run.results(records, runs=len({model.origin for group in found.groups for model in group.models}))
        if run.writes:
            show(run, found, records, curves, config)


def show(
    run: Run, found: Comparison, records: list[Record], curves: list[dict[str, Any]], config: CompareConfig
) -> None:
    """Write files, print the tables or a document, and print remarks to standard error."""
    sheets, left_out = comparison.sheets(records)
    differing = comparison.what_differs(found)
    sentences = findings(comparison.telling(records))
    documents = {
        "csv": comparison.as_csv(found.table),
        "markdown": comparison.markdown(sentences, [*differing, *sheets], found.remarks),
        "latex": comparison.latex(sentences, sheets, found.remarks),
        "json": json.dumps(found.table, indent=2, default=str) + "\n",
    }
    for name, ending in {"csv": "csv", "markdown": "md", "latex": "tex"}.items():
        write_atomically(run.directory / f"comparison.{ending}", documents[name])
    if config.format == "table":
        print_table(*(table.rich() for table in differing), on_output=True)
        for sentence in sentences:
            print_paragraph(sentence)
        if sys.stdout.isatty():
            sheets, left_out = comparison.sheets(records, comparison.A_SCREEN)
        tables = [sheet.rich() for sheet in sheets]
        print_table(*tables, on_output=True, first_to_leave=comparison.TO_LEAVE, see="format=markdown")
    else:
        print_document(documents[config.format])
    if found.baseline and not config.baseline:
        print_status(
            f"the baseline is {', '.join(found.baseline)}, the plain attention; baseline=none leaves differences out"
        )
    for remark in found.remarks:
        print_status(remark)
    if left_out and config.format not in ("csv", "json"):
        print_status(
            f"not shown, all in {run.directory / 'comparison.csv'} (metric=NAME shows one): {', '.join(left_out)}"
        )
    about = comparison.summary(found, curves)
    # last, because drawing takes longer than all else
    figures = comparison.draw(records, about, run.directory / "figures", config.figures)
    write_json(run.directory / "comparison.json", about | {"figures": figures})
