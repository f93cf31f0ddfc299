"""Corpora in shards: the same whatever made them, resumed after a kill, read from anywhere in bounded space."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any, final
from unittest.mock import DEFAULT, Mock

import fsspec
import numpy as np
import pytest
import torch
from helpers_corpora import Listed, global_batch, listed

from roundround.data import batches, tokenising
from roundround.data.batches import Mix, Mixer, Shares, TrainingWindows, WindowSampler
from roundround.data.prepared import Mixture, Prepared, TokenData, make, opened, prepare
from roundround.data.shards import Store, TokenStream, open_store
from roundround.data.tokenising import Encoder
from roundround.data.tokenizers import BPE, Bytes, OfCorpus
from roundround.support.errors import UserError

TEXTS = [f"the text of document {n}, h\u00e9 {'and more ' * (n % 7)}\U0001f600" for n in range(400)]
BPE_RECIPE = BPE(vocab_size=300, max_train_bytes=10**6)
ADDRESS = "memory://corpora/mine"


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A dozen shards of two kilobytes."""
    monkeypatch.setattr(tokenising, "BATCH_CHARACTERS", 500)
    monkeypatch.setattr(tokenising, "SHARD_BYTES", 2000)
    monkeypatch.setattr(tokenising, "FIRST_SHARD_BYTES", 2000)
    yield
    fsspec.filesystem("memory").store.clear()


def contents(folder: Path) -> dict[str, bytes]:
    names = (path for path in folder.iterdir() if path.name not in (".lock", "stamps.json"))
    return {path.name: path.read_bytes() for path in names}


def test_any_number_of_processes_writes_the_same_bytes(tmp_path: Path) -> None:
    for n in (1, 2, None):
        make(Listed(TEXTS), BPE_RECIPE, Store(tmp_path / f"{n}"), tmp_path / "cache", n_processes=n)
    one = contents(tmp_path / "1")
    assert len([name for name in one if name.startswith("train-")]) > 8
    assert contents(tmp_path / "2") == one
    assert contents(tmp_path / "None") == one


def test_shards_end_to_end_are_the_corpus_that_one_shard_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = prepare(Listed(TEXTS), Bytes(), tmp_path / "many")
    monkeypatch.setattr(tokenising, "FIRST_SHARD_BYTES", 10**9)
    monkeypatch.setattr(tokenising, "SHARD_BYTES", 10**9)
    one = prepare(Listed(TEXTS), Bytes(), tmp_path / "one")
    assert len(one.train.segments) == 1 < len(many.train.segments)
    for name in ("train", "held_out", "held_out_bytes"):
        assert listed(getattr(many, name)) == listed(getattr(one, name))
    kept = {"seed": 3, "step": 5, "batch_size": 7, "length": 16}
    assert torch.equal(global_batch(many.train, **kept), global_batch(np.asarray(one.train), **kept))


@pytest.mark.parametrize("text", ["", "a", "h\u00e9\u20ac\U0001f600 <|endoftext|>\n", "\0\x7f\r\n"])
def test_bytes_need_no_tokenizer_to_be_the_same(text: str) -> None:
    short = Encoder(Bytes().build([]))
    long = Encoder(Bytes().build([]))
    long.of_bytes = False
    assert short.of_bytes
    for documents in ([(True, text)], [(False, text), (True, "x"), (False, "y")]):
        a, b = short(documents), long(documents)
        assert a[1] == b[1]
        found, expected = ({name: (v.dtype, v.tolist()) for name, v in arrays.items()} for arrays, _ in (a, b))
        assert found == expected


@final
class Stopped(BaseException):
    """As a signal would be."""


def stopped_after(n: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the writing of the shard after the first n fail; the numbers of those that were begun."""
    real, begun = tokenising._write_shard, []

    def write(parts: Any, number: int, *places: Any) -> Any:
        begun.append(number)
        if len(begun) > n:
            raise Stopped
        return real(parts, number, *places)

    monkeypatch.setattr(tokenising, "_write_shard", write)
    return begun


@pytest.mark.parametrize("address", ["folder", ADDRESS])
def test_a_stopped_preparation_goes_on_behind_its_whole_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    to = Store(tmp_path / "folder") if address == "folder" else Store(address)
    with monkeypatch.context() as patch:
        stopped_after(3, patch)
        with pytest.raises(Stopped):
            make(Listed(TEXTS), BPE_RECIPE, to, tmp_path)
    assert {name for name in to.sizes() if name.startswith("shard-")} == {f"shard-{n:05d}.json" for n in range(3)}
    begun = stopped_after(99, monkeypatch)
    entry = make(Listed(TEXTS), BPE_RECIPE, to, tmp_path, n_processes=1)
    assert begun == list(range(3, len(entry.meta["shards"])))
    whole = make(Listed(TEXTS), BPE_RECIPE, Store(tmp_path / "whole"), tmp_path)
    assert entry.meta == whole.meta


def test_a_shard_that_is_whole_is_never_made_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to = Store(tmp_path / "mine")
    before = make(Listed(TEXTS), Bytes(), to, tmp_path).meta
    kept = contents(Path(to.address))
    for name, damage in {
        "train-00002.bin": lambda path: os.truncate(path, 10),
        "train-00005.bin": Path.unlink,
        "shard-00006.json": Path.unlink,
    }.items():
        damage(Path(to.address) / name)
    with pytest.raises(UserError, match=r"mine is not a complete prepared corpus \(.*roundround prepare data=... to="):
        Prepared(path=to.address, cache_gb=1).identity()
    begun = stopped_after(99, monkeypatch)
    assert make(Listed(TEXTS), Bytes(), to, tmp_path).meta == before
    assert begun == [2, 5, 6]
    assert contents(Path(to.address)) == kept


def test_a_full_disk_keeps_the_whole_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to, full = Store(tmp_path / "mine"), OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Mock(wraps=os.replace, side_effect=chain([DEFAULT] * 13, repeat(full))))
        with pytest.raises(UserError, match=rf"{Path(to.address)}: cannot be written \(No space left"):
            make(Listed(TEXTS), Bytes(), to, tmp_path)
    assert "shard-00001.json" in to.sizes()
    assert make(Listed(TEXTS), Bytes(), to, tmp_path).meta["train"]["documents"] > 300


def test_what_lies_at_a_place_is_never_overwritten(tmp_path: Path) -> None:
    make(Listed(TEXTS), Bytes(), Store(tmp_path / "mine"), tmp_path)
    before = contents(tmp_path / "mine")
    for corpus, recipe in ((Listed(TEXTS[1:]), Bytes()), (Listed(TEXTS), BPE_RECIPE)):
        with pytest.raises(UserError, match=r"holds other files, or another corpus; give another to=DIR"):
            make(corpus, recipe, Store(tmp_path / "mine"), tmp_path)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "aunt.txt").write_text("dear aunt")
    with pytest.raises(UserError, match=r"letters holds other files"):
        make(Listed(TEXTS), Bytes(), Store(tmp_path / "letters"), tmp_path)
    with pytest.raises(UserError, match=r"aunt.txt.*: cannot be written .*; free space there, or choose another"):
        make(Listed(TEXTS), Bytes(), Store(tmp_path / "letters" / "aunt.txt"), tmp_path)
    assert contents(tmp_path / "mine") == before
    assert contents(tmp_path / "letters") == {"aunt.txt": b"dear aunt"}


def at_an_address(cache: Path, most_bytes: int = 10**9) -> tuple[TokenData, TokenData]:
    """A corpus prepared at an address and read from there, and the same from the cache."""
    make(Listed(TEXTS), Bytes(), open_store(ADDRESS, "to"), cache)
    there = opened(Prepared(path=ADDRESS, cache_gb=1).entry, cache, most_bytes)
    return there, prepare(Listed(TEXTS), Bytes(), cache)


def test_a_corpus_at_an_address_is_read_as_one_on_the_disk(tmp_path: Path) -> None:
    there, here = at_an_address(tmp_path)
    assert there.corpus_hash == here.corpus_hash
    for name in ("train", "held_out", "held_out_bytes"):
        assert listed(getattr(there, name)) == listed(getattr(here, name))
    plan = Shares(batch_size=4, n_steps=20)
    for a, b in zip(*(TrainingWindows(data.train, plan, seed=1, length=16) for data in (there, here)), strict=True):
        assert torch.equal(a, b)


def test_the_tokenizer_is_the_one_that_it_was_prepared_with(tmp_path: Path) -> None:
    make(Listed(TEXTS), BPE_RECIPE, open_store(ADDRESS, "to"), tmp_path)
    corpus = Prepared(path=ADDRESS, cache_gb=1)
    data = prepare(corpus, OfCorpus(), tmp_path)
    assert data.tokenizer_hash == prepare(corpus, BPE_RECIPE, tmp_path).tokenizer_hash
    with pytest.raises(UserError, match=r"mine was not prepared with the tokenizer that you ask for; leave"):
        prepare(corpus, Bytes(), tmp_path)
    with pytest.raises(UserError, match=r"tokenizer=prepared is only for data=prepared"):
        prepare(Listed(TEXTS), OfCorpus(), tmp_path)


def test_copies_of_shards_take_no_more_of_the_disk_than_they_may(tmp_path: Path) -> None:
    there, here = at_an_address(tmp_path, most_bytes=20_000)
    assert len(there.train) * 2 > 40_000
    assert listed(there.train) == listed(here.train)
    assert sum(path.stat().st_size for path in (tmp_path / "shards").glob("*.bin")) <= 20_000
    assert listed(there.train) == listed(here.train)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda fs, path: fs.pipe_file(path, b"\1" + fs.cat_file(path)[1:]), "is not the one that was written"),
        (lambda fs, path: fs.rm_file(path), "cannot be read"),
    ],
)
def test_a_shard_that_is_damaged_at_its_address_is_one_line(tmp_path: Path, change: Any, why: str) -> None:
    there, _ = at_an_address(tmp_path)
    change(fsspec.filesystem("memory"), "/corpora/mine/train-00001.bin")
    with pytest.raises(UserError, match=rf"{ADDRESS}/train-00001.bin: .*{why}.*; to make it again, give"):
        listed(there.train)


SIZES = [700, 90, 1300, 17, 512, 640, 333]


@pytest.mark.parametrize("group", [1, 2, 3, 99])
def test_an_epoch_reads_every_shard_once_in_groups(monkeypatch: pytest.MonkeyPatch, group: int) -> None:
    monkeypatch.setattr(batches, "GROUP", group)
    sampler = WindowSampler(SIZES, seed=4, length=16)
    orders = []
    for epoch in range(3):
        groups, seen = [], sampler.group_of(0)
        while seen.epoch <= epoch:
            groups += [seen] if seen.epoch == epoch else []
            seen = sampler.group_of(seen.first + seen.n_windows)
        shards = [shard for found in groups for shard in found.shards]
        orders.append(shards)
        for found in groups:
            items = np.arange(found.first, found.first + found.n_windows)
            ((_, at, starts),) = sampler.locate(items)
            n_tokens = sum(SIZES[shard] for shard in at.shards)
            assert at == found
            assert len(set(starts // 16)) == len(starts)  # disjoint
            assert starts.min() >= 0
            assert starts.max() + 17 <= n_tokens
            assert len(starts) >= n_tokens // 16 - 1
    assert {n for order in orders for n in order} >= {0, 1, 2, 4, 5, 6}
    assert (orders[0] == orders[1]) == (group == 99)


def test_a_batch_over_groups_is_each_items_own_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "GROUP", 3)
    train = prepare(Listed(TEXTS), Bytes(), tmp_path).train
    assert isinstance(train, TokenStream)
    sampler = WindowSampler(train.sizes(), seed=2, length=16)
    last = sampler.group_of(0).n_windows - 1
    whole = global_batch(train, seed=2, step=0, batch_size=last + 40, length=16)
    for item in (0, last, last + 1, last + 39):
        found = sampler.group_of(item)
        ((_, _, starts),) = sampler.locate(np.asarray([item]))
        text = np.concatenate([np.asarray(train.only([shard])) for shard in found.shards])
        assert whole[item].tolist() == text[starts[0] : starts[0] + 17].tolist()


@pytest.mark.parametrize(
    "shares", [[0.5, 0.5], [0.7, 0.2, 0.1], [0.9991, 0.0004, 0.0005], [1 / 3, 1 / 3, 1 / 3], [1.0]]
)
def test_every_thousand_windows_hold_each_source_in_its_share(shares: list[float]) -> None:
    sources, numbers = Mixer(shares, seed=3).items(np.arange(50_000))
    for block in sources.reshape(-1, 1000):
        counts = np.bincount(block, minlength=len(shares))
        assert np.all(np.abs(counts - 1000 * np.asarray(shares)) < 1 + 1e-6)
    for source, share in enumerate(shares):
        own = numbers[sources == source]
        assert sorted(own.tolist()) == list(range(len(own)))  # each of its items once
        assert abs(len(own) - 50_000 * share) <= 2
    far = np.asarray([49_321, 7, 12_000])
    again = Mixer(shares, seed=3).items(far)
    assert [part.tolist() for part in again] == [sources[far].tolist(), numbers[far].tolist()]


def mixture(weights: dict[str, float], *, separate_documents: bool = False) -> Mixture:
    sources = {
        "digits": [f"{n:040d}" for n in range(300)],
        "letters": ["abc" * 20 + chr(97 + n % 26) for n in range(300)],
    }
    sources["dots"] = ["." * 50] * 20
    listed = {name: Listed(sources[name], held_out=0.3) for name in weights}
    return Mixture(weights=weights, sources=listed, separate_documents=separate_documents)


def test_a_mixture_trains_and_is_measured_in_its_shares(tmp_path: Path) -> None:
    data = prepare(mixture({"digits": 3, "letters": 1}), Bytes(), tmp_path)
    assert isinstance(data.train, Mix)
    batch = global_batch(data.train, seed=0, step=0, batch_size=1000, length=16)
    assert int(((batch >= ord("a")) & (batch < 256)).any(1).sum()) == 250
    tokens = np.asarray(data.held_out)
    letters = int(((tokens >= ord("a")) & (tokens < 256)).sum()) / len(tokens)
    assert 0.2 < letters < 0.28
    assert data.n_held_out_bytes == int(np.asarray(data.held_out_bytes).sum())
    text = data.tokenizer.decode(listed(data.held_out[1:100]), skip_special_tokens=True)
    assert data.bytes_of_targets(99) == len(text)


def test_no_held_out_document_is_of_two_sources_where_documents_do_not_see_each_other(tmp_path: Path) -> None:
    data = prepare(mixture({"digits": 3, "letters": 1}, separate_documents=True), Bytes(), tmp_path)
    ids = np.asarray(data.held_out)
    documents = np.split(ids, np.flatnonzero(ids == data.end_of_document) + 1)
    of_two = [d for d in documents if len({bool(a >= ord("a")) for a in d.tolist() if a != data.end_of_document}) > 1]
    assert (len(of_two), len(documents) > 20) == (0, True)


@pytest.mark.parametrize(
    "weights",
    [{"digits": -1, "letters": 1}, {"digits": 1, "letters": float("nan")}, {"digits": 0, "letters": 0}],
)
def test_weights_that_are_no_shares_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"weights are .*; each must be a number of at least 0"):
        mixture(weights)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "data.path is empty"),
        ("s3://key:secret@bucket/x", "address of s3:// with credentials"),
        ("simplecache::http://user:secret@127.0.0.1:9/mine", "address of http:// with credentials"),
        ("https://host/x?X-Amz-Signature=secret", "data.path: the part of the address after"),
        ("s3://bucket/x", r"s3://bucket/x: .* s3:// needs pip install 'roundround\[s3\]'"),
        ("nope://bucket/x", r"nope://bucket/x: cannot be reached .*Protocol not known"),
        ("http://127.0.0.1:9/x", r"http://127.0.0.1:9/x: cannot be reached"),
    ],
)
def test_an_address_that_leads_nowhere_is_one_line(address: str, message: str) -> None:
    if "pip install" in message and __import__("importlib.util").util.find_spec("s3fs"):
        pytest.skip("s3fs is installed here")
    with pytest.raises(UserError, match=message) as caught:
        open_store(address, "data.path").read_text("meta.json")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
