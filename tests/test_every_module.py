"""Where the test of a module is found: under its own name, or as the docstring of the module or its package says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "roundround"
MODULES = {path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}


@pytest.mark.parametrize("module", sorted(MODULES), ids=str)
def test_the_test_of_a_module_has_its_name_or_is_named_by_its_docstring(module: Path) -> None:
    if all(isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) for node in MODULES[module].body):
        return  # nothing to test
    own = ROOT / "tests" / module.parent / f"test_{module.stem}.py"
    packages = [folder / "__init__.py" for folder in module.parents if folder.name]
    said = "\n".join(ast.get_docstring(MODULES[place]) or "" for place in (module, *packages) if place in MODULES)
    named = re.findall(r"\bTested by (.+?)\.$", said, re.MULTILINE | re.DOTALL)
    assert own.exists() or named, f"add a last line `Tested by tests/...` to the docstring of roundround/{module}"
    for name in re.findall(r"tests/[\w/]+(?:\.py)?", " ".join(named)):
        assert "NAME" in name or (ROOT / name).exists(), f"roundround/{module} names {name}"


@pytest.mark.parametrize("module", sorted(MODULES), ids=str)
def test_no_sentence_begins_with_of(module: Path) -> None:
    """Docstrings, comments and messages put the subject first."""
    text = (PACKAGE / module).read_text(encoding="utf-8")
    assert re.findall(r"""(?:^\s*|["'(]|\. |# )Of [a-z].*""", text, re.MULTILINE) == []
