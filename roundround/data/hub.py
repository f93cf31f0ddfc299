"""The Hugging Face hub: whether it answers, its data sets or their cached copies, and a data set as a corpus.

Without a network its libraries retry for 23 s (a data set) or 49 s (a tokenizer), as measured with huggingface_hub 2.4.
So this module first checks whether the hub answers at all, which takes at most a few seconds.
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
    """Whether the hub answers, with the proxies, HF_ENDPOINT and HF_HUB_OFFLINE of the environment."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # each version of huggingface_hub has its own client library, with its own errors
        return False
    return True


def is_cached(name: str) -> bool:
    """Whether the local cache has the weights of a model on the hub, in safetensors."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    return any(folder.glob("snapshots/*/*.safetensors"))


@contextmanager
def offline() -> Iterator[None]:
    """Inside, data sets come from the local cache at once, as under HF_HUB_OFFLINE=1."""
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
    """One split of a data set of the hub. streaming: read it without keeping a copy.

    key: the prefix of `name` and `revision` in the config, for messages. without_network: what a message proposes
    instead if there is no network.
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
        """The commit of `revision`, from the hub; without a network, the newest commit in the local cache.

        Raises UserError if the hub has no such data set, or if it cannot be reached and no copy can be used.
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
        """The `Dataset`, or `IterableDataset` when streaming. Raises UserError if config, split or a column is wrong.

        Without a network it opens the cached copy, but not when streaming, because a stream is shuffled differently.
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
                found = f"set {self.key}revision={cached.pop()}"
                raise UserError(
                    f"data set '{self.name}': the Hugging Face hub cannot be reached, and the copy cached here is of "
                    f"another commit; {found}"
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
    """Any data set of the hub: the texts of `column`, joined by a newline, row by row.

    `revision` (null: the newest) is resolved to a commit, which is part of the identity; a full commit id needs no
    network for that. `streaming` reads without keeping a copy. `document_start` (null: a row is a document) is a
    regular expression: a row that it matches begins a document, which ends before the next such row. `shuffle_seed`
    (null: as stored) shuffles all rows; when streaming, it shuffles the files and then rows within a small buffer.
    `max_documents` (null: all) is the most documents read.
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
    """Joins rows into documents, with a line end between rows; a row that matches `start` begins a document."""
    document: list[str] = []
    for row in rows:
        if document and start.search(row):
            yield "\n".join(document)
            document = []
        document.append(row.removesuffix("\n"))
    if document:
        yield "\n".join(document)
