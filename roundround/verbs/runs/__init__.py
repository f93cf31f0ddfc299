"""`roundround runs`, which only reads runs.

Tested by tests/config/test_verbs.py.
"""

from __future__ import annotations

from roundround.config.verb import PAST, Verb

VERB = Verb(
    name="runs",
    run="roundround.verbs.runs.run:runs",
    place=10,
    purpose=PAST,
    help="List past runs, newest first.",
    more="RUN is a folder of runs, or a pattern in quotes; without one, all under outputs. Every other KEY=VALUE "
    "chooses the runs that have this setting, such as pe=p_rope or optim.lr=1e-3.",
    reads={
        "verb": ("", "only runs of this verb: train, eval, ...; by default of any"),
        "status": ("", "done, running, interrupted, failed or died, several with commas between; by default any"),
        "since": ("", "only runs started since then: 90m, 2d, 1w, or a date such as 2026-11-20; by default all"),
        "limit": ("30", "how many to show at most, or all"),
        "format": ("table", "table or json"),
        "outputs": ("outputs", "the root of all run directories"),
    },
)
