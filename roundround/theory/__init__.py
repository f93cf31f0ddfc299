"""The statements of the papers, one file each: in words, as a formula, and as a numerical check."""

from __future__ import annotations

from pathlib import Path


def names() -> list[str]:
    """All statements by name, such as rope.thm_6_1: the files of the folders here. Nothing is imported: TAB is fast."""
    files = sorted(Path(__file__).parent.glob("*/[!_]*.py"))
    return [f"{path.parent.name}.{path.stem}" for path in files]
