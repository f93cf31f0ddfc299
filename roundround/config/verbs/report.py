"""`roundround report`, which only reads runs."""

from __future__ import annotations

from roundround.config.verbs import Verb

VERB = Verb(
    name="report",
    run="roundround.verbs.report:report",
    place=13,
    help="One HTML page for a run, written into its directory.",
    more="RUN as for show, a sweep or a pattern: a page for each. open=true shows it in the browser, to=FILE.html "
    "writes it elsewhere.",
)
