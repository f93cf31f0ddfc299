"""Corpora that need no download: the documentation of Python itself, and two texts in the package.

Tested by tests/data/test_pydoc.py and test_stories.py.
"""

from __future__ import annotations

import ast
import bz2
import hashlib
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import final

from roundround.data.corpora import Corpus, fingerprint
from roundround.support.errors import UserError
from roundround.support.files import sha256
from roundround.support.packaged import PRETRAINED

# Test suites, vendored packages, and what some distributions leave out; names that end in -packages are skipped too.
SKIPPED = {"test", "tests", "idle_test", "idlelib", "turtledemo", "lib2to3", "ensurepip", "_vendor", "__pycache__"}
TOPICS = "pydoc_data"
STORIES = PRETRAINED / "stories260k" / "stories.txt"
KING_JAMES = Path(__file__).with_name("king_james.txt.bz2")


@final
class PyDoc(Corpus):
    """About 2 MB of technical English on every machine, without a network: the default corpus.

    Each topic of `pydoc_data.topics` is a document; the topics are sorted by name. Then come the modules of the
    standard library, sorted by path; the docstrings of a module are one document. The modules are parsed, never
    imported. Text and identity differ a little between Python versions. The identity is a hash of the source files, and
    is computed in 0.1 s. The files are parsed only when texts are read, because this takes seconds.
    """

    def __init__(self, *, held_out: float, separate_documents: bool = False) -> None:
        super().__init__(held_out=held_out, separate_documents=separate_documents)
        self._texts: list[str] | None = None

    def identity(self) -> str:
        contents = [[name, hashlib.sha256(path.read_bytes()).hexdigest()] for name, path in _sources()]
        return fingerprint(corpus="pydoc", held_out=self.held_out, contents=contents)

    def texts(self) -> Iterator[str]:
        if self._texts is None:  # training a tokenizer and then encoding need it twice
            from pydoc_data.topics import topics

            self._texts = [*(topics[name] for name in sorted(topics)), *_docstrings()]
        return iter(self._texts)


def _docstrings() -> Iterator[str]:
    """For each module its docstring and the docstrings of its classes and functions, joined by blank lines."""
    for name, path in _sources():
        if name.split("/")[0] == TOPICS:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules are no concern of the user
            tree = ast.parse(path.read_bytes())
        docstrings = [ast.get_docstring(node) for node in (tree, *_definitions(tree))]
        yield "\n\n".join(text for text in docstrings if text)


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The classes and functions below a node, in source order. Expressions contain none, so they are skipped."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _definitions(child)


def _sources() -> list[tuple[str, Path]]:
    """(path relative to the standard library, file) of every source file, sorted by path."""
    root = sysconfig.get_path("stdlib")
    found = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED and not name.endswith("-packages")]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    if not found:
        raise UserError(
            f"data=pydoc: there is no source of Python's standard library in {root}; use data=text data.path=FILE "
            "instead"
        )
    return sorted((path.relative_to(root).as_posix(), path) for path in found)


@final
class Stories(Corpus):
    """18 kB of stories that the model stories260k wrote.

    The perplexity of stories260k on these stories measures the model's entropy, not its quality.
    """

    def identity(self) -> str:
        return fingerprint(corpus="stories", held_out=self.held_out, contents=sha256(STORIES))

    def texts(self) -> Iterator[str]:
        return iter(STORIES.read_text(encoding="utf-8").strip().split("\n\n"))


@final
class KingJames(Corpus):
    """The King James Bible of 1611: 4.1 MB of English in the public domain.

    Each chapter is a document, each verse a line. The text is that of Debian's package bible-kjv-text, but the
    verse numbers were removed.
    """

    def identity(self) -> str:
        return fingerprint(corpus="king_james", held_out=self.held_out, contents=sha256(KING_JAMES))

    def texts(self) -> Iterator[str]:
        return iter(bz2.decompress(KING_JAMES.read_bytes()).decode().strip().split("\n\n"))
