"""The page of a run: made of what lies in its directory, and written there as report.html.

One file, with the templates, styles and scripts of the package inside. Everything that comes from a run is escaped by
the template engine. The page's policy lets the browser run these scripts alone, by their hash, and fetch nothing.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from roundround.analysis.past_run import PastRun
from roundround.config.recorded import flat
from roundround.records.directories import PAGE
from roundround.report.drawing.numbers import shown, text_of
from roundround.report.drawing.style import PLACE_COLOURS
from roundround.report.drawing.tables import Record, common_fields, exact, in_words, tables_of, text
from roundround.report.lab_book import commands_of, facts_of, given_to
from roundround.report.page.pictures import VARIABLES, picture_of
from roundround.report.page.view import RunFiles, Section, View, files_of, images_of
from roundround.support.errors import escaped, one_line
from roundround.support.files import write_atomically
from roundround.verbs import verb_named

HERE = Path(__file__).parent
COMMON = "page.js"  # the script of every page
MARK = '<p class="kind">roundround</p>'  # of the template: what it stands in is a page of ours
MOST_CELLS = 40_000  # of all tables, fifty bytes each
FEWEST_ROWS, MOST_ROWS = 40, 1000  # of a table that is cut


def write_page(directory: Path, to: Path | None = None) -> Path:
    """Write the page of the run in a directory, into it or to another file; its path. UserError where it is no run."""
    page = page_of(directory)
    path = directory / PAGE if to is None else to
    write_atomically(path, page)
    return path


def view_of(files: RunFiles, records: list[Record]) -> View:
    """What the verb's own page shows; the general page and a remark where a file is damaged, or of another version."""
    module, _, name = verb_named(files.run.verb).page.partition(":")
    if module:
        view: Callable[[RunFiles, list[Record]], View] = getattr(importlib.import_module(module), name)
        try:
            return view(files, records)
        except Exception as error:
            files.remarks.append(f"the run's files are not as {files.run.verb} leaves them ({one_line(error)})")
    figures = images_of(files.run.directory)
    return View([Section("Results", tables=tables_of(records)), Section("Figures", figures=figures)])


def page_of(directory: Path) -> str:
    """The page as text. UserError where the directory is no run, or its results cannot be read."""
    files = files_of(directory)
    records = files.records()
    view = view_of(files, records)
    run, common = files.run, common_fields(records)
    sections = [section for section in view.sections if not section.empty]
    headline = {
        in_words(name): "never left" if (name, value) == ("plateau", "inf") else shown(value)
        for name, value in run.manifest["headline"].items()
    }
    values = {
        "title": verb_named(run.verb).title,
        "subject": subject_of(run, common),
        "status": run.status.partition(":")[0],
        "findings": view.findings,
        "remarks": files.remarks,
        "headline": list(headline.items()),
        "scope": view.scope,
        "data": view.data,
        "facts": facts_of(run),
        "commands": commands_of(run),
        "settings": given_to(run),
        "config": [(key, text_of(value)) for key, value in sorted(flat(run.manifest["config"]).items())],
        "common": [(name, text_of(value)) for name, value in common.items() if value is not None],
    }
    tables = [table for section in sections for table in section.tables]
    n_columns = sum(len(table.columns) for table in tables)
    for table in tables:
        table.cut(max(FEWEST_ROWS, min(MOST_ROWS, MOST_CELLS // n_columns)))
    return html(values, sections, view.scripts)


@cache
def environment() -> Environment:
    """Jinja's templates with escaping on, and no name that is not defined."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"shown": text, "exact": exact, "printable": escaped}
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": False}
    return found


def html(values: dict[str, Any], sections: Sequence[Section], scripts: Sequence[str] = ()) -> str:
    """The page with these values for its template, its sections, and these scripts beside the common one."""
    number = count()
    code = "\n".join((HERE / name).read_text(encoding="utf-8") for name in (COMMON, *scripts))
    script = f"(function () {{\n{code}\n}})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    named = [
        *((name, colour) for colour, name in VARIABLES.items()),
        *((f"p{n}", c) for n, c in enumerate(PLACE_COLOURS)),
    ]
    palette = " ".join(f"--{name}: {colour};" for name, colour in named)
    own = {
        "style": Markup(f":root {{ {palette} }}\n" + (HERE / "page.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "sections": [(one, [picture_of(panel, next(number)) for panel in one.drawn]) for one in sections],
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:",
    }
    return environment().get_template("page.html.j2").render(**own, **values)


# -- the head of the page


def subject_of(run: PastRun, common: dict[str, Any]) -> str:
    """What the run is of in a few words: the model and its attention, as the results name them."""
    names = {**run.choices, **{k: v for k, v in common.items() if v is not None}}
    parts = [str(names["model"])] if "model" in names else []
    parts += [f"{name}={names[name]}" for name in ("pe", "softmax") if name in names and names[name] != "its own"]
    return ", ".join(parts)
