"""Wrong invocations, one of each kind of refusal, and right ones in strange places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from case import SECRET, Case, of_words
from damage import COMMAND, PICKLE, ZIPPED_PICKLE, Damage, changed, holding, in_json, one_bit, replaced
from originals import MAXKEY, PLAIN_TEXT, RECIPES, TASK, TRAIN, Originals
from stopping import content, runs_in

EITHER = (0, 2)
EVAL = ["eval", "run=run", "length=32", "max_tokens=64", "logger=none"]
PROBE = ["probe", "run=run", "max_tokens=200", "logger=none"]
EXPORT = ["export", "run=run", "to=there"]
RUN: dict[str, Any] = {"given": ("run",)}
WITHOUT_DATA = [word for word in TRAIN if not word.startswith("data")]

VALUES = [
    "model.d_model=17", "model.train_length=abc", "optim.lr=nan", "optim.betas=[2,0.9]",
    "batch_size=0", "seed=-1", "seed=abc", "validate_every=0", "resume=nope",
    "+trainer.max_time=1", "trainer.precision=half", "trainer.max_steps=0", "pe=prope", "pe=p_rope pe.p=nan",
    "pe._target_=os.system", "+pe.foo=1", "softmax=softmaxx", "softmax=top_k softmax.k=0", "tokenizer=nope",
    "tokenizer=bpe tokenizer.vocab_size=7", "tokenizer=hf tokenizer.name=$(touch_EXECUTED)", "data.held_out=2",
    "data.split_regex=(", "data.path=nope.txt", "data._target_=os.system", "logger=nope", "init=nope", "compile=maybe",
    "pattern=gemma4 pattern.local.window=0", "qk_norm=nope", "gate=nope", "softmax=stick_breaking pe=rope",
    "softmax=stieltjes softmax.q=0.5",
]  # fmt: skip
WORDS = [
    "=1", "a=", "nonsense", "seed=${oc.env:NOPE}", "~nope", "+seed=1", "seed=1,2", "preset=", "pe=$(touch_EXECUTED)",
    "--nope", "--cfg", "-cd nowhere", "outputs=", "outputs=/dev/null/x", "hydra.run.dir=/dev/null/x",
    f"outputs=s3://key:{SECRET}@bucket/x",
]  # fmt: skip
OF_EVAL = [
    "length=0", "stride=33", "bos=maybe", "device=foo", "checkpoint=../../x", "softmax=sink_", "pe=learned",
    "data=text", "tasks=arc_easy", "model=tiny", "run=nope", "softmax=stick_breaking pe=rope",
]  # fmt: skip
OF_PROBE = ["prompt=maximum ablate=lowest:0.5", "texts=foo", "length=1", "ablate=foo", "data=copy", "model=tiny"]
OF_MAXKEY = ["test_sizes=[0]", "evaluate=nope", "min_items=0", "--temp nope", "seeds=0", "bfloat16=2", "run=nope"]
OF_A_TASK = ["data.train_lengths=[4,2]", "tokenizer=bytes", "data.path=x", "init=stories260k"]
OF_BENCH = [
    "set=v9", "size=huge", "nope.json", "baseline=", "pe=prope", "format=yaml", "history=x", "pe=nape history=.",
    "pe=nape history=nowhere/x", f"pe=nape history={PLAIN_TEXT}", "pe=nape size=small history=x",
]  # fmt: skip
PAPERS = {"theory": ["rope.nope", "pe=rope", "device=nope"], "reproduce": ["rope.nope", "pe=rope", "model=tiny"]}
PREPARE = ["prepare", "data=text", f"data.path={PLAIN_TEXT}", "tokenizer=bytes", "logger=none"]
OF_PREPARE = ["n_processes=0", "to=", f"to={PLAIN_TEXT}", f"to=s3://key:{SECRET}@bucket/x", "batch_size=4"]

# what is read of a run that somebody else wrote: code in its manifest or beside its weights, weights of another hash
READERS: dict[str, Sequence[str]] = {
    "resume": ["train", "resume=run", "logger=none"], "eval": EVAL, "probe": PROBE, "export": EXPORT,
}  # fmt: skip
FOREIGN: dict[str, Damage] = {
    "a command as pe": in_json("run/run.json", config__pe=COMMAND),
    "a class of elsewhere": in_json("run/run.json", config__pe___target_="subprocess.Popen"),
    "one bit of the weights": changed("run/checkpoints/step-*/model.safetensors", one_bit),
    "weights that are a pickle": changed("run/checkpoints/step-*/model.safetensors", lambda sound: PICKLE),
    "weights that are a zipped pickle": changed(
        "run/checkpoints/step-*/model.safetensors", lambda sound: ZIPPED_PICKLE
    ),
}
MISTAKEN = [
    "eval run=maxkey-run", "maxkey run=run", "train resume=maxkey-run", "eval run=run/checkpoints",
    "train resume=run seed=7", "train resume=run pe=alibi", "train resume=run -m seed=1,2",
]  # fmt: skip


def of_folder(what: str, files: Mapping[str, str], *args: str, **more: Any) -> Case:
    """A user's own conf folder."""
    prepare = holding({f"mine/{name}": data for name, data in files.items()})
    return Case(name=f"config folder: {what}", args=[*TRAIN, "--config-dir", "mine", *args], prepare=prepare, **more)


HOSTILE = "_target_: os.system\ncommand: touch EXECUTED\n"
FOLDERS = [
    of_folder("a command", {"pe/x.yaml": HOSTILE}, "pe=x"),
    of_folder("a python tag", {"pe/x.yaml": "!!python/object/apply:os.system ['touch EXECUTED']\n"}, "pe=x"),
    of_folder("broken", {"pe/x.yaml": "a: [1\n"}, "pe=x"),
    of_folder("a module that is missing", {"pe/x.yaml": "_target_: nowhere.Half\n"}, "pe=x"),
    of_folder("a class of another kind", {"pe/x.yaml": "_target_: own.A\n", "own.py": "class A: pass\n"}, "pe=x"),
    of_folder("its own rope.yaml", {"pe/rope.yaml": HOSTILE}, "pe=rope"),
    of_folder(
        "good: an experiment", {"experiment/x.yaml": "# @package _global_\nseed: 3\n"}, "experiment=x", codes=(0,)
    ),
]


def of_shell(what: str, line: str, codes: Sequence[int], args: Sequence[str] = TRAIN, **more: Any) -> Case:
    return Case(
        name=f"strange places: {what}", args=args, shell=line, codes=codes, patience=120, **{"leaves": True, **more}
    )


def of_disk(what: str, options: str, codes: Sequence[int], args: Sequence[str], **more: Any) -> Case:
    mounted = f'mkdir disk; mount -t tmpfs -o {options} t disk && "$@"; code=$?'
    line = f"{mounted}; cp -a disk kept; umount disk; rmdir disk; mv kept disk; exit $code"  # so that it can be judged
    return of_shell(what, line, codes, args, **more)


def of_env(codes: Sequence[int] = (0,), args: Sequence[str] = TRAIN, **env: str | None) -> Case:
    return Case(name=f"strange places: {env}", args=args, env=env, codes=codes)


STRANGE = [
    of_env(HOME=None),
    of_env(HOME="/nonexistent"),
    of_env(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    of_env(COLUMNS="20"),
    of_env(TMPDIR="/nonexistent"),
    of_env(API_TOKEN=SECRET),
    of_env(GIT_DIR="/nonexistent"),
    of_env((0,), ["reproduce", "rope.fig1"], MPLBACKEND="module://matplotlib_inline.backend_inline"),
    of_env((2,), ROUNDROUND_CACHE="/dev/null"),
    of_shell("stdout full", '"$@" >/dev/full', (1,), says="standard output cannot be written"),
    of_shell("stderr closed", '"$@" 2>&-', (0,)),
    of_shell("stdin closed", '"$@" <&-', (0,)),
    of_shell("stdout into head", '"$@" | head -1; exit ${PIPESTATUS[0]}', (0,), args=["list"]),
    of_shell("umask 077", 'umask 077; "$@"', (0,)),
    of_shell("the working directory removed", 'mkdir d; cd d; rmdir ../d; "$@"', (2,)),
    # a run that has begun stays, and says in its run.json how it ended
    of_disk("300k for outputs", "size=300k", EITHER, [*TRAIN, "outputs=disk"]),
    of_disk("64k for the token cache", "size=64k", EITHER, TRAIN, env={"ROUNDROUND_CACHE": "disk"}),
    of_disk("20k for export", "size=20k", (2,), ["export", "run=run", "to=disk/x"], given=("run",)),
    of_disk("read-only for outputs", "ro", (2,), [*TRAIN, "outputs=disk"], leaves=False),
    Case(
        name="strange places: export into a read-only folder", args=["export", "run=run", "to=there/x"], given=("run",),
        ordinary_user=True, prepare=lambda folder: (folder / "there").mkdir(mode=0o555),
    ),
    Case(name="strange places: export into a full folder", args=EXPORT, prepare=holding({"there/x": "x"}), **RUN),
]  # fmt: skip


def entry_of(folder: Path) -> Path:
    return next(folder.glob("cache/*/meta.json")).parent


def made_again(folder: Path, originals: Originals) -> list[str]:
    """What differs from the run whose tokens were sound."""
    (new,), run = runs_in(folder), originals.original("run")
    names = [path.relative_to(run) for path in run.rglob("*") if path.is_symlink() or path.is_file()]
    return [f"{name} differs" for name in names if content(new / name) != content(run / name)]


CACHES: dict[str, Damage] = {
    "as it was": lambda entry: None,
    "no meta.json": replaced("meta.json"),
    "meta.json not json": holding({"meta.json": "{"}),
    "tokens cut": changed("train-00000.bin", lambda sound: sound[:99]),
    "a shard gone": replaced("train-00000.bin"),
}
SWEEPS = ["seed=0,-1", "pe=p_rope,prope", "seed=range(0)", "hydra.sweep.dir=/dev/null/x", "hydra/launcher=nope"]
LLAMA: dict[str, Damage] = {
    "a pickle in place of its weights": lambda folder: (
        (folder / "llama/model.safetensors").unlink(), holding({"llama/pytorch_model.bin": ZIPPED_PICKLE})(folder),
    ),
    "code of its own": lambda folder: holding(
        {
            "llama/evil.py": "open('EXECUTED', 'w')\n",
            "llama/config.json": json.dumps(
                json.loads((folder / "llama/config.json").read_text())
                | {"model_type": "evil", "auto_map": {"AutoConfig": "evil.A", "AutoModelForCausalLM": "evil.B"}}
            ),
        }
    )(folder),
    "no weights": replaced("llama/model.safetensors"),
}  # fmt: skip

CASES = [
    *of_words("values", TRAIN, VALUES),
    *of_words("words", TRAIN, WORDS),
    *of_words("eval", EVAL, OF_EVAL, **RUN),
    *of_words("probe", PROBE, OF_PROBE, **RUN),
    *of_words("maxkey", MAXKEY, OF_MAXKEY),
    *of_words("a task", TASK, OF_A_TASK),
    *of_words("bench", ["bench"], OF_BENCH),
    *(case for verb, lines in PAPERS.items() for case in of_words(verb, [verb], lines)),
    *of_words("prepare", PREPARE, OF_PREPARE),
    *of_words("mistaken runs", [], MISTAKEN, given=("run", "maxkey-run")),
    *of_words("data", WITHOUT_DATA, ["data=nope", "data=wikitext103", "data=hub data.name=owner/name"]),
    *of_words("sweeps", [*TRAIN, "-m"], SWEEPS, leaves=True),
    *of_words("good values", TRAIN, ["pe=alibi", "softmax=sink", "optim=adam_l2"], codes=(0,)),
    *of_words("good values", TRAIN, ["softmax=stick_breaking pe=nope"], codes=(0,)),
    *of_words("good eval", EVAL, ["checkpoint=last", "stride=16"], codes=(0,), **RUN),
    *(
        Case(name=f"a foreign run: {what}, {verb}", args=args, prepare=damage, **RUN)
        for what, damage in FOREIGN.items()
        for verb, args in READERS.items()
    ),
    *(
        Case(name=f"a foreign model: {what}", args=["probe", "model=hf", "model.path=llama", "logger=none"],
             given=("llama",), prepare=damage)
        for what, damage in LLAMA.items()
    ),
    *(
        Case(
            name=f"token cache: {what}", args=RECIPES["run"], given=("run", "cache"), codes=(0,), afterwards=made_again,
            prepare=lambda folder, damage=damage: damage(entry_of(folder)),
        )
        for what, damage in CACHES.items()
    ),
    *FOLDERS,
    *STRANGE,
]  # fmt: skip
