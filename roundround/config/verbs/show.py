"""`roundround show`, which only reads runs."""

from __future__ import annotations

from roundround.config.verbs import Verb

VERB = Verb(
    name="show",
    run="roundround.verbs.show:show",
    place=12,
    help="One run on a screen: settings, results, curves, files.",
    more="RUN is a run directory, last, or last~3, the third before it; verb=train and outputs=DIR say among which.",
)
