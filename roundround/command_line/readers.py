"""The door to verbs that only read runs: no Hydra, no run directory. Words are runs, or key=value.

Tested by tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable

from roundround.command_line.complaint import complain, outcome
from roundround.config.verb import Verb
from roundround.distributed.launcher import check_alone
from roundround.support.errors import Failed, OutputError, UserError
from roundround.support.files import check_current_folder
from roundround.verbs import VERBS


def read(verb: Verb, words: list[str]) -> int:
    """Call the verb's function with the names and the values of what is typed; the exit code."""
    module, _, name = verb.run.partition(":")
    try:
        check_current_folder()
        check_alone(verb.name, [other.name for other in VERBS if other.parallel])
        names, values = names_and_values(words)
        function: Callable[[list[str], dict[str, str]], None] = getattr(importlib.import_module(module), name)
        function(names, values)
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1" and not isinstance(error, UserError | Failed | OutputError):
            raise
        code, line = outcome(error)
        return complain(verb.name, line, code) if line else code
    return 0


def names_and_values(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Words without `=`, or that exist as a path, and the others by their key. UserError for a key given twice."""
    names: list[str] = []
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or os.path.lexists(word):
            names.append(word)
        elif not key or key in values:
            raise UserError(f"{word}: {f'{key} is given twice' if key else 'write key=value'}")
        else:
            values[key] = value
    return names, values
