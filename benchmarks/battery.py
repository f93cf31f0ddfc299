"""The battery: what the code of a checkout computes, recorded, and what differs between two records.

    python benchmarks/battery.py record CHECKOUT OUT.json [--only verbs,pairs] [--keep DIR] [--old DIR]
    python benchmarks/battery.py compare BEFORE.json AFTER.json

A part runs in a process of its own that has imported other people's libraries alone; each command and each piece of
Python is a fork of it. So nothing here imports roundround before a fork does, and a thing inside of it is found by the
name of its class or function (`ours`), wherever it lies. --keep DIR makes the runs for the part `old` there; --old DIR
opens those of another commit.

A name that begins with text/ is for a person to read: `compare` shows its difference and does not fail.
"""

from __future__ import annotations

import argparse
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

PARTS = "verbs patterns pairs batches resume fsdp2 exports probes check stored harness old".split()
TINY = (
    "logger=none tokenizer=bytes model.d_model=16 model.n_layers=2 model.n_heads=2 model.n_key_heads=1 model.d_mlp=24 "
    "model.train_length=32 batch_size=4 trainer.max_steps=20 trainer.accelerator=cpu trainer.devices=1 "
    "trainer.log_every_n_steps=1 validation_tokens=256 validate_every=5 checkpoint_every=5"
).split()
TASK = [word for word in TINY if not word.startswith(("tokenizer", "validation_tokens", "model.train_length"))]
TEXT = [*TINY, "data=text", "data.path=fables.txt"]
CPU = ["logger=none", "device=cpu"]
# what depends on the machine, the hour and the commit
VOLATILE = set(
    "started ended seconds tokens_per_second waiting_share mfu peak_memory peak_memory_gb versions git device cwd pid "
    "host hostname roundround seconds_per_token first_token_seconds transformers_version created".split()
)
TIMES = [
    (r"\d{4}-\d\d-\d\d[/T ]\d\d[-:]\d\d[-:]\d\d([.,]\d+)?(\+00:00|Z)?(-\d+)?", "WHEN"),
    (r"\b\d\d-\d\d \d\d:\d\d\b|\b\d\d:\d\d:\d\d(,\d+)?\b|\d{4}-\d\d-\d\d", "WHEN"),
    (r"[\d.,]+ (tokens/s|steps/s)|mfu [\d.]+%|\d+:\d\d left|[\d.,]+ a second|[\d.]+ (GB|MB|MiB)\b", "SPEED"),
    (r"\b[\d.,]+ (s|ms|min|seconds|minutes)\b", "TIME"),
    (r"\b[0-9a-f]{40}\b|\b[0-9a-f]{7,12}\b(?=[ ,;)-])", "COMMIT"),
    (r"port \d+|:\d{5}\b", "PORT"),
]


# -- a command or a piece of Python in a fork, and what it leaves


def ours(name: str) -> Any:
    """The class or function of this name, in whichever module of roundround it is defined."""
    package = Path(os.environ["PYTHONPATH"]) / "roundround"
    for path in sorted(package.rglob("*.py")):
        if re.search(rf"^(class|def) {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            return getattr(importlib.import_module(module), name)
    raise LookupError(f"no class or function {name} in {package}")


def digest(tensors: dict[str, Any]) -> str:
    """The sha256 of tensors or arrays: names, types, shapes and bytes."""
    import torch

    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = torch.as_tensor(tensors[name]).detach().contiguous().cpu()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return found.hexdigest()


def described(figure: Any) -> str:
    """What a matplotlib figure shows, without drawing it: words, and a hash of the numbers of each artist."""
    import numpy as np

    def told(artist: Any) -> str:
        for reader in ("get_text", "get_xydata", "get_array", "get_paths", "get_path"):
            value = getattr(artist, reader, lambda: None)()
            if isinstance(value, str):
                return repr(value)
            if value is not None:
                parts = [getattr(part, "vertices", part) for part in (value if isinstance(value, list) else [value])]
                data = b"".join(np.ma.filled(np.ma.asarray(part, dtype=float), np.nan).tobytes() for part in parts)
                return hashlib.sha256(data).hexdigest()[:16]
        return ""

    artists = [a for a in figure.findobj() if type(a).__name__ in "Line2D Text PathCollection QuadMesh AxesImage".split()]
    lines = {f"{type(artist).__name__} {told(artist)}" for artist in artists}
    return "\n".join(sorted(line for line in lines if not line.endswith((" ''", " "))))


class Lab:
    """A folder to work in, and what was found there by name."""

    def __init__(self, home: Path, checkout: Path) -> None:
        self.home, self.checkout, self.part, self.found = home, checkout, "", dict[str, Any]()
        self.aliases = {str(checkout): "CHECKOUT"}
        self.count = 0

    def fork(self, act: Callable[[], object]) -> tuple[int, str, str]:
        """The exit code of `act` in a process of its own, and what it wrote on both streams."""
        self.count += 1
        out, err = (self.home / f".{self.count}.{stream}" for stream in ("out", "err"))
        sys.stdout.flush()
        if not (child := os.fork()):
            code = 1
            try:
                for number, path in ((1, out), (2, err)):
                    os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                code = int(act() or 0)  # type: ignore[call-overload]
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, out.read_text(errors="replace"), err.read_text(errors="replace")

    def rr(self, name: str, line: str, *words: str, leave: bool = True, before: Any = None) -> Path:
        """Run `roundround LINE WORDS`, keep what it says and leaves; the run directory that it names, if any."""

        def act() -> None:
            from matplotlib.figure import Figure

            drawn = Figure.savefig

            def savefig(figure: Any, file: Any, **options: Any) -> None:
                if options.get("format") not in ("pdf", "png") or not hasattr(file, "write"):
                    return drawn(figure, file, **options)  # type: ignore[no-any-return]
                file.write(described(figure).encode())

            Figure.savefig = savefig  # type: ignore[method-assign, assignment]
            os.fsync = lambda handle: None
            if before is not None:
                before()
            sys.argv = ["roundround", *line.split(), *words]
            from roundround.__main__ import main

            main()

        code, out, err = self.fork(act)
        last = self.home / (out.splitlines() or ["."])[-1][:200]
        is_run = last != self.home and (last / "run.json").is_file()
        if is_run:
            self.aliases |= {f"{last.parent.name}/{last.name}": f"<{name}>", str(last): f"<{name}>"}
        self.keep(f"{name}/exit code", code)
        if out[:1] in ("[", "{"):
            self.keep(f"{name}/out", self.scrubbed(json.loads(out)))
        else:
            self.keep(f"text/{name}/out", self.plain(out))
        self.keep(f"text/{name}/err", self.plain(err))
        if is_run and leave:
            self.leaves(name, last)
        return last if is_run else self.home

    def python(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Keep the numbers that a piece of Python gives in a process of its own."""
        file = self.home / ".made.json"
        file.unlink(missing_ok=True)
        code, _, err = self.fork(lambda: file.write_text(json.dumps(make())) and 0)
        self.keep(f"{name}/exit code", code)
        if code:
            self.keep(f"text/{name}/err", self.plain(err))
        for key, value in (json.loads(file.read_text()) if file.exists() else {}).items():
            self.keep(f"{name}/{key}", self.scrubbed(value))

    def keep(self, name: str, value: Any) -> None:
        kind, name = ("text/", name.removeprefix("text/")) if name.startswith("text/") else ("", name)
        self.found[f"{kind}{self.part}/{name}"] = value

    def plain(self, text: str) -> str:
        """Text without what changes from one run to the next."""
        for path in sorted(self.aliases, key=len, reverse=True):
            text = text.replace(path, self.aliases[path])
        text = text.replace(str(self.home), "HOME")
        for pattern, word in TIMES:
            text = re.sub(pattern, word, text)
        return "\n".join(line.rstrip() for line in text.splitlines())

    def scrubbed(self, value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if k not in VOLATILE}
            return {self.plain(str(k)): self.scrubbed(v, k) for k, v in kept.items()}
        if isinstance(value, list):
            return [self.scrubbed(v) for v in value if not (isinstance(v, dict) and v.get("metric") in VOLATILE)]
        if isinstance(value, str):
            return value.rpartition(".")[2] if key == "_target_" else self.plain(value)
        return value

    def leaves(self, name: str, folder: Path) -> None:
        """Keep all that a folder holds, each file as what it is."""
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix not in (".lock", ".log")]
        files = [path for path in files if not path.is_symlink() and ".lock" not in path.name]
        self.keep(f"{name}/files", [self.plain(str(path.relative_to(folder))) for path in files])
        for path in files:
            place = f"{name}/{self.plain(str(path.relative_to(folder)))}"
            if path.suffix == ".safetensors":
                from safetensors.torch import load_file

                self.keep(place, digest(load_file(path)))
            elif path.name == "tokenizer.json":
                self.keep(place, hashlib.sha256(path.read_bytes()).hexdigest())
            elif path.suffix == ".json":
                content = json.loads(path.read_text())
                if path.name == "run.json":
                    self.keep(f"text/{place}/config hash", content.pop("config_hash", ""))
                self.keep(place, self.scrubbed(content))
            elif path.suffix == ".jsonl":
                self.keep(place, [self.scrubbed(json.loads(line)) for line in path.read_text().splitlines()])
            elif path.suffix == ".csv":
                self.keep(place, [line.split(",") for line in self.plain(path.read_text()).splitlines()])
            elif path.suffix in (".md", ".tex", ".txt", ".py", ".yaml", ".pdf"):
                self.keep(f"text/{place}", self.plain(path.read_text(errors="replace")))
            elif path.suffix == ".html":
                body = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", "\n", path.read_text(), flags=re.DOTALL)
                self.keep(f"text/{place}", self.plain(re.sub(r"\s*\n\s*", "\n", html.unescape(body))))


def watch_training(file: Path, kill_at: int | None = None) -> Callable[[], None]:
    """Before a command: note a hash of what each training call of the decoder is given and gives, and the gradients."""

    def start() -> None:
        from torch import Tensor
        from torch.nn.modules.module import register_module_forward_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        calls: list[str] = []

        def tensors(values: Any) -> Iterator[Any]:
            return (value for value in values if isinstance(value, Tensor))

        def note(word: str, values: Any) -> None:
            calls.append(f"{word} {' '.join(sorted(digest({'': value})[:20] for value in tensors(values)))}")
            file.write_text("\n".join(calls))

        def called(module: Any, args: Any, kwargs: Any, out: Any) -> None:
            if type(module).__name__ == "Decoder" and module.training:
                if len([call for call in calls if call.startswith("batch")]) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                note("batch", [*args, *kwargs.values()])
                if kill_at is None:
                    note("loss", [out])

        def stepped(optimizer: Any, *_: Any) -> None:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            note("gradients", [p.grad for p in sorted(parameters, key=lambda p: p.shape) if p.grad is not None])

        register_module_forward_hook(called, with_kwargs=True)
        if kill_at is None:
            register_optimizer_step_pre_hook(stepped)

    return start


def sha_of_lines(path: Path, word: str) -> str:
    lines = [line for line in path.read_text().splitlines() if line.startswith(word)]
    return f"{len(lines)} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


# -- the parts


def fables(folder: Path) -> None:
    animals, deeds = ["fox", "crow", "stork", "ass", "hare"], ["ran home", "sang", "slept", "lost the cheese"]
    tales = [f"The {animals[i % 5]} number {i} {deeds[i % 4]} and met the {animals[(i * 3) % 5]}." for i in range(200)]
    (folder / "fables.txt").write_text("\n\n".join(tales))


VERBS = """
train|train pe=p_rope TEXT
eval|eval run=last length=16,32,64 dispersion=true logger=none
eval replaced|eval run=last softmax=adaptive_temperature pe=yarn pe.factor=2 length=32 stride=8 logger=none
probe run|probe run=last max_tokens=512 prompt=fox ablate=lowest:0.25,highest:0.25 CPU
check run|check run=last CPU
generate run|generate run=last length=30 n=2 prompt=The CPU
rerun|rerun last verb=train logger=none
sweep|train -m pe=rope,nope seed=1,2,3 outputs=swept TEXT
compare|compare swept baseline=pe=rope logger=none
compare csv|compare swept baseline=none metric=perplexity format=csv logger=none
compare filtered|compare swept where=pe=nope,rope baseline=pe=nope format=json logger=none
task|train data=copy pe=nope data.train_lengths=[1,6] data.validation_examples=32 seed=3 TASK
eval task|eval run=last length=4,8 examples=32 logger=none
eval written|eval run=last length=4,8 examples=16 by=generation logger=none
stories|train data=stories data.held_out=0.2 softmax=ssmax pe=alibi TINY
eval other text|eval run=last data=pydoc length=32 max_tokens=2048 logger=none
eval pairs|eval model=stories260k data=blimp data.pairs=1 prefix=0,8 logger=none
eval packaged|eval model=stories260k length=64,128 max_tokens=1024 logger=none
eval hotter|eval model=stories260k softmax=temperature length=64 max_tokens=512 logger=none
initial|train init=run:last pe=nope trainer.max_steps=5 seed=5 logger=none data=text data.path=fables.txt
packaged initial|train init=stories260k data=pydoc trainer.max_steps=2 validation_tokens=1024 batch_size=2 logger=none
probe|probe max_tokens=400 CPU
probe curve|probe max_tokens=300 ablate=curve rows=false entropy=false CPU
probe replaced|probe length=64 max_tokens=256 pe=p_rope softmax=adaptive_temperature CPU
probe maximum|probe prompt=maximum max_tokens=128 CPU
check|check model=stories260k CPU
check vectors|check pe=yarn pe.factor=4 to=yarn.safetensors CPU
check against|check pe=yarn pe.factor=4 against=yarn.safetensors CPU
generate|generate length=30 n=2 top_k=5 CPU
generate shown|generate length=10 show=attention layer=1 head=3 CPU
generate replaced|generate length=20 temperature=0 softmax=temperature softmax.temperature=0.5 CPU
maxkey|maxkey --temp adaptive preset=quick max_steps=20 seeds=2 test_sizes=[16,64] test_sets=64 model.width=16 CPU
maxkey again|maxkey run=last evaluate=all fit=true fit_inputs=20 fit_sizes=[16,64] test_sizes=[16,64] test_sets=64 CPU
theory|theory rope.lemma_a_3 rope.figure_6 rope.apostrophe rope.thm_6_1 softmax.thm_2_2 softmax.polynomial logger=none
theory of a model|theory model=stories260k max_tokens=200 CPU
reproduce|reproduce rope.fig1 rope.fig8 rope.fig9 logger=none
reproduce list|reproduce
bench|bench logger=none
bench named|bench pe=nape,nope logger=none
bench small|bench size=small logger=none
prepare|prepare data=text data.path=fables.txt tokenizer=bytes to=corpus n_processes=1
runs|runs format=json
runs filtered|runs verb=train pe=nope
show|show last verb=train
show pretty|show RUN
report|report RUN
list pe|list pe
list softmax|list softmax ssmax
list pattern|list pattern
list data|list data
cfg|train --cfg job pe=yarn model=small
help|--help
help train|train --help
help eval|eval --help
help lr|train -h lr
"""
WRONG = """
train pe=prope|train pe=nope,rope|train modl=tiny|train optim.lr=fast|train softmax.temperature=1|train batch_size=0
eval run=nowhere|eval length=0|eval tasks=lm_eval:none_such|probe model=gemma-7 logger=none|check pe=yarn|compare nowhere
theory rope.none_such|reproduce rope.fig99|rerun nowhere|export|export run=last to=/|generate temperature=-1
generate prompt=|bench pe=none_such|prepare data=copy|maxkey seeds=0|runs pe=none_such|show nowhere|report nowhere|trian
train data=text data.path=none.txt logger=none|train pattern=gemma3 pattern.local.window=0 logger=none|list none_such
train pe=p_rope pe.p=2 logger=none|train data=copy tokenizer=bytes logger=none|train resume=nowhere|eval data=copy
train trainer.max_steps=2 trainer.limit_val_batches=2 logger=none|train model.n_heads=3 logger=none|compare baseline=pe
"""


def words_of(line: str, run: object = "last") -> list[str]:
    named = {"TEXT": TEXT, "TINY": TINY, "TASK": TASK, "CPU": CPU, "RUN": [str(run)]}
    return [word for part in line.split() for word in named.get(part, [part])]


def verbs(lab: Lab) -> None:
    """Every verb, small; and what is refused."""
    run = lab.home
    for row in VERBS.strip().splitlines():
        name, line = row.split("|")
        made = lab.rr(name, "", *words_of(line, run))
        run = made if name == "train" else run
        if name == "prepare":
            lab.leaves("prepared", lab.home / "corpus")
        if name == "sweep":
            for number, one in enumerate(sorted(lab.home.glob("swept/train/*/*/*/run.json"))):
                lab.leaves(f"sweep {number}", one.parent)
    for line in WRONG.replace("\n", "|").strip("|").split("|"):
        lab.rr(f"refused {line}", line)


def patterns(lab: Lab) -> None:
    """Each pattern as train builds it: two steps, then what it writes."""
    sizes = "model.n_layers=6 trainer.max_steps=2 model.n_heads=4 model.n_key_heads=2 model.d_model=32".split()
    for path in sorted((lab.checkout / "conf" / "pattern").glob("*.yaml")):
        trained(lab, path.stem, [f"pattern={path.stem}", *TEXT, *sizes])
        kinds = re.findall(r"^(\w+):[^\n]*\n(?:  .*\n)*?  (window|chunk): \d", path.read_text(), re.MULTILINE)
        narrow = [f"pattern.{kind}.{reach}=5" for kind, reach in kinds]
        trained(lab, f"{path.stem} narrow", [f"pattern={path.stem}", *narrow, *TEXT, *sizes])


def trained(lab: Lab, name: str, words: list[str]) -> None:
    """A training as hashes of losses, gradients and weights, and a text that it writes."""
    file = lab.home / "calls"
    file.unlink(missing_ok=True)
    run = lab.rr(name, "train", *words, leave=False, before=watch_training(file))
    if run == lab.home:
        return
    for word in ("loss", "gradients"):
        lab.keep(f"{name}/{word}", sha_of_lines(file, word))
    lab.keep(f"{name}/weights", weights_of(run))
    lab.rr(f"{name} writes", f"generate run={run} length=25 prompt=The", *CPU, leave=False)


def weights_of(run: Path, checkpoint: str = "last") -> str:
    from safetensors.torch import load_file

    files = sorted((run / "checkpoints" / checkpoint).glob("*.safetensors"))
    return digest({f"{file.name}/{name}": value for file in files for name, value in load_file(file).items()})


def pairs(lab: Lab) -> None:
    """Each encoding with each normaliser: logits, loss, gradients, and documents apart; then each of them trained."""
    conf, sizes = lab.checkout / "conf", {"n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 24, "d_model": 32}

    def names(group: str) -> list[str]:
        return sorted(str(path.relative_to(conf / group))[:-5] for path in (conf / group).rglob("*.yaml"))

    def computed(pe: str) -> dict[str, Any]:
        import torch
        from omegaconf import OmegaConf

        def node(group: str, name: str) -> Any:
            loaded = OmegaConf.load(conf / group / f"{name}.yaml")
            scaled = {"factor": 4.0} if loaded.get("factor", 0) is None else {}
            return OmegaConf.create({group: OmegaConf.merge(loaded, scaled)})[group]

        found, build = {}, ours("build_decoder")
        for softmax in names("softmax"):
            torch.manual_seed(0)
            tokens = torch.randint(29, (2, 64 if pe == "learned" else 80))
            model = OmegaConf.merge(node("model", "tiny"), sizes, {"train_length": 64, "initializer_range": 0.3})
            try:
                decoder = build(model, node("pe", pe), node("softmax", softmax), 29)
                logits, ends = decoder(tokens), tokens == 3
                loss = decoder(tokens, targets_BT=tokens.roll(1, 1))
                loss.mean().backward()
                grads = {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}
                made = {"logits": logits, "loss": loss} | grads | dict(decoder.state_dict())
                found[softmax] = digest(made)
                with torch.no_grad():
                    found[f"{softmax}, documents"] = digest({"": decoder(tokens, targets_BT=tokens, ends_BT=ends)})
            except Exception as error:
                found[f"{softmax}, refused"] = f"{type(error).__name__}: {error}"
        return found

    for pe in names("pe"):
        lab.python(pe, lambda pe=pe: computed(pe))  # type: ignore[misc]
    encodings, normalisers = names("pe"), names("softmax")
    for number in range(max(len(encodings), len(normalisers))):
        pe, softmax = (group[number % len(group)] for group in (encodings, normalisers))
        scaled = ["pe.factor=4"] if "\nfactor: null" in (conf / "pe" / f"{pe}.yaml").read_text() else []
        trained(lab, f"trained {pe} {softmax}", [*TEXT, f"pe={pe}", f"softmax={softmax}", "trainer.max_steps=3", *scaled])


CORPORA = {
    "stories": "data=stories data.held_out=0.1",
    "pydoc": "data=pydoc",
    "pydoc bpe": "data=pydoc tokenizer=bpe tokenizer.vocab_size=512",
    "fables": "data=text data.path=fables.txt seed=7",
    "fables apart": "data=text data.path=fables.txt data.separate_documents=true",
    "prepared": "data=prepared data.path=corpus tokenizer=prepared",
    "prepared again": "data=prepared data.path=corpus tokenizer=prepared",
    "prepared moved": "data=prepared data.path=moved tokenizer=prepared seed=2",
    "mixture": "data=mixture ~data.sources.wikipedia ~data.sources.flan_v2 ~data.weights.wikipedia ~data.weights.flan_v2 "
    "+data@data.sources.a=text data.sources.a.path=fables.txt +data@data.sources.b=stories data.sources.b.held_out=0.1 "
    "+data.weights.a=1 +data.weights.b=3",
}
TASKS = "copy addition mqar n_back variable_tracking induction sort flip_flop needle".split()


def batches(lab: Lab) -> None:
    """The tokens of a hundred batches of corpora and tasks, read off what train gives its decoder."""
    lab.rr("prepare", "prepare data=text data.path=fables.txt tokenizer=bytes to=corpus n_processes=1")
    lab.leaves("corpus", lab.home / "corpus")
    shutil.copytree(lab.home / "corpus", lab.home / "moved")
    runs = {name: [*TINY, *line.split()] for name, line in CORPORA.items()}
    runs |= {name: [*TASK, f"data={name}"] for name in TASKS}
    for name, words in runs.items():
        steps = ["trainer.max_steps=100", "validate_every=100", "checkpoint_every=100", "trainer.log_every_n_steps=50"]
        file = lab.home / "calls"
        file.unlink(missing_ok=True)
        lab.rr(name, "train", *words, *steps, before=watch_training(file))
        if file.exists():
            lab.keep(f"{name}/batches", sha_of_lines(file, "batch"))


def resume(lab: Lab) -> None:
    """A run killed after its second checkpoint and gone on with is the run that was not."""
    settings = {"fables": [*TEXT, "pe=p_rope"], "task": [*TASK, "data=copy"], "learning": [*TEXT, "pe=fox", "optim=muon"]}
    for name, words in settings.items():
        whole = lab.rr(f"{name} whole", "train", *words)
        kill = watch_training(lab.home / "calls", kill_at=12)
        lab.rr(f"{name} killed", "train", *words, f"outputs={name}", before=kill)
        killed = only(lab, f"{name}/train/*/*")
        lab.rr(f"{name} resumed", "train", f"resume={killed}", "logger=none")
        same = weights_of(whole) == weights_of(killed)
        lab.keep(f"{name}/weights", [weights_of(whole), "the same" if same else f"not the same: {weights_of(killed)}"])


def processes(lab: Lab, name: str, *words: str) -> None:
    """Two processes of torchrun on the CPU."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "roundround"]
    done = subprocess.run([*command, "train", *words], capture_output=True, text=True, cwd=lab.home)
    lab.keep(f"{name}/exit code", done.returncode)
    run = Path((done.stdout.split() or ["."])[-1])
    lab.aliases[str(run)] = f"<{name}>"
    lab.keep(f"text/{name}/err", lab.plain(done.stderr))
    if (run / "run.json").exists():
        lab.leaves(name, run)
        lab.keep(f"{name}/weights", weights_of(run))


def fsdp2(lab: Lab) -> None:
    """Two processes that share out the parameters, and two that do not; one process goes on from them."""
    both = [word for word in TEXT if not word.startswith("trainer.devices")]
    processes(lab, "fsdp2", *both, "trainer.strategy=fsdp2")
    processes(lab, "ddp", *both)
    sharded = next(iter(sorted(lab.home.glob("outputs/train/*/*"))))
    lab.rr("eval", f"eval run={sharded} length=16,32 logger=none")
    words = ["logger=none", "trainer.max_steps=25", "trainer.strategy=auto", "trainer.devices=1"]
    lab.rr("resumed by one", "train", f"resume={sharded}", *words)


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
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
print(tokenizer("The fox number 3 sang.").input_ids)
"""


def loaded_alone(lab: Lab, name: str, folder: Path) -> None:
    """An export's logits in a process that cannot import roundround."""
    done = subprocess.run([sys.executable, "-I", "-c", CLEAN, str(folder)], capture_output=True, text=True, cwd=lab.home)
    lab.keep(f"{name}/loaded alone", done.stdout.splitlines() or f"exit code {done.returncode}")
    if done.returncode:
        lab.keep(f"text/{name}/err of loading", lab.plain(done.stderr))


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
        run = lab.rr(f"train {name}", "train", *TEXT, *line.split(), "trainer.max_steps=5", leave=False)
        lab.rr(name, f"export run={run} to={name} logger=none")
        lab.leaves(f"folder {name}", lab.home / name)
        loaded_alone(lab, name, lab.home / name)
    lab.rr("eval of an export", "eval model=hf model.path=stock length=16,32 data=text data.path=fables.txt logger=none")
    lab.rr("train of an export", "train init=hf:stock trainer.max_steps=3", *TEXT[:1], *TEXT[-2:])


def probes(lab: Lab) -> None:
    """The Python interface: probe, attention, evaluate, generate, patch, compare, runs."""
    run = lab.rr("train", "train", *TEXT, "pe=p_rope", leave=False)
    lab.rr("other", "train", *TEXT, "pe=nope", leave=False)
    texts = ["The fox ran home and sang.", "Once upon a time, there was a crow.", "The stork's cheese was lost."]

    def numbers() -> dict[str, Any]:
        import roundround as rr

        model, tokenizer = rr.load(run)
        weights = rr.attention(model, tokenizer, texts[0])
        kept: dict[str, Any] = {"attention": digest({str(i): layer for i, layer in enumerate(weights.weights)})}
        for settings in ({}, {"rows": False}, {"entropy": False, "batch_tokens": 32}):
            probe = rr.probe(model, tokenizer, texts, **settings)
            arrays = {key: value for key, value in probe.arrays().items() if value is not None}
            kept |= {f"probe {settings}": digest(arrays), f"arrays {settings}": sorted(arrays)}
            if "rows" not in settings:
                kept[f"labels {settings}"] = repr(probe.labels())
        kept["evaluate"] = rr.evaluate(model, tokenizer, "stories", length=[16, 32], dispersion=True).to_json()
        kept["generate"] = rr.generate(model, tokenizer, "The fox", length=30, n=2)
        with rr.patch(model, softmax="adaptive_temperature"):
            kept["patched"] = rr.evaluate(model, tokenizer, texts * 9, length=16).to_json()
        with rr.patch(model, pe="yarn", factor=2.0):
            kept["patched yarn"] = rr.evaluate(model, tokenizer, texts * 9, length=16).to_json()
        comparison = rr.compare(run, lab.home / "outputs", baseline={"pe": "nope"})
        kept["compare"] = comparison.records()
        kept["runs"] = rr.runs().drop(columns=["started", "seconds"]).to_json()
        kept["run"] = [rr.run(run).data_frame().to_json(), sorted(rr.run(run).settings)]
        kept["curves"] = rr.run(run).curves()[["loss", "grad_norm", "held_out_nats_per_token"]].to_json()
        return kept

    lab.python("python", numbers)


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"head_dim": 16, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "qwen2": {}, "qwen3": {"head_dim": 16}, "olmo2": {}, "phi3": {}, "gpt_neox": {"rotary_pct": 0.5}, "glm": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": 5}, "smollm3": {"head_dim": 16, "no_rope_layers": [1, 0, 1, 0]},
}  # fmt: skip


def check(lab: Lab) -> None:
    """`check`, `eval` and `probe` of random models of Hugging Face's families."""

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
        folder = lab.home / f"hf-{name}"
        lab.python(f"saved {name}", lambda name=name, folder=folder: save(name, folder))  # type: ignore[misc]
        lab.rr(name, f"check model=hf model.path={folder}", *CPU)
        lab.rr(f"eval {name}", f"eval model=hf model.path={folder} data=stories length=64 max_tokens=256", *CPU)
    for name in ("llama", "gemma2", "gpt_neox"):
        lab.rr(f"probe {name}", f"probe model=hf model.path=hf-{name} texts=shakespeare max_tokens=256 entropy=true", *CPU)
        lab.rr(f"generate {name}", f"generate model=hf model.path=hf-{name} length=20", *CPU)


def stored(lab: Lab) -> None:
    """The csvs of docs through compare, and where the variants of the standard set stand."""
    for path in sorted((lab.checkout / "docs").rglob("*.csv")):
        lab.rr(str(path.relative_to(lab.checkout)), f"compare {path} logger=none")
    for name, line in {
        "repeat": "length/repeat.csv baseline=pe=nope metric=exact_match length=30",
        "table2": "table2/wikitext2.csv baseline=pe=rope",
        "two": "length/copy.csv length/reverse.csv baseline=pe=rope",
    }.items():
        lab.rr(name, f"compare {lab.checkout}/docs/results/{line.replace(' length/', f' {lab.checkout}/docs/results/length/')} logger=none")
    lab.rr("bench", "bench logger=none")
    lab.rr("bench small", "bench size=small logger=none")


PAIRS = """
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
    """A task of the user's own through EleutherAI's harness, where it is installed."""
    if importlib.util.find_spec("lm_eval") is None:
        return
    (lab.home / "tasks").mkdir()
    (lab.home / "tasks" / "pairs.yaml").write_text(PAIRS)
    rows = [{"good": f"Tom saw {n} dogs.", "bad": f"Tom see {n} dog."} for n in ("two", "three", "four", "some")]
    (lab.home / "tasks" / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lab.rr("pairs", "eval model=stories260k tasks=lm_eval:pairs tasks_path=tasks", *CPU)


def make_old(lab: Lab) -> None:
    """The runs, corpora, exports and values that another commit must open."""
    lab.rr("train", "train", *TEXT, "pe=p_rope", leave=False)
    lab.rr("sweep", "train -m pe=rope,nope seed=1,2,3 outputs=swept", *TEXT, leave=False)
    lab.rr("task", "train data=copy pe=nope data.train_lengths=[1,6]", *TASK, "outputs=task", leave=False)
    lab.rr("gemma3", "train pattern=gemma3 softmax=sink", *TEXT, "model.n_layers=6", "outputs=gemma3", leave=False)
    kill = watch_training(lab.home / "calls", kill_at=12)
    lab.rr("killed", "train", *TEXT, "pe=fox", "softmax=ssmax", "outputs=killed", before=kill, leave=False)
    lab.rr("eval", "eval run=last length=16,32 logger=none", leave=False)
    lab.rr("probe", "probe run=last max_tokens=256", *CPU, leave=False)
    lab.rr("generate", "generate length=20", *CPU, leave=False)
    lab.rr("compare", "compare swept baseline=pe=rope logger=none", leave=False)
    lab.rr("bench", "bench pe=nape,nope logger=none", leave=False)
    lab.rr("theory", "theory rope.lemma_a_3 logger=none", leave=False)
    lab.rr("reproduce", "reproduce rope.fig1 logger=none", leave=False)
    small = "maxkey --temp adaptive preset=quick max_steps=20 seeds=2 test_sizes=[16,64] test_sets=64 model.width=16"
    lab.rr("maxkey", small, *CPU, leave=False)
    lab.rr("export", "export run=last to=stock logger=none", leave=False)
    lab.rr("export own", "export run=gemma3 to=own logger=none".replace("=gemma3", f"={only(lab, 'gemma3/train/*/*')}"))
    lab.rr("prepare", "prepare data=text data.path=fables.txt tokenizer=bytes to=corpus n_processes=1")
    processes(lab, "fsdp2", *[w for w in TEXT if "devices" not in w], "trainer.strategy=fsdp2", "outputs=sharded")


def only(lab: Lab, pattern: str) -> Path:
    return sorted(path for path in lab.home.glob(pattern) if (path / "run.json").is_file())[-1]


def old(lab: Lab) -> None:
    """Runs of another commit, opened by this one."""
    places = {verb: only(lab, f"outputs/{verb}/*/*") for verb in "train eval probe generate compare bench max-retrieval".split()}
    places |= {name: only(lab, f"{name}/train/*/*") for name in ("task", "gemma3", "killed", "sharded")}
    for name, path in places.items():
        lab.aliases[str(path)] = f"<old {name}>"
        lab.aliases[f"{path.parent.name}/{path.name}"] = f"<old {name}>"
        lab.rr(f"show {name}", f"show {path}")
        lab.rr(f"report {name}", f"report {path}")
        lab.leaves(f"old {name}", path)
    train, swept = places["train"], lab.home / "swept"
    for name, line in {
        "runs": "runs format=json", "runs of the sweep": "runs outputs=swept pe=nope format=json",
        "eval": f"eval run={train} length=16,32,64 logger=none", "eval sweep": "eval run=last outputs=swept length=16 logger=none",
        "eval task": f"eval run={places['task']} length=4,8 examples=16 logger=none",
        "eval pattern": f"eval run={places['gemma3']} length=32,64 dispersion=true logger=none",
        "eval sharded": f"eval run={places['sharded']} length=16,32 logger=none",
        "resume": f"train resume={places['killed']} logger=none",
        "resume longer": f"train resume={train} trainer.max_steps=25 logger=none",
        "resume sharded": f"train resume={places['sharded']} trainer.max_steps=25 trainer.strategy=auto trainer.devices=1 logger=none",
        "init": f"train init=run:{places['gemma3']} trainer.max_steps=3 seed=4 data=text data.path=fables.txt logger=none",
        "prepared": f"train data=prepared data.path=corpus tokenizer=prepared {' '.join(TINY)} trainer.max_steps=5",
        "of an export": "eval model=hf model.path=stock data=text data.path=fables.txt length=16,32 logger=none",
        "probe": f"probe run={train} max_tokens=256 {' '.join(CPU)}", "check": f"check run={places['gemma3']} {' '.join(CPU)}",
        "generate": f"generate run={places['gemma3']} length=30 {' '.join(CPU)}",
        "compare": f"compare {swept} baseline=pe=rope logger=none", "compare all": f"compare {train} {swept} logger=none",
        "compare csv": f"compare {places['compare']}/comparison.csv logger=none",
        "rerun": f"rerun {train} logger=none", "rerun eval": f"rerun {places['eval']} logger=none",
        "maxkey": f"maxkey run={places['max-retrieval']} test_sizes=[16,64] test_sets=64 evaluate=all {' '.join(CPU)}",
        "bench": f"bench files={places['bench']}/values logger=none", "export": f"export run={train} to=anew logger=none",
    }.items():  # fmt: skip
        lab.rr(name, line)
    for name in ("killed", "sharded"):
        lab.keep(f"weights of {name}", weights_of(places[name]))
    for name in ("stock", "own", "anew"):
        loaded_alone(lab, name, lab.home / name)


# -- record and compare


def record(checkout: Path, out: Path, parts: list[str], keep: Path | None, old_runs: Path | None) -> None:
    found: dict[str, Any] = {}
    if keep is not None:
        parts = ["make_old", *(part for part in parts if part != "old"), "old"]
        old_runs = keep
    for part in parts:
        if part == "old" and old_runs is None:
            continue
        with tempfile.TemporaryDirectory(prefix="battery-") as folder:
            home = Path(folder) / "home"
            if part == "make_old":
                assert keep is not None
                keep.mkdir(parents=True)
                home = keep
            elif part == "old":
                assert old_runs is not None
                shutil.copytree(old_runs, home, symlinks=True)
            else:
                home.mkdir()
            own = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "ROUNDROUND_CACHE": f"{folder}/cache"}
            own |= {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "HF_HOME": f"{folder}/hf", "PYTHONHASHSEED": "0"}
            began = time.monotonic()
            words = [sys.executable, __file__, "part", part, str(checkout), str(home), f"{folder}/found.json", str(old_runs)]
            subprocess.run(words, env=os.environ | own, cwd=home, check=True)
            found |= json.loads(Path(f"{folder}/found.json").read_text())
            print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
            out.write_text(json.dumps(found, indent=1))


def run_part(part: str, checkout: Path, home: Path, out: Path, old_runs: str) -> None:
    import hydra  # noqa: F401  # what each fork would import again
    import lightning  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pandas  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import transformers  # noqa: F401

    torch.set_num_threads(1)
    lab = Lab(home, checkout)
    lab.aliases |= {} if old_runs == "None" else {old_runs: "OLD"}
    lab.part = part
    fables(home)
    globals()[part](lab)
    out.write_text(json.dumps(lab.found))


def tolerance(name: str) -> float:
    """How far two numbers may be apart, relative to the larger one."""
    if name.startswith("harness/"):
        return 1e-5
    return 1e-12 if re.match(r"stored/|.*(compar|bench|rerun|theory|reproduce)", name) else 0.0


def differences(name: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from differences(f"{name} [{key}]", before.get(key, "(none)"), after.get(key, "(none)"))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(f"{name} [{number}]", one, other)
    elif not same(before, after, tolerance(name)):
        yield f"{name}: {str(before)[:300]} -> {str(after)[:300]}"


def same(before: Any, after: Any, rel: float) -> bool:
    if repr(before) == repr(after):
        return True
    try:
        return rel > 0 and math.isclose(float(before), float(after), rel_tol=rel, abs_tol=0)
    except (TypeError, ValueError):
        return False


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs, the words last; 1 where a number, a hash or a name does."""
    parts = {name.removeprefix("text/").partition("/")[0] for name in after}
    left_out = {name.removeprefix("text/").partition("/")[0] for name in before} ^ parts
    told, words = list[str](), 0
    for name in sorted(before.keys() | after.keys()):
        if name.removeprefix("text/").partition("/")[0] in left_out:
            continue
        one, other = before.get(name, "(none)"), after.get(name, "(none)")
        if not name.startswith("text/"):
            told += differences(name, one, other)
        elif one != other:
            words += 1
            print(f"\n== to look at: {name}")
            print(*list(difflib.unified_diff(one.splitlines(), other.splitlines(), "before", "after", n=0))[2:30], sep="\n")
    print(f"\n{len(before.keys() & after.keys())} entries in both; parts in one alone, not compared: {sorted(left_out) or 'none'}")
    print(f"{words} texts to look at; {len(told)} DIFFERENCES", *told, sep="\n")
    return 1 if told else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare", "part"])
    parser.add_argument("words", nargs="+")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, such as verbs,pairs")
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
