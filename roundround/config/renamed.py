"""Rooms that were renamed: runs, yamls and code of variants that hold an old dotted name still work.

Tested by tests/config/test_renamed.py.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RENAMED = {  # old name: new name; of the names that begin alike the longest counts
    "roundround.attention": "roundround.kernels",
    "roundround.attention.checks": "roundround.kernels.variants",
    "roundround.attention.compilation": "roundround.kernels.torch_internals",
    "roundround.attention.finals": "roundround.kernels.variants",
    "roundround.attention.kernels": "roundround.kernels.sdpa",
    "roundround.command_line.places": "roundround.command_line.launch",
    "roundround.loading.load": "roundround.hf.load",
    "roundround.runs": "roundround.records",
}


def today(name: str) -> str:
    """A dotted name as it is today."""
    for old in sorted(RENAMED, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return RENAMED[old] + name[len(old) :]
    return name


class OldNames(MetaPathFinder, Loader):
    """Imports a renamed module under its old name: it is the same module, so that a class exists once."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return None if today(name) == name else ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(today(spec.name))
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has just replaced it by the spec of the old name


def let_old_names_import() -> None:
    """For code of variants, which names rooms in its import lines.

    The rooms are known from now on, because importing one binds its name in the package: `roundround.attention` and
    `roundround.runs` are functions there.
    """
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())
        sys.modules["roundround.attention"] = importlib.import_module("roundround.kernels")
        sys.modules["roundround.runs"] = importlib.import_module("roundround.records")
