"""The page of `roundround generate`: the texts, and how fast they were written."""

from __future__ import annotations

from roundround.report.page.sources import Record, RunFiles
from roundround.report.page.view import Section, View
from roundround.report.tables import Table, tables_of

TEXTS = "texts.json"


def view(files: RunFiles, records: list[Record]) -> View:
    """A row for each text, then the numbers."""
    found = files.json(TEXTS)
    texts = found.get("texts") if isinstance(found, dict) else None
    rows = [
        [number, str(text.get("text")), text.get("tokens"), "the model" if text.get("ended") else "length"]
        for number, text in enumerate(texts if isinstance(texts, list) else [], 1)
        if isinstance(text, dict)
    ]
    written = [Table("texts", ["number", "text", "tokens", "ended by"], rows)] if rows else []
    return View([Section("Texts", tables=written), Section("Results", tables=tables_of(records))])
