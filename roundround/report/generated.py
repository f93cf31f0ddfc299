"""The page of a run of `roundround generate`: its texts and numbers.

Tested by tests/asking/test_generation.py.
"""

from __future__ import annotations

from roundround.report.drawing.tables import Record, Table, tables_of
from roundround.report.page.view import RunFiles, Section, View

TEXTS = "texts.json"


def view(files: RunFiles, records: list[Record]) -> View:
    """The view of the page: a table with a row for each text, then the numbers."""
    found = files.json(TEXTS) or {"texts": []}
    rows = [
        [number, text["text"], text["tokens"], "the model" if text["ended"] else "length"]
        for number, text in enumerate(found["texts"], 1)
    ]
    written = [Table("texts", ["number", "text", "tokens", "ended by"], rows)] if rows else []
    return View([Section("Texts", tables=written), Section("Results", tables=tables_of(records))])
