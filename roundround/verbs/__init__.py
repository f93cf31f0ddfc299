"""The verbs, a folder each: `__init__.py` has the entry and the typed config, `run.py` the function; small ones a file.

The entries import the standard library and `config/verb.py` alone: every room may read them.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

import importlib
import pkgutil

from roundround.config.verb import Verb


def verb_named(name: str) -> Verb:
    """The verb of this name or alias; of one that is not known, as a run of another version may have, nothing else."""
    unknown = Verb(name=name, run="", order=0, help="", title=name.replace("-", " ").capitalize())
    return next((verb for verb in VERBS if name in (verb.name, *verb.aliases)), unknown)


def keys_of(*roles: str) -> set[str]:
    """The keys of all verbs that have one of these roles; a key of several has the same in each."""
    return {name for verb in VERBS for name in verb.keys_of(*roles)}


# all that stand here, in the order of --help
VERBS: list[Verb] = sorted(
    (importlib.import_module(f"{__name__}.{module.name}").VERB for module in pkgutil.iter_modules(__path__)),
    key=lambda verb: verb.order,
)
