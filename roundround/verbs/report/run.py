"""`roundround report RUN`: one HTML page for a run, in its directory.

Tested by tests/report/test_page_command.py.
"""

from __future__ import annotations

import webbrowser
from pathlib import Path

from roundround.records.directories import PAGE, jobs_of_sweep
from roundround.report.lab_book import meant_by
from roundround.report.page.view import MARK, write_page
from roundround.report.sweep import write_sweep_page
from roundround.support.console import print_result, print_status
from roundround.support.errors import UserError, one_line
from roundround.support.files import home_expanded, read_text
from roundround.verbs.report import VERB


def report(names: list[str], values: dict[str, str]) -> None:
    """Write the page of every run that is meant, and print its path. UserError where it cannot be written or shown."""
    runs = meant_by(VERB, names, values)
    pages = paths_of(runs, values.get("to"))
    show = values.get("open", "false").lower()
    if show not in ("true", "false"):
        raise UserError(f"open={show} must be true or false")
    refused = []
    for run, page in zip(runs, pages, strict=True):
        try:
            write_page(run, page)
            print_result(str(page))
            if show == "true" and not webbrowser.open(page.as_uri()):
                refused.append(f"open=true: the browser did not start; the page is {page}")
        except UserError as error:  # the other runs get their pages
            refused.append(one_line(error))
        except OSError as error:
            refused.append(f"cannot write {page}: {error.strerror or one_line(error)}; give to=FILE.html")
    for sweep in [Path(name).expanduser().absolute() for name in dict.fromkeys(names)] if "to" not in values else []:
        if any(manifest["sweep"] for _, manifest in jobs_of_sweep(sweep)):
            try:
                write_sweep_page(sweep)
                print_result(str(sweep / PAGE))
            except (OSError, UserError) as error:
                refused.append(f"cannot write {sweep / PAGE}: {one_line(error)}")
    for line in refused[1:]:
        print_status(line)
    if refused:
        raise UserError(refused[0])


def paths_of(runs: list[Path], to: str | None) -> list[Path]:
    """Where the pages go. UserError for one file and several runs, and for a file that would be lost."""
    if to is None:
        return [run / PAGE for run in runs]
    page = home_expanded(to, "to").absolute()
    if len(runs) > 1:
        raise UserError(
            f"to={to} is one file, and {len(runs)} runs are meant; leave it out, and each gets its own page"
        )
    if page.is_file() and MARK not in read_text(page):  # of a page another may take the place
        raise UserError(f"to={to} is there and no page of roundround's; remove it, or give another name")
    return [page]
