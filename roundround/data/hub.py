"""Reads data sets of the Hugging Face hub, from the network or from the local cache, and makes corpora of them.

Without a network the hub's libraries retry for 23 s (a data set) or 49 s (a tokenizer), as measured with
huggingface_hub 2.4. So this module first checks, in a few seconds at most, whether the hub answers.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from roundround.data.corpora import Corpus, compiled, fingerprint, first_line
from roundround.data.text import check_columns, join_columns
from roundround.support.errors import UserError

SECONDS = 5.0  # even a proxy or a slow line answers a HEAD request within this time
COMMIT = re.compile(r"[0-9a-f]{40}")
ROWS_AT_ONCE = 256


def hub_is_reachable() -> bool:
    """Whether the hub answers. The environment's proxies, HF_ENDPOINT and HF_HUB_OFFLINE apply."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # each version of huggingface_hub has its own client library, with its own errors
        return False
    return True


def is_cached(name: str) -> bool:
    """Whether the local cache has safetensors weights of the model with this name on the hub."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    return any(folder.glob("snapshots/*/*.safetensors"))


@contextmanager
def offline() -> Iterator[None]:
    """Inside the block, data sets are read from the local cache, and the network is not tried (HF_HUB_OFFLINE=1)."""
    from datasets import config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


@dataclass(kw_only=True)
class HubRows:
    """One split of a data set on the hub.

    without_network: the alternative that an error message proposes if there is no network. config: the name of the data
    set's configuration. streaming: whether to read the data set without keeping a copy. key: the prefix of the options
    `name` and `revision` in error messages.
    """

    name: str
    split: str
    revision: str | None
    without_network: str
    config: str | None = None
    streaming: bool = False
    key: str = "data."

    @cached_property
    def commit(self) -> str:
        """The commit that `revision` names on the hub; without a network, the newest commit in the local cache.

        Raises UserError if there is no such data set, or if the hub cannot be reached and no cached copy can be used.
        """
        from huggingface_hub import HfApi, constants, errors

        if self.revision is not None and COMMIT.fullmatch(self.revision):
            return self.revision
        if not hub_is_reachable():
            folder = Path(constants.HF_HUB_CACHE) / f"datasets--{self.name.replace('/', '--')}"
            cached = sorted(folder.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
            if self.revision is not None or not cached:
                raise self._unreachable()
            return cached[-1].name
        try:
            return str(HfApi().dataset_info(self.name, revision=self.revision).sha)
        except (errors.HfHubHTTPError, errors.HFValidationError) as error:
            raise UserError(
                f"no data set '{self.name}' on the Hugging Face hub with revision {self.revision}, or it is private "
                f"({first_line(error)}): check {self.key}name and {self.key}revision, or log in to the hub"
            ) from None

    def open(self, columns: Sequence[str]) -> Any:
        """The split as a `Dataset`, or as an `IterableDataset` if `streaming`.

        Without a network, the cached copy is opened if `streaming` is false. The copy cannot replace a stream, because
        the two are shuffled into different orders. Raises UserError if the data set cannot be read, or if one of the
        columns is missing.
        """
        import datasets

        commit, reachable = self.commit, hub_is_reachable()
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        if self.streaming and not reachable:
            raise self._unreachable()
        try:
            with nullcontext() if reachable else offline():
                rows: Any = datasets.load_dataset(
                    self.name, self.config, split=self.split, revision=commit, streaming=self.streaming
                )
        except Exception as error:  # the libraries' errors differ between versions; the first line says what is wrong
            raise (
                UserError(f"data set '{self.name}': {first_line(error)}") if reachable else self._unreachable()
            ) from None
        if not reachable:  # the folder of a cached copy is named after its commit
            cached = {Path(file["filename"]).parent.name for file in rows.cache_files}
            if cached != {commit}:
                raise UserError(
                    f"data set '{self.name}': the Hugging Face hub cannot be reached, and the copy cached here is of "
                    f"another commit; set {self.key}revision={cached.pop()}"
                )
        check_columns(f"data set '{self.name}'", rows.column_names or list(next(iter(rows))), columns)
        return rows

    def _unreachable(self) -> UserError:
        return UserError(
            f"data set '{self.name}': the Hugging Face hub cannot be reached and no copy is cached here; without a "
            f"network use {self.without_network}, or a copy cached by an earlier run"
        )


@final
class Hub(Corpus):
    """A data set of the hub. The text of a row is made of the texts in the columns `column`, joined by newlines.

    revision: the branch, tag or commit (null: the newest commit). It is resolved to a commit, which is part of the
    identity; a full commit id needs no network. streaming: whether to read the data set without keeping a copy.
    document_start: a regular expression; each row that it matches begins a document (null: each row is a document).
    shuffle_seed: the seed of a shuffle of all rows, or, if streaming, of the files and of rows within a small buffer
    (null: no shuffle). max_documents: the largest number of documents to read (null: all).
    """

    def __init__(
        self,
        *,
        name: str,
        config: str | None,
        split: str,
        column: list[str],
        revision: str | None,
        streaming: bool,
        document_start: str | None,
        shuffle_seed: int | None,
        max_documents: int | None,
        held_out: float,
        separate_documents: bool = False,
    ) -> None:
        super().__init__(held_out=held_out, separate_documents=separate_documents)
        if document_start is not None and shuffle_seed is not None:
            raise ValueError(
                f"shuffle_seed is {shuffle_seed}, but document_start joins rows in their order; give shuffle_seed=null"
            )
        self.name, self.config, self.split, self.column, self.revision = name, config, split, column, revision
        self.streaming, self.shuffle_seed, self.max_documents = streaming, shuffle_seed, max_documents
        self.document_start = document_start
        self._start = compiled("document_start", document_start)
        self._hub = HubRows(
            name=name,
            config=config,
            split=split,
            revision=revision,
            streaming=streaming,
            without_network="data=pydoc, or data=text data.path=FILE for local files",
        )

    def identity(self) -> str:
        order = None if self.shuffle_seed is None else [self.shuffle_seed, self.streaming]
        options = [self.config, self.split, self.column, self.document_start, self.max_documents, order]
        return fingerprint(
            corpus="hub", held_out=self.held_out, name=self.name, commit=self._hub.commit, options=options
        )

    def texts(self) -> Iterator[str]:
        stored = self._hub.open(self.column)
        if self.shuffle_seed is not None:
            stored = stored.shuffle(seed=self.shuffle_seed)
        rows = (
            join_columns(self.name, dict(zip(self.column, values, strict=True)), self.column)
            for batch in stored.select_columns(self.column).iter(batch_size=ROWS_AT_ONCE)
            for values in zip(*(batch[name] for name in self.column), strict=True)
        )
        documents = rows if self._start is None else join_rows(rows, self._start)
        return itertools.islice((text for text in documents if text and not text.isspace()), self.max_documents)


def join_rows(rows: Iterable[str], start: re.Pattern[str]) -> Iterator[str]:
    """Joins rows into documents, with a newline between rows. Each row that `start` matches begins a document."""
    document: list[str] = []
    for row in rows:
        if document and start.search(row):
            yield "\n".join(document)
            document = []
        document.append(row.removesuffix("\n"))
    if document:
        yield "\n".join(document)
