"""What keeps the house small: files and functions that one can read in one sitting, and no file for one user alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import size
from conftest import ROOT

from roundround.support.imports import import_statements

FILES = sorted(size.PACKAGE.rglob("*.py"))


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {path.relative_to(size.PACKAGE): len(path.read_text().splitlines()) for path in FILES}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def functions_in(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions below a node; expressions, which hold none and are most of a tree, are not entered."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if not isinstance(child, ast.expr):
            yield from functions_in(child)


def test_no_function_is_longer_than_60_lines() -> None:
    functions = [(path, function) for path in FILES for function in functions_in(size.tree_of(path))]
    assert len(functions) > 1000
    assert [(path.stem, f.name) for path, f in functions if f.end_lineno - f.lineno >= 60] == []


def test_a_small_module_has_several_users() -> None:
    """Apart from variants, verbs, packages and the entry point: what one file alone needs stands in that file."""
    variants = "".join(path.read_text() for path in (ROOT / "conf").rglob("*.yaml"))
    code = "".join(path.read_text() for path in FILES)
    imported: dict[str, set[str]] = {}
    for path in FILES:
        for name in (name for statement in import_statements(path.read_text()) for name in statement.names):
            imported.setdefault(name.rpartition(".")[0], set()).add(path.name)
            imported.setdefault(name, set()).add(path.name)
    for small in size.small():
        module = "roundround." + small.removesuffix(".py").replace("/", ".")
        page = small.startswith("report/page/of_")  # a variant as well: what the page of a verb shows
        by_name = f'"{module}"' in code  # so that who uses it waits for no slow library
        apart = module in variants or by_name or page or small == "__main__.py"
        assert apart or len(imported.get(module, ())) > 1, small
