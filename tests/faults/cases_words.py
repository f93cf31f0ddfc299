"""Words on the command line that are no values: odd overrides, flags, verbs, places for outputs, a shell's syntax."""

from __future__ import annotations

from collections.abc import Mapping

from case import SECRET, Case, of_words
from damage import holding
from originals import TRAIN

from roundround import __version__

ODD = [
    "=1", "a=", "=", "a==b", "a b", "", " ", "\u00e9=1", "\x1b[31m=1", "pe=\x1b[31mx", "pe=p\nq", "pe=p\rq", "pe=\x07",
    "x" * 100_000, "pe=" + "x" * 100_000, "seed=" + "[" * 3000, "x." * 3000 + "x=1", "pe=" + "{a:" * 1000,
    "seed=${oc.env:NOPE}", "seed=${nope:1}", "seed=${seed}", "seed=${", "seed=${}", "outputs=${outputs}", "pe={a:",
    "seed=${oc.env:HOME}", "seed=${run_directory:a,b,c}", "outputs=${oc.decode:'['}", "pe.theta=${oc.create:[1]}",
    "~pe", "~nope", "~pe=rope", "+seed=1", "+pe=rope", "@", "pe@x=p_rope", "pe@=p_rope", "a.b.c=1", "trainer=5",
    "model={}", "model.=1", ".model=1", "model..d_model=1", "seed=\u202e5", "seed=\u00b2", "preset=quick", "preset=",
    "text=",
    "seed=1 2", "run=last", "softmax=a,b", "seed=1,2", "seed=range(3)", "pe=choice(rope,nope)", "pe=shuffle(rope)",
    "seed=1;2", "seed='1", 'seed="1', "seed=\\", "pe=$(touch EXECUTED)", "pe=!!python/object/apply:os.system",
]  # fmt: skip
FLAGS = [
    "--foo", "--cfg", "--cfg=foo", "-", "-m=1", "--multirun=2", "--config-dir=/nope", "--config-dir", "--config-dir=",
    "--config-dir=/dev/null", "--config-name=x", "--config-name=../x", "--config-path=/tmp", "--info=nope",
    "--temp=softmax",
    "-x", "--experimental-rerun=/nope", "--shell-completion=nope", ("--config-dir", "x" * 5000),
]  # fmt: skip
HYDRAS = [
    "hydra.mode=FOO", "hydra/launcher=nope", "hydra/sweeper=nope", "hydra.run.dir=/dev/null/x", "hydra.run.dir=/proc/x",
    "hydra.run.dir=" + "x" * 5000, "hydra/job_logging=nope", "hydra.foo=1", "hydra.run.dir=",
    "hydra=5", "hydra.job.config.override_dirname.kv_sep=[]", "hydra.output_subdir=/dev/null/x",
]  # fmt: skip
SHELLISH = [
    "data.path=$(touch EXECUTED)", "data.path='$(touch EXECUTED).txt'", "data.path=`touch EXECUTED`",
    "data.path=;touch EXECUTED", "data.path=|touch EXECUTED", "tokenizer=hf tokenizer.name=$(touch EXECUTED)",
    "outputs.x=$(touch EXECUTED)", "init=hf:$(touch EXECUTED)", "resume=$(touch EXECUTED)",
]  # fmt: skip
OUTPUTS = ["", "''", "/dev/null", "/proc/nope", "null", "x" * 300, "x/" * 3000, "/sys/x", "[a]", "{}", "~nobody-here/x"]
GOOD_OUTPUTS = ["\u65e5\u672c\u8a9e", "5", "'a b'", "./there", "a/../b", "'it\\'s'"]

VERBS = [
    ("list", "foo"), ("list", ""), ("list", "../../etc"), ("list", "pe", "extra"), ("list", "."), ("list", "/etc"),
    ("list", "pe", "--config-dir", "/nope"), ("list", "pe", "--config-dir"),
    ("list", "pe", "--config-dir", "/dev/null"),
    ("list", "pe", "--nope"), ("list", "x" * 5000), ("list", "experiment/rope"), ("list", "\x1b[31m"), ("list", "a\nb"),
    ("trian",), ("train", "list"), ("--foo",), ("", ""), ("x" * 5000,), ("\x1b[31m",), ("-x",), ("help", "nope"),
    ("help", "pe", "rope"), ("evaluate",), ("TRAIN",), ("train.py",), ("../train",), ("--version=2",),
    ("eval", "train"),
    ("list", "pe=rope"), ("help", "--nope"), ("list", "pe", "prope"), ("list", "pe", ""), ("train", "-h", "foo"),
    ("train", "pe=prope", "--help"), ("train", "--help", "--config-dir", "/nope"), ("list", "pe", "rope", "extra"),
]  # fmt: skip
# and what each must say
GOOD_VERBS = {
    "--help": "Measure a model", "-h": "Measure a model", "--version": __version__,
    "help": "Look up", "help train": "roundround train [KEY=VALUE ...]", "list": "softmax", "list pe": "p_rope",
    "list softmax": "ssmax", "list pe rope": "pe.theta=null", "train -h lr": "optim.lr=3.0e-3",
    "list model": "stories260k", "list experiment": "rope/table2", "list logger": "wandb",
    "train --help": "roundround train [KEY=VALUE ...]", "train -h": "roundround train [KEY=VALUE ...]",
    "eval --help": "roundround eval [KEY=VALUE ...]", "probe --help": "roundround probe [KEY=VALUE ...]",
    "export --help": "roundround export [KEY=VALUE ...]", "maxkey --help": "roundround max-retrieval [KEY=VALUE ...]",
    "train --cfg job": "max_steps:", "train --cfg=job": "max_steps:", "train --cfg hydra": "launcher:",
    "train --cfg job --package pe": "theta:", "train pe=alibi --cfg job": "roundround.pe.alibi.ALiBi",
    "train --info config": "Config search path", "maxkey --temp all --cfg job": "- all",
}  # fmt: skip
OF_OTHER_VERBS = [
    ("runs", "nowhere"), ("runs", "status=faild"), ("runs", "since=2x"), ("runs", "limit=0"), ("runs", "limit=\u00b2"),
    ("runs", "format=xml"), ("runs", "="), ("runs", "verb=a", "verb=b"), ("runs", "--limit=5"), ("runs", ""),
    ("runs", "outputs=~nobody-here/x"), ("runs", "\x1b[31m"), ("runs", "x" * 5000),
    ("runs", "since=" + "9" * 400 + "d"),
    ("show",), ("show", "last"), ("show", "last~3"), ("show", "last~" + "9" * 5000), ("show", "a", "b"),
    ("show", "p=1"),
    ("show", ".."), ("show", "/dev/null"), ("show", "[a"), ("show", "a\0b"),
    ("compare", "nowhere"), ("compare", "last"), ("compare", ".", "baseline=pe=x"), ("compare", "format=xml"),
    ("compare", "metric=\x1b[31m"), ("compare", "x" * 5000), ("compare", "since=2x"), ("compare", "baseline=["),
    ("compare", "a,b"), ("compare", "/dev/null"), ("compare", "pe=x"), ("compare", "logger=x"), ("compare", "[a"),
    ("report",), ("report", "nowhere"), ("report", "last~3"), ("report", "to="), ("report", "open=maybe"),
    ("report", "/dev/null"), ("report", "x=1"), ("report", "x" * 5000), ("report", "\x1b[31m"),
    ("rerun",), ("rerun", "nowhere"), ("rerun", "a", "b"), ("rerun", "last"), ("rerun", "rtol=2"), ("rerun", "verb=x"),
    ("rerun", "x" * 5000), ("rerun", "pe=rope"), ("rerun", "/dev/null", "trust=maybe"),
    ("sync",), ("sync", "nowhere"), ("sync", "last"), ("sync", "x=1"), ("sync", "x" * 5000), ("sync", "\x1b[31m"),
    ("eval", "=1"), ("eval", "a b"), ("eval", "run=${oc.env:NOPE}"), ("eval", "run=\x1b[31mx"), ("eval", "nope"),
    ("probe", "=1"), ("probe", "a b"), ("probe", "model=\x1b[31mx"), ("probe", "model=a\nb"), ("probe", "texts=\x07"),
    ("maxkey", "=1"), ("maxkey", "a b"), ("maxkey", "preset=\x1b[31mx"), ("maxkey", "--temp=\x1b[31m"),
    ("maxkey", "seeds=${"),
    ("export", "=1"), ("export", "to=a b", "c d"), ("export", "run=\x1b[31mx", "to=there"),
    ("export", "to=${oc.env:NOPE}"),
]  # fmt: skip
# a wrong word, and the right one that the answer must offer
MEANT = {
    "pe=prope": "p_rope", "lr=1": "optim.lr", "steps=5": "trainer.max_steps", "trainer.max_step=5": "max_steps",
    "batchsize=5": "batch_size", "softmax=temprature": "temperature", "model.d_modle=5": "d_model", "model=tny": "tiny",
    "logger=wandbb": "wandb",
}  # fmt: skip
MEANT_BY_OTHERS = {
    "list pes": "pe", "maxkey --temp=adaptve": "adaptive_temperature", "eval lenght=32": "length",
    "probe texts=italien": "italian", "probe model=smollm": "smollm2-135m", "maxkey sedes=3": "seeds",
}  # fmt: skip
# what is wrong with a word that has no right one: none of these words stands in the input
NAMED = {
    "optim.lr=abc": "could not be converted to Float",
    "data.path=nope.txt": "data.path: no file, folder or glob match at",
    "resume=nope": "nope is not a run directory: it does not exist", "init=hf:nope": "there is no such folder",
    "pe=p_rope pe.p=2": "must lie between 0", "seed=-1": "must lie between 0 and 2^32 - 1",
    "+trainer.max_epochs=2": "'max_steps'", "--config-dir=/nope": "there is no such folder",
}  # fmt: skip
NAMED_BY_OTHERS = {
    "trian": "Did you mean 'train'?",
    "eval run=nope": "nope is not a run directory: it does not exist",
    "export run=nope to=x": "nope is not a run directory: it does not exist",
}


def offering(table: Mapping[str, str]) -> dict[str, str]:
    """What the answer must say so that it offers the right word."""
    return {line: f"did you mean '{right}'" for line, right in table.items()}


CASES = [
    *of_words("odd words", TRAIN, ODD, env={"CANARY": SECRET}),
    *of_words("odd words", [], OF_OTHER_VERBS),
    *[
        Case(name=f"named: {line}", args=[*base, *line.split()], says=says)
        for base, table in ((TRAIN, NAMED | offering(MEANT)), ([], NAMED_BY_OTHERS | offering(MEANT_BY_OTHERS)))
        for line, says in table.items()
    ],
    Case(name="named: the groups of list", args=["list"], says="softmax", codes=(0,)),
    *of_words("flags", TRAIN, FLAGS),
    *of_words("Hydra's own options", TRAIN, HYDRAS),
    *of_words("shell syntax", TRAIN, [tuple(line.split(" ", 1)) if "hf" in line else line for line in SHELLISH]),
    *of_words("outputs", TRAIN, {"outputs": OUTPUTS}),
    *of_words(
        "outputs", [],
        [("eval", "outputs="), ("maxkey", "outputs="), ("maxkey", "outputs=/dev/null"), ("probe", "outputs=")],
    ),
    *of_words("good outputs", TRAIN, {"outputs": GOOD_OUTPUTS}, codes=(0,)),
    Case(
        name="good outputs: from the environment",
        args=(*TRAIN, "outputs=${oc.env:PLACE}"), env={"PLACE": "there"}, codes=(0,),
    ),
    Case(name="outputs: a file", args=(*TRAIN, "outputs=there"), prepare=holding({"there": "x"})),
    Case(
        name="outputs: a folder that is read-only", args=(*TRAIN, "outputs=there"), ordinary_user=True,
        prepare=lambda folder: (folder / "there").mkdir(mode=0o555),
    ),
    Case(
        name="outputs: the current folder is read-only", args=TRAIN, ordinary_user=True,
        prepare=lambda folder: folder.chmod(0o555),
    ),
    *of_words("verbs", [], VERBS),
    *[Case(name=f"good verbs: {line}", args=line.split(), says=says, codes=(0,)) for line, says in GOOD_VERBS.items()],
    # nothing asked for: the page of help may be an answer, or an error
    Case(name="verbs: nothing", codes=(0, 2)),
    # Arabic digits: Python's int reads them, and a run may
    *of_words("odd words", TRAIN, ["seed=\u0663"], codes=(0, 2)),
    # an end of flags with nothing behind it; Hydra's own switches, which a run may honour; --package belongs to --cfg
    *of_words(
        "odd words", TRAIN, ["--", "++", "--package=nope", "hydra.job.chdir=true", "hydra.verbose=nope"], codes=(0, 2),
    ),
]  # fmt: skip
