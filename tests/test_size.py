"""What keeps the house small: a budget of statements for the package and each room, and no file for one user alone."""

from __future__ import annotations

import size
from conftest import ROOT

from roundround.support.imports import import_statements

NOW, LATER = 27_421, 28_100  # statements of all rooms, and with the parts of the reserve
FILES = sorted(size.PACKAGE.rglob("*.py"))


def test_no_room_is_over_its_budget() -> None:
    """A limit on the whole: a limit on each file was met by splitting files while the whole doubled."""
    now, allowed = size.statements(), size.rooms(size.budget())
    assert {room: number for room, number in now.items() if number > allowed.get(room, 0)} == {}


def test_the_budgets_have_totals() -> None:
    assert sum(size.rooms(size.budget()).values()) <= NOW
    assert sum(size.budget().values()) <= LATER


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
        by_name = f'"{module}"' in code or f'"{module}:' in code  # so that who uses it waits for no slow library
        apart = module in variants or by_name or small == "__main__.py"
        assert apart or len(imported.get(module, ())) > 1, small
