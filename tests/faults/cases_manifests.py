"""run.json of a finished run, damaged or foreign, before every verb that reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from case import SECRET, Case
from damage import COMMAND, GONE, LONG_INTEGER, NESTED, changed, linked, put, replaced
from damage import values as values_of

VERBS = {
    "resume": ("run", ["train", "resume=run", "logger=none"]),
    "eval": ("run", ["eval", "run=run", "length=32", "max_tokens=64", "logger=none"]),
    "probe": ("run", ["probe", "run=run", "max_tokens=200", "logger=none"]),
    "export": ("run", ["export", "run=run", "to=there"]),
    "last": ("run", ["eval", "run=last", "length=32", "logger=none"]),
    "maxkey": ("maxkey-run", ["maxkey", "run=maxkey-run", "logger=none"]),
    "show": ("run", ["show", "run"]),
    "report": ("run", ["report", "run"]),
    "rerun": ("run", ["rerun", "run", "logger=none"]),
    "compare": ("run", ["compare", "run", "logger=none"]),
    "maxkey resume": ("maxkey-run", ["maxkey", "resume=maxkey-run", "logger=none"]),
}
READERS = ("eval", "probe", "export")
NEUTRAL_PLACE = Path("outputs/train/2026-01-01/00-00-00")  # where `last` finds it


def of_run(
    what: str, verbs: Sequence[str], change: Callable[[Path], object], *, kind: str = "run.json", **more: Any
) -> list[Case]:
    """A case for each verb, on a run that `change` has damaged."""

    def prepare(verb: str, folder: Path) -> None:
        source = folder / VERBS[verb][0]
        change(source)
        if verb == "last":
            (folder / NEUTRAL_PLACE).parent.mkdir(parents=True)
            source.rename(folder / NEUTRAL_PLACE)

    return [
        Case(
            name=f"{kind}: {what}, {verb}",
            args=VERBS[verb][1],
            given=VERBS[verb][:1],
            prepare=partial(prepare, verb),
            **more,
        )
        for verb in verbs
    ]


text, gone, values = (partial(damage, "run.json") for damage in (put, replaced, values_of))
ALL = tuple(VERBS)
TRAINING = ("resume", "eval", "probe", "export")
SECRETS = {"env": {"CANARY": SECRET}}
CALLABLES = [
    "roundround.cli.main", "roundround.__main__.X", "roundround.records.run.subprocess.Popen", "builtins.exec",
    "nowhere.X",
    "roundround.pe", "roundround.support.errors.UserError", "", "..", "roundround.pe.rope.RoPE.__init__", "a b",
]  # fmt: skip

CASES = [
    *of_run("empty", ALL, text("")),
    *of_run("null", ("resume", "eval", "export"), text("null")),
    *of_run("a list", ("resume", "eval", "maxkey"), text("[]")),
    *of_run("{}", ALL, text("{}")),
    *of_run("a number", ("resume", "eval"), text("5")),
    *of_run("cut", ALL, changed("run.json", lambda sound: sound[:300])),
    *of_run("not utf-8", ("resume", "eval", "last"), text(b"\xff\xfe{}")),
    *of_run("nested", ALL, text(NESTED)),
    *of_run("an integer of 5,000 digits", ("resume", "eval", "last"), text('{"verb": ' + LONG_INTEGER + "}")),
    *of_run("NaN", ("resume", "eval"), text('{"config": NaN}')),
    *of_run("gone", ALL, gone()),
    *of_run("a folder", ("resume", "eval", "last", "export"), gone(Path.mkdir)),
    *of_run("a fifo", ("resume", "eval", "last", "export"), gone(os.mkfifo), patience=30),
    *of_run("a link to itself", ("resume", "eval", "last"), linked("run.json", "run.json")),
    *of_run("a link to /dev/zero", ("eval",), linked("run.json", "/dev/zero"), patience=30),
    *of_run("config a string", (*TRAINING, "maxkey"), values(config="x")),
    *of_run("config a list", (*TRAINING, "maxkey"), values(config=[])),
    *of_run("config a list of one", ("resume", "eval", "maxkey", "last"), values(config=[1])),
    *of_run("config null", (*TRAINING, "maxkey resume"), values(config=None)),
    *of_run("config a number", ("resume", "eval", "maxkey"), values(config=5)),
    *of_run("config {}", (*TRAINING, "maxkey", "maxkey resume"), values(config={})),
    *of_run("config gone", (*TRAINING, "maxkey", "last"), values(config=GONE)),
    *of_run("a key that nobody knows", ("resume",), values(config__typo=1)),
    *of_run("a command as pe", TRAINING, values(config__pe=COMMAND)),
    *of_run("a command as data", TRAINING, values(config__data=COMMAND)),
    *of_run("a command as tokenizer", ("resume",), values(config__tokenizer=COMMAND)),
    *of_run("a command as model", TRAINING, values(config__model=COMMAND)),
    *of_run("a command as softmax", TRAINING, values(config__softmax=COMMAND)),
    *of_run("a command as optim", ("resume",), values(config__optim=COMMAND)),
    *of_run("a command as maxkey's model", ("maxkey", "maxkey resume"), values(config__model=COMMAND)),
    *of_run("a command as normaliser", ("maxkey", "maxkey resume"), values(config__normalisers__softmax=COMMAND)),
    *of_run("a command inside a list", ("resume",), values(config__trainer__plugins=[COMMAND])),
    *of_run("a command inside pe", TRAINING, values(config__pe__p=COMMAND)),
    *of_run("a command as seed", ("resume",), values(config__seed=COMMAND)),
    *[
        case for name in CALLABLES for case in of_run(
            f"pe of {name!r}", ("resume", "eval"), values(config__pe={"_target_": name}),
        )
    ],
    *of_run("_target_ a number", TRAINING, values(config__pe={"_target_": 5})),
    *of_run(
        "_partial_ and _args_", ("eval",), values(config__pe={"_target_": "os.system", "_args_": ["touch EXECUTED"]}),
    ),
    *of_run("an interpolation of nothing", ("resume",), values(config__seed="${nope}")),
    *of_run("an unknown resolver", TRAINING, values(config__pe="${nope:1}")),
    *of_run("a cycle", TRAINING, values(config__pe="${pe}")),
    *of_run("a secret as width", (*TRAINING, "last"), values(config__model__d_model="${oc.env:CANARY}"), **SECRETS),
    *of_run("a secret as seed", ("resume",), values(config__seed="${oc.env:CANARY}"), **SECRETS),
    *of_run("a secret as pe", TRAINING, values(config__pe="${oc.env:CANARY}"), **SECRETS),
    *of_run(
        "a secret as path of data", ("resume", "eval", "export"), values(config__data__path=["${oc.env:CANARY}"]),
        **SECRETS,
    ),
    *of_run("a resolver that makes folders as seed", ("resume",), values(config__seed="${run_directory:made,x,null}")),
    *of_run(
        "a resolver that makes folders as path", ("resume", "eval"),
        values(config__data__path=["${run_directory:made,x,null}"]),
    ),
    *of_run("pe null", TRAINING, values(config__pe=None)),
    *of_run("pe a string", TRAINING, values(config__pe="x")),
    *of_run("pe gone", TRAINING, values(config__pe=GONE)),
    *of_run("pe with a wrong parameter", TRAINING, values(config__pe__q=1)),
    *of_run("pe with text as number", TRAINING, values(config__pe__theta="x")),
    *of_run("softmax null", TRAINING, values(config__softmax=None)),
    *of_run("model a list", TRAINING, values(config__model=[1, 2])),
    *of_run("model null", TRAINING, values(config__model=None)),
    *of_run("model without d_model", TRAINING, values(config__model__d_model=GONE)),
    *of_run("d_model text", TRAINING, values(config__model__d_model="abc")),
    *of_run("d_model of another model", TRAINING, values(config__model__d_model=32)),
    *of_run("d_model of 2 * 10^9", ("resume", "eval"), values(config__model__d_model=2 * 10**9)),
    *of_run("n_layers of another model", TRAINING, values(config__model__n_layers=3)),
    *of_run("n_layers of 10^9", ("resume", "eval"), values(config__model__n_layers=10**9)),
    *of_run("train_length text", TRAINING, values(config__model__train_length="x")),
    *of_run("train_length gone", ("eval", "export"), values(config__model__train_length=GONE)),
    *of_run("seed text", ("resume",), values(config__seed="abc")),
    *of_run("seed -1", ("resume",), values(config__seed=-1)),
    *of_run("batch_size 0", ("resume",), values(config__batch_size=0)),
    *of_run("batch_size gone", ("resume",), values(config__batch_size=GONE)),
    *of_run("optim null", ("resume",), values(config__optim=None)),
    *of_run("trainer a list", ("resume",), values(config__trainer=[])),
    *of_run("another verb", (*TRAINING, "last"), values(verb="eval")),
    *of_run("data null", READERS, values(data=None)),
    *of_run("data text", TRAINING, values(data="x")),
    *of_run("data of another kind", TRAINING, values(data={"x": 1})),
    *of_run("data gone", READERS, values(data=GONE)),
    *of_run("n_vocab text", READERS, values(data__n_vocab="x")),
    *of_run("n_vocab 7", READERS, values(data__n_vocab=7)),
    *of_run("n_vocab -1", READERS, values(data__n_vocab=-1)),
    *of_run("n_vocab 10^12", READERS, values(data__n_vocab=10**12)),
    *of_run("end_of_document text", READERS, values(data__end_of_document="x")),
    *of_run("end_of_document 10^9", ("probe", "export"), values(data__end_of_document=10**9)),
    *of_run("end_of_document -1", ("probe", "export"), values(data__end_of_document=-1)),
    *of_run("config.data null", READERS, values(config__data=None)),
    *of_run("a text that is gone", ("eval", "export", "resume"), values(config__data__path=["/nowhere/x.txt"])),
    *of_run(
        "control characters in a path", ("resume", "eval"), values(config__data__path=["/nowhere/\x1b[31mx\ny.txt"]),
    ),
    *of_run("control characters in pe", TRAINING, values(config__pe={"_target_": "\x1b[31mx\ny"})),
    *of_run("started yesterday", ("last",), values(started="yesterday")),
    *of_run("status a number", ("last",), values(status=5)),
    *of_run("verb a number", TRAINING, values(verb=5)),
    *of_run("maxkey's seeds text", ("maxkey", "maxkey resume"), values(config__seeds="x")),
    *of_run("maxkey's width of another model", ("maxkey", "maxkey resume"), values(config__model__width=64)),
    *of_run("maxkey's normalisers null", ("maxkey", "maxkey resume"), values(config__normalisers=None)),
    *of_run("unreadable", ("eval", "last"), lambda run: (run / "run.json").chmod(0), ordinary_user=True),
    # nothing that these verbs need is missing: they may take the run, or refuse it
    *of_run("end_of_document 10^9", ("eval",), values(data__end_of_document=10**9), codes=(0, 2)),
    *of_run("end_of_document -1", ("eval",), values(data__end_of_document=-1), codes=(0, 2)),
    *of_run("headline null", ("eval", "resume"), values(headline=None), codes=(0, 2)),
    *of_run("choices text", TRAINING, values(choices="x"), codes=(0, 2)),
    *of_run(
        "choices with control characters", TRAINING, values(choices={"pe": "\x1b[31mx\ny", "model": "<script>"}),
        codes=(0, 2),
    ),
    *of_run("choices gone", ("resume", "eval"), values(choices=GONE), codes=(0, 2)),
    *of_run("verb a list", ("resume", "eval", "last"), values(verb=["train"]), codes=(0, 2)),
    *of_run("started a number", ("last", "resume"), values(started=5), codes=(0, 2)),
    *of_run("started without a time zone", ("last", "resume"), values(started="2026-01-01T00:00:00"), codes=(0, 2)),
    *of_run("overrides a number", ("resume",), values(overrides=5), codes=(0, 2)),
    *of_run("variants text", ("resume", "eval", "export"), values(variants="x"), codes=(0, 2)),
    *of_run("status of a run under way", ("resume",), values(status="running"), codes=(0,), kind="good run.json"),
    *of_run("a key more", (*TRAINING[:3], "last"), values(foo=1), codes=(0,), kind="good run.json"),
    *of_run("as it was", ("resume", "eval", "probe", "last"), lambda run: None, codes=(0,), kind="good run.json"),
]  # fmt: skip
