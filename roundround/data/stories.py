"""A few stories that travel with the package, for the pretrained model that wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from roundround.data.corpora import Corpus, fingerprint
from roundround.support.files import sha256
from roundround.support.packaged import PRETRAINED

FILE = PRETRAINED / "stories260k" / "stories.txt"


@final
class Stories(Corpus):
    """18 kB of stories by model=stories260k itself: its perplexity on them is its own entropy, and so flatters it."""

    def identity(self) -> str:
        return fingerprint(corpus="stories", held_out=self.held_out, contents=sha256(FILE))

    def texts(self) -> Iterator[str]:
        return iter(FILE.read_text(encoding="utf-8").strip().split("\n\n"))
