"""The source files of a model, side by side in one folder, in the form in which transformers loads custom code.

transformers loads a modelling file and those files of the same folder that lines `from .name import ...` import. It
knows no subfolders. So each module gets a flat file name, such as pe_rope.py for roundround.pe.rope, and the import
lines name these files. Everything else is byte for byte the same.

Tested by tests/trained/test_export_sources.py.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from roundround.support import __version__
from roundround.support.errors import UserError
from roundround.support.imports import file_of, import_statements, package_of, reached

PACKAGE = "roundround"
ROOT = Path(__file__).resolve().parents[3]  # the folder that holds the package
PORTABLE = ("kernels", "model", "pe", "softmax")  # they import torch and nothing heavier
BY_NAME = "from .{0} import __name__ as _  # transformers does not follow `from . import {0}`\n"
NO_PARTS = "PARTS: dict[str, type] = {}"  # as it stands in modeling.py


def source_files(main: str, classes: Mapping[str, type], *, main_file: str) -> dict[str, str]:
    """{file name: source text} of the module `main`, the classes' modules, and all modules that these import.

    Indirect imports count too. The file of `main` is `main_file`.py, and its dict PARTS holds the classes. Raises
    UserError if a source file cannot be found, or if one of the modules belongs to roundround but not to a package in
    PORTABLE.
    """
    sources = Sources({PACKAGE: ROOT} | {of.__module__.partition(".")[0]: root_of(of) for of in classes.values()})
    imports = "".join(f"from {of.__module__} import {name}\n" for name, of in classes.items())
    parts = ", ".join(f'"{name}": {name}' for name in classes)
    sources.texts[main] = sources.text(main).replace(NO_PARTS, f"{imports}\n{NO_PARTS[:-1]}{parts}}}")
    files = flat_file_names(reached([main], sources.needed_by), {main: main_file})
    texts = {name: sources.with_flat_imports(name, files) for name in files}
    lines = "".join(sorted(BY_NAME.format(files[name]) for name in sources.by_name))
    texts[main] = texts[main].replace("\nfrom .", f"\n{lines}from .", 1)
    return {f"{files[name]}.py": text for name, text in texts.items()}


class Sources:
    """The source files of roundround's modules and of a user's modules.

    roots: {package: the folder that holds it}.
    """

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self.roots = roots
        self.texts: dict[str, str] = {}  # by the module's name, with their line ends
        self.by_name: set[str] = set()  # modules imported by `from package import module`

    def path_of(self, name: str) -> Path | None:
        """The file of a module of roundround or of a user; None if the name belongs to a library or to no module."""
        first = name.partition(".")[0]
        beside = [root for own, root in self.roots.items() if own != PACKAGE and "site-packages" not in root.parts]
        ahead = [self.roots[first]] if first in self.roots else [] if first in sys.stdlib_module_names else beside
        return next((path for root in ahead if (path := file_of(root, name)) is not None), None)

    def text(self, name: str) -> str:
        path = self.path_of(name)
        assert path is not None, f"the import of {name} has been seen"
        return self.texts.setdefault(name, path.read_bytes().decode("utf-8-sig"))

    def own_imports(self, name: str) -> Iterator[tuple[ast.ImportFrom, str, list[ast.alias], list[ast.alias]]]:
        """The statements `from origin import ...` in a module that import from roundround or from a user's modules.

        Yields a tuple for each statement: (syntax node, origin, the imported functions, classes and constants, the
        imported modules).
        """
        path = self.path_of(name)
        assert path is not None
        for statement in import_statements(self.text(name), package_of(name, path)):
            node, origin = statement.node, statement.origin
            if isinstance(node, ast.ImportFrom):
                modules = [alias for alias in node.names if self.path_of(f"{origin}.{alias.name}")]
                names = [alias for alias in node.names if alias not in modules]
                if modules or self.path_of(origin):
                    yield node, origin, names, modules

    def needed_by(self, name: str) -> list[str]:
        """The modules that a module imports. Raises UserError for a module of roundround outside PORTABLE."""
        needed = set()
        for _, origin, names, modules in self.own_imports(name):
            needed |= {f"{origin}.{alias.name}" for alias in modules} | ({origin} if names else set())
        for module in needed:
            package, _, part = module.partition(".")
            if package == PACKAGE and part.partition(".")[0] not in PORTABLE:
                raise UserError(
                    f"{name} imports {module}, which cannot be exported; the packages of roundround that a model can "
                    f"import are {', '.join(PORTABLE)}"
                )
        return sorted(needed)

    def with_flat_imports(self, name: str, files: Mapping[str, str]) -> str:
        """The module's text for an export, where all files lie in one folder: its imports name those files.

        If the module is one of roundround's, a first line is added that says where it comes from.
        """
        lines = self.text(name).encode().splitlines(keepends=True)
        for node, origin, names, modules in sorted(self.own_imports(name), key=lambda item: -item[0].lineno):
            self.by_name |= {f"{origin}.{alias.name}" for alias in modules}
            flat = [ast.alias(files[f"{origin}.{alias.name}"], alias.asname or alias.name) for alias in modules]
            new = [ast.ImportFrom(files[origin], names, 1)] if names else []
            new += [ast.ImportFrom(None, flat, 1)] if flat else []
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
            lines[first : last + 1] = [head + "; ".join(map(ast.unparse, new)).encode() + tail]
        path = self.path_of(name)
        if path is not None and name.partition(".")[0] == PACKAGE:
            whence = f"# {path.relative_to(ROOT).as_posix()} of roundround {__version__} (Apache-2.0); "
            lines.insert(0, f"{whence}only its import lines are changed\n".encode())
        return b"".join(lines).decode()


def root_of(of: type) -> Path:
    """The folder from which the module of a class is imported. Raises UserError if its source cannot be found."""
    file = getattr(sys.modules.get(of.__module__), "__file__", None)
    if file is None or not file.endswith(".py") or "." in of.__qualname__ or of.__module__ == "__main__":
        raise UserError(f"the source of {of.__module__}.{of.__qualname__} cannot be found, but the model needs it")
    n_up = of.__module__.count(".") + (1 if Path(file).name == "__init__.py" else 0)
    return Path(file).resolve().parents[n_up]


def flat_file_names(names: Iterable[str], given: dict[str, str]) -> dict[str, str]:
    """File names of modules, without .py: roundround.pe.rope -> pe_rope. No two are equal when case is ignored."""
    files = dict(given)
    for name in sorted(names, key=lambda name: (not name.startswith(f"{PACKAGE}."), name)):  # a user's own come last
        file = name.removeprefix(f"{PACKAGE}.").replace(".", "_")
        while file.lower() in {other.lower() for other in files.values()}:
            file += "_"
        files.setdefault(name, file)
    return files
