"""How big the house is: statements by room beside the budget that a test holds; the files that a verb runs.

    make size
    python benchmarks/size.py trace reproduce rope.fig2 logger=none    # files whose functions run
    python benchmarks/size.py trace config train pe=p_rope trainer.max_steps=1 logger=none   # the config's way
    python benchmarks/size.py trace record report RUN                # the way of a run's records to its page

A statement is an `ast.stmt`: it does not change when lines are joined or comments are written. benchmarks/size.csv is
the budget. A room that needs more takes the same number from another room or from the reserve, in a change that says
what a user got for it.

A stop is a function of ours that takes or returns the object, itself or in a tuple, a list or a dictionary of
arguments; it counts once, where it is first called. A return is a stop in a module that an earlier stop was in, behind
one in another module. The object is known by what it is, not by where its class lies (`is_config`, `is_record`).
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
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
