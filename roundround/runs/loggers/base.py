"""What a metric logger is: three hooks, beside `metrics.jsonl`, which is always written.

They are not Lightning's loggers: those live in a package that takes six seconds to import, which `eval`, `probe` and
`max-retrieval` do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Logger:
    """Base of the metric loggers that a run feeds; every hook does nothing unless a subclass says otherwise."""

    def start(self, directory: Path, manifest: dict[str, Any]) -> dict[str, Any] | None:
        """Begin; returns what the manifest should keep about it."""
        return None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """One line of metrics."""

    def finish(self, manifest: dict[str, Any]) -> None:
        """The run has ended as the manifest's status says."""
