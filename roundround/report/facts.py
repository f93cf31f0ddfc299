"""What a page and a screen say of a run beside its results: where it comes from, its commands, its settings.

Tested by tests/report/test_page_command.py and tests/analysis/test_runs_and_show.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roundround.analysis.past_run import PastRun
from roundround.config.options import Change
from roundround.report.drawing.numbers import shown, text_of
from roundround.report.drawing.tables import Table, in_words
from roundround.verbs import verb_named

SHORT_HASH = 12  # characters


@dataclass(frozen=True)
class Fact:
    """A name and what stands beside it; `whole` where the shown value is cut."""

    name: str
    value: str
    whole: str = ""


def facts_of(run: PastRun) -> list[Fact]:
    """Where the run comes from: time, device, data, code and versions."""
    manifest, git = run.manifest, run.manifest.get("git") or {}
    looked_at, commit = manifest.get("run"), str(git.get("commit") or "")
    values = [
        ("verb", run.verb),
        ("status", run.status),
        ("started", run.started.isoformat(sep=" ", timespec="seconds")),
        ("duration", duration(run.seconds)),
        ("directory", str(run.directory)),
        ("looks at the model of", looked_at if looked_at != str(run.directory) else None),
        ("job of the sweep", manifest["sweep"]),
        ("seed", manifest["seed"]),
        ("device", manifest.get("device")),
        *manifest["facts"].items(),
        *(manifest["data"] or {}).items(),
        ("roundround", manifest["roundround"]),
    ]
    found = [fact_of(name, value) for name, value in values if value is not None]
    if commit:
        patched = ", with uncommitted changes (code.patch)" if git.get("dirty") else ""
        found.append(Fact("commit", commit[:SHORT_HASH] + patched, commit))
    if versions := manifest.get("versions"):
        found.append(Fact("versions", ", ".join(f"{name} {text_of(value)}" for name, value in versions.items())))
    return found


def fact_of(name: str, value: Any) -> Fact:
    """A hash is cut; a seed and the id of a token are numbers whose digits stay together."""
    if name.endswith("_hash") and isinstance(value, str):
        return Fact(in_words(name), value[:SHORT_HASH], value)
    together = name == "seed" or name.endswith("of_document")
    return Fact(in_words(name), text_of(value) if together else shown(value))


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "not known"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def commands_of(run: PastRun) -> list[tuple[str, str]]:
    """How to run it again: from its manifest, and as it was typed in its folder."""
    again = shlex.join(["roundround", "rerun", str(run.directory)])
    repeated = [("again, and compare the numbers", again)] if verb_named(run.verb).repeats else []
    folder = run.manifest.get("cwd")
    return [*repeated, ("as it was given" + (f" in {folder}" if folder else ""), run.manifest["command"])]


def settings_of(run: PastRun, changes: Sequence[Change] | None) -> Table:
    """What differs from the defaults, with them; where these are not known, what the command line gave."""
    if changes is None:
        given = [list(word.partition("=")[::2]) for word in run.manifest["overrides"]]
        return Table("Given on the command line", ["setting", "value"], given)
    rows = [[change.key, text_of(change.value), text_of(change.default)] for change in changes]
    return Table("What differs from the defaults", ["setting", "value", "default"], rows)
