"""`roundround prepare` and what is made of its places: wrong addresses, folders in use, weights that are no shares."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from case import SECRET, Case
from damage import changed, put, replaced
from originals import ON_PLAIN_TEXT, PLAIN_TEXT, SMALL, Originals

PREPARE = ["prepare", *ON_PLAIN_TEXT, "tokenizer=bytes", "n_processes=1"]
TRAIN = ["train", *[word for word in SMALL if not word.startswith("tokenizer=")], "trainer.max_steps=2"]
TRAIN += ["validation_tokens=256"]
MIXTURE = ["train", *SMALL, "trainer.max_steps=2", "data=mixture"]
WORDS: dict[str, list[str]] = {
    **{
        f"to={to!r}": [*PREPARE, f"to={to}"] for to in ("''", "s3://key:secret@bucket/x", "nope://x", "https://h/x?a=b")
    },
    **{f"n_processes={n}": [*PREPARE, f"n_processes={n}"] for n in ("0", "-1", "1.5", "abc", "1000")},
    "a task": ["prepare", "data=copy"],
    "to a file": [*PREPARE, f"to={PLAIN_TEXT}"],
    "a key of train": [*PREPARE, "batch_size=4"],
    **{
        f"{option}{address}": [*words, option + address]
        for words, option in ((PREPARE, "to="), (TRAIN, "outputs="), ([*TRAIN, "data=prepared"], "data.path="))
        for address in (
            f"simplecache::http://u:{SECRET}@127.0.0.1:9/mine",
            f"zip://x::https://u:{SECRET}@127.0.0.1:9/a.zip",
            f"s3://key:a/{SECRET}@bucket/x",
            "http://[::1",
        )
    },
    **{
        f"train data.path={path}": [*TRAIN, "data=prepared", f"data.path={path}"]
        for path in ("nowhere", "''", ".", "s3://a:b@c/d", "nope://x", "http://127.0.0.1:9/x", "memory://nothing")
    },
    "train without data.path": [*TRAIN, "data=prepared"],
    **{
        f"data.cache_gb={n}": [*TRAIN, "data=prepared", "data.path=x", f"data.cache_gb={n}"]
        for n in (0, -1, "nan", "x")
    },
    **{
        f"weights {weights}": [*MIXTURE, f"data.weights={weights}"]
        for weights in (
            "{wikipedia:-1,flan_v2:1}",
            "{wikipedia:0,flan_v2:0}",
            "{wikipedia:nan,flan_v2:1}",
            "{wikipedia:1}",
        )
    },
    "weights of nobody": [*MIXTURE, "+data.weights.mine=1"],
    "a weight of text": [*MIXTURE, "data.weights.wikipedia=x"],
}


def prepared_then(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """A cache entry, moved to `mine` and changed."""

    def prepare(folder: Path) -> None:
        (meta,) = folder.glob("cache/*/meta.json")
        shutil.move(meta.parent, folder / "mine")
        change(folder / "mine")

    return prepare


SHARD = "train-00000.bin"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "a shard cut": changed(SHARD, lambda data: data[:-2]),
    "a shard gone": replaced(SHARD),
    "no meta.json": replaced("meta.json"),
    "no tokenizer": replaced("tokenizer.json"),
}


def whole_again(folder: Path, originals: Originals) -> list[str]:
    """What differs from the sound entry in the folder that was prepared again."""
    (sound,) = (path.parent for path in originals.original("cache").glob("*/meta.json"))
    mine = folder / "mine"
    return [f"{path.name} differs" for path in sound.iterdir() if path.read_bytes() != (mine / path.name).read_bytes()]


CASES = [
    *[Case(name=f"prepare: {what}", args=args) for what, args in WORDS.items()],
    Case(
        name="prepare: to a folder with other files",
        args=[*PREPARE, "to=mine"],
        prepare=put("mine/letter.txt", "dear aunt"),
    ),
    Case(
        name="prepare: to a folder with another corpus",
        args=[*PREPARE, "to=mine", "data.held_out=0.5"],
        given=("run", "cache"),
        prepare=prepared_then(lambda entry: None),
    ),
    *[
        Case(
            name=f"prepare: train on {what}",
            args=[*TRAIN, "data=prepared", "data.path=mine"],
            given=("run", "cache"),
            prepare=prepared_then(damage),
            says="roundround prepare data=... to=",
        )
        for what, damage in DAMAGES.items()
    ],
    *[
        Case(
            name=f"prepare: again after {what}",
            args=[*PREPARE, "to=mine"],
            given=("run", "cache"),
            prepare=prepared_then(damage),
            codes=(0,),
            says="tokenised: ",
            leaves=True,
            notes=[] if what == "no meta.json" else ["are damaged"],
            afterwards=whole_again,
        )
        for what, damage in DAMAGES.items()
    ],
    Case(
        name="prepare: train on what is whole",
        args=[*TRAIN, "data=prepared", "data.path=mine"],
        given=("run", "cache"),
        prepare=prepared_then(lambda entry: None),
        codes=(0,),
    ),
    Case(
        name="prepare: train on it with another tokenizer",
        args=[*TRAIN, "data=prepared", "data.path=mine", "tokenizer=bpe"],
        given=("run", "cache"),
        prepare=prepared_then(lambda entry: None),
    ),
    *[
        Case(
            name=f"prepare: a disk of {size}k",
            args=[*PREPARE, "to=disk/mine"],
            codes=(0, 2),
            shell=f'mkdir disk; mount -t tmpfs -o size={size}k t disk; "$@"; code=$?; umount disk; exit $code',
        )
        for size in (4, 20, 60)
    ],
]
