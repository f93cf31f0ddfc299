"""What a page shows of a run: sections of panels, tables and figures, and what the page's scripts read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roundround.report.page.figures import Figure
from roundround.report.tables import Table
from roundround.support.panels import HeatMap, Panel


@dataclass
class Section:
    """A heading and what stands below it. `part` is a template of its own, with `values` for it.

    Panels without a point are left out. anchor: what a link to the section names.
    """

    title: str
    panels: Sequence[Panel | HeatMap] = ()
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    note: str = ""
    part: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    anchor: str = ""

    @property
    def drawn(self) -> list[Panel | HeatMap]:
        return [panel for panel in self.panels if isinstance(panel, HeatMap) or panel.drawn]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.drawn or self.tables or self.figures or self.part)


@dataclass
class View:
    """The body of a page. scope: what the numbers were taken over. data: what `scripts` read, as JSON."""

    sections: list[Section]
    scope: list[str] = field(default_factory=list)
    data: dict[str, Any] | None = None
    scripts: tuple[str, ...] = ()
