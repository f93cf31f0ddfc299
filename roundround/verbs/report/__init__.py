"""`roundround report`, which only reads runs.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from roundround.config.verb import PAST, Verb

VERB = Verb(
    name="report",
    run="roundround.verbs.report.run:report",
    order=12,
    purpose=PAST,
    help="Write an HTML page for a run into its directory.",
    more="RUN is as for show; for a sweep, or for a pattern in quotes, each run gets its page, and a sweep its own.",
    reads={
        "open": ("false", "true: show the page in the browser"),
        "to": ("", "the file to write, FILE.html; by default report.html in the run directory"),
        "verb": ("", "the verb whose latest run `last` means: train, eval, ...; by default any"),
        "outputs": ("outputs", "the root of the run directories among which last is"),
    },
)
