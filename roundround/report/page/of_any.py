"""The page of a verb without one of its own: results as tables, and the figures that the run left."""

from __future__ import annotations

from roundround.report.page.figures import figures_of
from roundround.report.page.sources import Record, RunFiles
from roundround.report.page.tables import tables_of
from roundround.report.page.view import Section, View


def view(files: RunFiles, records: list[Record]) -> View:
    """Results, then figures."""
    return View([Section("Results", tables=tables_of(records)), Section("Figures", figures=figures_of(files))])
