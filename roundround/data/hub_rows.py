"""Rows of a data set of the Hugging Face hub, or of the copy of it that an earlier run left."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundround.data.corpora import first_line
from roundround.data.network import cached_commit, hub_is_reachable, offline
from roundround.data.rows import check_columns
from roundround.support.errors import UserError

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(kw_only=True)
class HubRows:
    """One split of a data set. streaming: read without keeping a copy.

    name_key, revision_key: the keys of the config that say which. without_network: what there is instead.
    """

    name: str
    config: str | None
    split: str
    revision: str | None
    streaming: bool
    name_key: str = "data.name"
    revision_key: str = "data.revision"
    without_network: str
    _commit: str | None = field(default=None, init=False)

    def commit(self) -> str:
        """The commit that `revision` stands for: asked of the hub, or else of the local cache. UserError."""
        if self._commit is None:
            fixed = self.revision is not None and COMMIT.fullmatch(self.revision)
            self._commit = self.revision if fixed else self._resolve()
        assert self._commit is not None
        return self._commit

    def open(self, columns: Sequence[str], *, copy_serves: bool = True) -> Any:
        """The `Dataset`, or `IterableDataset` when streaming. UserError where config, split or a column is wrong.

        copy_serves: whether, without a network, the rows of a copy are as good as streamed ones.
        """
        import datasets

        commit = self.commit()
        if not sys.stderr.isatty():
            datasets.disable_progress_bars()
        try:
            if hub_is_reachable():
                rows = self._load(commit, streaming=self.streaming)
            elif copy_serves:
                rows = self._load_cached(commit)
            else:
                raise self._unreachable()
        except UserError:
            raise
        except Exception as error:  # the libraries' errors differ between versions; each has one telling line
            raise UserError(f"data set '{self.name}': {first_line(error)}") from None
        check_columns(f"data set '{self.name}'", rows.column_names or list(next(iter(rows))), columns)
        return rows

    def _resolve(self) -> str:
        from huggingface_hub import HfApi, errors

        if not hub_is_reachable():
            cached = cached_commit(self.name, self.revision)
            if cached is None:
                raise self._unreachable()
            return cached
        try:
            return str(HfApi().dataset_info(self.name, revision=self.revision).sha)
        except errors.RevisionNotFoundError:
            raise UserError(
                f"data set '{self.name}' has no revision '{self.revision}'; set {self.revision_key}"
            ) from None
        except (errors.RepositoryNotFoundError, errors.HFValidationError):
            raise UserError(
                f"no data set '{self.name}' on the Hugging Face hub, or it is private: check {self.name_key}, or log in"
            ) from None
        except errors.HfHubHTTPError as error:
            raise UserError(f"data set '{self.name}': the hub refuses ({first_line(error)})") from None

    def _unreachable(self) -> UserError:
        return UserError(
            f"data set '{self.name}': the Hugging Face hub cannot be reached and no copy is cached here; without a "
            f"network use {self.without_network}, or a copy cached by an earlier run"
        )

    def _load(self, commit: str, *, streaming: bool) -> Any:
        import datasets

        return datasets.load_dataset(self.name, self.config, split=self.split, revision=commit, streaming=streaming)

    def _load_cached(self, commit: str) -> Any:
        """What an earlier run without streaming left; its folder is named by the commit."""
        try:
            with offline():
                rows = self._load(commit, streaming=False)
        except (OSError, ValueError):
            raise self._unreachable() from None
        cached = {Path(file["filename"]).parent.name for file in rows.cache_files}
        if cached != {commit}:
            raise UserError(
                f"data set '{self.name}': the cached copy is of another commit; set {self.revision_key}={cached.pop()}"
            )
        return rows
