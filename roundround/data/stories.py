"""Texts that are part of the package, the same bytes everywhere.

Tested by tests/data/test_stories.py.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from pathlib import Path
from typing import final

from roundround.data.corpora import Corpus, fingerprint
from roundround.support.files import sha256
from roundround.support.packaged import PRETRAINED

STORIES = PRETRAINED / "stories260k" / "stories.txt"
KING_JAMES = Path(__file__).with_name("king_james.txt.bz2")


@final
class Stories(Corpus):
    """18 kB of stories that model=stories260k wrote: its perplexity on them is its own entropy, not its quality."""

    def identity(self) -> str:
        return fingerprint(corpus="stories", held_out=self.held_out, contents=sha256(STORIES))

    def texts(self) -> Iterator[str]:
        return iter(STORIES.read_text(encoding="utf-8").strip().split("\n\n"))


@final
class KingJames(Corpus):
    """The King James Bible of 1611, 4.1 MB of English in the public domain: a chapter is a document, a verse a line.

    The text is from Debian's package bible-kjv-text, without the numbers of the verses.
    """

    def identity(self) -> str:
        return fingerprint(corpus="king_james", held_out=self.held_out, contents=sha256(KING_JAMES))

    def texts(self) -> Iterator[str]:
        return iter(bz2.decompress(KING_JAMES.read_bytes()).decode().strip().split("\n\n"))
