"""The token cache, damaged between two runs: made again with one line, never believed, and the results are the same."""

from __future__ import annotations

import json
import os
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from case import Case
from damage import GONE, LONG_INTEGER, NESTED, Damage, all_of, changed, in_json, linked, one_bit, put, replaced, values
from originals import RECIPES, Originals
from stopping import content, runs_in

MADE_AGAIN = r"^the tokens in \S+/cache/[0-9a-f]{32} are damaged \(.+\) and are made again$"
# both read the cache that the run has filled: the same run once more, and its score
ARGS = {
    "train": RECIPES["run"],
    "eval": ["eval", "run=run", "length=32", "max_tokens=256", "logger=none"],
}
CACHE: dict[str, Any] = {"given": ("run", "cache"), "codes": (0,), "patience": 40}


def of_cache(what: str, damage: Damage, *notes: str, says: str = "") -> list[Case]:
    return [
        Case(
            name=f"token cache: {what}, {verb}",
            args=args,
            prepare=lambda folder: damage(next(folder.glob("cache/*/meta.json")).parent),
            notes=notes,
            says=says,
            afterwards=partial(unlike_a_sound_cache, verb=verb),
            **CACHE,
        )
        for verb, args in ARGS.items()
    ]


def unlike_a_sound_cache(folder: Path, originals: Originals, *, verb: str) -> list[str]:
    """What differs from what the sound cache gives: the tokens, and the run or its score."""
    (sound,) = (path.parent for path in originals.original("cache").glob("*/meta.json"))
    made = folder / "cache" / sound.name
    faults = [
        f"{path.name} is another" for path in sound.iterdir() if (made / path.name).read_bytes() != path.read_bytes()
    ]
    (new,), run = runs_in(folder), originals.original("run")
    if verb == "train":
        files = [path.relative_to(run) for path in run.rglob("*") if path.is_symlink() or path.is_file()]
        return faults + [f"{name} differs" for name in files if content(new / name) != content(run / name)]
    records = [json.loads((path / "results.json").read_text()) for path in (new, run)]
    found, right = (next(r["value"] for r in each if r["metric"] == "nats_per_token") for each in records)
    return faults if abs(found / right - 1) < 1e-6 else [*faults, f"scores {found} where {right} is right"]


def objects(entry: Path) -> None:
    """Sizes that fit the eight bytes of a pointer: numpy would follow them."""
    counts = {}
    for split in ("train", "held_out"):
        path = entry / f"{split}-00000.bin"
        n = path.stat().st_size // 8
        os.truncate(path, 8 * n)
        counts[f"{split}__tokens"] = n
    in_json(entry / "meta.json", dtype="object", **counts)


meta = partial(values, "meta.json")
ARRAYS = ("train-00000.bin", "held_out-00000.bin", "held_out_bytes-00000.bin")
DAMAGES: dict[str, Damage] = {
    **{
        f"dtype {dtype!r}": meta(dtype=dtype)
        for dtype in ("object", "float32", "uint32", "int16", "int64", "nope", "O8", "", 5, None, [["a", "u2"]])
    },
    "dtype object, and sizes that fit": objects,
    **{f"no key {key}": meta(**{key: GONE}) for key in ("train", "held_out", "n_vocab", "end_of_document")},
    "no key corpus_hash": meta(corpus_hash=GONE),
    "no key documents": meta(train__documents=GONE),
    "n_vocab text": meta(n_vocab="x"),
    "n_vocab 7": meta(n_vocab=7),
    "n_vocab 10^12": meta(n_vocab=10**12),
    "end_of_document text": meta(end_of_document="x"),
    "end_of_document 10^9": meta(end_of_document=10**9),
    "tokens text": meta(train__tokens="x"),
    "tokens -1": meta(train__tokens=-1),
    "tokens 10^18": meta(train__tokens=10**18),
    "documents text": meta(train__documents="x"),
    "documents 0": meta(train__documents=0),
    "documents -1": meta(held_out={"documents": -1, "tokens": -1, "bytes": -1}),
    "train a list": meta(train=[]),
    "meta.json a list": put("meta.json", b"[]"),
    "meta.json empty": put("meta.json", b""),
    "meta.json null": put("meta.json", b"null"),
    "meta.json not utf-8": put("meta.json", b"\xff"),
    "meta.json nested": put("meta.json", NESTED.encode()),
    "meta.json with a long integer": put("meta.json", b'{"dtype": ' + LONG_INTEGER.encode() + b"}"),
    "meta.json a folder": replaced("meta.json", Path.mkdir),
    "meta.json a fifo": replaced("meta.json", os.mkfifo),
    **{f"{name} of zeros": changed(name, lambda data: b"\0" * len(data)) for name in ARRAYS},
    **{f"{name}, one bit": changed(name, one_bit) for name in ARRAYS[:2]},
    **{f"{name} of other bytes": changed(name, lambda data: data[2:] + data[:2]) for name in ARRAYS},
    "train.bin of large ids": changed(ARRAYS[0], lambda data: b"\xff" * len(data)),
    "train.bin cut": changed(ARRAYS[0], lambda data: data[:99]),
    "train.bin empty": put(ARRAYS[0], b""),
    "train.bin gone": replaced(ARRAYS[0]),
    "train.bin a folder": replaced(ARRAYS[0], Path.mkdir),
    "train.bin a link to /dev/zero": linked(ARRAYS[0], "/dev/zero"),
    "tokenizer.json broken": put("tokenizer.json", b"{"),
    "tokenizer.json gone": replaced("tokenizer.json"),
    "a broken tokenizer with its right hash": all_of(
        put("tokenizer.json", "{}"), values("meta.json", tokenizer_hash=sha256(b"{}").hexdigest())
    ),
    "a file in the place of the entry": replaced(".", lambda entry: entry.write_text("not a folder")),
}

UNFINISHED: dict[str, Damage] = {  # as a kill leaves it: it is resumed, and no line is due
    "meta.json gone": replaced("meta.json"),
    "all but the shards gone": lambda entry: [(entry / name).unlink() for name in ("meta.json", "begun.json")],
    "a shard without its record": lambda entry: [(entry / n).unlink() for n in ("meta.json", "shard-00000.json")],
}
CASES = [
    *[case for what, damage in UNFINISHED.items() for case in of_cache(what, damage, says="tokenised: ")],
    *[case for what, damage in DAMAGES.items() for case in of_cache(what, damage, MADE_AGAIN, says="tokenised: ")],
    *of_cache("as it was", lambda entry: None),
]
