"""The token cache, damaged between two runs: made again with a word, never believed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from case import Case
from damage import GONE, LONG_INTEGER, NESTED, in_json
from originals import TRAIN

ARGS = {"train": TRAIN, "eval": ["eval", "run=run", "length=32", "max_tokens=64", "logger=none"]}


def of_cache(what: str, change: Callable[[Path], object], codes: tuple[int, ...] = (0,)) -> list[Case]:
    def prepare(folder: Path) -> None:
        (entry,) = (path.parent for path in folder.glob("cache/*/meta.json"))
        change(entry)

    return [
        Case(
            name=f"token cache: {what}, {verb}",
            args=args,
            given=("run", "cache"),
            prepare=prepare,
            codes=codes,
            patience=40,
        )
        for verb, args in ARGS.items()
    ]


def meta(**changes: Any) -> Callable[[Path], None]:
    return lambda entry: in_json(entry / "meta.json", **changes)


def put(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda entry: (entry / name).write_bytes(data)


def other_bytes(name: str) -> Callable[[Path], object]:
    """The same size, other content."""

    def change(entry: Path) -> None:
        data = (entry / name).read_bytes()
        (entry / name).write_bytes(data[2:] + data[:2])

    return change


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def change(entry: Path) -> None:
        (entry / name).unlink()
        make(entry / name)

    return change


CASES = [
    *[
        case for dtype in (
            "object", "float32", "int64", "nope", "O8", "", 5, None, [["a", "u2"]],
        ) for case in of_cache(f"dtype {dtype!r}", meta(dtype=dtype))
    ],
    *of_cache("no key dtype", meta(dtype=GONE)),
    *of_cache("no key train", meta(train=GONE)),
    *of_cache("no key n_vocab", meta(n_vocab=GONE)),
    *of_cache("no key documents", meta(train__documents=GONE)),
    *of_cache("no key end_of_document", meta(end_of_document=GONE)),
    *of_cache("no key corpus_hash", meta(corpus_hash=GONE)),
    *of_cache("n_vocab text", meta(n_vocab="x")),
    *of_cache("n_vocab 7", meta(n_vocab=7)),
    *of_cache("n_vocab 10^12", meta(n_vocab=10**12)),
    *of_cache("end_of_document text", meta(end_of_document="x")),
    *of_cache("end_of_document 10^9", meta(end_of_document=10**9)),
    *of_cache("tokens text", meta(train__tokens="x")),
    *of_cache("tokens -1", meta(train__tokens=-1)),
    *of_cache("tokens 10^18", meta(train__tokens=10**18)),
    *of_cache("documents text", meta(train__documents="x")),
    *of_cache("documents 0", meta(train__documents=0)),
    *of_cache("train a list", meta(train=[])),
    *of_cache("meta.json a list", put("meta.json", b"[]")),
    *of_cache("meta.json empty", put("meta.json", b"")),
    *of_cache("meta.json null", put("meta.json", b"null")),
    *of_cache("meta.json not utf-8", put("meta.json", b"\xff")),
    *of_cache("meta.json nested", put("meta.json", NESTED.encode())),
    *of_cache("meta.json with a long integer", put("meta.json", b'{"dtype": ' + LONG_INTEGER.encode() + b"}")),
    *of_cache("meta.json gone", replaced("meta.json", lambda path: None)),
    *of_cache("meta.json a folder", replaced("meta.json", Path.mkdir), codes=(0, 2)),
    *of_cache("meta.json a fifo", replaced("meta.json", os.mkfifo), codes=(0, 2)),
    *of_cache("train.bin cut", lambda entry: os.truncate(entry / "train.bin", 99)),
    *of_cache("train.bin empty", lambda entry: os.truncate(entry / "train.bin", 0)),
    *of_cache("train.bin gone", replaced("train.bin", lambda path: None)),
    *of_cache("train.bin a folder", replaced("train.bin", Path.mkdir), codes=(0, 2)),
    *of_cache(
        "train.bin a link to /dev/zero", replaced("train.bin", lambda path: path.symlink_to("/dev/zero")), codes=(0, 2),
    ),
    *of_cache("train.bin of other bytes", other_bytes("train.bin")),
    *of_cache(
        "train.bin of large ids",
        lambda entry: (entry / "train.bin").write_bytes(b"\xff" * (entry / "train.bin").stat().st_size),
    ),
    *of_cache("held_out.bin of other bytes", other_bytes("held_out.bin")),
    *of_cache("held_out_bytes.bin of other bytes", other_bytes("held_out_bytes.bin")),
    *of_cache("tokenizer.json broken", put("tokenizer.json", b"{")),
    *of_cache("tokenizer.json gone", replaced("tokenizer.json", lambda path: None)),
    *of_cache("as it was", lambda entry: None),
]  # fmt: skip
