"""The verbs. Each is a folder (`__init__.py` has the entry and the config, `run.py` the function) or a single file.

The entries import only the standard library and `config/verb.py`, so that every package may read them.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

import importlib
import pkgutil

from roundround.config.verb import Verb


def verb_named(name: str) -> Verb:
    """The verb of this name or alias; for an unknown name, as in a run of another version, a verb with only a name."""
    unknown = Verb(name=name, run="", order=0, help="", title=name.replace("-", " ").capitalize())
    return next((verb for verb in VERBS if name in (verb.name, *verb.aliases)), unknown)


def keys_of(*roles: str) -> set[str]:
    """The keys of all verbs that have one of these roles. A key that several verbs share has one role in all."""
    return {name for verb in VERBS for name in verb.keys_of(*roles)}


# all verbs of this package, in the order of --help
VERBS: list[Verb] = sorted(
    (importlib.import_module(f"{__name__}.{module.name}").VERB for module in pkgutil.iter_modules(__path__)),
    key=lambda verb: verb.order,
)
