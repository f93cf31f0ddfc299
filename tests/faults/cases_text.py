"""Corpora that cannot be read or trained on: damaged, foreign, of odd kinds, in odd places."""

from __future__ import annotations

import io
import os
import random
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from case import Case
from damage import holding
from originals import SMALL

TRAIN = ["train", *SMALL, "data=text", "trainer.max_steps=2", "validation_tokens=256"]
STORY = "Once upon a time there was a dog. " * 20
STORIES = "\n\n".join(f"{number} {STORY}" for number in range(60))
NOISE = random.Random(0).randbytes(50_000)


def rows(row: str, n: int = 50) -> str:
    """n rows, each of another text where `N` stands for its number: equal ones would all fall into one split."""
    return "\n".join(row.replace("N", str(number)) for number in range(n))


FILES: dict[str, str | bytes] = {
    "empty: a.txt": "",
    "spaces: a.txt": "  \n \n ",
    "one document: a.txt": STORY,
    "two short documents: a.txt": "a\n\nb",
    "documents shorter than a window: a.txt": "\n\n".join(["abc"] * 4),
    "only separators: a.txt": "\n\n" * 1000,
    "noise: a.txt": NOISE,
    "latin-1: a.txt": STORIES.replace("dog", "\u00e9").encode("latin-1"),
    "utf-16: a.txt": STORIES.encode("utf-16"),
    "cut inside a character: a.txt": STORIES.encode() + b"\xc3",
    "a surrogate in utf-8: a.txt": STORIES.encode() + b"\xed\xa0\x80",
    "an executable: a.txt": Path(sys.executable).read_bytes()[:200_000],
    "gzip: a.txt.gz": b"\x1f\x8b\x08" + NOISE[:500],
    "gzip inside txt: a.txt": b"\x1f\x8b\x08" + NOISE[:500],
    "zip: a.zip": b"PK\x03\x04" + NOISE[:500],
    "unknown ending: a.doc": STORIES,
    "python: a.py": STORIES,
    "pickle: a.pkl": b"\x80\x02cposix\nsystem\nX\x0e\x00\x00\x00touch EXECUTED\x85R.",
    "no ending: corpus": STORIES,
    "markdown, empty: a.md": "",
    "csv without the column: a.csv": "a,b\n1,2\n",
    "csv ragged: a.csv": "text,b\nx,2\ny\n",
    "csv of a header: a.csv": "text\n",
    "csv with an open quote: a.csv": 'text\n"abc\n' + STORIES,
    "csv of noise: a.csv": NOISE[:5000],
    "csv empty: a.csv": "",
    "csv in latin-1: a.csv": ("text\n" + rows("caf\u00e9")).encode("latin-1"),
    "csv with the column twice: a.csv": "text,text\na,b\n",
    "tsv without the column: a.tsv": "a\tb\n1\t2\n",
    "tsv empty: a.tsv": "",
    "jsonl broken: a.jsonl": '{"text": "a"}\n{"text": \n',
    "jsonl of numbers: a.jsonl": "1\n2\n",
    "jsonl of lists: a.jsonl": "[1]\n[2]\n",
    "jsonl, text a number: a.jsonl": '{"text": 5}\n',
    "jsonl, text a list: a.jsonl": '{"text": ["a"]}\n',
    "jsonl, text null: a.jsonl": rows('{"text": null}'),
    "jsonl without the column: a.jsonl": '{"txt": "a"}\n',
    "jsonl with half a character: a.jsonl": rows('{"text": "a \\ud800 dog"}', 100),
    "jsonl with an integer of 5,000 digits: a.jsonl": '{"text": "a", "n": ' + "9" * 5000 + "}\n",
    "jsonl nested: a.jsonl": '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
    "jsonl of noise: a.jsonl": NOISE[:5000],
    "jsonl empty: a.jsonl": "",
    "json nested: a.json": "[" * 100_000 + "]" * 100_000,
    "json cut: a.json": '[{"text": "a"},',
    "json a number: a.json": "5",
    "json null: a.json": "null",
    "json a string: a.json": '"text"',
    "json empty: a.json": "",
    "json with an integer of 5,000 digits: a.json": "[" + "9" * 5000 + "]",
    "parquet of text: a.parquet": STORIES,
    "parquet without a body: a.parquet": b"PAR1" + b"\0" * 500 + b"PAR1",
    "parquet empty: a.parquet": b"",
    "parquet with a huge footer: a.parquet": b"PAR1" + b"\0" * 100 + struct.pack("<I", 2**31 - 1) + b"PAR1",
}
GOOD: dict[str, str | bytes] = {
    "stories: a.txt": STORIES,
    "a byte order mark: a.txt": b"\xef\xbb\xbf" + STORIES.encode(),
    "windows' line ends: a.txt": STORIES.replace("\n", "\r\n"),
    "markdown: a.md": STORIES,
    "csv: a.csv": "text\n" + rows("N " + STORY),
    "tsv: a.tsv": "text\tn\n" + rows("N " + STORY + "\t1"),
    "jsonl: a.jsonl": rows('{"text": "N ' + STORY + '"}'),
    "json: a.json": "[" + rows('{"text": "N ' + STORY + '"}').replace("\n", ",") + "]",
    "a name with spaces: a b.txt": STORIES,
}  # fmt: skip
# text all the same, or refused: the formats do not say
EITHER: dict[str, str | bytes] = {
    "utf-32 without a mark: a.txt": STORIES.encode("utf-32-le"),
    "NUL: a.txt": STORIES.replace("dog", "\0"),
    "csv with NUL: a.csv": "text\n" + rows("N a\0b " + STORY),
}


def of_files(kind: str, files: Mapping[str, str | bytes], **more: Any) -> list[Case]:
    named = [(*name.rsplit(": ", 1), data) for name, data in files.items()]
    return [
        Case(
            name=f"{kind}: {what}, {file}", args=[*TRAIN, f"data.path='{file}'"], prepare=holding({file: data}), **more
        )
        for what, file, data in named
    ]


def of_path(what: str, path: str, make: Callable[[Path], object], *, more: Sequence[str] = (), **about: Any) -> Case:
    return Case(name=f"text files: {what}", args=[*TRAIN, f"data.path={path}", *more], prepare=make, **about)


def put(folder: Path, name: str = "a.txt", data: str | bytes = STORIES) -> Path:
    holding({name: data})(folder)
    return folder / name


def parquet(**columns: list[Any]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), written)
    return written.getvalue()


def tree_with(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """A folder `d` that holds a good text and something else."""

    return lambda folder: (put(folder, "d/b.txt"), make(folder / "d"))


PLACES = [
    of_path(
        "parquet cut short", "a.parquet", lambda f: put(f, "a.parquet", parquet(text=["a b"] * 100)[:-30]),
    ),
    of_path(
        "parquet with noise inside", "a.parquet",
        lambda f: put(f, "a.parquet", b"PAR1" + NOISE[:500] + parquet(text=["a b"] * 100)[504:]),
    ),
    of_path("parquet of numbers", "a.parquet", holding({"a.parquet": parquet(text=[1, 2, 3] * 100)})),
    of_path("parquet of lists", "a.parquet", holding({"a.parquet": parquet(text=[["a"], ["b"]] * 100)})),
    of_path("parquet of nulls", "a.parquet", holding({"a.parquet": parquet(text=[None] * 100)})),
    of_path("parquet without the column", "a.parquet", holding({"a.parquet": parquet(txt=["a"])})),
    of_path("parquet of nothing", "a.parquet", holding({"a.parquet": parquet(text=[])})),
    of_path("parquet, good", "a.parquet", holding({"a.parquet": parquet(text=STORIES.split("\n\n"))}), codes=(0,)),
    of_path(
        "csv, a column that is not there", "a.csv", lambda f: put(f, "a.csv", "a,b\n1,2\n"), more=["data.column=[7]"],
    ),
    of_path("fifo", "a.txt", lambda f: os.mkfifo(f / "a.txt")),
    of_path("fifo without an ending", "fifo", lambda f: os.mkfifo(f / "fifo")),
    of_path("fifo of rows", "a.jsonl", lambda f: os.mkfifo(f / "a.jsonl")),
    of_path("fifo of parquet", "a.parquet", lambda f: os.mkfifo(f / "a.parquet")),
    # a corpus that silently lacks a file would be another corpus: refused, also beside a good file
    of_path("fifo in a folder", "d", tree_with(lambda d: os.mkfifo(d / "a.txt")), says="d/a.txt"),
    of_path("dead link in a folder", "d", tree_with(lambda d: (d / "a.txt").symlink_to("gone")), says="d/a.txt"),
    of_path("looping link in a folder", "d", tree_with(lambda d: (d / "a.txt").symlink_to("a.txt")), says="d/a.txt"),
    of_path("link to its own folder", "d", tree_with(lambda d: (d / "e").symlink_to(".")), codes=(0, 2)),
    of_path("empty file in a folder", "d", tree_with(lambda d: (d / "a.txt").write_text("")), codes=(0, 2)),
    of_path("noise in a folder", "d", tree_with(lambda d: (d / "a.txt").write_bytes(NOISE))),
    of_path("unreadable file in a folder", "d", tree_with(lambda d: put(d).chmod(0)), ordinary_user=True),
    of_path("device /dev/zero", "/dev/zero", lambda f: None),
    of_path("device /dev/stdin", "/dev/stdin", lambda f: None),
    of_path("device /dev/full", "/dev/full", lambda f: None),
    of_path("link to /dev/zero", "z.txt", lambda f: (f / "z.txt").symlink_to("/dev/zero")),
    of_path("link to itself", "l.txt", lambda f: (f / "l.txt").symlink_to("l.txt")),
    of_path("dead link", "l.txt", lambda f: (f / "l.txt").symlink_to("gone")),
    of_path("folder with the name of a text", "d.txt", lambda f: (f / "d.txt").mkdir()),
    of_path("empty folder", "d", lambda f: (f / "d").mkdir()),
    of_path("folder of other files", "d", lambda f: put(f, "d/a.doc")),
    of_path("below a file", "a.txt/b.txt", put),
    of_path("unreadable file", "a.txt", lambda f: put(f).chmod(0), ordinary_user=True),
    of_path("unreadable folder", "d", lambda f: put(f, "d/a.txt").parent.chmod(0), ordinary_user=True),
    of_path("file in an unreadable folder", "d/a.txt", lambda f: put(f, "d/a.txt").parent.chmod(0), ordinary_user=True),
    of_path("one file twice", "[a.txt,./a.txt]", put, codes=(0, 2)),
    of_path("one of two is not there", "[a.txt,b.txt]", put),
    of_path(
        "a name that is not utf-8", "'*.txt'", lambda f: put(f, b"\xff\xfe.txt".decode("utf-8", "surrogateescape")),
        codes=(0, 2),
    ),
    of_path("control characters in a name", "'*.txt'", lambda f: put(f, "a\nb\x1b[31m.txt", "")),
    of_path("control characters in a name of rows", "'*.jsonl'", lambda f: put(f, "a\nb\x1b[31m.jsonl", "{")),
    of_path("a folder and a glob", "[d,'*.txt']", lambda f: (put(f, "d/a.txt"), put(f)), codes=(0,)),
]  # fmt: skip

CASES = [
    *of_files("texts", FILES),
    *of_files("good texts", GOOD, codes=(0,)),
    *of_files("texts", EITHER, codes=(0, 2)),
    *PLACES,
]
