"""`roundround runs`, which only reads runs."""

from __future__ import annotations

from roundround.config.verbs import Verb

VERB = Verb(
    name="runs",
    run="roundround.verbs.runs:runs",
    place=11,
    help="The runs there are, newest first.",
    more="RUN is a folder of runs, or a pattern in quotes; without one, all under outputs=DIR. KEY=VALUE chooses: "
    "verb=train status=failed,died since=2d pe=p_rope optim.lr=1e-3. Also limit=30 or all, format=table or json.",
)
