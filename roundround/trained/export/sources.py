"""The source files of a model, side by side in one folder, in the form in which transformers loads custom code.

transformers loads a modelling file and the files beside it that are imported by lines `from .name import ...`; it knows
no subfolders. So each module gets a flat file name, pe_rope.py for roundround.pe.rope, and the import lines name these
files. Everything else is byte for byte the same.

Tested by tests/trained/test_export_sources.py.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from roundround.support import __version__
from roundround.support.errors import UserError
from roundround.support.imports import file_of, import_statements, package_of, reached

PACKAGE = "roundround"
ROOT = Path(__file__).resolve().parents[3]  # the folder that holds the package
PORTABLE = ("kernels", "model", "pe", "softmax")  # they import torch and nothing heavier
BY_NAME = "from .{0} import __name__ as _  # transformers does not follow `from . import {0}`\n"


@dataclass(frozen=True)
class OwnImport:
    """A statement `from origin import ...` of exported code: `names` of the module origin, `modules` of the package."""

    node: ast.ImportFrom
    origin: str
    names: list[ast.alias]
    modules: list[ast.alias]

    @property
    def imported(self) -> set[str]:
        """The dotted names of all modules that the statement needs."""
        return {f"{self.origin}.{alias.name}" for alias in self.modules} | ({self.origin} if self.names else set())


@dataclass(frozen=True)
class Module:
    """A module to export: its dotted name, its file, its text, and its imports of other exported modules."""

    name: str
    path: Path
    text: str
    imports: list[OwnImport]

    @property
    def imported(self) -> set[str]:
        return {name for item in self.imports for name in item.imported}


def source_files(main: str, classes: Mapping[str, type], *, main_file: str) -> dict[str, str]:
    """Texts by file name: the module `main` as `main_file`.py, and every module that it and the classes need.

    classes: what `main` imports by these names, in the place of what its own lines import so.
    Raises UserError where a source cannot be found, cannot leave roundround, or has imports that cannot be rewritten.
    """
    modules = Library(classes.values()).closure(main, classes)
    files = flat_file_names(modules, {main: main_file})
    texts = {}
    for name, module in modules.items():
        place = module.path.relative_to(ROOT).as_posix() if name.partition(".")[0] == PACKAGE else None
        whence = f"# {place} of roundround {__version__} (Apache-2.0); only its import lines are changed\n"
        texts[name] = ("" if place is None else whence) + with_flat_imports(module, files)
    imports = [item for module in modules.values() for item in module.imports]
    by_name = {f"{item.origin}.{alias.name}" for item in imports for alias in item.modules}
    lines = "".join(sorted(BY_NAME.format(files[name]) for name in by_name))
    texts[main] = texts[main].replace("\nfrom .", f"\n{lines}from .", 1)
    return {f"{files[name]}.py": text for name, text in texts.items()}


PARTS = '{"Encoding": Encoding, "Normaliser": Normaliser}'  # as it stands in modeling.py


# -- which modules


class Library:
    """Where exported code is found: roundround's portable parts, and a user's own modules beside the given classes."""

    def __init__(self, classes: Iterable[type]) -> None:
        self.roots = {PACKAGE: ROOT}
        for of in classes:
            self.roots.setdefault(of.__module__.partition(".")[0], root_of(of))

    def closure(self, main: str, classes: Mapping[str, type]) -> dict[str, Module]:
        """The module `main` with its imports of the classes, and all modules that it needs, by their dotted names."""
        path = self.path_of(main)
        assert path is not None, f"{main} has a source"
        found = {main: self.module(main, path, with_classes(source_text(path), classes))}

        def following(name: str) -> list[str]:
            if name not in found:
                path = self.path_of(name)
                assert path is not None, f"the import of {name} has been seen"
                found[name] = self.module(name, path, source_text(path))
            return sorted(found[name].imported)

        reached([main], following)
        return found

    def path_of(self, name: str) -> Path | None:
        """The file of a module that is exported; None for libraries, and for what is no module."""
        first = name.partition(".")[0]
        if first in self.roots:
            roots = [self.roots[first]]
        elif first in sys.stdlib_module_names:
            roots = []
        else:
            roots = [root for key, root in self.roots.items() if key != PACKAGE and "site-packages" not in root.parts]
        return next((path for root in roots if (path := file_of(root, name)) is not None), None)

    def module(self, name: str, path: Path, text: str) -> Module:
        """The module of this text. UserError, with the line, for an import of exported code that cannot be kept."""
        imports = []
        for statement in import_statements(text, package_of(name, path)):
            try:
                if isinstance(statement.node, ast.Import):
                    if own := [name for name in statement.names if self.path_of(name)]:
                        raise UserError(f"write from ... import instead of import {own[0]}")
                elif (item := self.own_import(statement.node, statement.origin)) is not None:
                    imports.append(item)
            except UserError as error:
                raise UserError(f"{path}, line {statement.node.lineno}: {error}") from error
        return Module(name, path, text, imports)

    def own_import(self, node: ast.ImportFrom, origin: str) -> OwnImport | None:
        """The statement as an import of exported code; None where it is one of a library."""
        modules = [alias for alias in node.names if self.path_of(f"{origin}.{alias.name}")]
        names = [alias for alias in node.names if alias not in modules]
        if names and not self.path_of(origin):
            if modules or node.level or origin.partition(".")[0] in self.roots:
                raise UserError(f"the source of `{ast.unparse(node)}` cannot be found")
            return None
        if any(alias.name == "*" for alias in names):
            raise UserError(f"name what is imported from {origin} instead of *")
        item = OwnImport(node, origin, names, modules)
        for name in sorted(item.imported):
            if name.partition(".")[0] == PACKAGE and name.split(".")[1:2] not in ([part] for part in PORTABLE):
                raise UserError(f"{name} cannot leave roundround; a model may import its parts {', '.join(PORTABLE)}")
        return item


def root_of(of: type) -> Path:
    """The folder in which the module of a class is found by its name. UserError where its source is not at hand."""
    file = getattr(sys.modules.get(of.__module__), "__file__", None)
    if file is None or not file.endswith(".py") or "." in of.__qualname__ or of.__module__ == "__main__":
        raise UserError(f"the source of {of.__module__}.{of.__qualname__} cannot be found, and a model needs it")
    n_up = of.__module__.count(".") + (1 if Path(file).name == "__init__.py" else 0)
    return Path(file).resolve().parents[n_up]


def source_text(path: Path) -> str:
    """The text of a source file, line ends as they are."""
    return path.read_bytes().decode("utf-8-sig")


# -- what they are called, and their import lines


def flat_file_names(names: Iterable[str], given: dict[str, str]) -> dict[str, str]:
    """File names without .py of modules: roundround.pe.rope -> pe_rope. No two are the same, in whatever case."""
    files = dict(given)
    for name in sorted(names, key=lambda name: (not name.startswith(f"{PACKAGE}."), name)):  # a user's own give way
        file = name.removeprefix(f"{PACKAGE}.").replace(".", "_")
        while file.lower() in {other.lower() for other in files.values()}:
            file += "_"
        files.setdefault(name, file)
    return files


def with_classes(text: str, classes: Mapping[str, type]) -> str:
    """The text with other classes imported by the names in `classes`; names that the text lacks are added as parts."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    statements = {node.names[0].asname: node for node in nodes}
    lines = {name: f"from {of.__module__} import {of.__qualname__} as {name}" for name, of in classes.items()}
    edits = {statements[name]: line for name, line in lines.items() if name in statements}
    more = [name for name in lines if name not in statements]
    if more:  # after the last one of the text
        last = max(edits, key=lambda statement: statement.lineno)
        edits[last] = "\n".join([edits[last], *(lines[name] for name in more)])
        text = text.replace(PARTS, PARTS[:-1] + "".join(f', "{name}": {name}' for name in more) + "}")
    return with_edits(text, edits)


def with_flat_imports(module: Module, files: Mapping[str, str]) -> str:
    """The module's text with imports of flat files."""
    data = module.text.encode()
    places = places_of([item.node for item in module.imports], data)
    edits = {item.node: flat_import(data[places[item.node]].decode(), item, files) for item in module.imports}
    return with_edits(module.text, edits)


def flat_import(old: str, item: OwnImport, files: Mapping[str, str]) -> str:
    """The statement, whose text is `old`, with flat files as the modules."""
    if not item.modules:
        return re.sub(r"^from\b.*?\bimport\b", f"from .{files[item.origin]} import", old, count=1, flags=re.DOTALL)
    modules = [(files[f"{item.origin}.{alias.name}"], alias.asname or alias.name) for alias in item.modules]
    by_name = "from . import " + ", ".join(file if file == name else f"{file} as {name}" for file, name in modules)
    names = ", ".join(ast.unparse(alias) for alias in item.names)
    return f"from .{files[item.origin]} import {names}; {by_name}" if names else by_name


def with_edits(text: str, edits: Mapping[ast.ImportFrom, str]) -> str:
    """The text with other statements in the places of some."""
    data = text.encode()
    places = places_of(edits, data)
    for node in sorted(edits, key=lambda node: places[node].start, reverse=True):
        data = data[: places[node].start] + edits[node].encode() + data[places[node].stop :]
    return data.decode()


def places_of(nodes: Iterable[ast.ImportFrom], data: bytes) -> dict[ast.ImportFrom, slice]:
    """Where the statements stand in a text; ast.get_source_segment would split it into lines for each of them."""
    starts = [0, *accumulate(len(line) for line in data.splitlines(keepends=True))]
    places = {}
    for node in nodes:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        places[node] = slice(
            starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        )
    return places
