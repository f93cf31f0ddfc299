"""Checkpoints and other files of a finished run, damaged or foreign; and runs taken for what they are not."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from case import of_words
from cases_manifests import of_run
from damage import (
    GONE,
    LONG_INTEGER,
    NESTED,
    WEIGHTS,
    Damage,
    in_json,
    linked,
    one_bit,
    put,
    replaced,
    safetensors,
    tensor,
)

NEWEST = Path("checkpoints/step-00000006")
READERS = ("eval", "probe", "export")
TRAINING = ("resume", *READERS)
checkpoint, file = (partial(of_run, kind=kind) for kind in ("checkpoints", "run files"))


def rewritten(name: str, change: Callable[[bytes], bytes], *, honest: bool, places: str = "step-*") -> Damage:
    """Change a file of every checkpoint; `honest`: its hash in state.json is made right again."""

    def damage(run: Path) -> None:
        for folder in sorted((run / "checkpoints").glob(places)):
            data = change((folder / name).read_bytes())
            (folder / name).write_bytes(data)
            if honest:
                in_json(folder / "state.json", **{f"sha256__{name}": hashlib.sha256(data).hexdigest()})

    return damage


def one_more_tensor(sound: bytes) -> bytes:
    """The same tensors and another one."""
    size = int.from_bytes(sound[:8], "little")
    header, body = json.loads(sound[8 : 8 + size]), sound[8 + size :]
    return safetensors(header | {"zzz": tensor(len(body), len(body) + 16, [4])}, body + b"\0" * 16)


def state(**changes: Any) -> Damage:
    def change(run: Path) -> None:
        for path in (run / "checkpoints").glob("step-*/state.json"):
            in_json(path, **changes)

    return change


# what is said of a damaged file, by whom it is read, and whether its hash was made right again
FILES = [
    ("model.safetensors", "weights {}", ("resume", "eval", "export"), False),
    ("model.safetensors", "weights {}, with their hash", ("resume", "eval"), True),
    ("trainer.safetensors", "optimiser {}, with its hash", ("resume",), True),
]
STATES: dict[str, dict[str, Any]] = {
    "step text": {"step": "x"}, "step -5": {"step": -5}, "step 10^18": {"step": 10**18}, "step null": {"step": None},
    "step 1.5": {"step": 1.5}, "step gone": {"step": GONE}, "optimiser null": {"optimiser": None},
    "optimiser a list": {"optimiser": [1]}, "no groups": {"optimiser": {"param_groups": []}},
    "groups a number": {"optimiser": {"param_groups": 5}}, "optimiser gone": {"optimiser": GONE},
    "hashes a list": {"sha256": []}, "hashes of nothing": {"sha256": {}}, "hashes gone": {"sha256": GONE},
    "hashes text": {"sha256": "x"}, "best null": {"best": None}, "best text": {"best": "x"},
    "best gone": {"best": GONE},
    "best at step text": {"best": {"step": "x", "nats_per_token": 5.0}}, "validated text": {"validated": "x"},
}  # fmt: skip
CHECKPOINTS = [
    *[
        case
        for what, change in WEIGHTS.items()
        for name, about, verbs, honest in FILES
        for case in checkpoint(about.format(what), verbs, rewritten(name, change, honest=honest))
    ],
    *checkpoint("one bit of the weights", TRAINING, rewritten("model.safetensors", one_bit, honest=False)),
    *checkpoint("one bit of the optimiser", ("resume",), rewritten("trainer.safetensors", one_bit, honest=False)),
    *checkpoint("one tensor more", TRAINING, rewritten("model.safetensors", one_more_tensor, honest=True)),
    *[
        case for what,
        changes in STATES.items() for case in checkpoint(f"state.json, {what}", ("resume",), state(**changes))
    ],
    *checkpoint("state.json, best null", READERS, state(best=None), codes=(0, 2)),
    *checkpoint("state.json not json", TRAINING, rewritten("state.json", lambda sound: b"{", honest=False)),
    *checkpoint("state.json not utf-8", TRAINING, rewritten("state.json", lambda sound: b"\xff", honest=False)),
    *checkpoint("state.json a list", TRAINING, rewritten("state.json", lambda sound: b"[]", honest=False)),
    *checkpoint("state.json nested", TRAINING, rewritten("state.json", lambda sound: NESTED.encode(), honest=False)),
    *checkpoint(
        "state.json with a long integer", TRAINING,
        rewritten("state.json", lambda sound: b'{"step": ' + LONG_INTEGER.encode() + b"}", honest=False),
    ),
    *checkpoint(
        "all folders empty", TRAINING,
        lambda run: [path.unlink() for path in run.glob("checkpoints/step-*/*")] and None,
    ),
    *checkpoint(
        "a step from the future, empty", ("resume",), lambda run: (run / "checkpoints/step-99999999").mkdir(),
        codes=(0, 2),
    ),
    *checkpoint("a step of no number", ("resume",), lambda run: (run / "checkpoints/step-abc").mkdir(), codes=(0, 2)),
    *checkpoint(
        "weights unreadable", ("resume", "eval"), lambda run: (run / NEWEST / "model.safetensors").chmod(0),
        ordinary_user=True,
    ),
    *checkpoint(
        "weights a fifo", ("resume", "eval"), replaced(f"{NEWEST}/model.safetensors", os.mkfifo), patience=30,
    ),
    *checkpoint("weights a folder", ("resume", "eval"), replaced(f"{NEWEST}/model.safetensors", Path.mkdir)),
    *checkpoint(
        "weights a link out of the run", ("eval",), linked(f"{NEWEST}/model.safetensors", "/etc/passwd"),
    ),
    *checkpoint(
        "maxkey: weights cut", ("maxkey", "maxkey resume"),
        rewritten("model.safetensors", WEIGHTS["cut in the middle"], honest=False),
    ),
    *checkpoint(
        "maxkey: other weights, with their hash", ("maxkey", "maxkey resume"),
        rewritten("model.safetensors", WEIGHTS["with other names"], honest=True),
    ),
    *checkpoint("maxkey: step text", ("maxkey resume",), state(step="x")),
]  # fmt: skip
FILES = [
    *file("checkpoints a file", TRAINING, replaced("checkpoints", Path.touch)),
    # without a checkpoint a run begins anew, or is refused
    *file("checkpoints gone", ("resume",), replaced("checkpoints"), codes=(0, 2)),
    *file("checkpoints gone", READERS, replaced("checkpoints")),
    *file("checkpoints of nothing", READERS, replaced("checkpoints", Path.mkdir)),
    # the step that was best stands in every state.json, so that the link can be done without
    *file("best a dead link", READERS, linked("checkpoints/best", "gone"), codes=(0, 2)),
    *file("best a link to itself", READERS, linked("checkpoints/best", "best"), codes=(0, 2)),
    *file("best a link out of the run", READERS, linked("checkpoints/best", "/etc"), codes=(0, 2)),
    *file("best a link to the folder above", READERS, linked("checkpoints/best", ".."), codes=(0, 2)),
    *file("best a file", READERS, replaced("checkpoints/best", Path.touch), codes=(0, 2)),
    *file("tokenizer.json gone", ("probe", "export"), replaced("tokenizer.json")),
    *file("tokenizer.json broken", ("probe", "export"), put("tokenizer.json", "{")),
    *file("tokenizer.json nested", ("probe", "export"), put("tokenizer.json", NESTED)),
    *file("tokenizer.json of another kind", ("probe", "export"), put("tokenizer.json", "[]")),
    *file("tokenizer.json not utf-8", ("probe", "export"), put("tokenizer.json", b"\xff")),
    *file("tokenizer.json a fifo", ("probe", "export"), replaced("tokenizer.json", os.mkfifo), patience=30),
    # perplexity needs the tokens of the cache, and the tokenizer only for a text of the user's
    *file("tokenizer.json gone", ("eval",), replaced("tokenizer.json"), codes=(0, 2)),
    *file("tokenizer.json broken", ("eval",), put("tokenizer.json", "{"), codes=(0, 2)),
    *file("tokenizer.json nested", ("eval",), put("tokenizer.json", NESTED), codes=(0, 2)),
    # records are continued where they can be
    *file("metrics.jsonl of bytes", ("resume",), put("metrics.jsonl", b"\xff\xfe\0"), codes=(0, 2)),
    *file("metrics.jsonl cut", ("resume",), put("metrics.jsonl", '{"step": 1}\n{"ste'), codes=(0, 2)),
    *file("metrics.jsonl gone", ("resume",), replaced("metrics.jsonl"), codes=(0, 2)),
    *file("metrics.jsonl nested", ("resume",), put("metrics.jsonl", NESTED), codes=(0, 2)),
    *file("metrics.jsonl a folder", ("resume",), replaced("metrics.jsonl", Path.mkdir)),
    *file("results.json broken", ("resume", "eval"), put("results.json", "{"), codes=(0, 2)),
    *file("train.log a folder", ("resume",), replaced("train.log", Path.mkdir)),
    *file(".lock a folder", ("resume",), replaced(".lock", Path.mkdir), patience=30),
    *file(".lock a fifo", ("resume",), replaced(".lock", os.mkfifo), patience=30, codes=(0, 2)),
    *file(
        ".lock a link out of the run", ("resume",), linked(".lock", "/dev/null"), patience=30,
        codes=(0, 2),
    ),
    *file("the run read-only", ("resume",), lambda run: run.chmod(0o555), ordinary_user=True),
    *file("the run unreadable", ("resume", "eval"), lambda run: run.chmod(0), ordinary_user=True),
    *file(
        "checkpoints read-only, the run finished", ("eval",), lambda run: (run / "checkpoints").chmod(0o555),
        ordinary_user=True, codes=(0,),
    ),
]  # fmt: skip
GIVEN: dict[str, Any] = {"given": ("run",)}
BOTH: dict[str, Any] = {"given": ("run", "maxkey-run")}
MISTAKEN = [
    *of_words("mistaken runs", [], [
        ("maxkey", "run=run"), ("maxkey", "resume=run"), ("eval", "run=maxkey-run"), ("probe", "run=maxkey-run"),
        ("export", "run=maxkey-run", "to=there"), ("train", "resume=maxkey-run"), ("train", "init=hf:run"),
        ("eval", "run=run/checkpoints"), ("eval", "run=run/run.json"), ("eval", "run=run/checkpoints/best"),
        ("train", "resume=run/checkpoints/best"), ("probe", "model=hf", "model.path=run"),
        ("eval", "run=run,maxkey-run"), ("train", "tokenizer=hf", "tokenizer.name=run/checkpoints"),
    ], **BOTH),
    *of_words("mistaken runs", ["train", "resume=run"], [
        "seed=7", "pe=alibi", "+typo=2", "trainer.max_steps=3", "trainer.max_steps=8", "batch_size=3",
        "model.d_model=32", "init=hf:x",
        "data=pydoc",
        ("-m", "seed=1,2"), ("-m", "seed=1"), "experiment=rope/table2",
    ], **GIVEN),
    *of_words("good runs", ["train", "resume=run", "logger=none"], [(), ("trust=false",)], codes=(0,), **GIVEN),
]  # fmt: skip

CASES = [*CHECKPOINTS, *FILES, *MISTAKEN]
