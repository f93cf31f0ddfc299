"""The verbs of the command line. Each is a folder or a single file.

In a folder, `__init__.py` has the verb's entry (a `Verb`) and the verb's config; `run.py` has the function that runs
the verb. The entries import only the standard library and `config/verb.py`, so every package can import them.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

import importlib
import pkgutil

from roundround.config.verb import Verb


def verb_named(name: str) -> Verb:
    """The verb with this name or alias.

    If no verb has this name, returns a `Verb` with only the name. A run of another version can have such a verb.
    """
    unknown = Verb(name=name, run="", order=0, help="", title=name.replace("-", " ").capitalize())
    return next((verb for verb in VERBS if name in (verb.name, *verb.aliases)), unknown)


def keys_of(*roles: str) -> set[str]:
    """The keys, in the configs of all verbs, that have one of these roles (SETTING and others in `config/verb.py`).

    If several verbs have a key, it has the same role in all of them.
    """
    return {name for verb in VERBS for name in verb.keys_of(*roles)}


# all verbs of this package, in the order of --help
VERBS: list[Verb] = sorted(
    (importlib.import_module(f"{__name__}.{module.name}").VERB for module in pkgutil.iter_modules(__path__)),
    key=lambda verb: verb.order,
)
