"""How big the house is: statements by room beside the budget that a test holds; the files that a verb runs.

    make size
    python benchmarks/size.py trace reproduce rope.fig2 logger=none    # files whose functions run

A statement is an `ast.stmt`: it does not change when lines are joined or comments are written. benchmarks/size.csv is
the budget. A room that needs more takes the same number from another room or from the reserve, in a change that says
what a user got for it.
"""

from __future__ import annotations

import ast
import csv
import functools
import inspect
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "roundround"
BUDGET = ROOT / "benchmarks" / "size.csv"
MISSION = ("pe", "softmax", "kernels", "model", "training", "probing")
RESERVE = "reserve: "  # before what a part of the reserve is for


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["trace"]:
        return trace(arguments[1:])
    now, allowed = statements(), budget()
    print(f"{'room':20}{'statements':>12}{'budget':>9}")
    for room in sorted({*now, *rooms(allowed)}, key=lambda room: -now[room]):
        print(f"{room:20}{now[room]:12,}{allowed.get(room, 0):9,}")
    print(f"{'all':20}{now.total():12,}{sum(rooms(allowed).values()):9,}")
    for name in allowed.keys() - rooms(allowed).keys():
        print(f"{name:32}{allowed[name]:9,}")
    share = sum(now[room] for room in MISSION) / now.total()
    print(f"\n{share:.0%} are in the rooms of the mission: {', '.join(MISSION)}")
    print(f"{len(list(PACKAGE.rglob('*.py')))} modules")


def budget() -> dict[str, int]:
    """The statements that each room may have, and the parts of the reserve."""
    with BUDGET.open(encoding="utf-8") as file:
        return {row["room"]: int(row["statements"]) for row in csv.DictReader(file)}


def rooms(allowed: dict[str, int]) -> dict[str, int]:
    """A budget without its reserve."""
    return {room: number for room, number in allowed.items() if not room.startswith(RESERVE)}


def room_of(path: Path) -> str:
    folder = path.relative_to(PACKAGE).parts[:-1]
    return folder[0] if folder else "(hall)"


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        found[room_of(path)] += sum(isinstance(node, ast.stmt) for node in ast.walk(tree_of(path)))
    return found


def small() -> list[str]:
    """Modules under 40 lines, apart from those of which each is one variant or one verb."""
    apart = {"kernels", "pe", "probing", "softmax", "model", "verbs"}
    return [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py"
        and room_of(path) not in apart
        and path.parent.name != "tasks"
        and len(path.read_text(encoding="utf-8").splitlines()) < 40
    ]


def trace(words: list[str]) -> None:
    """Runs a command in this process and prints the files of roundround whose functions it called."""
    called: set[str] = set()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED:  # bodies of modules and classes are not
            called.add(code.co_filename)

    from roundround.__main__ import main as roundround

    sys.argv = ["roundround", *words]
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        roundround()
    except SystemExit as end:
        code = end.code
    finally:
        sys.setprofile(None)
    files = sorted(Path(file) for file in called if file.endswith(".py") and Path(file).is_relative_to(PACKAGE))
    print(*(f"  {file.relative_to(PACKAGE)}" for file in files), sep="\n", file=sys.stderr)
    print(f"{len(files)} files of roundround, exit code {code}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
