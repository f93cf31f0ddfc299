"""`roundround report RUN`: one HTML page for a run, in its directory.

Tested by tests/report/test_page_command.py.
"""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path

from roundround.analysis.past_run import directories_of, last
from roundround.records.directories import PAGE, jobs_of_sweep
from roundround.report.page.write import MARK, write_page
from roundround.report.sweep import write_sweep_page
from roundround.support.console import print_result, print_status
from roundround.support.errors import UserError, nearest, one_line
from roundround.support.files import home_expanded, read_text
from roundround.verbs.report import VERB


def report(names: list[str], values: dict[str, str]) -> None:
    """Write the page of every run that is meant, and print its path. UserError where it cannot be written or shown."""
    for key in values:
        if key not in VERB.reads:
            raise UserError(f"no key {key}{nearest(key, VERB.reads)}; roundround runs filters")
    outputs, verb = values.get("outputs", "outputs"), values.get("verb")
    found = (
        [run for name in names for run in directories_of(name, outputs, verb)] if names else [last(0, outputs, verb)]
    )
    runs = list(dict.fromkeys(found))
    pages = paths_of(runs, values.get("to"))
    show = to_be_opened(values.get("open", "false"))
    refused = []
    for run, page in zip(runs, pages, strict=True):
        try:
            leave(run, page, show=show)
        except UserError as error:  # the other runs get their pages
            refused.append(one_line(error))
    for sweep in [Path(name).expanduser().absolute() for name in dict.fromkeys(names)] if "to" not in values else []:
        if any(manifest["sweep"] for _, manifest in jobs_of_sweep(sweep)):
            try:
                write_sweep_page(sweep)
                print_result(str(sweep / PAGE))
            except OSError as error:
                refused.append(f"cannot write {sweep / PAGE}: {error.strerror or one_line(error)}")
    for line in refused[1:]:
        print_status(line)
    if refused:
        raise UserError(refused[0])


def leave(run: Path, page: Path, *, show: bool) -> None:
    """Write one page, print its path, and show it. UserError where one of these fails."""
    try:
        write_page(run, page)
    except OSError as error:
        raise UserError(f"cannot write {page}: {error.strerror or one_line(error)}; give to=FILE.html") from error
    print_result(str(page))
    if show and not webbrowser.open(page.as_uri()):
        raise UserError(f"open=true: the browser did not start; the page is {page}")


def paths_of(runs: list[Path], to: str | None) -> list[Path]:
    """Where the pages go. UserError for one file and several runs, and for a file that no page can be."""
    if to is None:
        return [run / PAGE for run in runs]
    page = home_expanded(to, "to").absolute()
    if len(runs) > 1:
        raise UserError(
            f"to={to} is one file, and {len(runs)} runs are meant; leave it out, and each gets its own page"
        )
    if page.suffix != ".html":
        raise UserError(f"to={to}: give the name of a file that ends in .html")
    if os.path.isdir(page) or not os.path.isdir(page.parent):  # pathlib's raises for a name that is too long
        raise UserError(f"to={to}: {'it is a folder' if os.path.isdir(page) else f'there is no folder {page.parent}'}")
    try:
        is_page = not os.path.exists(page) or MARK in read_text(page)  # of a page another may take the place
    except (OSError, ValueError):
        is_page = False
    if not is_page:
        raise UserError(f"to={to} is there and no page of roundround's; remove it, or give another name")
    return [page]


def to_be_opened(given: str) -> bool:
    """Whether to show the pages. UserError for anything but true and false, and where no browser is known."""
    if given.lower() not in ("true", "false"):
        raise UserError(f"open={given} must be true or false")
    if given.lower() == "false":
        return False
    try:
        webbrowser.get()
    except webbrowser.Error as error:
        raise UserError("open=true: no browser is known here; leave it out, or set the variable BROWSER") from error
    return True
