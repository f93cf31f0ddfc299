"""CLRS-Text from the Hugging Face hub.

Tested by tests/data/test_clrs_text_hub.py.
"""

from __future__ import annotations

from typing import final

from roundround.data.hub import HubRows
from roundround.data.tasks.clrs_files import COLUMNS, LENGTH, Rows, StoredClrsText, table, text_of

ROWS_AT_ONCE = 1024


@final
class ClrsTextHub(StoredClrsText):
    """The data sets that the authors used for training and for the test, or others with the same columns.

    split, test_split: in the notation of `datasets`, such as train or test_1+test_2. revision, test_revision (null: the
    newest) are resolved to commits, which are part of the identity.

    Markeeva et al. 2024, arXiv:2406.04229.
    """

    def __init__(
        self,
        *,
        name: str,
        split: str,
        revision: str | None,
        test_name: str,
        test_split: str,
        test_revision: str | None,
        algorithms: list[str] | None,
        lengths: list[int] | None,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        super().__init__(
            algorithms=algorithms,
            lengths=lengths,
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self.hub = {
            "train": hub_rows(name, split, revision, "data."),
            "test": hub_rows(test_name, test_split, test_revision, "data.test_"),
        }

    def origin(self) -> dict[str, object]:
        commits = {which: [rows.name, rows.split, rows.commit()] for which, rows in self.hub.items()}
        return {"hub": commits, "pairs": self.pairs()}

    def read(self, which: str) -> Rows:
        rows = self.hub[which].open(COLUMNS)
        names = [name for name in (*COLUMNS, LENGTH) if name in rows.column_names]
        blocks = rows.select_columns(names).iter(batch_size=ROWS_AT_ONCE)
        by_row = (
            dict(zip(names, values, strict=True))
            for block in blocks
            for values in zip(*(block[name] for name in names), strict=True)
        )
        return table(f"data set '{self.hub[which].name}'", by_row, lambda i: text_of(rows[i]))


def hub_rows(name: str, split: str, revision: str | None, prefix: str) -> HubRows:
    return HubRows(
        name=name,
        config=None,
        split=split,
        revision=revision,
        streaming=False,
        name_key=f"{prefix}name",
        revision_key=f"{prefix}revision",
        without_network="data=clrs_text_files data.path=FILE",
    )
