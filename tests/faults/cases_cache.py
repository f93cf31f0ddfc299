"""The token cache, damaged between two runs: made again with one line, and the results are the same."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from case import Case
from damage import GONE, Damage, changed, put, replaced, values
from originals import RECIPES, Originals
from stopping import content, runs_in

MADE_AGAIN = r"^the tokens in \S+/cache/[0-9a-f]{32} are damaged and are made again$"
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


DAMAGES: dict[str, Damage] = {
    "no key n_vocab": values("meta.json", n_vocab=GONE),
    "meta.json empty": put("meta.json", b""),
    "train.bin cut": changed("train-00000.bin", lambda data: data[:99]),
    "train.bin gone": replaced("train-00000.bin"),
    "tokenizer.json broken": put("tokenizer.json", b"{"),
    "tokenizer.json gone": replaced("tokenizer.json"),
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
