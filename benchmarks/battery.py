"""The battery: what the code of a checkout computes, recorded, and what differs between two records.

    python benchmarks/battery.py record CHECKOUT OUT.json [--only verbs,pairs] [--keep DIR] [--old DIR]
    python benchmarks/battery.py compare BEFORE.json AFTER.json

A part runs in a process of its own that imports other people's libraries alone; each command and each piece of Python
is a fork of it. So the code under test is found by the names that a user has: commands, rr.*, yamls. The one thing
inside of it that a part needs is found by its name, wherever it is defined (`ours`). --keep DIR makes the runs for the
part `old` there; --old DIR opens those that another commit made.

A name that begins with text/ is for a person to read: `compare` shows its difference and does not fail.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import hashlib
import html
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARTS = "verbs patterns pairs batches resume fsdp2 exports probes check stored harness old"
SMALL = (
    "logger=none model.d_model=16 model.n_layers=2 model.n_heads=2 model.n_key_heads=1 model.d_mlp=24 batch_size=4 "
    "trainer.max_steps=20 trainer.accelerator=cpu trainer.log_every_n_steps=1 validate_every=5 checkpoint_every=5"
)
TINY = f"{SMALL} tokenizer=bytes model.train_length=32 validation_tokens=256"
WORDS = {  # in a script, for several words
    "SMALL": f"{SMALL} trainer.devices=1",
    "TINY": f"{TINY} trainer.devices=1",
    "TEXT": f"{TINY} trainer.devices=1 data=text data.path=fables.txt",
    "BOTH": f"{TINY} data=text data.path=fables.txt",
    "SIX": "model.n_layers=6 model.n_heads=4 model.n_key_heads=2 model.d_model=32",
    "HUNDRED": "trainer.max_steps=100 validate_every=100 checkpoint_every=100 trainer.log_every_n_steps=50",
    "CPU": "logger=none device=cpu",
    "QUIET": "logger=none",
    "MAXKEY": "maxkey --temp adaptive preset=quick max_steps=20 seeds=2 test_sizes=[16,64] test_sets=64 model.width=16",
}
# what depends on the machine, the hour and the commit: names of fields, then how it is written in texts
VOLATILE = (
    "started ended seconds seconds_of_training tokens_per_second waiting_share mfu peak_memory peak_memory_gb created "
    "peak_resident_bytes steps_per_second versions git device cwd pid host hostname roundround transformers_version"
)
TIMES = [
    (r"/tmp/battery-\w+", "TMP"),
    (r"\d{4}-\d\d-\d\d[/T ]\d\d[-:]\d\d[-:]\d\d([.,]\d+)?(\+00:00|Z)?(-\d+)?", "WHEN"),
    (r"\b\d\d-\d\d \d\d:\d\d\b|\b\d\d[:-]\d\d[:-]\d\d(,\d+)?\b|\d{4}-\d\d-\d\d", "WHEN"),
    (r"(?m)(?<=^tokens per second\n)[\d,.]+$|(?<=^prompt tokens\n)[\d,.]+$", "SPEED"),
    (r"(?m)^( *)(tokens.per.second|waiting.share|mfu|peak.memory.gb)\b.*$", "SPEED"),
    (r"[\d.,]+ ?(tokens/s|steps/s|it/s|a second)|mfu [\d.]+%|\d+:\d\d left|[\d.]+ (GB|MB|MiB)\b", "SPEED"),
    (r"\b[\d.,]+ (s|ms|min|seconds|minutes)\b", "TIME"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\b[0-9a-f]{40}\b|(?<![.\w])(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,12}(?![.\w])", "COMMIT"),
    (r"port \d+|:\d{5}\b", "PORT"),
    (r"\broundround\.(\w+\.)+(?=[A-Z])", ""),  # where a class lies
]
SVG = "http://www.w3.org/2000/svg"


def ours(name: str) -> Any:
    """The class or function of this name, in whichever module of roundround it is defined."""
    root = Path(os.environ["PYTHONPATH"])
    for path in sorted((root / "roundround").rglob("*.py")):
        if re.search(rf"^(class|def) {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            return getattr(importlib.import_module(module), name)
    raise LookupError(f"no class or function {name} in {root}")


def digest(tensors: dict[str, Any]) -> str:
    """The sha256 of tensors: names, types, shapes and bytes."""
    import torch

    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = torch.as_tensor(tensors[name]).detach().contiguous().cpu()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return found.hexdigest()


def weights_of(run: Path) -> str:
    from safetensors.torch import load_file

    files = sorted((run / "checkpoints" / "last").glob("*.safetensors"))
    return digest({f"{file.name}/{name}": value for file in files for name, value in load_file(file).items()})


def described(figure: Any) -> str:
    """What a matplotlib figure shows, without drawing it: the words of each panel, a hash of each artist's numbers."""
    import numpy as np

    def numbers(artist: Any) -> str:
        reader = next(name for name in ("get_xydata", "get_array", "get_paths", "get_path") if hasattr(artist, name))
        value = getattr(artist, reader)()
        parts = [getattr(part, "vertices", part) for part in (value if isinstance(value, list) else [value])]
        data = b"".join(np.ma.filled(np.ma.asarray(part, dtype=float), np.nan).tobytes() for part in parts)
        return f"{type(artist).__name__} {hashlib.sha256(data).hexdigest()[:16]}"

    lines = []
    for axes in figure.axes:
        legend = axes.get_legend()
        texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else [])]
        lines += ["panel: " + " | ".join(text.get_text() for text in texts)]
        lines += map(numbers, (*axes.lines, *axes.collections, *axes.images, *axes.patches))
    return "\n".join(lines)


class Lab:
    """A folder to work in, and what a part has found there by name."""

    def __init__(self, part: str, home: Path, checkout: Path) -> None:
        self.part, self.home, self.checkout = part, home, checkout
        self.found: dict[str, Any] = {}
        self.runs: dict[str, Path] = {}
        self.aliases = {str(checkout): "CHECKOUT"}
        animals, deeds = ["fox", "crow", "stork", "ass", "hare"], ["ran home", "sang", "slept", "lost the cheese"]
        lines = [
            f"The {animals[i % 5]} number {i} {deeds[i % 4]} and met the {animals[i * 3 % 5]}." for i in range(200)
        ]
        (home / "fables.txt").write_text("\n\n".join(lines))

    def fork(self, act: Callable[[], object]) -> tuple[int, str, str]:
        """The exit code of `act` in a process of its own, and what it wrote on both streams."""
        streams = self.home / ".out", self.home / ".err"
        sys.stdout.flush()
        if not (child := os.fork()):
            code = 1
            try:
                for number, path in enumerate(streams, start=1):
                    os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), number)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                act()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out, err = (path.read_text(errors="replace") for path in streams)
        return code, out, err

    def rr(self, name: str, line: str, *, leave: bool = True, before: Callable[[], None] | None = None) -> Path | None:
        """Run `roundround LINE`, and keep what it says and leaves; the run directory that it names, if any."""

        def act() -> None:
            from matplotlib.figure import Figure

            drawn = Figure.savefig

            def savefig(figure: Any, file: Any, **options: Any) -> None:
                if "dpi" in options or not hasattr(file, "write"):  # of a page, which looks for what is in it
                    return drawn(figure, file, **options)
                file.write(f"<svg xmlns='{SVG}'><desc>{html.escape(described(figure))}</desc></svg>".encode())

            vars(os)["fsync"] = lambda handle: None
            type.__setattr__(Figure, "savefig", savefig)
            if before is not None:
                before()
            sys.argv = ["roundround", *self.words(line)]
            from roundround.__main__ import main

            main()

        return self.told(name, *self.fork(act), leave=leave)

    def words(self, line: str) -> list[str]:
        """The words of a line, with RUNS[some_name] for the directory of the run `some name`."""
        found = [word for part in line.split() for word in WORDS.get(part, part).split()]
        return [re.sub(r"RUNS\[([^]]*)\]", lambda m: str(self.runs[m[1]]), word) for word in found]

    def told(self, name: str, code: int, out: str, err: str, *, leave: bool = True) -> Path | None:
        """Keep what a command has said and left."""
        run: Path | None = self.home / (out.splitlines() or ["."])[-1][:200]
        assert run is not None
        if run == self.home or not (run / "run.json").is_file():
            run = None
        else:
            self.runs[name.replace(" ", "_")] = run
            self.aliases[str(run)] = f"<{name}>"
        self.keep(f"{name}/exit code", code)
        if out[:1] in ("[", "{"):
            self.keep(f"{name}/out", self.scrubbed(json.loads(out)))
        elif out.startswith("metric,"):
            self.keep(f"{name}/out", self.scrubbed(list(csv.DictReader(out.splitlines()))))
        else:
            self.keep(f"{name}/out", self.plain(out), text=True)
        self.keep(f"{name}/err", self.plain(err), text=True)
        if run is not None and leave:
            self.leaves(name, run)
        return run

    def script(self, rows: str, *, leave: bool = True) -> None:
        """Run rows of NAME|COMMAND. A command in capitals is a function below; all others are roundround's."""
        for row in rows.strip().splitlines():
            name, _, line = row.partition("|")
            command, _, rest = line.partition(" ")
            if command in COMMANDS:
                COMMANDS[command](self, name, *self.words(rest))
            else:
                self.rr(name, line, leave=leave)

    def python(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Keep the numbers that a piece of Python gives in a process of its own."""
        file = self.home / ".made"
        file.write_text("{}")
        code, _, err = self.fork(lambda: file.write_text(json.dumps(make())))
        self.keep(f"{name}/exit code", code)
        self.keep(f"{name}/err", self.plain(err), text=True)
        for key, value in json.loads(file.read_text()).items():
            self.keep(f"{name}/{key}", self.scrubbed(value))

    def keep(self, name: str, value: Any, *, text: bool = False) -> None:
        self.found[f"{'text/' if text else ''}{self.part}/{name}"] = value

    def plain(self, text: str) -> str:
        """Text without what changes from one run to the next."""
        for path in sorted(self.aliases, key=len, reverse=True):
            text = text.replace(path, self.aliases[path])
        for pattern, word in ((re.escape(str(self.home)), "HOME"), *TIMES):
            text = re.sub(pattern, word, text)
        return "\n".join(line.rstrip() for line in text.splitlines())

    def scrubbed(self, value: Any) -> Any:
        """The same of a value of JSON, without the hashes of shards, whose headers vary."""
        gone = VOLATILE.split()
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if k not in gone and not str(k).startswith("shard-")}
            return {self.plain(str(k)): self.scrubbed(v) for k, v in kept.items()}
        if isinstance(value, list):
            return [self.scrubbed(v) for v in value if not (isinstance(v, dict) and v.get("metric") in gone)]
        return self.plain(value) if isinstance(value, str) else value

    def leaves(self, name: str, folder: Path) -> None:
        """Keep what a folder holds, each file as what it is."""
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
        files = [path for path in files if ".lock" not in path.name and path.suffix != ".log"]
        self.keep(f"{name}/files", [self.plain(str(path.relative_to(folder))) for path in files])
        for path in files:
            place, kind = f"{name}/{self.plain(str(path.relative_to(folder)))}", path.suffix
            if kind == ".safetensors":
                from safetensors.torch import load_file

                self.keep(place, digest(load_file(path)))
            elif path.name == "tokenizer.json":
                self.keep(place, hashlib.sha256(path.read_bytes()).hexdigest())
            elif kind == ".json":
                content = json.loads(path.read_text())
                if path.name == "run.json":  # the hash is one of names of modules and of paths too
                    content.pop("config_hash", None)
                    content.pop("job", None)
                self.keep(place, self.scrubbed(content))
            elif kind == ".jsonl":
                self.keep(place, [self.scrubbed(json.loads(line)) for line in path.read_text().splitlines()])
            elif kind == ".csv":
                with path.open(newline="") as rows:
                    self.keep(place, self.scrubbed(list(csv.DictReader(rows))))
            elif kind in (".md", ".tex", ".txt", ".yaml", ".svg"):
                self.keep(place, self.plain(path.read_text(errors="replace")), text=True)
            elif kind == ".html":
                body = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", "\n", path.read_text(), flags=re.DOTALL)
                body = re.sub(r"\s*\n\s*", "\n", html.unescape(body))
                body = re.sub(r"(?m)^\d+,[05]00\n", "", body)  # ticks of an axis, of speed among others
                self.keep(place, self.plain(body), text=True)


def watching(file: Path, kill_at: int | None = None) -> Callable[[], None]:
    """What to do before a training: note a hash of all that its decoder is given and gives, and of all gradients.

    kill_at: end the process without a word where this many batches have been read.
    """

    def start() -> None:
        from torch import Tensor
        from torch.nn.modules.module import register_module_forward_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        file.write_text("")
        n_calls = 0

        def note(word: str, values: Any) -> None:
            hashes = sorted(digest({"": value})[:20] for value in values if isinstance(value, Tensor))
            with file.open("a") as notes:
                notes.write(f"{word} {' '.join(hashes)}\n")

        def called(module: Any, args: Any, kwargs: Any, out: Any) -> None:
            nonlocal n_calls
            if type(module).__name__ == "Decoder" and module.training:
                n_calls += 1
                if n_calls == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                note("batch", [*args, *kwargs.values()])
                note("loss", [out])

        def stepped(optimizer: Any, *_: Any) -> None:
            note("gradients", [p.grad for group in optimizer.param_groups for p in group["params"]])

        register_module_forward_hook(called, with_kwargs=True)
        register_optimizer_step_pre_hook(stepped)

    return start


# -- commands of scripts that are not roundround's


def trained(lab: Lab, name: str, *words: str) -> None:
    """A training as hashes of its batches, losses, gradients and weights."""
    notes = lab.home / ".notes"
    notes.unlink(missing_ok=True)
    run = lab.rr(name, "train " + " ".join(words), leave=False, before=watching(notes))
    for word in ("batch", "loss", "gradients") if run else ():
        lines = [line for line in notes.read_text().splitlines() if line.startswith(word)]
        lab.keep(f"{name}/{word}", f"{len(lines)} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}")
    if run:
        lab.keep(f"{name}/weights", weights_of(run))


def trained_to_write(lab: Lab, name: str, *words: str) -> None:
    """The same, and a text that the model writes, token by token."""
    trained(lab, name, *words)
    lab.rr(f"{name} writes", f"generate run=RUNS[{name.replace(' ', '_')}] length=25 prompt=The CPU", leave=False)


def killed(lab: Lab, name: str, *words: str) -> None:
    """A training that is killed in its twelfth step, behind the second checkpoint."""
    place = f"killed-{name.replace(' ', '-')}"
    kill = watching(lab.home / ".notes", kill_at=12)
    lab.rr(name, f"train outputs={place} " + " ".join(words), before=kill)
    lab.runs[name.replace(" ", "_")] = only(lab, f"{place}/train/*/*")


def two(lab: Lab, name: str, *words: str) -> None:
    """A training of two processes of torchrun on the CPU."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "roundround"]
    done = subprocess.run([*command, "train", *words], capture_output=True, text=True, cwd=lab.home)
    run = lab.told(name, done.returncode, done.stdout, done.stderr)
    if run:
        lab.keep(f"{name}/weights", weights_of(run))


def rewound(lab: Lab, name: str, run: str) -> None:
    """A copy of a run as if it had been stopped before its last checkpoint, gone on with by one process."""
    copy = lab.home / f"rewound-{len(lab.runs)}"
    shutil.copytree(run, copy, symlinks=True)
    shutil.rmtree(sorted(copy.glob("checkpoints/step-*"))[-1])
    shutil.rmtree(copy / "exported", ignore_errors=True)
    lab.rr(name, f"train resume={copy} logger=none trainer.strategy=auto trainer.devices=1")
    lab.keep(f"{name}/weights", weights_of(copy))


CLEAN = """
import sys
sys.modules["roundround"] = None
import hashlib, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
tokens = torch.arange(40)[None] * 7 % model.config.vocab_size
with torch.no_grad():
    out = model(input_ids=tokens, labels=tokens)
    written = model.generate(input_ids=tokens[:, :9], max_new_tokens=8, do_sample=False, eos_token_id=None)
print(type(model).__name__, hashlib.sha256(out.logits.numpy().tobytes()).hexdigest(), float(out.loss), written.tolist())
print(AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)("The fox number 3 sang.").input_ids)
"""


def loaded_alone(lab: Lab, name: str, folder: str) -> None:
    """An export's logits in a process that cannot import roundround."""
    done = subprocess.run([sys.executable, "-I", "-c", CLEAN, folder], capture_output=True, text=True, cwd=lab.home)
    lab.keep(f"{name}/exit code", done.returncode)
    lab.keep(f"{name}/out", done.stdout.splitlines())
    lab.keep(f"{name}/err", lab.plain(done.stderr), text=True)


def only(lab: Lab, pattern: str) -> Path:
    """The one run of this pattern, or the last of several."""
    return sorted(path for path in lab.home.glob(pattern) if (path / "run.json").is_file())[-1]


COMMANDS: dict[str, Callable[..., None]] = {
    "TRAINED": trained,
    "WRITES": trained_to_write,
    "KILLED": killed,
    "TWO": two,
    "REWOUND": rewound,
    "ALONE": loaded_alone,
    "FOLDER": lambda lab, name, folder: lab.leaves(name, lab.home / folder),
    "WEIGHTS": lambda lab, name, run: lab.keep(name, weights_of(Path(run))),
}


# -- the parts


def verbs(lab: Lab) -> None:
    """Every verb, small; and what is refused."""
    lab.script("""
train|train pe=p_rope TEXT
eval|eval run=last length=16,32,64 dispersion=true QUIET
eval replaced|eval run=last softmax=adaptive_temperature pe=yarn pe.factor=2 length=32 stride=8 QUIET
probe run|probe run=last max_tokens=512 prompt=fox ablate=lowest:0.25,highest:0.25 CPU
check run|check run=last CPU
generate run|generate run=last length=30 n=2 prompt=The CPU
rerun|rerun last verb=train QUIET
sweep|train -m pe=rope,nope seed=1,2,3 outputs=swept TEXT
swept|FOLDER swept
compare|compare swept baseline=pe=rope QUIET
compare csv|compare swept baseline=none metric=perplexity format=csv QUIET
compare filtered|compare swept where=pe=nope,rope baseline=pe=nope format=json QUIET
task|train data=copy pe=nope data.train_lengths=[1,6] data.validation_examples=32 seed=3 SMALL
eval task|eval run=last length=4,8 examples=32 QUIET
eval written|eval run=last length=4,8 examples=16 by=generation QUIET
stories|train data=stories data.held_out=0.2 softmax=ssmax pe=alibi TINY
eval other text|eval run=last data=pydoc length=32 max_tokens=2048 QUIET
eval pairs|eval model=stories260k data=blimp data.pairs=1 prefix=0,8 QUIET
eval packaged|eval model=stories260k length=64,128 max_tokens=1024 QUIET
eval hotter|eval model=stories260k softmax=temperature length=64 max_tokens=512 QUIET
initial|train init=run:last pe=nope trainer.max_steps=5 seed=5 data=text data.path=fables.txt QUIET
packaged initial|train init=stories260k data=pydoc trainer.max_steps=2 validation_tokens=1024 batch_size=2 QUIET
probe|probe max_tokens=400 CPU
probe curve|probe max_tokens=300 ablate=curve rows=false entropy=false CPU
probe replaced|probe length=64 max_tokens=256 pe=p_rope softmax=adaptive_temperature CPU
probe maximum|probe prompt=maximum max_tokens=128 CPU
check|check model=stories260k CPU
check vectors|check pe=yarn pe.factor=4 to=yarn.safetensors CPU
check against|check pe=yarn pe.factor=4 against=yarn.safetensors CPU
generate|generate length=30 n=2 top_k=5 CPU
generate replaced|generate length=20 temperature=0 softmax=temperature softmax.temperature=0.5 CPU
maxkey|MAXKEY CPU
maxkey again|maxkey run=last evaluate=all fit=true fit_inputs=20 fit_sizes=[16,64] test_sizes=[16,64] test_sets=64 CPU
theory|theory rope.lemma_a_3 rope.figure_6 rope.apostrophe rope.thm_6_1 softmax.thm_2_2 softmax.polynomial QUIET
theory of a model|theory model=stories260k max_tokens=200 QUIET
reproduce|reproduce rope.fig1 rope.fig8 rope.fig9 QUIET
reproduce list|reproduce
bench|bench QUIET
bench named|bench pe=nape,nope QUIET
prepare|prepare data=text data.path=fables.txt tokenizer=bytes to=corpus n_processes=1
prepared|FOLDER corpus
runs|runs format=json
runs filtered|runs verb=train pe=nope
show|show last verb=train
show pretty|show RUNS[train]
report|report RUNS[eval]
list pe|list pe
list softmax|list softmax ssmax
list pattern|list pattern
list data|list data
cfg|train --cfg job pe=yarn model=small
help|--help
help train|train --help
help eval|eval --help
help lr|train -h lr
""")
    refused = """
train pe=prope|train pe=nope,rope|train modl=tiny|train optim.lr=fast|train softmax.temperature=1|train batch_size=0
eval run=nowhere|eval length=0|eval tasks=lm_eval:none_such|probe model=gemma-7 QUIET|check pe=yarn|compare nowhere
theory rope.none_such|reproduce rope.fig99|rerun nowhere|export|export run=last to=/|generate temperature=-1
generate prompt=|bench pe=none_such|prepare data=copy|maxkey seeds=0|runs pe=none_such|show nowhere|report nowhere|trian
train data=text data.path=none.txt QUIET|train pattern=gemma3 pattern.local.window=0 QUIET|list none_such|eval data=copy
train pe=p_rope pe.p=2 QUIET|train data=copy tokenizer=bytes QUIET|train resume=nowhere|train model.n_heads=3 QUIET
train trainer.max_steps=2 trainer.limit_val_batches=2 QUIET|compare baseline=pe
"""
    for line in refused.replace("\n", "|").strip("|").split("|"):
        lab.rr(f"refused {line}", line)


def patterns(lab: Lab) -> None:
    """Each pattern as train builds it, with its own reaches and with short ones: two steps, and what it writes."""
    for path in sorted((lab.checkout / "conf" / "pattern").glob("*.yaml")):
        reaches = re.findall(r"^(\w+):[^\n]*\n(?:  .*\n)*?  (window|chunk): \d", path.read_text(), re.MULTILINE)
        short = " ".join(f"pattern.{kind}.{reach}=5" for kind, reach in reaches)
        lab.script(f"""
{path.stem}|TRAINED pattern={path.stem} TEXT SIX trainer.max_steps=2
{path.stem} short|WRITES pattern={path.stem} {short} TEXT SIX trainer.max_steps=2
""")


def pairs(lab: Lab) -> None:
    """Each encoding with each normaliser: logits, losses, gradients, documents apart; some of them trained."""
    conf, sizes = lab.checkout / "conf", {"n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "d_model": 32}
    names = {group: [str(path.relative_to(conf / group))[:-5] for path in sorted((conf / group).rglob("*.yaml"))]
             for group in ("pe", "softmax")}  # fmt: skip

    def computed(pe: str) -> dict[str, Any]:
        import torch
        from omegaconf import DictConfig, OmegaConf

        def node(group: str, name: str) -> Any:
            loaded = OmegaConf.load(conf / group / f"{name}.yaml")
            assert isinstance(loaded, DictConfig)
            scaled = {"factor": 4.0} if loaded.get("factor", 0) is None else {}
            return OmegaConf.create({group: OmegaConf.merge(loaded, scaled)})[group]

        found, build = {}, ours("build_decoder")
        model = OmegaConf.merge(node("model", "tiny"), sizes, {"train_length": 64, "initializer_range": 0.3})
        for softmax in names["softmax"]:
            torch.manual_seed(0)
            tokens = torch.randint(29, (2, 64 if pe == "learned" else 80))
            try:
                decoder = build(model, node("pe", pe), node("softmax", softmax), 29)
                logits, loss = decoder(tokens), decoder(tokens, targets_BT=tokens.roll(1, 1))
                loss.mean().backward()
                gradients = {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}
                found[f"{softmax}, logits"] = digest({"logits": logits, "loss": loss})
                found[f"{softmax}, gradients"] = digest(gradients)
                with torch.no_grad():
                    apart = decoder(tokens, targets_BT=tokens, ends_BT=tokens == 3)
                found[f"{softmax}, documents"] = digest({"": apart})
            except Exception as error:
                found[f"{softmax}, refused"] = f"{type(error).__name__}: {error}"
        return found

    for pe in names["pe"]:
        lab.python(pe, lambda pe=pe: computed(pe))  # type: ignore[misc]
    for number in range(max(map(len, names.values()))):
        pe, softmax = (group[number % len(group)] for group in names.values())
        scaled = "pe.factor=4" if "\nfactor: null" in (conf / "pe" / f"{pe}.yaml").read_text() else ""
        lab.script(f"trained {pe} {softmax}|WRITES pe={pe} softmax={softmax} {scaled} TEXT trainer.max_steps=3")


def batches(lab: Lab) -> None:
    """The tokens of a hundred batches of corpora and of tasks, as train gives them to its decoder."""
    lab.script("""
prepare|prepare data=text data.path=fables.txt tokenizer=bytes to=corpus n_processes=1
corpus|FOLDER corpus
stories|TRAINED data=stories data.held_out=0.1 TINY HUNDRED
pydoc|TRAINED data=pydoc TINY HUNDRED
pydoc bpe|TRAINED data=pydoc TINY tokenizer=bpe tokenizer.vocab_size=512 HUNDRED
fables|TRAINED seed=7 TEXT HUNDRED
fables apart|TRAINED data.separate_documents=true TEXT HUNDRED
fables again|TRAINED seed=7 TEXT HUNDRED
""")
    shutil.copytree(lab.home / "corpus", lab.home / "moved")
    parts = " ".join(f"~data.{key}.{name}" for key in ("sources", "weights") for name in ("wikipedia", "flan_v2"))
    parts += " +data@data.sources.a=text data.sources.a.path=fables.txt +data.weights.a=1"
    parts += " +data@data.sources.b=stories data.sources.b.held_out=0.1 +data.weights.b=3"
    lab.script(f"""
prepared|TRAINED data=prepared data.path=corpus TINY tokenizer=prepared HUNDRED
prepared again|TRAINED data=prepared data.path=corpus TINY tokenizer=prepared HUNDRED
prepared moved|TRAINED data=prepared data.path=moved seed=2 TINY tokenizer=prepared HUNDRED
mixture|TRAINED data=mixture {parts} TINY HUNDRED
""")
    tasks = "copy addition mqar n_back variable_tracking induction sort flip_flop needle"
    for task in tasks.split():
        lab.script(f"{task}|TRAINED data={task} SMALL HUNDRED")


def resume(lab: Lab) -> None:
    """A run that was killed and gone on with ends as one that was not."""
    for name, line in {"text": "pe=p_rope TEXT", "task": "data=copy SMALL", "learnt": "pe=fox optim=muon TEXT"}.items():
        lab.script(f"""
{name} whole|train {line}
{name} killed|KILLED {line}
{name} resumed|train resume=RUNS[{name}_killed] QUIET
""")
        ends = {weights_of(lab.runs[f"{name}_{way}"]) for way in ("whole", "killed")}
        lab.keep(f"{name}/weights", [len(ends), *sorted(ends)])


def fsdp2(lab: Lab) -> None:
    """Two processes that share the parameters out, and two that do not; one process goes on from them."""
    lab.script("""
fsdp2|TWO trainer.strategy=fsdp2 BOTH
ddp|TWO BOTH
eval|eval run=RUNS[fsdp2] length=16,32 QUIET
resumed by one|REWOUND RUNS[fsdp2]
""")


def exports(lab: Lab) -> None:
    """Exports of runs as folders of transformers."""
    settings = {
        "stock": "pe=rope",
        "adaptive": "pe=p_rope softmax=adaptive_temperature",
        "entmax": "pe=alibi softmax=entmax15 gate=head qk_norm=rms",
        "gemma3": "pattern=gemma3 model.n_layers=6",
        "fox": "pe=fox softmax=ssmax",
    }
    for name, line in settings.items():
        lab.script(f"""
train {name}|TRAINED TEXT {line} trainer.max_steps=5
{name}|export run=RUNS[train_{name}] to={name} QUIET
{name} as a folder|FOLDER {name}
{name} alone|ALONE {name}
""")
    lab.script("""
eval|eval model=hf model.path=stock length=16,32 data=text data.path=fables.txt QUIET
train|TRAINED init=hf:stock trainer.max_steps=3 data=text data.path=fables.txt QUIET
""")


def probes(lab: Lab) -> None:
    """The Python interface."""
    lab.script("train|TRAINED TEXT pe=p_rope\nother|TRAINED TEXT pe=nope")
    run, texts = lab.runs["train"], ["The fox ran home.", "Once upon a time, there was a crow.", "The cheese was lost."]

    def numbers() -> dict[str, Any]:
        import roundround as rr

        model, tokenizer = rr.load(run)
        kept: dict[str, Any] = {
            "attention": [digest({"": layer}) for layer in rr.attention(model, tokenizer, texts[0])],
            "evaluate": rr.evaluate(model, tokenizer, "stories", length=[16, 32], dispersion=True).to_dict("list"),
            "generate": rr.generate(model, tokenizer, "The fox", length=30, n=2),
            "compare": rr.compare([run, lab.home / "outputs"], baseline="pe=nope").table,
            "runs": rr.runs().drop(columns=["started", "seconds"]).to_dict("list"),
            "run": [rr.run(run).data_frame().to_dict("list"), sorted(rr.run(run).settings)],
            "curves": rr.run(run).curves()[["loss", "grad_norm", "held_out_nats_per_token"]].to_dict("list"),
        }
        settings: list[dict[str, Any]] = [{}, {"rows": False}, {"entropy": False, "batch_tokens": 32}]
        for given in settings:
            probe = rr.probe(model, tokenizer, texts, **given)
            kept |= {f"probe {given} {name}": digest({"": array}) for name, array in probe.arrays().items()}
            kept |= {f"labels {given}": repr(probe.labels())} if "rows" not in given else {}
        with rr.patch(model, softmax="adaptive_temperature"):
            kept["patched"] = rr.evaluate(model, tokenizer, texts * 9, length=16).to_dict("list")
        with rr.patch(model, pe="yarn", factor=2.0):
            kept["patched yarn"] = rr.evaluate(model, tokenizer, texts * 9, length=16).to_dict("list")
        return kept

    lab.python("python", numbers)


WINDOW: dict[str, Any] = {"head_dim": 16, "sliding_window": 5}
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: {"head_dim": 16} for name in ("llama", "gemma", "qwen3", "glm")},
    **{name: {} for name in ("qwen2", "olmo2", "phi3")},
    "gpt_neox": {"rotary_pct": 0.5},
    "mistral": WINDOW,
    "smollm3": {"head_dim": 16, "no_rope_layers": [1, 0, 1, 0]},
    "gemma2": WINDOW | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": WINDOW | {"layer_types": ["sliding_attention", "full_attention"] * 2},
}


def check(lab: Lab) -> None:
    """`check` and `eval` of random models of Hugging Face's families; `probe` and `generate` of some."""

    def save(name: str, folder: Path) -> dict[str, Any]:
        import torch
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

        torch.manual_seed(0)
        sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 2, "vocab_size": 260, "max_position_embeddings": 256, "pad_token_id": 0}
        config = AutoConfig.for_model(name, **sizes, bos_token_id=1, eos_token_id=2, **FAMILIES[name])
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, 0, 0.25)
        model.save_pretrained(folder)
        letters = {letter: i + 3 for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        backend = Tokenizer(models.BPE({"<unk>": 0, "<s>": 1, "</s>": 2, **letters}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
        return {}

    for name in FAMILIES:
        lab.python(f"saved {name}", lambda name=name: save(name, lab.home / name))  # type: ignore[misc]
        lab.script(f"""
{name}|check model=hf model.path={name} CPU
eval {name}|eval model=hf model.path={name} data=stories length=64 max_tokens=256 CPU
""")
    for name in ("llama", "gemma2", "gpt_neox"):
        lab.script(f"""
probe {name}|probe model=hf model.path={name} texts=shakespeare max_tokens=256 CPU
generate {name}|generate model=hf model.path={name} length=20 CPU
""")


def stored(lab: Lab) -> None:
    """The csvs of docs through compare, and where the variants of the standard set stand."""
    for path in sorted((lab.checkout / "docs").rglob("*.csv")):
        name = "-".join(path.relative_to(lab.checkout / "docs").parts[1:])
        shutil.copy(path, lab.home / name)
        lab.rr(name, f"compare {name} logger=none")
    lab.script("""
repeat|compare length-repeat.csv baseline=pe=nope metric=exact_match where=length=30 QUIET
table2|compare table2-wikitext2.csv baseline=pe=rope QUIET
together|compare length-copy.csv length-reverse.csv baseline=pe=rope QUIET
bench|bench QUIET
bench against|bench baseline=[pe=nope,softmax=softmax] QUIET
""")


TASK = """
task: pairs
dataset_path: json
dataset_kwargs: {data_files: {train: pairs.jsonl}}
output_type: multiple_choice
validation_split: train
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[good, bad]}}"
num_fewshot: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""


def harness(lab: Lab) -> None:
    """A task of the user's own through EleutherAI's harness, where that is installed."""
    (lab.home / "tasks").mkdir()
    (lab.home / "tasks" / "pairs.yaml").write_text(TASK)
    rows = [{"good": f"Tom saw {n} dogs.", "bad": f"Tom see {n} dog."} for n in ("two", "three", "four", "some")]
    (lab.home / "tasks" / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if importlib.util.find_spec("lm_eval") is not None:
        lab.rr("pairs", "eval model=stories260k tasks=lm_eval:pairs tasks_path=tasks CPU")


def make_old(lab: Lab) -> None:
    """The runs, corpora and exports that another commit must open."""
    lab.script(
        """
train|train pe=p_rope TEXT
eval|eval run=last length=16,32 QUIET
probe|probe run=last max_tokens=256 CPU
stock|export run=last to=stock QUIET
sweep|train -m pe=rope,nope seed=1,2,3 outputs=swept TEXT
task|train data=copy pe=nope data.train_lengths=[1,6] SMALL outputs=task
gemma3|train pattern=gemma3 softmax=sink TEXT SIX outputs=gemma3
own|export run=RUNS[gemma3] to=own QUIET
killed|KILLED pe=fox softmax=ssmax TEXT
generate|generate length=20 CPU
compare|compare swept baseline=pe=rope QUIET
bench|bench pe=nape,nope QUIET
theory|theory rope.lemma_a_3 QUIET
reproduce|reproduce rope.fig1 QUIET
maxkey|MAXKEY CPU
prepare|prepare data=text data.path=fables.txt tokenizer=bytes to=corpus n_processes=1
sharded|TWO trainer.strategy=fsdp2 BOTH outputs=sharded
""",
        leave=False,
    )


def old(lab: Lab) -> None:
    """Runs that another commit made, opened by this one."""
    made = "train eval probe generate compare bench theory reproduce max-retrieval prepare"
    places = {verb: f"outputs/{verb}/*/*" for verb in made.split()}
    places |= {name: f"{name}/train/*/*" for name in ("task", "gemma3", "killed-killed", "sharded")}
    for name, pattern in places.items():
        run = lab.runs[f"old_{name}"] = only(lab, pattern)
        lab.aliases[str(run)] = f"<old {name}>"
        lab.script(f"show {name}|show RUNS[old_{name}]\nreport {name}|report RUNS[old_{name}]\nold {name}|FOLDER {run}")
    lab.script("""
runs|runs format=json
runs of the sweep|runs outputs=swept pe=nope format=json
eval|eval run=RUNS[old_train] length=16,32,64 QUIET
eval task|eval run=RUNS[old_task] length=4,8 examples=16 QUIET
eval pattern|eval run=RUNS[old_gemma3] length=32,64 dispersion=true QUIET
eval sharded|eval run=RUNS[old_sharded] length=16,32 QUIET
resume|train resume=RUNS[old_killed-killed] QUIET
weights|WEIGHTS RUNS[old_killed-killed]
resume rewound|REWOUND RUNS[old_train]
resume sharded|REWOUND RUNS[old_sharded]
init|TRAINED init=run:RUNS[old_gemma3] trainer.max_steps=3 seed=4 data=text data.path=fables.txt QUIET
prepared|TRAINED data=prepared data.path=corpus TINY tokenizer=prepared trainer.max_steps=5
of an export|eval model=hf model.path=stock data=text data.path=fables.txt length=16,32 QUIET
probe run|probe run=RUNS[old_train] max_tokens=256 CPU
check|check run=RUNS[old_gemma3] CPU
generate run|generate run=RUNS[old_gemma3] length=30 CPU
compare sweep|compare swept baseline=pe=rope QUIET
compare all|compare RUNS[old_train] swept QUIET
rerun|rerun RUNS[old_train] QUIET
rerun eval|rerun RUNS[old_eval] QUIET
maxkey|maxkey run=RUNS[old_max-retrieval] test_sizes=[16,64] test_sets=64 evaluate=all CPU
export|export run=RUNS[old_gemma3] to=anew QUIET
stock alone|ALONE stock
own alone|ALONE own
anew alone|ALONE anew
""")


# -- record and compare


def record(checkout: Path, out: Path, parts: list[str], keep: Path | None, old_runs: Path | None) -> None:
    found: dict[str, Any] = {}
    if keep is not None:
        parts, old_runs = ["make_old", *parts], keep
        keep.mkdir(parents=True)
    for part in parts:
        if part == "old" and old_runs is None:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="battery-") as folder:
            home = Path(folder) / "home"
            if part == "make_old" and keep is not None:
                home = keep
            elif part == "old" and old_runs is not None:
                shutil.copytree(old_runs, home, symlinks=True)
            else:
                home.mkdir()
            own = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "ROUNDROUND_CACHE": f"{folder}/cache"}
            own |= {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "HF_HOME": f"{folder}/hf", "PYTHONHASHSEED": "0"}
            command = [sys.executable, __file__, "part", part, str(checkout), str(home), f"{folder}/found.json"]
            subprocess.run([*command, str(old_runs or home)], env=os.environ | own, cwd=home, check=True)
            found |= json.loads(Path(f"{folder}/found.json").read_text())
        print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
        out.write_text(json.dumps(found, indent=1))


def run_part(part: str, checkout: Path, home: Path, out: Path, old_runs: str) -> None:
    for library in ("hydra", "lightning", "matplotlib.figure", "pandas", "scipy.stats", "torch", "transformers"):
        importlib.import_module(library)  # once for all forks
    lab = Lab(part, home, checkout)
    lab.aliases[old_runs] = "HOME"
    globals()[part](lab)
    out.write_text(json.dumps(lab.found))


def tolerance(name: str) -> float:
    """How far two numbers may be apart, relative to the larger one."""
    if name.startswith("harness/"):
        return 1e-5
    return 1e-12 if re.match(r"stored/|\w+/[^/]*(compar|bench|rerun|theory|reproduce)", name) else 0.0


def differences(name: str, before: Any, after: Any, rel: float) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from differences(f"{name} [{key}]", before.get(key, "(none)"), after.get(key, "(none)"), rel)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(f"{name} [{number}]", one, other, rel)
    elif repr(before) != repr(after) and not close(before, after, rel):
        yield f"{name}: {str(before)[:300]} -> {str(after)[:300]}"


def close(before: Any, after: Any, rel: float) -> bool:
    try:
        return rel > 0 and math.isclose(float(before), float(after), rel_tol=rel, abs_tol=0)
    except (TypeError, ValueError):
        return False


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs, texts first; 1 where a number, a hash or a name does."""

    def part_of(name: str) -> str:
        return name.removeprefix("text/").partition("/")[0]

    in_one = {part_of(name) for name in before} ^ {part_of(name) for name in after}
    names = [name for name in sorted(before.keys() | after.keys()) if part_of(name) not in in_one]
    told, n_texts = list[str](), 0
    for name in names:
        one, other = before.get(name, "(none)"), after.get(name, "(none)")
        if not name.startswith("text/"):
            told += differences(name, one, other, tolerance(name))
        elif one != other:
            n_texts += 1
            lines = list(difflib.unified_diff(one.splitlines(), other.splitlines(), n=0))[2:]
            print(f"\n== to look at: {name}", *lines[:30], *(["..."] if len(lines) > 30 else []), sep="\n")
    print(f"\n{len(names)} entries compared; parts in one record alone: {', '.join(sorted(in_one)) or 'none'}")
    print(f"{n_texts} texts to look at; {len(told)} DIFFERENCES", *told, sep="\n")
    return 1 if told else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare", "part"])
    parser.add_argument("words", nargs="+")
    parser.add_argument("--only", default=",".join(PARTS.split()), help="parts, such as verbs,pairs")
    parser.add_argument("--keep", type=Path, help="a new folder for runs that later commits open")
    parser.add_argument("--old", type=Path, help="such a folder")
    given = parser.parse_args()
    if given.action == "part":
        part, checkout, home, out, old_runs = given.words
        run_part(part, Path(checkout), Path(home), Path(out), old_runs)
    elif given.action == "record":
        checkout, out = (Path(word).resolve() for word in given.words)
        keep, old_runs = (None if path is None else path.resolve() for path in (given.keep, given.old))
        record(checkout, out, given.only.split(","), keep, old_runs)
    else:
        before, after = (json.loads(Path(word).read_text()) for word in given.words)
        return compare(before, after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
