"""`roundround report RUN`: one HTML page for a run, in its directory.

Modules that are slow to import are imported when the verb runs. Tested by tests/report/test_page_command.py.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from pathlib import Path

from roundround.config.verb import PAST, Verb
from roundround.support.errors import UserError, one_line

VERB = Verb(
    name="report",
    run="roundround.verbs.report:report",
    order=12,
    purpose=PAST,
    help="Write an HTML page for a run into its directory.",
    more="RUN is given as for show. For a sweep or a pattern in quotes, each run gets a page, and a sweep one more.",
    reads={
        "open": ("false", "true: show the page in the browser"),
        "to": ("", "the file to write, FILE.html; by default report.html in the run directory"),
        "verb": ("", "the verb whose latest run `last` means: train, eval, ...; by default any"),
        "outputs": ("outputs", "the root of the run directories in which last is found"),
    },
)


def report(names: list[str], values: dict[str, str]) -> None:
    """Write the page of every given run, and print its path.

    Raises UserError if a page cannot be written, or if it would overwrite a file that is not a page.
    """
    from roundround.records.directories import PAGE, jobs_of_sweep
    from roundround.report.lab_book import meant_by
    from roundround.report.page.view import MARK, write_page
    from roundround.report.sweep import write_sweep_page
    from roundround.support.console import print_result, print_status
    from roundround.support.files import home_expanded, read_text

    show = values.get("open", "false").lower()
    if show not in ("true", "false"):
        raise UserError(f"open={show} must be true or false")
    runs = meant_by(VERB, names, values)
    jobs: list[tuple[Callable[[Path, Path], object], Path, Path]] = [(write_page, run, run / PAGE) for run in runs]
    if "to" in values:
        to = home_expanded(values["to"], "to").absolute()
        if len(runs) > 1:
            raise UserError(
                f"to={to} is one file, but {len(runs)} runs are given; leave out to=, and each run gets its own page"
            )
        if to.is_file() and MARK not in read_text(to):  # a page may be replaced
            raise UserError(f"to={to} exists and is not a page of roundround; remove it, or give another name")
        jobs, names = [(write_page, runs[0], to)], []
    for sweep in [Path(name).expanduser().absolute() for name in dict.fromkeys(names)]:
        if any(manifest["sweep"] for _, manifest in jobs_of_sweep(sweep)):
            jobs.append((write_sweep_page, sweep, sweep / PAGE))
    refused = []
    for write, directory, page in jobs:
        try:
            write(directory, page)
            print_result(str(page))
            if show == "true":
                webbrowser.open(page.as_uri())
        except (OSError, UserError) as error:  # the other runs get their pages
            refused.append(f"cannot write {page}: {one_line(error)}")
    for line in refused[1:]:
        print_status(line)
    if refused:
        raise UserError(refused[0])
