"""The imports of Python sources, found in their syntax trees without importing any module.

Tested by tests/test_imports.py.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ImportStatement:
    """`from origin import a, b`, or `import a.b`, whose origin is "".

    at_import: whether the statement runs when its module is imported; False in functions and under TYPE_CHECKING.
    """

    node: ast.Import | ast.ImportFrom
    origin: str
    at_import: bool

    @property
    def names(self) -> list[str]:
        """The dotted name of each imported module, or of each imported member of a module."""
        return [f"{self.origin}.{alias.name}" if self.origin else alias.name for alias in self.node.names]


def import_statements(source: str | bytes, package: str | None = None) -> Iterator[ImportStatement]:
    """The import statements of a source, including those in functions.

    package: the package from which relative names are resolved; if it is None, relative names keep their leading dots.
    Raises SyntaxError or ValueError if the text is not Python.
    """
    ahead: list[tuple[ast.AST, bool]] = [(ast.parse(source), True)]
    for node, at_import in ahead:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield ImportStatement(child, "", at_import)
            elif isinstance(child, ast.ImportFrom):
                yield ImportStatement(child, origin_of(child, package), at_import)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                inside = inside or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
                ahead.append((child, at_import and not inside))


def origin_of(node: ast.ImportFrom, package: str | None) -> str:
    """The module after `from`; a relative name is resolved from `package`."""
    name = "." * node.level + (node.module or "")
    return importlib.util.resolve_name(name, package) if package else name


def package_of(module: str, path: Path) -> str:
    """The package from which the relative imports of a module are resolved."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def file_of(root: Path, module: str) -> Path | None:
    """The source of a module or package whose top-level package is in the folder `root`; None if there is none."""
    stem = root.joinpath(*module.split("."))
    return next((path for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")) if path.is_file()), None)


def reached(start: Iterable[str], following: Callable[[str], Iterable[str]]) -> list[str]:
    """The names in `start`, and all names that follow from them, directly or indirectly; each name once.

    following: the function that returns the names that follow directly from a name.
    """
    found: dict[str, None] = {}
    ahead = list(start)
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = None
            ahead += following(name)
    return list(found)
