"""What came of each item, as it lies in the run directories of `roundround reproduce` and beside the page in docs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roundround.papers.claim import Comparison
from roundround.papers.figures.runner import Made
from roundround.runs.directories import all_runs, runs_of
from roundround.runs.manifest import time_of
from roundround.support.files import parse_json, read_text, write_json

FILE = "outcomes.json"
LARGEST = 16 << 20  # bytes


@dataclass(frozen=True)
class Entry:
    """What came of an item. model: of a figure of a pretrained model; figure: its name in the run's figures, or None.

    seconds: how long it took, verbs that had run before left out.
    """

    name: str
    verdict: str
    ours: str
    comparisons: Sequence[Comparison]
    remark: str
    untested: str
    model: str | None
    is_the_papers: bool
    runs: Sequence[Made]
    figure: str | None
    seconds: float
    ended: str


def write(entries: Sequence[Entry], directory: Path) -> None:
    """Into a folder; infinite ends of intervals as null, which every reader of json knows."""
    write_json(directory / FILE, [without_infinities(asdict(entry)) for entry in entries])


def without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(directory: Path) -> list[Entry]:
    """The entries of a folder; none where there is no such file, or a damaged one."""
    try:
        return [entry_of(recorded) for recorded in parse_json(read_text(directory / FILE, LARGEST))]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def entry_of(recorded: Mapping[str, Any]) -> Entry:
    comparisons = [
        Comparison(c["what"], number(c["ours"], math.nan), number(c["low"], -math.inf), number(c["high"], math.inf),
                   c["published"], number(c["error"], math.inf), c["signed"])
        for c in recorded["comparisons"]
    ]  # fmt: skip
    runs = [Made(run["command"], Path(run["directory"]), run["taken"]) for run in recorded["runs"]]
    ended = time_of(recorded["ended"]).isoformat()
    return Entry(**{**recorded, "comparisons": comparisons, "runs": runs, "ended": ended})


def number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)


def newest(outputs: str) -> dict[str, tuple[Entry, Path]]:
    """What was found last of every item under `outputs`, and the folder of its figure."""
    runs = all_runs(runs_of(outputs, "reproduce"), "reproduce", done=False)
    return newest_of((entry, directory / "figures") for directory, _ in runs for entry in read(directory))


def newest_of(entries: Iterable[tuple[Entry, Path]]) -> dict[str, tuple[Entry, Path]]:
    """The last entry of every item. What was made of the paper's own model comes before what was made of another."""
    found: dict[str, tuple[Entry, Path]] = {}
    for entry, figures in sorted(entries, key=lambda pair: time_of(pair[0].ended)):
        if entry.name not in found or entry.is_the_papers >= found[entry.name][0].is_the_papers:
            found[entry.name] = entry, figures
    return found
