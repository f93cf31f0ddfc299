"""`roundround show RUN`: one run on a screen.

Tested by tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

from roundround.analysis.past_run import past_run
from roundround.config.options import changed_settings
from roundround.report import lab_book as report
from roundround.support.errors import UserError
from roundround.verbs.show import VERB


def show(names: list[str], values: dict[str, str]) -> None:
    """Print a run's settings, results, curves and files. UserError where several are meant, or none."""
    if len(names) > 1:
        raise UserError(f"show takes one run, and {len(names)} are given; roundround runs lists several")
    directories = report.meant_by(VERB, names, values)
    if len(directories) > 1:
        raise UserError(f"{names[0]} holds {len(directories)} runs, and show takes one; roundround runs lists them")
    run = past_run(directories[0])
    report.show_run(run, changed_settings(run.manifest))
