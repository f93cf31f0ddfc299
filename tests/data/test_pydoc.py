"""The default corpus: what ships with CPython, parsed and not imported."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from roundround.data import local_texts
from roundround.data.local_texts import PyDoc


@pytest.fixture(scope="module")
def corpus() -> PyDoc:
    return PyDoc(held_out=0.1)


def test_it_holds_a_topic_and_the_docstrings_python_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [source for source in local_texts._sources() if source[0][0] in "st"]  # not the whole library
    monkeypatch.setattr(local_texts, "_sources", lambda: some)
    texts = list(PyDoc(held_out=0.1).texts())
    assert any(text.startswith('The "assert" statement') for text in texts)
    (module,) = (text for text in texts if text.startswith(inspect.getdoc(textwrap) or "-"))
    for part in (textwrap.TextWrapper, textwrap.TextWrapper.fill, textwrap.dedent):
        assert inspect.getdoc(part) in module


def test_docstrings_come_in_source_order(corpus: PyDoc) -> None:
    source = (
        'class A:\n "a"\n def f():\n  "f"\n  class B: "b"\nif 1:\n def g(): "g"\ntry: pass\nexcept E:\n def h(): "h"\n'
    )
    found = [ast.get_docstring(node) for node in local_texts._definitions(ast.parse(source))]
    assert found == ["a", "f", "b", "g", "h"]


def test_tests_and_installed_packages_are_left_out() -> None:
    names = [name for name, _ in local_texts._sources()]
    assert "argparse.py" in names
    assert names == sorted(names)
    assert not [name for name in names if {"test", "site-packages", "lib2to3", "_vendor"} & set(name.split("/"))]


def test_the_identity_does_not_parse_and_follows_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module.py").write_text('"one"\nx = = 1')  # not parseable: identity must not mind
    monkeypatch.setattr(local_texts.sysconfig, "get_path", lambda _: str(tmp_path))
    before = PyDoc(held_out=0.1).identity()
    assert PyDoc(held_out=0.1).identity() == before
    assert PyDoc(held_out=0.2).identity() != before
    (tmp_path / "module.py").write_text('"two"\nx = = 1')
    assert PyDoc(held_out=0.1).identity() != before


def test_importing_the_data_package_loads_no_heavy_library() -> None:
    code = (
        "import sys, roundround.data.local_texts, roundround.data.text, roundround.data.hub, "
        "roundround.data.tokenizers, roundround.data.prepared; "
        "print({'torch', 'transformers', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
