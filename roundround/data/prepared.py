"""A corpus that `roundround prepare` has tokenised, by the folder or address where it lies.

Tested by tests/data/test_shards.py and tests/training/test_prepared_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from roundround.data.corpora import Corpus
from roundround.data.entry import Damaged, Entry, read_entry
from roundround.data.store import default_cache_dir, open_store
from roundround.data.stream import streams_of
from roundround.support.errors import UserError


@final
class Prepared(Corpus):
    """Tokens in shards, in a folder or behind an address that fsspec knows, with their tokenizer and held-out text.

    cache_gb: of copies of its shards on the local disk, where it lies behind an address. Its identity is that of the
    corpus that was prepared: the same tokens in the same order.
    """

    def __init__(self, *, path: str, cache_gb: float, separate_documents: bool = False) -> None:
        super().__init__(held_out=None, separate_documents=separate_documents)
        if not path.strip():
            raise ValueError("path is empty; give the folder or the address that roundround prepare named")
        if not 0 < cache_gb < 1e6:
            raise ValueError(f"cache_gb is {cache_gb}: a number of GB above 0 is allowed")
        self.path, self.cache_bytes = path, int(cache_gb * 1e9)
        self._entry: Entry | None = None

    def entry(self) -> Entry:
        """What lies there. UserError where that is no whole prepared corpus."""
        if self._entry is None:
            store = open_store(self.path, "data.path")
            try:
                self._entry = read_entry(store)
            except Damaged as damage:
                raise UserError(
                    f"{store.address}: not a whole prepared corpus ({damage}); make it, or what is damaged of it, with "
                    f"roundround prepare data=... to={store.address}"
                ) from damage
        return self._entry

    def identity(self) -> str:
        return str(self.entry().meta["corpus_hash"])

    def texts(self) -> Iterator[str]:
        """The held-out documents, read back from their tokens."""
        entry = self.entry()
        document: list[int] = []
        for token in streams_of(entry, default_cache_dir(), self.cache_bytes)["held_out"]:
            if token != entry.vocabulary.end_of_document:
                document.append(token)
            else:
                yield entry.vocabulary.decode(document)
                document = []

    def documents(self) -> Iterator[tuple[bool, str]]:
        return ((True, text) for text in self.texts())
