"""`roundround show RUN`: a summary of one run, printed in the terminal.

Modules that are slow to import are imported when the verb runs. Tested by tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

from roundround.config.verb import PAST, Verb
from roundround.support.errors import UserError

VERB = Verb(
    name="show",
    run="roundround.verbs.show:show",
    order=11,
    purpose=PAST,
    help="One run: settings, results, curves, files.",
    more="RUN is a run directory, last (the latest), or last~3 (the third before it); without one it is last.",
    reads={
        "verb": ("", "the verb whose latest run `last` means: train, eval, ...; by default any"),
        "outputs": ("outputs", "the root of the run directories in which last is found"),
    },
)


def show(names: list[str], values: dict[str, str]) -> None:
    """Print a run's settings, results, curves and files. Raises UserError unless exactly one run is given."""
    from roundround.analysis.past_run import past_run
    from roundround.report.lab_book import meant_by, show_run

    if len(names) > 1:
        raise UserError(f"show takes one run, but {len(names)} are given; roundround runs lists several")
    directories = meant_by(VERB, names, values)
    if len(directories) > 1:
        raise UserError(f"{names[0]} holds {len(directories)} runs, and show takes one; roundround runs lists them")
    show_run(past_run(directories[0]))
