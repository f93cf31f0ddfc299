"""From tables of wrong values to cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from case import Case


def shown(value: object) -> str:
    """A value as the name of a case shows it: printable and short."""
    text = ascii(value)[1:-1] if isinstance(value, str) else ascii(value)
    return text if len(text) <= 60 else f"{text[:30]}... of {len(text):,} characters"


def of_values(kind: str, base: Sequence[str], table: Mapping[str, Sequence[str]], **more: Any) -> list[Case]:
    """One case for each `key=value` of a table, behind the same words."""
    return [
        Case(name=f"{kind}: {shown(f'{key}={value}')}", args=(*base, f"{key}={value}"), **more)
        for key, values in table.items()
        for value in values
    ]


def of_words(kind: str, base: Sequence[str], lines: Sequence[str | Sequence[str]], **more: Any) -> list[Case]:
    """One case for each line of words, behind the same words."""
    words = [(line,) if isinstance(line, str) else tuple(line) for line in lines]
    return [Case(name=f"{kind}: {shown(' '.join(line))}", args=(*base, *line), **more) for line in words]


def holding(files: Mapping[str, str | bytes]) -> Callable[[Path], None]:
    """A preparation: these files lie in the folder."""

    def prepare(folder: Path) -> None:
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.encode() if isinstance(data, str) else data)

    return prepare
