"""How big the house is: statements, modules and tests by room beside the last release's; the files that a verb runs.

    make size
    python benchmarks/size.py trace reproduce rope.fig2 logger=none    # files whose functions run
    python benchmarks/size.py trace config train pe=p_rope trainer.max_steps=1 logger=none   # the config's way
    python benchmarks/size.py trace record report RUN                # the way of a run's records to its page
    python benchmarks/size.py store                                  # at a release: write benchmarks/size.csv

A statement is an `ast.stmt`: it does not change when lines are joined or comments are written.
A stop is a function of ours that takes or returns the object, itself or in a tuple, a list or a dictionary of
arguments; it counts once, where it is first called. A return is a stop in a module that an earlier stop was in, behind
one in another module. The object is told by what it is, not by where its class lies (`is_config`, `is_record`).
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import functools
import inspect
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
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


def is_config(value: Any) -> bool:
    """The config that Hydra composed, which has no parent and says where outputs go; a verb's dataclass of it; a Start.

    A node of it and a plain dict of its values are something else.
    """
    if type(value).__name__ == "DictConfig":
        return value._get_parent() is None and "outputs" in value
    if dataclasses.is_dataclass(value):
        return type(value).__name__.endswith("Config") and hasattr(value, "outputs")
    return any(base.__name__ == "Start" for base in type(value).__mro__)


def is_record(value: Any) -> bool:
    """A record of results.json, several of them, the run that was read, what holds one of these; the body of a page.

    A run that was read has a directory and a manifest, and the body of a page is a dataclass with sections.
    """
    if isinstance(value, list | tuple):
        return bool(value) and is_record(value[0])
    if isinstance(value, dict):
        return {"metric", "value"} <= value.keys()
    fields = vars(value) if dataclasses.is_dataclass(value) and hasattr(value, "__dict__") else {}
    if not {"directory", "manifest"} - fields.keys() or "sections" in fields:
        return True
    return any(is_record(held) for held in fields.values())


FOLLOWED: dict[str, Callable[[Any], bool]] = {"config": is_config, "record": is_record}


def trace(words: list[str]) -> None:
    """Run a command in this process; print the files of roundround whose functions it called, and an object's way."""
    called: set[str] = set()
    begun: dict[CodeType, int] = {}  # when each function was first called
    stops: set[CodeType] = set()
    is_object = FOLLOWED.get(words[0]) if words else None
    words = words[1:] if is_object else words

    def passes(values: Iterable[Any]) -> bool:
        assert is_object is not None
        return any(is_object(value) for value in values)

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # bodies of modules and classes are not called
        called.add(code.co_filename)
        if is_object is None or code in stops or not is_ours(code):
            return
        if event == "call":
            begun.setdefault(code, len(begun))
            values = frame.f_locals
            given = [values[name] for name in code.co_varnames[: arguments_of(code)] if name in values]
            found = [*given, *(one for several in given if isinstance(several, tuple) for one in several)]
        else:
            found = [argument, *(argument if isinstance(argument, tuple) else ())]
        if passes(found):
            stops.add(code)

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
    if is_object is None:
        print(*(f"  {file.relative_to(PACKAGE)}" for file in files), sep="\n", file=sys.stderr)
    else:
        tell_way(sorted(stops, key=begun.__getitem__))
    print(f"{len(files)} files of roundround, exit code {code}", file=sys.stderr)


def is_ours(code: CodeType) -> bool:
    """A named function of the package; a comprehension and a lambda belong to the function around them."""
    return code.co_filename.startswith(f"{PACKAGE}/") and not code.co_name.startswith("<")


def arguments_of(code: CodeType) -> int:
    """How many of its variables are arguments, *args and **kwargs included."""
    own = code.co_argcount + code.co_kwonlyargcount
    return own + bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)


def tell_way(stops: list[CodeType]) -> None:
    """Print the stops in their order, each return marked, and how many there are."""
    left: set[str] = set()
    returns, here = 0, ""
    for number, code in enumerate(stops, start=1):
        module = str(Path(code.co_filename).relative_to(PACKAGE))
        back = module != here and module in left
        returns += back
        print(f"{number:4} {'<-' if back else '  '} {module}: {code.co_qualname}", file=sys.stderr)
        left.add(module)
        here = module
    print(f"{len(stops)} stops in {len(left)} modules, {returns} returns", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
