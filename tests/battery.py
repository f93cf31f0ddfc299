"""Forty short runs of all verbs, and whether two checkouts compute the same in them, bit for bit.

    python tests/battery.py run FOLDER [ROUNDROUND [NAMES]]     # ROUNDROUND: the command of a checkout
    python tests/battery.py compare FOLDER FOLDER

Both sides must be run on one machine: the last bits of a sum differ between CPUs.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

MODEL = "model.d_model=16 model.n_layers=2 model.n_heads=2 model.n_key_heads=1 model.d_mlp=24"
STEPS = "trainer.accelerator=cpu trainer.max_steps=4 trainer.log_every_n_steps=1 validate_every=2 checkpoint_every=2"
TEXT = (
    f"train {MODEL} {STEPS} model.train_length=16 text=../words.txt tokenizer=bytes batch_size=4 validation_tokens=256"
)
TASK = f"train {MODEL} {STEPS} validate_every=4 batch_size=8"
ENCODINGS = (
    "pe=nope,rope,rope_500k,p_rope,p_rope_25,p_rope_reversed,partial_rope,alibi,fire,fox,kerple,learned,nape,"
    "rope_random,sinusoidal,t5_bias,xpos"
)
NORMALISERS = (
    "softmax=softmax,adaptive_temperature,adaptive_temperature_trained,alpha_entmax,alpha_entmax_learned,as_entmax,"
    "as_entmax_nape,entmax15,hard,learned_temperature,log_n,sigmoid,sink,soft_cap,softmax1,softpick,sparsemax,ssmax,"
    "ssmax_bias,temperature,top_k"
)
MIXTURE = """# roundround train data=mine
# One text twice, with other held-out shares.
defaults: [text@sources.one, text@sources.two, _self_]
_target_: roundround.data.mixture.Mixture
weights: {one: 3, two: 1}
sources: {one: {path: ../words.txt, held_out: 0.1}, two: {path: ../words.txt, held_out: 0.2}}
"""
LENGTHS = "length=8,16,32 max_tokens=256"

# name: a command line, in which {name} is the run directory that an earlier command has left
COMMANDS = {
    "encodings": f"{TEXT} -m {ENCODINGS}",
    "normalisers": f"{TEXT} -m {NORMALISERS}",
    "seeds": f"{TEXT} -m pe=rope,p_rope seed=1,2,3",
    "default": f"{TEXT} pe=p_rope softmax=ssmax",
    "bpe": f"{TEXT} tokenizer=bpe tokenizer.vocab_size=300",
    "documents": f"{TEXT} data.separate_documents=true",
    "wsd": f"{TEXT} schedule=wsd optim=adam_l2 trainer.accumulate_grad_batches=2",
    "bfloat16": f"{TEXT} trainer.precision=bf16-mixed",
    "float64": f"{TEXT} trainer.precision=64-true",
    "recomputed": f"{TEXT} activation_checkpointing=true",
    "gemma_flavour": f"{TEXT} model.geglu=true model.scaled_embeddings=true model.head_dim=10",
    "ddp": f"{TEXT} trainer.devices=2 trainer.strategy=ddp",
    "fsdp2": f"{TEXT} trainer.devices=2 trainer.strategy=fsdp2",
    "killed": f"{TEXT} trainer.max_steps=60 checkpoint_every=10 validate_every=30",
    "mixture": f"{TEXT.replace('text=../words.txt', '')} data=mine --config-dir ../conf",
    "prepare": "prepare data=text data.path=../words.txt tokenizer=bytes to=corpus n_processes=1",
    "prepared": f"{TEXT.replace('text=../words.txt tokenizer=bytes', 'data=prepared data.path=corpus')}",
    "tasks": f"{TASK} -m data=addition,copy,flip_flop,induction,local_count,max,mqar,mqmtar,n_back,parity,repeat,"
    "reverse,sort",
    "passkey": f"train {MODEL} {STEPS} data=passkey batch_size=2 data.train_lengths=[200,256]",
    "copy": f"{TASK} data=copy data.n_symbols=8 data.train_lengths=[1,4] pe=rope_random",
    "from_stories": "train init=stories260k trainer.accelerator=cpu trainer.max_steps=2 batch_size=2 text=../words.txt",
    "eval": f"eval run={{default}} {LENGTHS} dispersion=true",
    "eval_replaced": f"eval run={{default}} {LENGTHS} pe=rope softmax=adaptive_temperature",
    "eval_documents": f"eval run={{documents}} {LENGTHS}",
    "eval_stories": "eval model=stories260k length=32,64 max_tokens=2000",
    "eval_task": "eval run={copy} length=2,6 examples=48 softmax=adaptive_temperature",
    "probe": "probe",
    "probe_run": f"probe run={{default}} {LENGTHS.replace('8,16,32', '32')} ablate=curve",
    "probe_replaced": "probe pe=p_rope softmax=adaptive_temperature texts=shakespeare",
    "export": "export run={default} to=exported",
    "export_llama": "export run={bpe} to=exported_llama",
    "eval_export": f"eval model=hf model.path=exported_llama {LENGTHS} text=../words.txt device=cpu",
    "maxkey": "maxkey --temp adaptive max_steps=20 seeds=2 test_sizes=[16,64] test_sets=64 model.width=16 log_every=5",
    "maxkey_fit": "maxkey run={maxkey} fit=true fit_sizes=[16] fit_inputs=20 evaluate=[all] test_sizes=[16]"
    " test_sets=64",
    "theory": "theory",
    "theory_model": "theory rope.prop_3_1 softmax.lemma_2_1 model=stories260k max_tokens=500",
    "figures": "reproduce rope.fig1 rope.fig2 rope.fig8 rope.fig9 softmax.fig1",
    "rerun": "rerun {default}",
    "compare": "compare seeds/train/* baseline=pe=rope outputs=compare",
    "compare_encodings": "compare encodings/train/* metric=perplexity outputs=compare_encodings",
    "report": "report {probe}",
}
PRINTED = ["--help", "list", *(f"list {group}" for group in ("pe", "softmax", "data", "experiment", "model"))]
VERBS = [
    "prepare",
    "train",
    "eval",
    "probe",
    "generate",
    "theory",
    "reproduce",
    "compare",
    "rerun",
    "export",
    "max-retrieval",
    "runs",
    "show",
    "report",
]
PRINTED += [f"{verb} {flag}" for verb in VERBS for flag in ("--help", "--cfg job")]
PRINTED += ["runs outputs=default format=json", "show {default} format=json"]

TIMES = r"seconds|second$|per_second|started|ended|memory|mfu|waiting|utilisation|created|_at$"
WHERE = r"^(command|cwd|overrides|git|versions|outputs|wandb|config_hash|roundround|device|path|of)$"
STAMP = re.compile(r"\d{4}-\d\d-\d\d[/T]\d\d[-:]\d\d[-:]\d\d(-\d+)?[.\d+:]*")


def run(folder: Path, roundround: str, names: list[str]) -> None:
    work = folder.absolute() / "work"
    if not names:
        shutil.rmtree(folder, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(1, 9))) for _ in range(500)]
    texts = "\n\n".join(" ".join(draw.choices(words, k=draw.randint(20, 200))) + "." for _ in range(120))
    (folder / "words.txt").write_text(texts)
    (folder / "conf" / "data").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "data" / "mine.yaml").write_text(MIXTURE)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "120"}
    left: dict[str, Path] = {}
    for name in COMMANDS:
        for parent in ("*/*/*", "*/*/*/[0-9]*"):
            for found in sorted((work / name).glob(parent)):
                if (found / "run.json").exists():
                    left[name] = found
    for name, line in COMMANDS.items():
        if names and name not in names:
            continue
        words = filled(line, left)
        own = [] if words[0] in ("export", "report", "prepare") else ["logger=none"]
        out = [] if "outputs=" in line or words[0] in ("report",) else [f"outputs={name}"]
        start = time.perf_counter()
        log = (folder / f"{name}.log").open("w")
        child = subprocess.Popen([roundround, *words, *own, *out], cwd=work, env=env, stdout=log, stderr=log)
        if name == "killed":
            code = kill_and_resume(child, roundround, work, env, log)
        else:
            code = child.wait()
        print(f"{name}: {code}, {time.perf_counter() - start:.0f} s", flush=True)
        for parent in ("*/*/*", "*/*/*/[0-9]*"):
            for found in sorted((work / name).glob(parent)):
                if (found / "run.json").exists():
                    left[name] = found
    printed = folder / "printed"
    printed.mkdir(exist_ok=True)
    for line in PRINTED if not names or "printed" in names else []:
        words = filled(line, left)
        done = subprocess.run([roundround, *words], cwd=work, env=env, capture_output=True, text=True)
        (printed / line.replace(" ", "_").replace("/", "_")).write_text(done.stdout)


def filled(line: str, left: dict[str, Path]) -> list[str]:
    return re.sub(r"\{(\w+)\}", lambda match: str(left.get(match[1], match[0])), line).split()


def kill_and_resume(child: subprocess.Popen[bytes], roundround: str, work: Path, env: dict[str, str], log: Any) -> int:
    while child.poll() is None and not list((work / "killed").glob("*/*/*/checkpoints/step-00000020")):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    (directory,) = (work / "killed").glob("*/*/*")
    words = ["train", f"resume={directory}"]
    return subprocess.run([roundround, *words], cwd=work, env=env, stdout=log, stderr=log).returncode


def compare(one: Path, two: Path) -> int:
    differences = []
    for name in COMMANDS:
        if not (two / "work" / name).exists():
            continue
        a, b = files(one / "work" / name), files(two / "work" / name)
        differences += [f"{name}: {path} only in {one if path in a else two}" for path in sorted(a.keys() ^ b.keys())]
        for path in sorted(a.keys() & b.keys()):
            differences += [f"{name}/{path}: {found}" for found in differing(a[path], b[path], "compare" in name)]
    for file in sorted((two / "printed").iterdir()):
        if plain(file.read_text()) != plain((one / "printed" / file.name).read_text()):
            differences.append(f"printed: {file.name}")
    print(*differences, f"{len(differences)} differences", sep="\n")
    return 1 if differences else 0


def files(folder: Path) -> dict[str, Path]:
    """The files with numbers by their path, in which the n-th run of a verb has its place in the order of starting."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".jsonl", ".safetensors", ".npz"))
    stamps: dict[str, int] = {}
    names = {}
    for path in found:
        stamp = STAMP.search(str(path))
        if stamp:
            stamps.setdefault(stamp[0], len(stamps))
        names[STAMP.sub(lambda match: str(stamps[match[0]]), str(path.relative_to(folder)))] = path
    return names


def differing(one: Path, two: Path, close: bool) -> Iterator[str]:
    if one.suffix == ".safetensors" or one.suffix == ".npz":
        load = load_file if one.suffix == ".safetensors" else lambda path: dict(np.load(path))
        a, b = load(one), load(two)
        if list(a) != list(b):
            yield "other names or another order"
        for name in a.keys() & b.keys():
            if a[name].dtype != b[name].dtype or a[name].tobytes() != b[name].tobytes():
                yield name
    elif one.suffix == ".jsonl":
        a, b = ([json.loads(line) for line in path.read_text().splitlines()] for path in (one, two))
        yield from unequal(a, b, "", close)
    else:
        yield from unequal(json.loads(one.read_text()), json.loads(two.read_text()), "", close)


def unequal(a: Any, b: Any, where: str, close: bool = False) -> Iterator[str]:
    name = where.rpartition(".")[2]
    if re.search(TIMES, name) or re.search(WHERE, name):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        if list(a) != list(b):
            yield f"{where}: keys {[*a.keys() ^ b.keys()] or 'in another order'}"
        for key in a.keys() & b.keys():
            yield from unequal(a[key], b[key], f"{where}.{key}", close)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{where}: {len(a)} against {len(b)}"
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from unequal(x, y, f"{where}[{i}]", close)
    elif isinstance(a, str) and isinstance(b, str):
        if plain(a) != plain(b):
            yield f"{where}: {a} against {b}"
    elif isinstance(a, float) and isinstance(b, float):
        if not (math.isclose(a, b, rel_tol=1e-12 if close else 0) or (math.isnan(a) and math.isnan(b))):
            yield f"{where}: {a} against {b}"
    elif type(a) is not type(b) or a != b:
        yield f"{where}: {a} against {b}"


def plain(text: str) -> str:
    """Without times and places."""
    text = STAMP.sub("TIME", text)
    text = re.sub(r"/\S*/work\b", "WORK", text)
    return re.sub(r"\d[\d,.]* (tokens/s|MB|GB|MiB|GiB|s|ms|seconds)\b", "N", text)


if __name__ == "__main__":
    what, first = sys.argv[1], Path(sys.argv[2])
    if what == "run":
        run(first, sys.argv[3] if len(sys.argv) > 3 else "roundround", sys.argv[4:])
    else:
        sys.exit(compare(first, Path(sys.argv[3])))
