"""What a run left, read for the page: of a file that is damaged, half-written or missing a remark tells."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundround.analysis.past_run import DIED, PastRun, past_run
from roundround.report.tables import Record
from roundround.runs.directories import METRICS, RESULTS
from roundround.support.errors import UserError, one_line
from roundround.support.files import check_is_file, parse_json, read_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_ARRAY = 256 << 20  # bytes


@dataclass
class RunFiles:
    """A run, and `remarks`: a line for each thing that could not be read."""

    run: PastRun
    remarks: list[str] = field(default_factory=list)

    def records(self) -> list[Record]:
        """The records of results.json; none where it is damaged or not there."""
        try:
            found = self.run.results()
        except UserError as error:
            self.remarks.append(f"{one_line(error)}: no results are shown")
            return []
        if not found:
            self.remarks.append(f"there is no {RESULTS}, or none in it: the run has no results yet")
        return found

    def metrics(self) -> list[Record]:
        """The lines of metrics.jsonl in their order; those that are damaged are counted."""
        try:
            found, n_damaged = self.run.metrics()
        except UserError as error:
            self.remarks.append(f"{one_line(error)}: no curves are shown")
            return []
        if n_damaged:
            lines = "line is" if n_damaged == 1 else "lines are"
            self.remarks.append(f"{METRICS}: {n_damaged:,} {lines} damaged and left out")
        return found

    def json(self, name: str) -> Any:
        """The content of a json file; None where there is none, or where it is damaged."""
        try:
            return parse_json(read_text(self.run.directory / name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.remarks.append(f"{name} cannot be read ({one_line(error)}); nothing of it is shown")
            return None

    def arrays(self, name: str, wanted: Callable[[str], bool] = lambda key: True) -> dict[str, NDArray[Any]]:
        """The wanted arrays of a safetensors file by name; none where it is not there or damaged."""
        path = self.run.directory / name
        if not path.exists():
            return {}
        from safetensors import SafetensorError, safe_open

        try:
            check_is_file(path)
            with safe_open(path, framework="numpy") as file:
                names: list[str] = file.keys()
                keys = [key for key in names if wanted(key)]
                sizes = {key: 4 * math.prod(file.get_slice(key).get_shape()) for key in keys}
                too_large = [key for key in keys if sizes[key] > LARGEST_ARRAY]
                if too_large:
                    self.remarks.append(f"{name}: {', '.join(too_large)} is too large for a page")
                return {key: file.get_tensor(key) for key in keys if key not in too_large}
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            self.remarks.append(f"{name} cannot be read ({one_line(error)}); nothing of it is shown")
            return {}

    def about(self, name: str) -> dict[str, str]:
        """The metadata of a safetensors file; none where it is not there or damaged."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.run.directory / name, framework="numpy") as file:
                return dict(file.metadata() or {})
        except (OSError, SafetensorError, ValueError):
            return {}

    def words(self, name: str) -> list[str]:
        """The tokens that a safetensors file keeps as words in its metadata."""
        try:
            words = parse_json(self.about(name).get("words", "[]"))
        except ValueError:
            return []
        return [str(word) for word in words] if isinstance(words, list) else []


def opened_run(directory: Path) -> RunFiles:
    """The run in a directory, with a remark where it has not ended well. UserError where there is none."""
    run = past_run(directory)
    files = RunFiles(run)
    if run.status == "running":
        files.remarks.append("the run has not ended: the page shows what there is so far")
    elif run.status == DIED:
        files.remarks.append("the run died: its process was killed before it could say how it ended")
    elif run.status != "done":
        files.remarks.append(f"the run did not finish: {run.status}")
    return files
