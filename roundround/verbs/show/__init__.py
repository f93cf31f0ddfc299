"""`roundround show`, which only reads runs.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from roundround.config.verb import PAST, Verb

VERB = Verb(
    name="show",
    run="roundround.verbs.show.run:show",
    place=11,
    purpose=PAST,
    help="One run: settings, results, curves, files.",
    more="RUN is a run directory, last (the latest), or last~3 (the third before it); without one it is last.",
    reads={
        "verb": ("", "the verb whose latest run `last` means: train, eval, ...; by default any"),
        "outputs": ("outputs", "the root of the run directories among which last is"),
    },
)
