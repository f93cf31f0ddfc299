"""The source files of an export: which modules travel, what they are called, which lines change, what is refused."""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import ROOT
from transformers.dynamic_module_utils import get_relative_import_files

from roundround.config.options import load_option
from roundround.pe.alibi import ALiBi
from roundround.pe.base import PositionalEncoding
from roundround.softmax.softmax import Softmax
from roundround.support.errors import UserError
from roundround.support.imports import import_statements
from roundround.trained.export import sources
from roundround.trained.export.folder import MODELING
from roundround.trained.export.modeling import RoundroundForCausalLM
from roundround.trained.export.sources import source_files

MAIN = RoundroundForCausalLM.__module__
HALF = '''"""Half."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import torch
from mine.helpers import turning
from roundround.pe import rotary

from .base import (  # a module beside this one
    SlowRotary,
)

if TYPE_CHECKING:
    from roundround.kernels.keys import AttentionShape


@final
class Half(SlowRotary):
    """Turns half as fast."""

    def __init__(self, shape: AttentionShape, *, slower: float) -> None:
        super().__init__(shape, theta=10_000.0)
        self.slower = slower

    def frequencies(self, dtype=torch.float32, device="cpu"):
        from roundround.pe.rotary import ladder as steps

        n = self.shape.head_dim
        whole = rotary.ladder(n // 2, n, self.theta, dtype, device)
        assert (whole == steps(n // 2, n, self.theta, dtype, device)).all()
        return whole * math.cos(turning.angle()) / self.slower
'''
OF_MINE = {
    "mine/__init__.py": "",
    "mine/half.py": HALF,
    "mine/base/__init__.py": "from .slow import SlowRotary\n",
    "mine/base/slow.py": "from roundround.pe.rotary import RotaryEncoding as SlowRotary\n",
    "mine/helpers/__init__.py": "",
    "mine/helpers/turning.py": "from ..angles import right as angle\n",
    "mine/angles.py": "def right() -> float:\n    return 0.0\n",
    "mine/not_needed.py": "",
}


@contextmanager
def mine_below(folder: Path) -> Iterator[None]:
    """A package of a user's own with a variant and modules that it needs."""
    for name, text in OF_MINE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[None]:
    with mine_below(tmp_path / "folder"):
        yield


def sources_of(encoding: type, normaliser: type = Softmax) -> dict[str, str]:
    return source_files(MAIN, {of.__name__: of for of in (encoding, normaliser)}, main_file=MODELING)


# -- which modules travel


@pytest.fixture(scope="module")
def parsed_once() -> Iterator[None]:
    """Two variants share all files but one or two: parsing them anew for each is all that their exports cost."""
    with pytest.MonkeyPatch.context() as patch:
        parsed = functools.cache(lambda text, package: list(import_statements(text, package)))
        patch.setattr(sources, "import_statements", parsed)
        yield


VARIANTS = [(family, path.stem) for family in ("pe", "softmax") for path in (ROOT / "conf" / family).glob("*.yaml")]


@pytest.mark.parametrize(("family", "name"), sorted(VARIANTS))
def test_transformers_finds_every_file_of_every_variant(
    family: str, name: str, tmp_path: Path, parsed_once: None
) -> None:
    module, _, of = load_option(family, name)["_target_"].rpartition(".")
    variant = getattr(importlib.import_module(module), of)
    files = sources_of(variant) if family == "pe" else sources_of(ALiBi, variant)
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    found = get_relative_import_files(tmp_path / f"{MODELING}.py")
    assert {Path(file).name for file in found} == files.keys() - {f"{MODELING}.py"}
    assert f"{family}_{module.rpartition('.')[2]}.py" in files


# -- what they are called


# -- which lines change


def test_only_import_lines_change_in_files_of_roundround() -> None:
    files = sources_of(ALiBi)
    assert len(files) > 10
    for name, text in files.items():
        heading, _, rest = text.partition("\n")
        place = heading.split()[1]
        assert heading == f"# {place} of roundround 0.2.0 (Apache-2.0); only its import lines are changed"
        diff = difflib.ndiff((ROOT / place).read_text().splitlines(), rest.splitlines())
        changed = [line[2:] for line in diff if line[0] in "+-"]
        assert [line for line in changed if not re.match(r"\s*(from |\w+( as \w+)?,$|\)|PARTS|$)", line)] == [], name


def test_a_users_own_file_changes_in_its_imports_alone(mine: None) -> None:
    half = importlib.import_module("mine.half")
    diff = difflib.ndiff(HALF.splitlines(), sources_of(half.Half)["mine_half.py"].splitlines())
    assert {line[2:] for line in diff if line[0] in "+-"} == {
        "from mine.helpers import turning",
        "from roundround.pe import rotary",
        "from . import mine_helpers_turning as turning",
        "from . import pe_rotary as rotary",
        "from .base import (  # a module beside this one",
        "    SlowRotary,",
        ")",
        "from .mine_base import SlowRotary",
        "    from roundround.kernels.keys import AttentionShape",
        "    from .kernels_keys import AttentionShape",
        "        from roundround.pe.rotary import ladder as steps",
        "        from .pe_rotary import ladder as steps",
    }


def test_the_modelling_file_names_the_classes_and_what_transformers_would_miss() -> None:
    text = sources_of(ALiBi)[f"{MODELING}.py"]
    assert "\nfrom .pe_alibi import ALiBi\nfrom .softmax_softmax import Softmax\n" in text
    assert '\nPARTS: dict[str, type] = {"ALiBi": ALiBi, "Softmax": Softmax}' in text
    missed = [line.split()[1] for line in text.splitlines() if "import __name__" in line]
    assert {".kernels_flex", ".kernels_fused", ".kernels_sdpa"} <= set(missed)
    assert "pe_base" not in text


def test_what_cannot_leave_roundround_is_refused(mine: None, tmp_path: Path) -> None:
    half = importlib.import_module("mine.half").Half
    (tmp_path / "folder" / "mine" / "angles.py").write_text("from roundround.records.run import opened\n")
    with pytest.raises(UserError, match=r"mine\.angles imports roundround\.records\.run, which cannot be exported"):
        sources_of(half)


@pytest.mark.parametrize(
    ("module", "name"),
    [("nowhere_at_all", "Lost"), ("roundround.pe.alibi", "Outer.Inner"), ("roundround.pe.alibi", "f.<locals>.Inner")],
)
def test_a_class_that_cannot_be_imported_from_a_source_is_refused(module: str, name: str) -> None:
    of = type("A", (PositionalEncoding,), {"__module__": module, "__qualname__": name})
    with pytest.raises(UserError, match=f"the source of {module}.{name} cannot be found"):
        sources_of(of)
