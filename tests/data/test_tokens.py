"""Token files: right, made once whatever happens, and never half there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers_corpora import Listed, listed

from roundround.data.corpora import is_held_out
from roundround.data.prepared import prepare
from roundround.data.tokenising import bytes_of_tokens
from roundround.data.tokenizers import BPE, AlreadyOpen, Bytes, TokenizerRecipe
from roundround.support.errors import UserError

TEXTS = [f"the text of document {n}, h\u00e9 <|endoftext|>" for n in range(300)]


def entry(cache: Path) -> Path:
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    return folder


def names(cache: Path) -> set[str]:
    return {path.suffix for path in cache.iterdir()}


def test_every_token_of_every_document_is_in_its_split_in_order(tmp_path: Path) -> None:
    data = prepare(Listed(TEXTS), Bytes(), tmp_path)
    expected: dict[bool, list[int]] = {True: [], False: []}
    for text in TEXTS:
        expected[is_held_out(text, 0.1)] += [*text.encode(), 256]
    assert listed(data.train) == expected[False]
    assert listed(data.held_out) == expected[True]
    assert (data.train.dtype, data.n_vocab, data.end_of_document) == (np.uint16, 257, 256)
    assert data.n_held_out_documents == sum(is_held_out(text, 0.1) for text in TEXTS)
    assert data.n_train_documents + data.n_held_out_documents == len(TEXTS)


def test_bpe_learns_from_training_documents_alone(tmp_path: Path) -> None:
    corpus = Listed(TEXTS, held_out=0.5)
    data = prepare(corpus, BPE(vocab_size=400, max_train_bytes=10**6), tmp_path)
    alone = BPE(vocab_size=400, max_train_bytes=10**6).build(t for t in TEXTS if not is_held_out(t, 0.5))
    assert data.tokenizer.to_str() == alone.tokenizer.to_str()


def test_the_second_time_nothing_is_read(tmp_path: Path) -> None:
    first = prepare(Listed(TEXTS), Bytes(), tmp_path)
    corpus = Listed(TEXTS)
    second = prepare(corpus, Bytes(), tmp_path)
    assert corpus.n_reads == 0
    assert np.array_equal(first.train, second.train)
    assert np.array_equal(first.held_out_bytes, second.held_out_bytes)
    for field in ("n_vocab", "end_of_document", "corpus_hash", "tokenizer_hash", "n_held_out_documents"):
        assert getattr(first, field) == getattr(second, field)
    text = "a <|endoftext|>"
    assert second.tokenizer.decode(second.tokenizer.encode(text).ids) == text


def test_a_saved_tokenizer_gives_the_same_tokens_and_hash(tmp_path: Path) -> None:
    data = prepare(Listed(TEXTS), BPE(vocab_size=300, max_train_bytes=1000), tmp_path)
    data.tokenizer.save(str(tmp_path / "kept.json"))
    saved = prepare(Listed(TEXTS), AlreadyOpen.from_file(tmp_path / "kept.json", data.end_of_document), tmp_path)
    assert np.array_equal(saved.train, data.train)
    assert saved.tokenizer_hash == data.tokenizer_hash
    (tmp_path / "kept.json").write_text("{}")
    with pytest.raises(UserError, match=r"kept.json: not a readable tokenizer"):
        AlreadyOpen.from_file(tmp_path / "kept.json", 0)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train-00000.bin", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("held_out-00000.bin", Path.unlink),
        ("tokenizer.json", lambda path: path.write_text("{}")),
        ("meta.json", lambda path: path.write_text("{")),
    ],
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, name: str, damage: Callable[[Path], object]) -> None:
    before = listed(prepare(Listed(TEXTS), Bytes(), tmp_path).train)
    damage(entry(tmp_path) / name)
    corpus = Listed(TEXTS)
    after = prepare(corpus, Bytes(), tmp_path)
    assert listed(after.train) == before
    assert (after.n_vocab, after.end_of_document, after.train.dtype) == (257, 256, np.uint16)
    assert corpus.n_reads == 1
    assert names(tmp_path) <= {"", ".lock"}


@pytest.mark.parametrize("call", ["write", "flush", "replace", "mkdir"])
def test_a_full_disk_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    full, real = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")), Path.open

    def open_full(path: Path, *args: Any, **options: Any) -> Any:
        file = real(path, *args, **options)
        if path.suffix == ".tmp":
            file.write = full
        return file

    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr(Path, "open", open_full)
        elif call == "flush":
            patch.setattr(os, "fsync", full)
        elif call == "replace":
            patch.setattr(os, "replace", full)
        else:
            patch.setattr(Path, "mkdir", full)
        with pytest.raises(UserError, match=rf"{tmp_path}.*: cannot be written \(No space left .*ROUNDROUND_CACHE=DIR"):
            prepare(Listed(TEXTS), Bytes(), tmp_path)
    assert len(prepare(Listed(TEXTS), Bytes(), tmp_path).train) > 0


@pytest.mark.parametrize(
    ("texts", "held_out", "message"),
    [
        ([], 0.1, "the corpus has no text: check data.path, data.column and what data.keep_chars"),
        (["only one"], 0.001, r"has 1 documents, and none to hold out with data.held_out=0.001; .*data.split_regex"),
        (["only one"], 0.999, r"has 1 documents, and none to train on with data.held_out=0.999"),
    ],
)
def test_a_corpus_too_small_to_split_is_told(tmp_path: Path, texts: list[str], held_out: float, message: str) -> None:
    for recipe in (Bytes(), BPE(vocab_size=300, max_train_bytes=1000)):
        with pytest.raises(UserError, match=message):
            prepare(Listed(texts, held_out=held_out), recipe, tmp_path)


def test_who_only_evaluates_needs_no_training_documents(tmp_path: Path) -> None:
    for fraction in (0.999, 1):
        data = prepare(Listed(["only one"], held_out=fraction), Bytes(), tmp_path, needs=["held_out"])
        assert (len(data.train), listed(data.held_out)) == (0, [*b"only one", 256])
    with pytest.raises(UserError, match=r"none to train on with data.held_out=1"):
        prepare(Listed(TEXTS, held_out=1), Bytes(), tmp_path)


def test_a_file_of_the_corpus_that_cannot_be_read_is_not_taken_for_the_cache(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "corpus/secret.txt")
    with pytest.raises(UserError, match=r"corpus/secret.txt: cannot be read \(Permission denied\)"):
        prepare(Listed(TEXTS, error=error), Bytes(), tmp_path)


@pytest.mark.parametrize("recipe", [Bytes(), BPE(vocab_size=300, max_train_bytes=10**5)], ids=["bytes", "bpe"])
def test_bytes_of_a_stretch_of_tokens_are_those_of_its_text(tmp_path: Path, recipe: TokenizerRecipe) -> None:
    data = prepare(Listed(TEXTS, held_out=0.5), recipe, tmp_path)
    for n in range(1, len(data.held_out), 7):
        text = data.tokenizer.decode(listed(data.held_out[1 : n + 1]), skip_special_tokens=True)
        if "\N{REPLACEMENT CHARACTER}" not in text:  # which a cut character would leave
            assert data.bytes_of_targets(n) == len(text.encode())
    held_out = [text for text in TEXTS if is_held_out(text, 0.5)]
    assert data.held_out_bytes.sum() == sum(len(text.encode()) for text in held_out)


def test_documents_much_shorter_than_the_context_are_said(tmp_path: Path) -> None:
    texts = [f"{n:049d}" for n in range(50)]
    data = prepare(Listed(texts, held_out=0.5), Bytes(), tmp_path)
    for split in ("train", "held_out"):
        note = data.about_documents(split, 200)
        assert note is not None
        assert "documents have 49 tokens on average and the context has 200" in note
        assert data.about_documents(split, 196) is None


def test_dropped_characters_count_with_the_next_token_and_shared_ones_with_the_first() -> None:
    text = "\N{GRINNING FACE} ab "  # 4 + 1 + 1 + 1 + 1 bytes
    found = bytes_of_tokens(text, [(0, 1), (0, 1), (2, 3), (3, 4)])
    assert found.tolist() == [4, 0, 2, 2, 0]
    assert bytes_of_tokens(text, []).tolist() == [0]


SLOW = """
import pathlib, sys, time
from roundround.data.corpora import Corpus, fingerprint
from roundround.data.tokenizers import Bytes
from roundround.data.prepared import prepare

folder, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])

class Slow(Corpus):
    def identity(self):
        return fingerprint(slow=1)
    def texts(self):
        with (folder / "reads").open("a") as file:
            file.write("x")
        for n in range(40):
            time.sleep(pause)
            yield f"text {n}"

data = prepare(Slow(held_out=0.3), Bytes(), folder / "cache")
print(len(data.train), data.tokenizer_hash)
"""


def slowly(folder: Path, pause: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SLOW, str(folder), str(pause)], stdout=subprocess.PIPE, text=True)


def test_three_processes_at_once_do_the_work_once(tmp_path: Path) -> None:
    processes = [slowly(tmp_path, 0.02) for _ in range(3)]
    outputs = {process.communicate(timeout=60)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(outputs) == 1
    assert (tmp_path / "reads").read_text() == "x"


@pytest.mark.parametrize(("chosen", "after"), [(None, "false"), ("true", "true"), ("0", "0")])
def test_tokenizer_threads_stop_before_anyone_forks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: str | None, after: str
) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "restored after the test")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    if chosen is not None:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", chosen)
    prepare(Listed(TEXTS), Bytes(), tmp_path)
    assert os.environ["TOKENIZERS_PARALLELISM"] == after
