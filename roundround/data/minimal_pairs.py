"""Minimal pairs: two sentences that differ in one detail of grammar. A model should find the right one more likely.

Tested by tests/data/test_minimal_pairs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from roundround.data.corpora import Source, fingerprint, reading, well_formed
from roundround.data.hub import HubRows
from roundround.data.text import TABLES, TextFiles, rows_of, text_file
from roundround.support.errors import UserError, nearest
from roundround.support.files import sha256

SAMPLES = Path(__file__).with_name("pairs")  # SOURCE.md says where they are from
PHENOMENON, GOOD, BAD = COLUMNS = ("UID", "sentence_good", "sentence_bad")  # of BLiMP's files


class Pair(NamedTuple):
    phenomenon: str
    good: str
    bad: str


@final
class MinimalPairs(Source):
    """Pairs of sentences, grouped by phenomenon: from files, from a data set of the hub, or from a sample.

    path: files and folders. Rows of jsonl, json, csv, tsv and parquet have the columns `UID` (the phenomenon),
    `sentence_good` and `sentence_bad`, as in BLiMP. A txt file is named after its phenomenon; each wrong sentence is a
    line, and the right sentence is the next line, as in Zorro. name: a data set of the hub, in which each phenomenon of
    the sample is a configuration. revision: the branch, tag or commit of this data set. sample: the packaged sample to
    read if `path` and `name` are null. phenomena: the phenomena to read (null: all). pairs: the number of pairs to take
    from each phenomenon, at even distances (null: all). before: the text before every sentence.

    Warstadt et al. 2020, arXiv:1912.00582.
    """

    def __init__(
        self,
        *,
        path: list[str] | None,
        sample: str,
        phenomena: list[str] | None,
        pairs: int | None,
        before: str,
        name: str | None = None,
        revision: str | None = None,
    ) -> None:
        if (path is not None and name is not None) or (revision is not None and name is None):
            raise ValueError(
                "path reads files, and name and revision read a data set of the hub; give path or name, not both"
            )
        self.path, self.name, self.revision, self.sample = path, name, revision, sample
        self.phenomena, self.n_pairs, self.before = phenomena, pairs, before

    @property
    def of_package(self) -> bool:
        """Whether the pairs are the sample in the package."""
        return self.path is None and self.name is None

    def files(self) -> list[Path]:
        """The files that contain the pairs. Raises UserError if there is nothing to read."""
        paths = [str(SAMPLES / self.sample)] if self.path is None else self.path
        return TextFiles(path=paths, column=list(COLUMNS), split_regex=None, max_chars=None, held_out=1).files()

    def identity(self) -> str:
        if self.name is None:
            with reading("the pairs"):
                origin: object = [[file.suffix.lower(), sha256(file)] for file in self.files()]
        else:
            origin = [self.name, self.hub_rows(next(iter(self.sampled()))).commit]
        return fingerprint(corpus="pairs", origin=origin, options=[self.phenomena, self.n_pairs, self.before])

    def by_phenomenon(self) -> dict[str, list[Pair]]:
        """{phenomenon: the requested pairs}. Raises UserError, with file and line, if a row is not a pair."""
        found: dict[str, list[Pair]] = {}
        with reading("the pairs"):
            for pair in self.of_files() if self.name is None else self.of_hub():
                found.setdefault(pair.phenomenon, []).append(pair)
        for name in self.phenomena or ():
            if name not in found:
                raise UserError(f"data.phenomena: there is no phenomenon '{name}'{nearest(name, found)}")
        kept = found if self.phenomena is None else {name: found[name] for name in dict.fromkeys(self.phenomena)}
        for name, pairs in kept.items():  # evenly spaced, as neighbours in a file are often similar
            n = min(self.n_pairs or len(pairs), len(pairs))
            kept[name] = [pairs[i * len(pairs) // n] for i in range(n)]
        return dict(sorted(kept.items()))

    def of_files(self) -> Iterator[Pair]:
        for file in self.files():
            if file.suffix.lower() in TABLES:
                yield from (pair_of(row, where) for where, row in rows_of(file, COLUMNS))
            else:
                with text_file(file) as found:
                    sentences = [line.rstrip("\n") for line in found]
                if len(sentences) % 2:
                    raise UserError(
                        f"{file}, line {len(sentences)}: no right sentence follows this wrong one; each wrong sentence "
                        "needs the right one in the next line"
                    )
                for n in range(0, len(sentences), 2):
                    row = {PHENOMENON: file.stem, BAD: sentences[n], GOOD: sentences[n + 1]}
                    yield pair_of(row, f"{file}, lines {n + 1} and {n + 2}")

    def of_hub(self) -> Iterator[Pair]:
        for phenomenon in self.sampled() if self.phenomena is None else dict.fromkeys(self.phenomena):
            for number, row in enumerate(self.hub_rows(phenomenon).open(COLUMNS), 1):
                yield pair_of(row, f"data set '{self.name}', {phenomenon}, row {number}")

    def hub_rows(self, phenomenon: str) -> HubRows:
        return HubRows(
            name=str(self.name),
            config=phenomenon,
            split="train",
            revision=self.revision,
            streaming=False,
            without_network="data.path=FOLDER for files, or leave data.name out for the sample in the package",
        )

    def sampled(self) -> dict[str, None]:
        """The phenomena of the sample."""
        [file] = (SAMPLES / self.sample).glob("*.jsonl")
        return dict.fromkeys(str(row[PHENOMENON]) for _, row in rows_of(file, COLUMNS))


def pair_of(row: Mapping[str, Any], where: str) -> Pair:
    """The pair in a row. where: the file and line for the message. Raises UserError if a text is missing."""
    texts = [row[name] for name in COLUMNS]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise UserError(f"{where}: a text is missing; each row needs one in each of the columns {', '.join(COLUMNS)}")
    return Pair(*map(well_formed, texts))
