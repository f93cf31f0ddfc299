"""What keeps the house small: files and functions that one can read in one sitting."""

from __future__ import annotations

import ast

import size

FILES = sorted(size.PACKAGE.rglob("*.py"))


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {path.relative_to(size.PACKAGE): len(path.read_text().splitlines()) for path in FILES}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    functions = [
        (path, node)
        for path in FILES
        for node in ast.walk(size.tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert len(functions) > 1000
    assert [(path.stem, f.name) for path, f in functions if f.end_lineno - f.lineno >= 60] == []
