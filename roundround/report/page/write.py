"""The page of a run: made of what lies in its directory, and written there as report.html."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from roundround.analysis.repetition import changed_settings
from roundround.config.verbs import verb_named
from roundround.report.page import facts, of_any
from roundround.report.page.document import html
from roundround.report.page.sources import Record, RunFiles, opened_run
from roundround.report.page.tables import common_fields
from roundround.report.page.view import View
from roundround.runs.directories import PAGE
from roundround.support.errors import UserError, one_line
from roundround.support.files import write_atomically

MARK = '<p class="kind">roundround</p>'  # of the template: what it stands in is a page of ours
LARGEST = 2_000_000  # bytes of a page
MOST_CELLS = 40_000  # of fifty bytes each: what fits into a page
MOST_ROWS = (1000, 200, 40)  # of a table: as many of them as keep the page below that


def write_page(directory: Path, to: Path | None = None) -> Path:
    """Write the page of the run in a directory, into it or to another file; its path. UserError where it is no run."""
    page = page_of(directory)
    path = directory / PAGE if to is None else to
    write_atomically(path, page)
    return path


def view_of(files: RunFiles, records: list[Record]) -> View:
    """What the verb's own page shows; the general one where its files are of another shape than the verb leaves."""
    module, _, name = verb_named(files.run.verb).page.partition(":")
    if not module:
        return of_any.view(files, records)
    view: Callable[[RunFiles, list[Record]], View] = getattr(importlib.import_module(module), name)
    try:
        return view(files, records)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        files.remarks.append(f"the run's files are not as {files.run.verb} leaves them ({one_line(error)})")
        return of_any.view(files, records)


def page_of(directory: Path) -> str:
    """The page as text. What cannot be read is said on it. UserError where the directory is no run, or says more."""
    files = opened_run(directory)
    records = files.records()
    view = view_of(files, records)
    run, common = files.run, common_fields(records)
    values = {
        "title": facts.title_of(run),
        "subject": facts.subject_of(run, common),
        "status": run.status.partition(":")[0],
        "remarks": files.remarks,
        "headline": facts.headline_of(run),
        "scope": view.scope,
        "sections": [section for section in view.sections if not section.empty],
        "data": view.data,
        "facts": facts.facts_of(run),
        "commands": facts.commands_of(run),
        "settings": facts.settings_of(run, changed_settings(run)),
        "config": facts.config_of(run),
        "common": facts.common_of(common),
    }
    tables = [table for section in view.sections for table in section.tables]
    for most_rows in MOST_ROWS:
        for table in tables:
            table.cut(most_rows)
        if sum(len(table.rows) * len(table.columns) for table in tables) > MOST_CELLS and most_rows != MOST_ROWS[-1]:
            continue  # to render it first would take as long as all the rest
        page = html(values, view.scripts)
        if len(page.encode()) <= LARGEST:
            return page
    raise UserError(f"{directory}: its page would have {len(page.encode()):,} bytes, and a page has up to {LARGEST:,}")
