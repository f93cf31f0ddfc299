"""The two papers: their statements, one file each, as checks; their figures and tables, made again; max retrieval."""

from __future__ import annotations

from pathlib import Path

FOLDERS = ("beyond", "derived", "rope", "softmax")  # of statements


def names() -> list[str]:
    """All statements by name, such as rope.thm_6_1: the files of their folders. Nothing is imported: TAB is fast."""
    here = Path(__file__).parent
    return [f"{folder}.{path.stem}" for folder in FOLDERS for path in sorted((here / folder).glob("[!_]*.py"))]
