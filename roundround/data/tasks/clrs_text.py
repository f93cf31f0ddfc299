"""CLRS-Text: a model writes the steps and results of thirty textbook algorithms. Examples are from files or the hub.

Markeeva et al. 2024, arXiv:2406.04229; the lengths are from the authors' script generate_clrs_text.py.

Shapes: N rows.

Tested by tests/data/tasks/test_clrs_text.py and tests/data/test_clrs_text_hub.py.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from roundround.data.corpora import reading, well_formed
from roundround.data.hub import HubRows
from roundround.data.tasks.base import FixedSet, Task
from roundround.data.tasks.batches import ExampleSampler
from roundround.data.tasks.text_task import Text, TextTask
from roundround.data.text import TextFiles, rows_of
from roundround.support.errors import UserError, nearest
from roundround.support.files import sha256

QUESTION, ANSWER, ALGORITHM = COLUMNS = ("question", "answer", "algo_name")  # of the authors' data sets
LENGTH = "length"  # a column that is missing in the authors' training set
UNKNOWN = -1
TRAINED = (4, 5, 10, 11, 12, 15, 19, 23, 28, 31)  # the paper's lengths in training, up to the algorithm's longest
LONGEST_TRAINED = {
    "activity_selector": 31,
    "articulation_points": 19,
    "bellman_ford": 31,
    "bfs": 31,
    "binary_search": 31,
    "bridges": 5,
    "bubble_sort": 10,
    "dag_shortest_paths": 19,
    "dfs": 23,
    "dijkstra": 28,
    "find_maximum_subarray_kadane": 31,
    "floyd_warshall": 10,
    "graham_scan": 31,
    "heapsort": 10,
    "insertion_sort": 31,
    "jarvis_march": 12,
    "kmp_matcher": 31,
    "lcs_length": 10,
    "matrix_chain_order": 10,
    "minimum": 31,
    "mst_kruskal": 10,
    "mst_prim": 28,
    "naive_string_matcher": 31,
    "optimal_bst": 10,
    "quickselect": 31,
    "quicksort": 10,
    "segments_intersect": 31,
    "strongly_connected_components": 15,
    "task_scheduling": 31,
    "topological_sort": 23,
}
BESIDE = 4  # extra tokens of an example: beginning, end, and the space that SentencePiece puts before each part
MEASURED = 64  # the number of rows, those with the most bytes, that are tokenised to find the most tokens of a row
SHARES = 64  # parts into which the rows are divided, by the hash of the text
OF_ONE_SET = {"validation": range(8), "test": range(8, 16), "train": range(16, SHARES)}
OF_TRAINING_SET = {"validation": range(1), "train": range(1, SHARES)}  # if there is a separate test set

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a data set: texts, and columns of numbers, [N] each.

    where: the name of the data set, for messages. at: the function that returns the text of the row with a given
    number. algorithm: for each row, the index of the algorithm in LONGEST_TRAINED. length: for each row, the length of
    the algorithm's input, or UNKNOWN. hash: for each row, the hash of the text.
    """

    where: str
    at: Callable[[int], Text]
    algorithm: Numbers
    length: Numbers
    hash: Numbers
    n_bytes: Numbers

    def of(self, algorithms: Sequence[str]) -> NDArray[np.bool_]:
        """True at the rows of these algorithms, [N]."""
        return np.isin(self.algorithm, [list(LONGEST_TRAINED).index(name) for name in algorithms])


class ClrsText(TextTask):
    """Runs an algorithm step by step: the name and the input, then the trace and the output, as text.

    insertion_sort: key: [.2 .1], initial_trace: [.2 .1] trace | pred: -> [.2 .1] | [.1 .2]; length is the input's size

    Markeeva et al. 2024, arXiv:2406.04229; Velickovic et al. 2025, arXiv:2410.01104, section 5.

    algorithms: the names of the algorithms; None for all thirty. lengths: the lengths in training, for every algorithm;
    None for all rows. The whole answer is scored, including the trace; `output_match` scores only the text after the
    last " | ", before which the model reads the right trace. Each row comes once in an epoch, in an order that the seed
    determines.

    The hash of a text determines its split. Without a separate test set, an eighth of the rows is for validation and an
    eighth for the test. With a separate test set, 1/64 of the training set is for validation. The authors' training and
    test sets share some examples of small lengths, because few different ones exist. The shared examples are not
    removed.
    """

    def __init__(
        self,
        *,
        algorithms: Sequence[str] | None,
        lengths: Sequence[int] | None,
        train_examples: int | None,
        validation_examples: int,
    ) -> None:
        self.algorithms = list(LONGEST_TRAINED) if algorithms is None else sorted(set(algorithms))
        self.lengths = None if lengths is None else sorted(set(lengths))
        if unknown := [name for name in self.algorithms if name not in LONGEST_TRAINED]:
            raise ValueError(
                f"algorithms contains '{unknown[0]}', which is no algorithm of "
                f"CLRS-Text{nearest(unknown[0], LONGEST_TRAINED)}"
            )
        every = [length for _, length in self.pairs()]
        super().__init__(
            train_lengths=[min(every), max(every)],
            train_examples=train_examples,
            validation_examples=validation_examples,
        )
        self._sets: dict[str, Rows] = {}  # read when first needed; the tasks of groups() share it

    @abstractmethod
    def read(self, which: str) -> Rows | None:
        """The rows of "train" or "test"; None if there is no test set. Raises UserError if they cannot be read."""

    def set_of(self, which: str) -> Rows:
        if which not in self._sets:
            rows = self.read(which)
            self._sets[which] = self.set_of("train") if rows is None else rows
        return self._sets[which]

    @property
    def train_lengths(self) -> tuple[int, int]:
        """The shortest and the longest length in training.

        They are taken from `lengths`; if it is None, from the rows; if the rows have no lengths, from the paper.
        """
        lengths = [length for _, length in self.pairs()]
        if self.lengths is None:
            rows = self.set_of("train")
            lengths = rows.length[rows.of(self.algorithms) & (rows.length != UNKNOWN)].tolist() or lengths
        return min(lengths), max(lengths)

    def pairs(self) -> list[tuple[str, int]]:
        """The pairs (algorithm, length) in training. The lengths are `lengths`, or the paper's if `lengths` is None."""
        pairs = [(name, n) for name in self.algorithms for n in self.lengths or TRAINED]
        return [(name, n) for name, n in pairs if self.lengths or n <= LONGEST_TRAINED[name]]

    def output_at(self, answer: str) -> int:
        return answer.rfind(" | ") + 3 if " | " in answer else 0  # segments_intersect has no trace

    def groups(self) -> dict[str, Task]:
        """One task for each algorithm."""
        return {name: self.with_values(algorithms=[name]) for name in self.algorithms}

    def shared_with_test(self) -> str | None:
        train, test = self.set_of("train"), self.set_of("test")
        if train is test:
            return None  # the hash of a text decides its split
        tested, trained = (rows.of(self.algorithms) for rows in (test, train))
        if self.lengths is not None:
            trained &= np.isin(train.length, self.lengths)
        n = int(np.isin(test.hash[tested], train.hash[trained]).sum())
        return f"{n:,} of {int(tested.sum()):,} test examples are in the training set too" if n else None

    def stored_texts(self, *, seed: int, split: str, length: int | None) -> FixedSet[Text]:
        train, test = self.set_of("train"), self.set_of("test")
        rows = test if split == "test" else train
        wanted = self.lengths if length is None else [length]
        chosen = rows.of(self.algorithms)
        if wanted is not None:
            chosen &= np.isin(rows.length, wanted)
        if not (n := chosen.sum()):
            raise self.missing(rows, split, wanted)
        if train is test or split != "test":
            shares = (OF_ONE_SET if train is test else OF_TRAINING_SET)[split]
            if not (chosen := chosen & np.isin(rows.hash % SHARES, shares)).any():
                none = f"{split} has none of the {n:,} rows (it takes {len(shares)} in {SHARES}, by their text)"
                raise UserError(f"{rows.where}: {none}: more rows are needed")
        numbers = chosen.nonzero()[0]
        order = ExampleSampler(len(numbers), seed=seed)
        return FixedSet(len(numbers), lambda i: rows.at(int(numbers[order.numbers(i, 1)[0]])))

    def missing(self, rows: Rows, purpose: str, lengths: Sequence[int] | None) -> UserError:
        """The error for missing rows, which names the lengths that exist. purpose: the use of the rows."""
        there = np.unique(rows.length[rows.of(self.algorithms)]).tolist()
        found = f"no column '{LENGTH}'; data.lengths=null takes all rows" if UNKNOWN in there else f"lengths: {there}"
        wanted = f"{', '.join(self.algorithms)} of {'any length' if lengths is None else f'length {lengths}'}"
        return UserError(f"{rows.where}: no row is of {wanted}, as needed for {purpose} (it has {found})")

    def text(self, rng: np.random.Generator, length: int) -> Text:
        texts = self.stored_texts(seed=0, split="train", length=length)
        return texts.at(int(rng.integers(texts.n)))

    def test_lengths(self) -> Sequence[int]:
        rows = self.set_of("test")
        return [length for length in np.unique(rows.length[rows.of(self.algorithms)]).tolist() if length != UNKNOWN]

    def check_length(self, length: int, what: str) -> None:
        if length not in self.test_lengths():
            raise self.missing(self.set_of("test"), f"{what}={length}", [length])

    def context(self, length: int) -> int:
        """The number of tokens in the longest example of at most this length.

        If there is no vocabulary yet, the result is an upper bound, computed from the number of bytes.
        """
        train, found = self.set_of("train"), list[Text]()
        for rows in [train] if self.set_of("test") is train else [train, self.set_of("test")]:
            numbers = (rows.of(self.algorithms) & (rows.length <= length)).nonzero()[0]
            longest = numbers[np.argsort(-rows.n_bytes[numbers], kind="stable")[:MEASURED]]
            found += [rows.at(int(number)) for number in longest]
        if not found:
            raise self.missing(train, "training", None)
        if self._vocabulary is None:
            return max(len("".join(text).encode()) + BESIDE for text in found)
        return max(len(self.tokenised(text).tokens) for text in found)


def table(where: str, rows: Iterable[Mapping[str, Any]], at: Callable[[int], Text]) -> Rows:
    """The `Rows` of a data set, made in one pass. Raises UserError for an algorithm that is not in CLRS-Text."""
    numbers = {name: number for number, name in enumerate(LONGEST_TRAINED)}
    columns: list[tuple[int, int, int, int]] = []
    for row in rows:
        name = str(row[ALGORITHM])
        if name not in numbers:
            raise UserError(
                f"{where}, row {len(columns) + 1}: {ALGORITHM} is '{name}', which is no algorithm of "
                f"CLRS-Text{nearest(name, LONGEST_TRAINED)}"
            )
        text = "".join(text_of(row)).encode()
        identity = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest())  # fits into int64
        columns.append((numbers[name], int(row.get(LENGTH, UNKNOWN)), identity, len(text)))  # int(): a csv gives text
    return Rows(where, at, *np.array(columns, dtype=np.int64).reshape(-1, 4).T)


def text_of(row: Mapping[str, Any]) -> Text:
    """The prompt and the answer of a row."""
    return Text(well_formed(row[QUESTION]), well_formed(row[ANSWER]))


@final
class ClrsTextFiles(ClrsText):
    """CLRS-Text from local files: jsonl, json, csv, tsv or parquet with the columns of the authors' data sets.

    path: files, folders and globs, whose rows are kept in memory. test_path: the files of a separate test set, or None.

    Markeeva et al. 2024, arXiv:2406.04229.
    """

    def __init__(
        self,
        *,
        path: list[str],
        test_path: list[str] | None,
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
        self.files = {  # expanded and checked as by data=text
            which: TextFiles(path=files, column=list(COLUMNS), split_regex=None, max_chars=None, held_out=1)
            for which, files in (("train", path), ("test", test_path))
            if files is not None
        }

    def origin(self) -> dict[str, object]:
        with reading("the corpus"):
            hashes = {
                which: [[path.suffix.lower(), sha256(path)] for path in files.files()]
                for which, files in self.files.items()
            }
        return {"files": hashes, "pairs": self.pairs()}

    def read(self, which: str) -> Rows | None:
        if which not in self.files:
            return None
        paths = self.files[which].files()
        rows = [row for path in paths for _, row in rows_of(path, COLUMNS, optional=[LENGTH])]
        return table(", ".join(map(str, paths)), rows, lambda i: text_of(rows[i]))


@final
class ClrsTextHub(ClrsText):
    """CLRS-Text from data sets of the hub: the authors' data sets, or others with the same columns.

    split, test_split: the splits of the training set and of the test set, in the notation of `datasets`, such as train
    or test_1+test_2. revision, test_revision: branches, tags or commits (null: the newest). They are resolved to
    commits, which are part of the identity.

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
        wanted = {
            "train": (name, split, revision, "data."),
            "test": (test_name, test_split, test_revision, "data.test_"),
        }
        self.hub = {
            which: HubRows(
                name=name,
                split=split,
                revision=revision,
                key=key,
                without_network="data=clrs_text_files data.path=FILE",
            )
            for which, (name, split, revision, key) in wanted.items()
        }

    def origin(self) -> dict[str, object]:
        commits = {which: [rows.name, rows.split, rows.commit] for which, rows in self.hub.items()}
        return {"hub": commits, "pairs": self.pairs()}

    def read(self, which: str) -> Rows:
        rows = self.hub[which].open(COLUMNS)
        names = [name for name in (*COLUMNS, LENGTH) if name in rows.column_names]
        return table(f"data set '{self.hub[which].name}'", rows.select_columns(names), lambda i: text_of(rows[i]))
