"""Packages and modules that were renamed. Runs, yamls and users' classes that use an old dotted name still work.

Tested by tests/config/test_renamed.py.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

RENAMED = {  # old name: new name; if several old names are prefixes of a dotted name, the longest applies
    "roundround.attention": "roundround.kernels",
    "roundround.attention.checks": "roundround.kernels.variants",
    "roundround.attention.compilation": "roundround.kernels.torch_internals",
    "roundround.attention.finals": "roundround.kernels.variants",
    "roundround.attention.kernels": "roundround.kernels.sdpa",
    "roundround.command_line.places": "roundround.command_line.launch",
    "roundround.data.mixture": "roundround.data.prepared",
    "roundround.data.pydoc": "roundround.data.local_texts",
    "roundround.data.stories": "roundround.data.local_texts",
    "roundround.data.tasks.addition": "roundround.data.tasks.counting",
    "roundround.data.tasks.clrs_files": "roundround.data.tasks.clrs_text",
    "roundround.data.tasks.clrs_hub": "roundround.data.tasks.clrs_text",
    "roundround.data.tasks.copy": "roundround.data.tasks.copying",
    "roundround.data.tasks.flip_flop": "roundround.data.tasks.counting",
    "roundround.data.tasks.induction": "roundround.data.tasks.recalling",
    "roundround.data.tasks.local_count": "roundround.data.tasks.counting",
    "roundround.data.tasks.max": "roundround.data.tasks.recalling",
    "roundround.data.tasks.mqar": "roundround.data.tasks.recalling",
    "roundround.data.tasks.mqmtar": "roundround.data.tasks.recalling",
    "roundround.data.tasks.n_back": "roundround.data.tasks.counting",
    "roundround.data.tasks.parity": "roundround.data.tasks.counting",
    "roundround.data.tasks.passkey": "roundround.data.tasks.recalling",
    "roundround.data.tasks.recall": "roundround.data.tasks.recalling",
    "roundround.data.tasks.repeat": "roundround.data.tasks.copying",
    "roundround.data.tasks.reverse": "roundround.data.tasks.copying",
    "roundround.data.tasks.sort": "roundround.data.tasks.copying",
    "roundround.loading.load": "roundround.hf.load",
    "roundround.records.loggers.csv": "roundround.records.loggers.base",
    "roundround.records.loggers.none": "roundround.records.loggers.base",
    "roundround.records.loggers.several": "roundround.records.loggers.base",
    "roundround.records.loggers.tensorboard": "roundround.records.loggers.base",
    "roundround.records.loggers.wandb": "roundround.records.loggers.base",
    "roundround.runs": "roundround.records",
    "roundround.training.muon": "roundround.training.optim",
    "roundround.training.schedules": "roundround.training.optim",
}


def today(name: str) -> str:
    """The present dotted name of a class or module, given its present or an old name."""
    for old in sorted(RENAMED, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return today(RENAMED[old] + name[len(old) :])
    return name


def let_old_names_import() -> None:
    """Make each renamed module importable under its old name too, for users' modules that use the old name.

    Both names give the same module object, so that each class exists only once.
    """
    for old, new in RENAMED.items():
        room = importlib.import_module(new)
        sys.modules.setdefault(old, room)
        for found in pkgutil.walk_packages(vars(room).get("__path__", []), f"{new}."):
            sys.modules.setdefault(old + found.name.removeprefix(new), importlib.import_module(found.name))
