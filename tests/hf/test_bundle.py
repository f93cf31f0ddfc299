"""Joining sources to one file: what is renamed, what is left alone, what is refused."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers_export import loaded, some_tokens, trained, written
from omegaconf import OmegaConf

from roundround.errors import UserError
from roundround.hf.export.bundle import bundle
from roundround.hf.export.modeling import RoundroundForCausalLM
from roundround.pe.alibi import ALiBi
from roundround.softmax.softmax import Softmax

HALF = '''"""Half."""

from __future__ import annotations

import math
from typing import final

from helpers.turning import angle
from roundround.attention.keys import AttentionShape
from roundround.pe import rotary
from roundround.pe.rotary import RotaryEncoding


def forward(x):  # a name that the kernels have too
    return x


@final
class Half(RotaryEncoding):
    """Turns half as fast."""

    def __init__(self, shape: AttentionShape, *, slower: float) -> None:
        super().__init__(shape, theta=10_000.0)
        self.slower = slower

    def frequencies(self, dtype=__import__("torch").float32, device="cpu"):
        from roundround.pe.rotary import ladder as steps

        repeated = self.shape.head_dim  # a local variable of the kernels' name
        whole = rotary.ladder(repeated // 2, repeated, self.theta, dtype, device)
        assert (whole == steps(repeated // 2, repeated, self.theta, dtype, device)).all()
        return forward(whole) * math.cos(angle()) / self.slower
'''
TURNING = '''"""A helper."""


def angle() -> float:
    return 0.0
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's own variant in a folder of its own, with a helper."""
    root = tmp_path / "mine"
    (root / "helpers").mkdir(parents=True)
    (root / "half_rope.py").write_text(HALF)
    (root / "helpers" / "__init__.py").write_text("")
    (root / "helpers" / "turning.py").write_text(TURNING)
    monkeypatch.syspath_prepend(root)
    yield importlib.import_module("half_rope")
    for name in ("half_rope", "helpers", "helpers.turning"):
        sys.modules.pop(name, None)


def test_a_users_own_variant_travels_with_its_helpers(mine: ModuleType, tmp_path: Path) -> None:
    pe = OmegaConf.create({"_target_": "half_rope.Half", "slower": 2.0})
    model = trained(pe, OmegaConf.create({"_target_": "roundround.softmax.softmax.Softmax"}))
    folder = written(model, tmp_path / "exported")
    text = (folder / "modeling_roundround.py").read_text()
    assert "def half_rope_forward(x):  # a name that the kernels have too" in text
    assert "repeated = self.shape.head_dim" in text
    assert "def angle() -> float:" in text
    answer = loaded([folder], tmp_path)[folder]
    with torch.no_grad():
        ours = model.decoder(some_tokens())
    assert torch.equal(ours, answer["logits"])


def test_names_that_two_modules_share_keep_apart() -> None:
    values = {"Encoding": ALiBi, "Normaliser": Softmax}
    text = bundle(RoundroundForCausalLM.__module__, values, heading="# a heading")
    assert text.startswith("# a heading\n\nfrom __future__ import annotations\n")
    assert text.count("from __future__") == 1
    assert "\ndef kernels_forward(" in text
    assert "\ndef parts_forward(" in text
    assert "parts_forward(Operands(" in text
    assert "    def forward(self, x_BTD" in text  # a method stays
    assert "\nEncoding = ALiBi  #" in text
    assert "\nNormaliser = Softmax\n" in text
    assert "import roundround" not in text
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert not used & {"kernels", "fused", "rotary"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import torch as F\n", "F is imported as"),
        ("import roundround.pe.rotary\n", "write from ... import instead of import"),
        ("from roundround.pe.rotary import *\n", "name what is imported instead of"),
        ("from roundround.runs.run import opened\n", "roundround.runs.run cannot travel with a model"),
        ("from roundround.softmax import kernels\nmodules = [kernels]\n", "kernels is a module; only its names"),
        ("from roundround.softmax import kernels\nno = lambda: kernels.nothing\n", "kernels does not define nothing"),
        ("from roundround.pe.rope import Rope\n", "does not define Rope"),
        (
            "from roundround.softmax import kernels\ndef f(kernels_serves):\n    return kernels.serves\n",
            "a variable here is called kernels_serves",
        ),
    ],
)
def test_what_cannot_be_joined_is_said_in_a_line(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = source + "from roundround.pe.nope import NoPE\nclass Odd(NoPE):\n    pass\n"
    (tmp_path / "odd_pe.py").write_text(code)
    odd = ModuleType("odd_pe")
    odd.__file__ = str(tmp_path / "odd_pe.py")
    monkeypatch.setitem(sys.modules, "odd_pe", odd)
    of = type("Odd", (ALiBi,), {"__module__": "odd_pe"})
    with pytest.raises(UserError, match=said) as caught:
        bundle(RoundroundForCausalLM.__module__, {"Encoding": of, "Normaliser": Softmax}, heading="#")
    assert "\n" not in str(caught.value)


def test_a_class_without_a_source_is_refused() -> None:
    of = type("Lost", (ALiBi,), {"__module__": "nowhere_at_all"})
    with pytest.raises(UserError, match=r"the source of nowhere_at_all\.Lost cannot be found"):
        bundle(RoundroundForCausalLM.__module__, {"Encoding": of, "Normaliser": Softmax}, heading="#")


def test_a_class_keeps_its_own_names_and_a_function_hides_the_modules(tmp_path: Path) -> None:
    from roundround.hf.export.names import applied, definition_edits, reference_edits

    text = (
        "f = 1\n"
        "class A:\n"
        "    f = f\n"
        "    g = f\n"
        "    def h(self, x=f):\n"
        "        return f + self.f + sum(f for f in x) + sum(f for y in x) + (lambda f: f)(f)\n"
        "def f(f):\n"
        "    return f\n"
        "def k():\n"
        "    try:\n"
        "        return f\n"
        "    except ValueError as error:\n"
        "        return error\n"
    )
    tree = ast.parse(text)
    edits = definition_edits(tree, text, {"f": "z"}) + reference_edits(tree, {"f": "z"}, {})
    assert applied(text, edits) == (
        "z = 1\n"
        "class A:\n"
        "    f = f\n"
        "    g = f\n"
        "    def h(self, x=f):\n"
        "        return z + self.f + sum(f for f in x) + sum(z for y in x) + (lambda f: f)(z)\n"
        "def z(f):\n"
        "    return f\n"
        "def k():\n"
        "    try:\n"
        "        return z\n"
        "    except ValueError as error:\n"
        "        return error\n"
    )
