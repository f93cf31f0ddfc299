"""Names in a syntax tree: what a module defines, where its functions hide that, and edits of the text at those places.

It knows no module but the one it looks at; `bundle` decides what is called what.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

N = TypeVar("N", bound=ast.AST)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
SCOPES = DEFINITIONS | ast.Lambda | COMPREHENSIONS


@dataclass(frozen=True)
class Edit:
    """New text for the place of a node, (line, byte) to (line, byte), lines from 1; `old` is checked where given."""

    node: ast.AST
    start: tuple[int, int]
    end: tuple[int, int]
    new: str
    old: str | None = None

    @classmethod
    def of(cls, node: Any, new: str, old: str | None = None) -> Edit:
        return cls(node, (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), new, old)

    def covers(self, other: Edit) -> bool:
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Names:
    """What the names of a module's top level are: its own definitions, or imports from elsewhere (name -> what)."""

    defined: set[str]
    imported: dict[str, str]

    @classmethod
    def of(cls, tree: ast.Module, without: set[str]) -> Names:
        """`without` are names that are imported from modules that are joined too."""
        imported = {}
        for node in at_module_level(tree, ast.Import | ast.ImportFrom, inside=(ast.Try, ast.If)):
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                continue
            origin = f"{'.' * node.level}{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                if name not in without:
                    imported[name] = origin + (alias.name if origin or alias.asname else name)
        defined = bound(tree.body) - imported.keys() - without
        return cls(defined, imported)


def at_module_level(tree: ast.Module, kind: Any, inside: tuple[type, ...] = ()) -> Iterator[Any]:
    """Statements of a kind that stand at the top level, or there inside statements of the other kinds."""
    ahead: list[ast.AST] = list(tree.body)
    for node in ahead:
        if isinstance(node, kind):
            yield node
        elif isinstance(node, inside):
            ahead += ast.iter_child_nodes(node)


def bound(body: list[Any]) -> set[str]:
    """Names that statements bind in their own scope."""
    found: set[str] = set()
    ahead = list(body)
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, DEFINITIONS | ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        if not isinstance(node, SCOPES):
            ahead += ast.iter_child_nodes(node)
    return found


def parameters(arguments: ast.arguments) -> set[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument is not None}


def definition_edits(tree: ast.Module, text: str, names: Mapping[str, str]) -> list[Edit]:
    """Edits of the names of top-level functions and classes that are called otherwise."""
    edits = []
    lines = text.encode().split(b"\n")
    for node in tree.body:
        if isinstance(node, DEFINITIONS) and names.get(node.name, node.name) != node.name:
            opening = re.match(rb"(async\s+)?(def|class)\s+", lines[node.lineno - 1][node.col_offset :])
            assert opening is not None, f"line {node.lineno} begins a definition"
            start = node.col_offset + opening.end()
            end = start + len(node.name.encode())
            edits.append(Edit(node, (node.lineno, start), (node.lineno, end), names[node.name], node.name))
    return edits


def reference_edits(tree: ast.Module, names: Mapping[str, str], modules: Mapping[str, Mapping[str, str]]) -> list[Edit]:
    """Edits of every use of a top-level name that is called otherwise, and of every `module.name`."""
    finder = References(names, modules)
    finder.visit(tree)
    return finder.edits


class References(ast.NodeVisitor):
    """Walks a module as Python looks names up: what a function binds hides the module's, a class only for itself."""

    def __init__(self, names: Mapping[str, str], modules: Mapping[str, Mapping[str, str]]) -> None:
        self.names, self.modules = names, modules
        self.scopes: list[tuple[bool, set[str]]] = []  # whether it is a class, and what is bound there
        self.edits: list[Edit] = []

    def hidden(self, name: str) -> bool:
        innermost = len(self.scopes) - 1
        return any(name in found for i, (is_class, found) in enumerate(self.scopes) if not is_class or i == innermost)

    def replace(self, node: ast.expr, new: str, old: str) -> None:
        if new != old:
            if self.hidden(new):
                raise ValueError(f"line {node.lineno}: a variable here is called {new}, as something else in the file")
            self.edits.append(Edit.of(node, new, old))

    def visit_Name(self, node: ast.Name) -> None:
        if self.hidden(node.id):
            return
        if node.id in self.modules:
            raise ValueError(f"line {node.lineno}: {node.id} is a module; only its names can be used")
        self.replace(node, self.names.get(node.id, node.id), node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.value, ast.Name) or node.value.id not in self.modules or self.hidden(node.value.id):
            self.generic_visit(node)
            return
        of = self.modules[node.value.id]
        if node.attr not in of:
            raise ValueError(f"line {node.lineno}: {node.value.id} does not define {node.attr}")
        self.replace(node, of[node.attr], f"{node.value.id}.{node.attr}")

    def visit_Global(self, node: ast.Global) -> None:
        if any(self.names.get(name, name) != name for name in node.names):
            raise ValueError(f"line {node.lineno}: a global that has to be called otherwise")

    def inside(self, is_class: bool, found: set[str], *nodes: Any) -> None:
        self.scopes.append((is_class, found))
        for node in nodes:
            self.visit(node)
        self.scopes.pop()

    def visit_FunctionDef(self, node: Any) -> None:
        for outer in (*node.decorator_list, node.args, *([node.returns] if node.returns else [])):
            self.visit(outer)
        given = {n for s in ast.walk(node) if isinstance(s, ast.Global) for n in s.names}
        taken = set(self.names) | set(self.modules)
        imported = {n for s in node.body for n in imported_inside(s)} & taken  # of joined modules: not hidden
        found = (bound(node.body) - imported - given) | parameters(node.args)
        self.inside(False, found, *node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        self.inside(False, parameters(node.args), node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for outer in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(outer)
        self.inside(True, bound(node.body), *node.body)

    def comprehension(self, node: Any) -> None:
        found = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.visit(node.generators[0].iter)
        first = node.generators[0]
        inner = [first.target, *first.ifs, *node.generators[1:]]
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.inside(False, found, *inner, *results)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension


def imported_inside(node: ast.AST) -> set[str]:
    """Names that import statements below a node bind."""
    statements = [s for s in ast.walk(node) if isinstance(s, ast.ImportFrom)]
    return {alias.asname or alias.name for statement in statements for alias in statement.names}


def applied(text: str, edits: list[Edit]) -> str:
    """The text with the edits made. ValueError where a place does not hold what the tree says."""
    lines = text.encode().split(b"\n")
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        (a, from_byte), (b, to_byte) = edit.start, edit.end
        before, after = lines[a - 1][:from_byte], lines[b - 1][to_byte:]
        there = lines[a - 1][from_byte:to_byte] if a == b else None
        if edit.old is not None and there != edit.old.encode():
            raise ValueError(f"line {a}: {edit.old} cannot be replaced here; write it on a line of its own")
        if not edit.new and not before.strip() and re.fullmatch(rb"\s*(#.*)?", after):
            lines[a - 1 : b] = []
        else:
            lines[a - 1 : b] = (before + edit.new.encode() + after).split(b"\n")
    return b"\n".join(lines).decode()
