"""A damaged token cache is noticed, made again with one line, and trains what it trained before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from forkserver import Forkserver
from stopping import RESTLESS, TRAIN, Bench, contents, differences, text_in, unexpected_lines

Damage = Callable[[Path, dict[str, Any]], object]  # of an entry, given what its meta.json says


def write_meta(entry: Path, meta: Mapping[str, Any]) -> None:
    (entry / "meta.json").write_text(json.dumps(meta))


def overwrite(name: str, byte: bytes) -> Damage:
    """Other bytes of the same size."""
    return lambda entry, _: (entry / name).write_bytes(byte * (entry / name).stat().st_size)


def in_the_middle(name: str) -> Damage:
    def flip(entry: Path, _: dict[str, Any]) -> None:
        data = bytearray((entry / name).read_bytes())
        data[len(data) // 2] ^= 1
        (entry / name).write_bytes(data)

    return flip


def without(*keys: str) -> Damage:
    return lambda entry, meta: write_meta(entry, {key: value for key, value in meta.items() if key not in keys})


def saying(**values: Any) -> Damage:
    return lambda entry, meta: write_meta(entry, meta | values)


def objects(entry: Path, meta: dict[str, Any]) -> None:
    """Sizes that fit the eight bytes of a pointer: numpy would follow them."""
    counts = {}
    for split in ("train", "held_out"):
        path = entry / f"{split}.bin"
        n = path.stat().st_size // 8
        path.write_bytes(path.read_bytes()[: 8 * n])
        counts[split] = meta[split] | {"tokens": n}
    write_meta(entry, meta | counts | {"dtype": "object"})


def broken_tokenizer(entry: Path, meta: dict[str, Any]) -> None:
    (entry / "tokenizer.json").write_text("{}")
    write_meta(entry, meta | {"tokenizer_hash": sha256(b"{}").hexdigest()})


def a_file_in_its_place(entry: Path, _: dict[str, Any]) -> None:
    shutil.rmtree(entry)
    entry.write_text("not a folder")


DAMAGES: dict[str, Damage] = {
    "training tokens of zeros": overwrite("train.bin", b"\0"),
    "training tokens beyond the vocabulary": overwrite("train.bin", b"\xff"),
    "held-out tokens of zeros": overwrite("held_out.bin", b"\0"),
    "bytes of held-out tokens of zeros": overwrite("held_out_bytes.bin", b"\0"),
    "one bit of a training token": in_the_middle("train.bin"),
    "one bit of a held-out token": in_the_middle("held_out.bin"),
    "training tokens cut short": lambda entry, _: (entry / "train.bin").write_bytes(b""),
    "no training tokens": lambda entry, _: (entry / "train.bin").unlink(),
    "no tokenizer": lambda entry, _: (entry / "tokenizer.json").unlink(),
    "dtype object": objects,
    "dtype nope": saying(dtype="nope"),
    "dtype of another size": saying(dtype="uint32"),
    "dtype signed": saying(dtype="int16"),
    "n_vocab a text": saying(n_vocab="x"),
    "n_vocab too small": saying(n_vocab=3),
    "end of document beyond the vocabulary": saying(end_of_document=10**9),
    "tokens a list": saying(train=[1, 2]),
    "documents negative": saying(held_out={"documents": -1, "tokens": -1, "bytes": -1}),
    "no n_vocab": without("n_vocab"),
    "no end of document": without("end_of_document"),
    "no splits": without("train", "held_out"),
    "no hash": without("corpus_hash"),
    "meta.json not UTF-8": lambda entry, _: (entry / "meta.json").write_bytes(b"\xff\xfe"),
    "meta.json nested": lambda entry, _: (entry / "meta.json").write_text("[" * 100_000),
    "meta.json a list": lambda entry, _: (entry / "meta.json").write_text("[]"),
    "meta.json empty": lambda entry, _: (entry / "meta.json").write_text(""),
    "a broken tokenizer with its right hash": broken_tokenizer,
    "a file in the place of the entry": a_file_in_its_place,
}


@dataclass(frozen=True)
class Reference:
    args: list[str]
    cache: Path
    contents: Mapping[str, Any]


@pytest.fixture(scope="module")
def reference(server: Forkserver, env: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """A run, and the cache that it filled."""
    folder, streams, cache = (tmp_path_factory.mktemp(name) for name in ("reference", "streams", "cache"))
    args = [*TRAIN, *RESTLESS, "trainer.max_steps=2", *text_in(tmp_path_factory.mktemp("corpus"))]
    ended = Bench(server, {**env, "ROUNDROUND_CACHE": str(cache)}, streams).run(args, folder)
    assert ended.code == 0, ended.err
    return Reference(args, cache, contents(folder))


def only_entry(cache: Path) -> Path:
    (entry,) = (path for path in cache.iterdir() if path.suffix == "")
    return entry


@pytest.mark.faults
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_cache_is_made_again_with_one_line_and_trains_the_same(
    name: str, reference: Reference, server: Forkserver, env: Mapping[str, str], streams: Path, tmp_path: Path
) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "here"
    shutil.copytree(reference.cache, cache)
    folder.mkdir()
    entry = only_entry(cache)
    whole = {path.name: path.read_bytes() for path in entry.iterdir()}
    DAMAGES[name](entry, json.loads(whole["meta.json"]))
    ended = Bench(server, {**env, "ROUNDROUND_CACHE": str(cache)}, streams).run(reference.args, folder)
    assert ended.code == 0, ended.err
    assert differences(reference.contents, contents(folder)) == []
    assert ("tokenised: " in ended.err, len(unexpected_lines(ended.err)) <= 1) == (True, True), ended.err
    mended = only_entry(cache)
    assert {path.name: path.read_bytes() for path in mended.iterdir() if path.suffix == ".bin"} == {
        file: data for file, data in whole.items() if file.endswith(".bin")
    }
