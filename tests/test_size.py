"""What keeps the house small: a limit on the statements of the package, and no file for one user alone."""

from __future__ import annotations

import size
from conftest import ROOT

from roundround.support.imports import import_statements

FILES = sorted(size.PACKAGE.rglob("*.py"))


def test_the_package_has_at_most_31290_statements() -> None:
    """A limit on the whole: a limit on each file was met by splitting files while the whole doubled."""
    assert size.statements().total() <= 31_290


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
        apart = module in variants or by_name or page or small == "__main__.py" or small.endswith("/run.py")
        assert apart or len(imported.get(module, ())) > 1, small
