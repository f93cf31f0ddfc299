"""How big the house is: statements, modules and tests by room beside the last release's; the files that a verb runs.

    make size
    python benchmarks/size.py trace reproduce rope.fig2 logger=none    # files whose functions run
    python benchmarks/size.py store                                  # at a release: write benchmarks/size.csv

A statement is an `ast.stmt`: it does not change when lines are joined or comments are written.
"""

from __future__ import annotations

import ast
import csv
import functools
import inspect
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "roundround"
STORED = ROOT / "benchmarks" / "size.csv"
COUNTS = ("statements", "modules", "tests")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["trace"]:
        return trace(arguments[1:])
    now = {"statements": statements(), "modules": modules(), "tests": tests()}
    if arguments == ["store"]:
        with STORED.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("room", *COUNTS))
            writer.writerows((room, *(now[count][room] for count in COUNTS)) for room in rooms(now))
        return print(f"wrote {STORED.relative_to(ROOT)}")
    with STORED.open() as file:
        stored = {row["room"]: row for row in csv.DictReader(file)}
    then = {count: Counter({room: int(row[count]) for room, row in stored.items()}) for count in COUNTS}
    print(f"{'room':14}" + "".join(f"{count:>12}{'release':>9}" for count in COUNTS))
    for room in rooms(now, then):
        print(f"{room:14}" + "".join(f"{now[count][room]:12,}{then[count][room]:9,}" for count in COUNTS))
    totals = "".join(f"{now[count].total():12,}{then[count].total():9,}" for count in COUNTS)
    print(f"{'all':14}{totals}")
    print(f"\n{len(small())} modules under 40 lines (variants, verbs, packages apart): {', '.join(small()) or 'none'}")
    print(f"{helpers()} functions in tests/ that are no test")


def rooms(*sizes: dict[str, Counter[str]]) -> list[str]:
    """All rooms, the largest first."""
    statements = sizes[0]["statements"]
    return sorted({room for size in sizes for count in size.values() for room in count}, key=lambda r: -statements[r])


def room_of(path: Path, below: Path) -> str:
    folder = path.relative_to(below).parts[:-1]
    return "/".join(folder[:2] if folder[:2] == ("data", "tasks") else folder[:1]) or "(hall)"


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        found[room_of(path, PACKAGE)] += sum(isinstance(node, ast.stmt) for node in ast.walk(tree_of(path)))
    return found


def modules() -> Counter[str]:
    return Counter(room_of(path, PACKAGE) for path in PACKAGE.rglob("*.py"))


def tests() -> Counter[str]:
    """Collected tests, those that `make test` leaves out too."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", "", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr)
    found: Counter[str] = Counter()
    for line in done.stdout.splitlines():
        file, _, count = line.rpartition(": ")
        if file.endswith(".py"):
            found[room_of(ROOT / file, ROOT / "tests")] += int(count)
    return found


def small() -> list[str]:
    """Modules under 40 lines, apart from those of which each is one variant or one verb."""
    apart = {"attention", "pe", "probing", "softmax", "model", "data/tasks"}
    return [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py"
        and room_of(path, PACKAGE) not in apart
        and path.parent.name != "verbs"  # a file a verb, and one a verb's entry
        and len(path.read_text(encoding="utf-8").splitlines()) < 40
    ]


def helpers() -> int:
    """Functions of tests/ that are no test, methods and nested ones counted."""
    functions = (
        node
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return sum(not function.name.startswith("test_") for function in functions)


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
