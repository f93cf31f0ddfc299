"""Who may import whom, read off the syntax trees; nothing is imported, so that a lazy import counts like any other.

A part is a room of roundround (a folder) or one of the modules beside them; the rooms stand on floors.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT

from roundround.config.verb import Verb
from roundround.support.imports import import_statements
from roundround.support.imports import reached as imports_of_imports
from roundround.verbs import VERBS

PACKAGE = ROOT / "roundround"

# what people copy into their own work, and what it may import: (parts of roundround, libraries)
PORTABLE = {
    "kernels": ({"kernels"}, {"torch", "triton", "fla"}),  # the last two where they are installed, for CUDA alone
    "pe": ({"kernels", "pe"}, {"torch"}),
    "softmax": ({"kernels", "softmax"}, {"torch", "entmax", "adasplash"}),  # the projections are never hand-written
    "model": ({"kernels", "pe", "softmax", "model"}, {"torch"}),
}
# a room imports rooms of lower floors alone
FLOORS = [
    {"__main__"},
    {"cli", "api"},
    {"command_line"},
    {"verbs"},
    {"report"},
    {"papers"},
    {"training", "analysis"},
    {"asking"},
    {"trained"},
    {"hf"},
    {"probing", "engines"},
    {"model", "data", "records"},
    {"pe", "softmax", "distributed", "config"},
    {"kernels", "support", "pretrained"},
]
FLOOR = {room: -floor for floor, rooms in enumerate(FLOORS) for room in rooms}
KNOW_HYDRA = {"command_line", "config"}
KNOW_OMEGACONF = {
    *KNOW_HYDRA,
    "records",
    "hf",
    "trained",
    "asking",
    "analysis",
    "verbs",
}  # nodes of a config stop there
ONLY = {  # library: the parts that may import it
    "hydra": KNOW_HYDRA,
    "omegaconf": KNOW_OMEGACONF,
    "yaml": {"command_line", "asking", "engines"},
    "lightning": {"training", "verbs"},
    "wandb": {"records"},
    "tensorboard": {"records"},
    "transformers": {"data", "hf", "trained", "asking", "engines"},
    "datasets": {"data", "hf", "trained", "asking"},
    "huggingface_hub": {"data", "hf", "trained", "asking"},
    "lm_eval": {"asking"},
    "typer": {"cli"},
    "click": set(),  # Typer has its own
    "jinja2": {"report", "asking"},  # asking: the sandbox of tasks' templates
    "markupsafe": {"report"},
    "importlib": {
        "cli",
        "command_line",
        "config",
        "papers",
        "report",
        "engines",
    },  # verbs, claims, pages, engines by name
    "pickle": set(),  # nothing is unpickled from a file that a user was given
}
INNER = {  # part: the parts that may import it
    "verbs": {"verbs"},
    "api": {"__init__"},
}
SLOW = {"torch", "numpy", "lightning", "transformers", "datasets", "wandb", "tensorboard", "matplotlib", "scipy"}
BEFORE_VERBS = ["command_line.launch", "command_line.pages"]  # --cfg, TAB, `list`
BEFORE_VERBS += ["verbs.runs", "verbs.show"]
INSIDE_FUNCTIONS = {"wandb", "tensorboard", "datasets", "transformers", "matplotlib"}  # they take seconds


@dataclass(frozen=True)
class Import:
    """One imported name, such as `torch.nn.functional` or `roundround.pe.base.PositionalEncoding`."""

    name: str
    line: int
    at_import: bool  # False inside a function, where it costs nothing until the call, and for types alone

    @property
    def library(self) -> str:
        return "tensorboard" if self.name.startswith("torch.utils.tensorboard.") else self.name.split(".")[0]

    @property
    def part(self) -> str | None:
        """The part of roundround, None for a library."""
        words = self.name.split(".")
        if words[0] != "roundround" or len(words) == 1:
            return None
        module = words[1:] if (PACKAGE.joinpath(*words[1:])).with_suffix(".py").exists() else words[1:-1]
        return part_of(".".join(module or words[1:]))


def part_of(module: str) -> str:
    """The room of a module; the entry of a verb, `verbs/<name>/__init__.py`, counts as `config`: all may read it."""
    words = module.split(".")
    return "config" if words[0] == "verbs" and len(words) < 3 else words[0]


def modules(package: Path) -> dict[str, Path]:
    """Every module by its name inside the package, such as `pe.rope`."""
    found = {path.relative_to(package).with_suffix(""): path for path in sorted(package.rglob("*.py"))}
    return {".".join(path.parts).removesuffix(".__init__"): file for path, file in found.items()}


@functools.cache
def imports_of(source: str) -> list[Import]:
    """The imports of a module; of the entry of a verb without those that type its nodes, which import nothing."""
    is_entry = "\nVERB = Verb(" in source
    return [
        Import(name, statement.node.lineno, statement.at_import)
        for statement in import_statements(source)
        if statement.at_import or not is_entry
        for name in statement.names
    ]


def violations(package: Path) -> list[str]:
    """Every import that the rules forbid, as `module:line imports name: why`."""
    found = []
    for module, path in modules(package).items():
        for item in imports_of(path.read_text(encoding="utf-8")):
            why = forbidden(part_of(module), item)
            if why:
                found.append(f"{module}:{item.line} imports {item.name}: {why}")
    return found


def forbidden(part: str, item: Import) -> str | None:
    """Why a part of roundround may not import this; None where it may."""
    if item.name.startswith("."):
        return "names are absolute"
    if part in PORTABLE and item.library not in sys.stdlib_module_names:
        parts, libraries = PORTABLE[part]
        if item.part not in parts if item.library == "roundround" else item.library not in libraries:
            return f"{part} is to be copied"
    owner = None if item.name.startswith("importlib.") else ONLY.get(item.library)
    if owner is not None and part not in owner:
        return f"only {sorted(owner)} may"
    if item.part in INNER and part not in INNER[item.part]:
        return f"only {sorted(INNER[item.part])} may"
    if part in FLOOR and item.part in FLOOR and part != item.part and FLOOR[item.part] >= FLOOR[part]:
        return f"{item.part} stands on no lower floor than {part}"
    if item.at_import and item.library in INSIDE_FUNCTIONS and part not in ("hf", "trained", "asking", "engines"):
        return "only inside a function"
    return None


def eager(package: Path) -> dict[str, set[str]]:
    """What each module imports as it is imported itself: modules of the package, and libraries as `:name`."""
    return graph_of(package, lazy=False)


def graph_of(package: Path, *, lazy: bool) -> dict[str, set[str]]:
    """`eager`, or with `lazy` what a module imports anywhere: inside its functions, and for type checkers."""
    known = modules(package)
    graph = {}
    for module, path in known.items():
        words = module.split(".")
        graph[module] = {parent for parent in [".".join(words[:n]) for n in range(1, len(words))] if parent in known}
        for item in imports_of(path.read_text(encoding="utf-8")):
            if not (lazy or item.at_import):
                continue
            name = item.name.removeprefix("roundround.")
            inner = name if name in known else name.rpartition(".")[0]
            graph[module].add(inner if item.library == "roundround" else f":{item.library}")
    return graph


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Everything that importing `start` imports."""
    return set(imports_of_imports(graph.get(start, ()), lambda name: graph.get(name, ())))


# -- the rules


def test_nothing_imports_what_it_may_not() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize("start", BEFORE_VERBS)
def test_what_runs_before_a_verb_waits_for_no_slow_library(start: str) -> None:
    assert {name for name in reached(eager(PACKAGE), start) if name.removeprefix(":") in SLOW} == set()


@pytest.mark.parametrize("start", ["verbs.compare", "verbs.runs", "verbs.show", "analysis.comparison"])
def test_what_only_reads_runs_waits_for_no_torch(start: str) -> None:
    slow = {"torch", "lightning", "transformers", "datasets", "wandb", "matplotlib"}
    slow |= set() if "compar" in start else {"pandas"}
    assert {name for name in reached(eager(PACKAGE), start) if name.removeprefix(":") in slow} == set()


def outside_of(start: str) -> set[str]:
    """What importing a module imports beside the standard library; "" is the package itself."""
    return {name for name in reached(eager(PACKAGE), start) if name.removeprefix(":") not in sys.stdlib_module_names}


def test_help_waits_for_typer_alone() -> None:
    assert outside_of("cli") - {""} == {":typer", "support", "support.errors", "config", "config.verb", "verbs"}


@pytest.mark.parametrize("verb", [verb.config.__module__ for verb in VERBS if verb.config is not None])
def test_the_entry_of_a_verb_waits_for_the_standard_library_alone(verb: str) -> None:
    found = outside_of(verb.removeprefix("roundround.")) - {""}
    allowed = {"support", "support.errors", "config"}
    assert {name for name in found if not name.startswith(("config.verb", "verbs"))} <= allowed


def test_a_portable_part_reaches_torch_and_nothing_else() -> None:
    graph = eager(PACKAGE)
    for module in graph:
        if module.split(".")[0] in PORTABLE:
            libraries = {name[1:] for name in reached(graph, module) if name.startswith(":")}
            assert libraries - sys.stdlib_module_names <= {"torch", "entmax", "adasplash", "triton"}, module


def circles(package: Path) -> list[str]:
    """The modules that import themselves through others, inside functions too."""
    graph = graph_of(package, lazy=True)
    return [module for module in graph if module in reached(graph, module)]


def test_no_module_imports_itself_through_others() -> None:
    assert circles(PACKAGE) == []


def test_every_room_stands_on_a_floor() -> None:
    assert {module.split(".")[0] for module in modules(PACKAGE)} | {"pretrained"} - {"__init__"} == {*FLOOR, "__init__"}


def test_the_table_of_the_rooms_shows_what_they_import() -> None:
    # the third column of the first table
    table = (ROOT / "docs" / "inside" / "architecture.md").read_text().partition("| imports |")[2].partition("\n\n")[0]
    drawn = {
        start: set(re.findall(r"`(\w+)`", ends))
        for start, ends in re.findall(r"^\| `(\w+)` \|.*?\| ([^|]*) \|$", table, re.MULTILINE)
    }
    assert len(drawn) > 15
    below = {"__version__", "api"}  # below and above all rooms
    real: dict[str, set[str]] = {}
    for module, path in modules(PACKAGE).items():
        room = part_of(module)
        real.setdefault(room, set()).update(
            {item.part for item in imports_of(path.read_text(encoding="utf-8")) if item.part not in (None, room)}
        )
    real["command_line"].add("verbs")  # by name
    real["api"] |= real.pop("__init__")
    assert {room: rooms - real[room] for room, rooms in drawn.items() if rooms - real[room]} == {}
    hidden = {room: real[room] - reached(drawn, room) - below for room in real}
    assert {room: rooms for room, rooms in hidden.items() if rooms} == {}


def test_the_page_about_the_rooms_names_files_that_are_there() -> None:
    names = re.findall(r"`(\w+(?:/\w+)*\.py)`", (ROOT / "docs" / "inside" / "architecture.md").read_text())
    files = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")} | {"tests/test_imports.py"}
    assert len(names) > 40
    assert [name for name in names if not any(file == name or file.endswith(f"/{name}") for file in files)] == []


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_what_a_verb_names_is_there(verb: Verb) -> None:
    assert verb.run.startswith("roundround.verbs.")
    for target in filter(None, (verb.run, verb.page)):
        module, _, function = target.partition(":")
        tree = ast.parse(modules(PACKAGE)[module.removeprefix("roundround.")].read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, target


def test_no_module_stands_where_the_wheel_puts_the_yamls() -> None:
    assert not (PACKAGE / "conf.py").exists()
    assert not list((PACKAGE / "conf").rglob("*.py"))


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


# -- the rules see what they are to see


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pe/mine", "from roundround.softmax.softmax import Softmax"),
        ("pe/mine", "from roundround import softmax"),
        ("pe/mine", "from roundround.model.decoder import Decoder"),
        ("pe/mine", "from roundround.config.build import build"),
        ("pe/mine", "import numpy as np"),
        ("pe/mine", "def f():\n    import scipy.special"),
        ("softmax/mine", "from roundround.pe.base import PositionalEncoding"),
        ("softmax/mine", "from roundround.records.run import Run"),
        ("softmax/mine", "class A:\n    def f(self):\n        from omegaconf import DictConfig"),
        ("model/mine", "import transformers"),
        ("model/mine", "from roundround.data.prepared import TokenData"),
        ("kernels/mine", "from roundround.pe.base import PositionalEncoding"),
        ("kernels/mine", "import roundround"),
        ("data/mine", "from omegaconf import DictConfig"),
        ("data/mine", "import hydra.utils"),
        ("training/mine", "from omegaconf import OmegaConf"),
        ("records/mine", "import lightning"),
        ("records/mine", "import wandb"),  # not inside a function
        ("training/mine", "def f():\n    import wandb"),
        ("training/mine", "def f():\n    from torch.utils.tensorboard import SummaryWriter"),
        ("records/mine", "from torch.utils.tensorboard import SummaryWriter"),  # not inside a function
        ("probing/mine", "def f():\n    from transformers import AutoModel"),
        ("data/mine", "from transformers import AutoTokenizer"),  # not inside a function
        ("report/mine", "if True:\n    import datasets"),
        ("command_line/mine", "def f():\n    from roundround.verbs.train.run import train"),
        ("records/mine", "from roundround.command_line.launch import complain"),
        ("verbs/mine/run", "import hydra"),
        ("verbs/mine/run", "from roundround import api"),
        ("verbs/mine/run", "from roundround.cli import app"),
        ("model/mine", "from roundround.training.module import LanguageModel"),
        ("model/mine", "from roundround.data.text import Text"),
        ("config/mine", "from roundround.records.run import Run"),
        ("distributed/mine", "def f():\n    from roundround.config.build import build"),
        ("command_line/mine", "import click"),
        ("data/mine", "import importlib"),
        ("training/mine", "from pickle import load"),
        ("pe/mine", "from .base import PositionalEncoding"),
        ("pe/mine", "from . import base"),
    ],
)
def test_a_forbidden_import_is_seen(tmp_path: Path, module: str, source: str) -> None:
    path = (tmp_path / module).with_suffix(".py")
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(source)
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pe/mine", "import math\nimport torch.nn.functional as F\nfrom roundround.pe.rotary import ladder"),
        ("softmax/mine", "from entmax import entmax15\nfrom roundround.kernels.keys import Keys"),
        ("model/mine", "from roundround.pe.base import PositionalEncoding"),
        ("hf/mine", "from transformers import AutoModel"),
        ("records/mine", "def f():\n    import wandb"),
        ("records/provenance", "from importlib import metadata"),
        (
            "verbs/mine/run",
            "import lightning\nfrom omegaconf import DictConfig\nfrom roundround.training import module",
        ),
    ],
)
def test_an_allowed_import_is_let_through(tmp_path: Path, module: str, source: str) -> None:
    path = (tmp_path / module).with_suffix(".py")
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(source)
    assert violations(tmp_path) == []


def test_slow_libraries_and_circles_are_seen_through_other_modules(tmp_path: Path) -> None:
    for name, source in {
        "__init__": "",
        "start": "from roundround import middle",
        "middle": "from roundround.deep.end import thing\ndef f():\n    import numpy",
        "deep/__init__": "",
        "deep/end": "try:\n    import torch.nn\nexcept ImportError:\n    pass\nfrom roundround.start import f",
    }.items():
        path = (tmp_path / name).with_suffix(".py")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(source)
    assert reached(eager(tmp_path), "start") == {"start", "middle", "deep", "deep.end", ":torch"}
    assert circles(tmp_path) == ["deep.end", "middle", "start"]


def test_a_circle_through_a_function_is_seen(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text("from roundround import second")
    (tmp_path / "second.py").write_text("def f():\n    from roundround.first import thing")
    assert circles(tmp_path) == ["first", "second"]


# -- docstrings of the variants


def finals(folder: Path) -> list[tuple[str, ast.ClassDef]]:
    """The final classes of a folder of variants."""
    return [
        (f"{folder.name}/{path.stem}:{node.name}", node)
        for path in sorted(folder.glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(mark, ast.Name) and mark.id == "final" for mark in node.decorator_list)
    ]


VARIANTS = [*finals(PACKAGE / "pe"), *finals(PACKAGE / "softmax")]


def complaints(docstring: str) -> list[str]:
    """What is wrong with the docstring of a variant: the idea in a sentence, the formula in a line, the paper."""
    paragraphs = [paragraph.splitlines() for paragraph in docstring.split("\n\n")]
    if len(paragraphs) < 3:
        return ["not three paragraphs"]
    idea, formula, paper = (" ".join(lines) for lines in paragraphs[:3])
    found = [] if re.fullmatch(r"[A-Z0-9][^.]*(\.\S[^.]*)*\.", idea) else ["the idea is not one sentence"]
    if len(paragraphs[1]) != 1 or "=" not in formula:
        found.append("the formula is not one line")
    if not re.search(r"\b(19|20)\d\d, arXiv:\d{4}\.\d{5}\b", paper):
        found.append("no author, year and arXiv number")
    return found


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_a_variant_states_its_idea_its_formula_and_its_paper(name: str, variant: ast.ClassDef) -> None:
    assert complaints(ast.get_docstring(variant) or "") == []


def test_every_yaml_names_such_a_variant() -> None:
    written = [path for family in ("pe", "softmax") for path in (ROOT / "conf" / family).glob("*.yaml")]
    targets = {re.search(r"^_target_: roundround\.(\S+)$", path.read_text(), re.MULTILINE)[1] for path in written}
    assert len(targets) > 10
    assert targets <= {name.replace("/", ".").replace(":", ".") for name, _ in VARIANTS}


@pytest.mark.parametrize(
    ("docstring", "complaint"),
    [
        ("", "not three paragraphs"),
        ("An idea.\n\nx = y", "not three paragraphs"),
        ("An idea. And another.\n\nx = y\n\nA 2024, arXiv:2410.06205.", "the idea is not one sentence"),
        ("an idea\n\nx = y\n\nA 2024, arXiv:2410.06205.", "the idea is not one sentence"),
        ("An idea.\n\nx = y\nz = y\n\nA 2024, arXiv:2410.06205.", "the formula is not one line"),
        ("An idea.\n\nwords\n\nA 2024, arXiv:2410.06205.", "the formula is not one line"),
        ("An idea.\n\nx = y\n\nA 2024.", "no author, year and arXiv number"),
        ("An idea.\n\nx = y\n\narXiv:2410.06205.", "no author, year and arXiv number"),
    ],
)
def test_a_docstring_of_another_form_is_seen(docstring: str, complaint: str) -> None:
    assert complaints(docstring) == [complaint]


def test_numbers_with_a_point_end_no_sentence() -> None:
    assert complaints("Cuts 0.75 of an idea.\n\nx = y\n\nA and B 2024, arXiv:2410.06205, table 2.") == []
