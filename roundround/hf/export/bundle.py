"""Sources joined to one file: the modules that some classes need, in order, imports of one another taken out.

Texts are edited, not written anew, so comments and layout stay. Where two modules give one name to different things, or
a module is used by its name (`kernels.forward`), the name gets that of its module in front (`kernels_forward`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from roundround.errors import UserError, one_line
from roundround.hf.export.names import Edit, Names, applied, at_module_level, definition_edits, reference_edits

HERE = "roundround"
PORTABLE = {"attention", "pe", "softmax", "model"}  # the parts that import torch and nothing heavier
IMPORTS = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Source:
    """One module: its dotted name, its file, its text and the syntax tree of that."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[2]


class Library:
    """Modules that may be joined: roundround's portable ones, and those of a user's own beside the given classes."""

    def __init__(self, main: str, classes: list[type]) -> None:
        self.main = main
        self.roots = {HERE: Path(__file__).resolve().parents[3]}
        self.sources: dict[str, Source | None] = {}
        for of in classes:
            self.roots.setdefault(of.__module__.partition(".")[0], root_of(of))

    def find(self, name: str) -> Source | None:
        """The module of this name, None where it is to be imported. UserError for one of ours that cannot travel."""
        if name not in self.sources:
            self.sources[name] = self.read(name)
        return self.sources[name]

    def read(self, name: str) -> Source | None:
        first = name.partition(".")[0]
        beside = [root for key, root in self.roots.items() if key != HERE and "site-packages" not in root.parts]
        for root in [self.roots[first]] if first in self.roots else beside:
            stem = root.joinpath(*name.split("."))
            for path in (stem.with_name(stem.name + ".py"), stem / "__init__.py"):
                if path.is_file():
                    self.refuse_immovable(name)
                    text = path.read_text(encoding="utf-8")
                    return Source(name, path, text, ast.parse(text))
        return None

    def refuse_immovable(self, name: str) -> None:
        parts = name.split(".")
        if parts[0] == HERE and name != self.main and len(parts) > 1 and parts[1] not in PORTABLE:
            raise UserError(f"{name} cannot travel with a model; its parts may import {', '.join(sorted(PORTABLE))}")

    def imported(self, source: Source, node: ast.ImportFrom) -> Iterator[tuple[ast.alias, Source, str | None]]:
        """For each name that the statement takes from here: alias, module, and the name in it (None: the module)."""
        origin = node.module or ""
        if node.level:
            base = source.package.split(".")[: len(source.package.split(".")) - node.level + 1]
            origin = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            if alias.name == "*" and self.find(origin):
                raise UserError(f"{source.path}, line {node.lineno}: name what is imported instead of *")
            inner = self.find(f"{origin}.{alias.name}")
            outer = None if inner else self.find(origin)
            if inner or outer:
                yield alias, inner or outer, None if inner else alias.name  # type: ignore[misc]


def root_of(of: type) -> Path:
    """The folder in which the module of a class is found by its name. UserError where its source is not at hand."""
    file = getattr(sys.modules.get(of.__module__), "__file__", None)
    if file is None or not file.endswith(".py") or "<locals>" in of.__qualname__ or of.__module__ == "__main__":
        raise UserError(f"the source of {of.__module__}.{of.__qualname__} cannot be found, and a model needs it")
    n_up = of.__module__.count(".") + (1 if Path(file).name == "__init__.py" else 0)
    return Path(file).resolve().parents[n_up]


def bundle(main: str, values: Mapping[str, type], *, heading: str) -> str:
    """The module `main` and everything of ours that it and the classes need, as the text of one module.

    values: what top-level variables of `main` are to hold. heading: comment lines for the top. Raises UserError where a
    source is missing or cannot be joined.
    """
    library = Library(main, list(values.values()))
    sources = ordered(library, [*(of.__module__ for of in values.values()), main])
    kept = {source.name: Names.of(source.tree, ours(library, source)) for source in sources}
    flat = flat_names(library, sources, kept)
    given = {name: flat[of.__module__, of.__qualname__] for name, of in values.items()}
    sections = [section(library, source, flat, given if source.name == main else {}) for source in sources]
    imports = import_lines({pair for source in sources for pair in outer_imports(library, source)})
    text = "\n\n\n".join(["\n".join([heading, "", "from __future__ import annotations", "", *imports]), *sections])
    try:
        compile(text, "modeling", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UserError(f"the sources do not join to one file: {one_line(error)}") from error
    return text + "\n"


def ordered(library: Library, names: list[str]) -> list[Source]:
    """The modules and all that they import, each after what it imports."""
    done: dict[str, Source] = {}
    begun: set[str] = set()

    def add(source: Source) -> None:
        if source.name in begun:
            return
        begun.add(source.name)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom):
                for _, other, _ in library.imported(source, node):
                    add(other)
        done[source.name] = source

    for name in names:
        found = library.find(name)
        assert found is not None, f"{name} has a source"
        add(found)
    return list(done.values())


def ours(library: Library, source: Source) -> set[str]:
    """Names that the module takes from other joined modules."""
    found = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if library.find(alias.name):
                    raise UserError(f"{source.path}, line {node.lineno}: write from ... import instead of import ...")
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias, _, _ in library.imported(source, node)}
    return found


def flat_names(library: Library, sources: list[Source], kept: dict[str, Names]) -> dict[tuple[str, str], str]:
    """(module, name) of every definition -> its name in the one file."""
    owners = Counter(name for names in kept.values() for name in names.defined)
    outside: dict[str, str] = {}
    for names in kept.values():
        for name, what in names.imported.items():
            if outside.setdefault(name, what) != what:
                raise UserError(f"{name} is imported as {outside[name]} and as {what}; give one of them another name")
    by_module = set()
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom):
                by_module |= {other.name for _, other, name in library.imported(source, node) if name is None}
    flat: dict[tuple[str, str], str] = {}
    taken = set(outside) | {name for name, n in owners.items() if n == 1}
    for source in sources:
        for name in sorted(kept[source.name].defined):
            new = name
            if owners[name] > 1 or name in outside or source.name in by_module:
                new = f"{source.stem}_{name}"
                while new in taken:
                    new += "_"
            taken.add(new)
            flat[source.name, name] = new
    return flat


def section(library: Library, source: Source, flat: dict[tuple[str, str], str], given: dict[str, str]) -> str:
    """The module's text as it stands in the one file, below a line that names it."""
    try:
        names, modules, edits = links(library, source, flat)
        for node in source.tree.body:
            if isinstance(node, IMPORTS) and not any(edit.node is node for edit in edits):
                edits.append(Edit.of(node, ""))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in given:
                edits.append(Edit.of(node, f"{names[node.target.id]} = {given[node.target.id]}"))
        head = [f"# {'-' * 20} {source.name}"]
        docstring = ast.get_docstring(source.tree)
        if docstring is not None:
            head += ["#", *(f"# {line}".rstrip() for line in docstring.splitlines())]
            edits.append(Edit.of(source.tree.body[0], ""))
        edits += definition_edits(source.tree, source.text, names)
        edits += [e for e in reference_edits(source.tree, names, modules) if not any(o.covers(e) for o in edits)]
        body = applied(source.text, edits).strip("\n")
    except ValueError as error:
        raise UserError(f"{source.path}, {error}") from error
    return "\n".join(head) + "\n\n\n" + re.sub(r"\n{4,}", "\n\n\n", body)


def links(
    library: Library, source: Source, flat: dict[tuple[str, str], str]
) -> tuple[dict[str, str], dict[str, dict[str, str]], list[Edit]]:
    """What the module's names are called in the one file, what those of other modules are that it uses by their name
    (`kernels.forward`), and the edits that take out the imports of joined modules."""
    names = {name: new for (module, name), new in flat.items() if module == source.name}
    modules: dict[str, dict[str, str]] = {}
    edits: list[Edit] = []
    for node in ast.walk(source.tree):
        taken = list(library.imported(source, node)) if isinstance(node, ast.ImportFrom) else []
        if taken and len(taken) < len(node.names):  # type: ignore[attr-defined]
            raise ValueError(f"line {node.lineno}: import modules of this file and others apart")  # type: ignore[attr-defined]
        for alias, other, name in taken:
            if name is None:
                modules[alias.asname or alias.name] = {n: new for (m, n), new in flat.items() if m == other.name}
            else:
                names[alias.asname or alias.name] = resolved(library, flat, other, name)
        if taken:
            edits.append(Edit.of(node, "" if node in source.tree.body else "pass"))
    return names, modules, edits


def resolved(library: Library, flat: dict[tuple[str, str], str], module: Source, name: str) -> str:
    """The one file's name for a name of a module, followed through modules that only pass it on. UserError."""
    if (module.name, name) in flat:
        return flat[module.name, name]
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias, other, inner in library.imported(module, node):
                if inner is not None and (alias.asname or alias.name) == name:
                    return resolved(library, flat, other, inner)
    raise UserError(f"{module.path} does not define {name}")


def outer_imports(library: Library, source: Source) -> Iterator[tuple[str, str]]:
    """The module's imports from elsewhere as (module, name); name is empty for `import module`."""
    for node in at_module_level(source.tree, IMPORTS):
        if isinstance(node, ast.Import):
            yield from ((ast.unparse(alias), "") for alias in node.names)
        elif node.module != "__future__" and not any(library.imported(source, node)):
            yield from ((node.module, ast.unparse(alias)) for alias in node.names)


def import_lines(imports: set[tuple[str, str]]) -> list[str]:
    """Import statements, one a module, the standard library first."""
    groups: list[list[str]] = [[], []]
    whole = [(module, f"import {module}") for module, name in sorted(imports) if not name]
    parts = [
        (module, f"from {module} import {', '.join(sorted(name for m, name in imports if m == module and name))}")
        for module in sorted({module for module, name in imports if name})
    ]
    for module, line in whole + parts:
        groups[re.split(r"[. ]", module)[0] not in sys.stdlib_module_names].append(line)
    return [*groups[0], "", *groups[1]]
