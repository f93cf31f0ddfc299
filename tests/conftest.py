"""What all tests share: a command line that runs inside the test process, and a model that trains in a second."""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file

from roundround.config.build import maker
from roundround.config.options import checked_config_dir, load_option, options_in, options_of
from roundround.support.errors import UserError
from roundround.support.packaged import PRETRAINED

# fault_fixtures is of tests/faults: a conftest.py there would hide this one
pytest_plugins = ["fault_fixtures", "quick_hydra"]
ROOT = Path(__file__).resolve().parent.parent
STORIES = PRETRAINED / "stories260k"  # a trained Llama, with stories by itself in stories.txt

# eight thousand parameters on bytes of a small text: a run takes about a second
FAST = [
    "logger=none",
    "tokenizer=bytes",
    "model.d_model=16",
    "model.n_layers=2",
    "model.n_heads=2",
    "model.n_key_heads=1",
    "model.d_mlp=24",
    "model.train_length=32",
    "batch_size=4",
    "trainer.max_steps=4",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.log_every_n_steps=1",
    "validation_tokens=256",
    "validate_every=2",
    "checkpoint_every=2",
]


LONG = ("training", "papers", "loading", "command_line")  # folders of tests that start processes
CONTRACTED = ("pe", "softmax", "data")  # groups of which every option is tested by a contract
OWN: list[str] = []  # the absolute path of --config-dir, where it is given


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "run the contract tests on the variants of a conf folder of your own, and no other test"
    parser.addoption("--config-dir", metavar="DIR", help=help)


def pytest_configure(config: pytest.Config) -> None:
    """Find the modules of --config-dir before the contract tests read which variants there are."""
    gc.disable()  # twenty thousand tests are collected and stay: to look through them again takes a third of the time
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # by `pytest &` in a script: runs would ignore it as well
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        given = checked_config_dir(config.getoption("--config-dir"))
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    if given is not None:
        OWN.append(given)
        sys.path.insert(0, given)


def variants(group: str) -> dict[str, Path]:
    """The yamls of a group by name, those of --config-dir included."""
    return found_once(group, *OWN).copy()


# Nine thousand tests ask for variants, and nothing changes their folders and yamls meanwhile.
@functools.cache
def found_once(group: str, own: str | None = None) -> dict[str, Path]:
    return options_of(group, own)


@functools.cache
def read_once(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path))


def variants_alone(group: str) -> list[str]:
    """Their names, but for those in a folder of the group: pe/ladder has points of `rope_ladder`."""
    return sorted(name for name in variants(group) if "/" not in name)


def tunables(group: str, name: str) -> dict[str, Any]:
    """The yaml of a variant as a plain dict, `_target_` included; where it leaves a scaling open, by four."""
    node = copy.deepcopy(read_once(variants(group)[name]))
    assert isinstance(node, dict)
    return {str(key): 4.0 if key == "factor" and value is None else value for key, value in node.items()}


def option(group: str, name: str, **numbers: Any) -> DictConfig:
    """`load_option`, with what `tunables` puts where a yaml leaves a number open."""
    node = load_option(group, name, **numbers)
    if "factor" in node and node.factor is None:
        node.factor = 4.0
    return node


def named(group: str, name: str, family: Any, **numbers: Any) -> Callable[..., Any]:
    """What builds an option again and again."""
    return maker(load_option(group, name, **numbers), family)


def class_of(group: str, name: str) -> Any:
    module, _, attribute = tunables(group, name)["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def beside(softmax: str, pe: str = "rope") -> str:
    """This encoding, or nope beside a normaliser that takes positions from the order of the keys."""
    return "nope" if class_of("softmax", softmax).orders_keys else pe


def own_variants() -> set[str]:
    """The names of the variants of --config-dir."""
    return {name for folder in OWN for group in CONTRACTED for name in options_in(Path(folder) / group)}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests first: at the end no worker waits for one that another has just begun."""
    items.sort(key=lambda item: item.path.parent.name not in LONG)
    if OWN:
        own = own_variants()
        calls = {item: getattr(item, "callspec", None) for item in items}  # only a test with parameters has one
        about_own = [
            item
            for item, call in calls.items()
            if call and any(isinstance(value, str) and value in own for value in call.params.values())
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in about_own])
        items[:] = about_own


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip what torch refuses: attention in bfloat16 where a CPU has AMX and ATEN_CPU_CAPABILITY asks for less."""
    try:
        return (yield)
    except Exception as error:
        if "pack_vnni2" not in str(error):
            raise
        pytest.skip("torch has no attention in bfloat16 under a lowered ATEN_CPU_CAPABILITY on a CPU with AMX")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Say of a variant of the user's own which promise it breaks: the docstring of the test that fails."""
    report = yield
    promise = inspect.getdoc(getattr(item, "function", None))
    if OWN and report.failed and promise is not None and hasattr(report.longrepr, "reprcrash"):
        report.longrepr.reprcrash.message = f"{promise} {report.longrepr.reprcrash.message}"  # of the summary
        report.sections.append(("the promise that is broken", promise))
    return report


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def directory(self) -> Path:
        """The run directory, from the last line of standard output as a script would take it."""
        return Path(self.out.splitlines()[-1])

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.directory / "run.json").read_text())

    @property
    def results(self) -> list[dict[str, Any]]:
        return json.loads((self.directory / "results.json").read_text())

    def value(self, metric: str, **where: Any) -> float:
        """The one result of this metric, name and place."""
        found = [r for r in self.results if r["metric"] == metric and all(r.get(k) == v for k, v in where.items())]
        assert len(found) == 1, found
        return found[0]["value"]


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def saved_weights(run: Path, checkpoint: str = "last") -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / checkpoint / "model.safetensors")


def assert_refused(done: Done, *parts: str) -> None:
    """One line on standard error that says what is wrong, exit code 2, and nothing half-written."""
    assert done.code == 2, done
    lines = done.err.strip().splitlines()
    assert [line for line in lines if line.startswith("roundround ")] == lines[-1:], done.err
    for part in parts:
        assert part in lines[-1]
    assert done.out == ""
    left = [path for path in Path("outputs").rglob("*") if path.is_file()] if Path("outputs").exists() else []
    assert left == []


@pytest.fixture(scope="session", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One token cache for a session (each worker's own), no word to Weights & Biases, and no Slurm job around it."""
    kept = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF"]:
        del os.environ[name]  # Lightning would take the job's tasks for ours
    os.environ["ROUNDROUND_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["WANDB_MODE"] = "offline"
    os.environ["HF_HUB_OFFLINE"] = "1"
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(scope="session", autouse=True)
def packaged_pages() -> Iterator[None]:
    """Parse each yaml of the package once for all pages that list them: half of what a page takes."""
    from roundround.command_line import pages
    from roundround.config.options import conf_dir

    read, packaged = pages.read_yaml, conf_dir()
    kept: dict[Path, tuple[str, dict[str, Any]]] = {}

    def read_yaml(path: Path) -> tuple[str, dict[str, Any]]:
        if not path.is_relative_to(packaged):
            return read(path)
        if path not in kept:
            kept[path] = read(path)
        text, values = kept[path]
        return text, copy.deepcopy(values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "read_yaml", read_yaml)
        yield


@pytest.fixture(scope="session", autouse=True)
def unflushed() -> Iterator[None]:
    """Wait for no disk: a command here waits twenty times, a third of its time. Tests of the order patch it anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def drawing() -> Iterator[dict[str, Any]]:
    """Leave the files of figures empty and write no page at the end of a run: both are half of what commands take here.

    Also while the fixtures of a module run. The value is what draws and writes, by the marker of tests that look at it.
    """
    from roundround.command_line.launch import Job
    from roundround.report.drawing import figures

    with pytest.MonkeyPatch.context() as patch:
        whole = {"pictures": figures.write, "pages": Job.leave_page}
        patch.setattr(figures, "write", lambda figure, path: path.touch())
        patch.setattr(Job, "leave_page", lambda job, directory: None)
        yield whole


@pytest.fixture(autouse=True)
def as_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, drawing: dict[str, Any]) -> None:
    """Draw and write pages where a test looks at them.

    And print tables as wide as they are, whatever a library has left in the environment since the last test.
    """
    monkeypatch.delenv("COLUMNS", raising=False)
    if request.node.get_closest_marker("pictures") is not None:
        monkeypatch.setattr("roundround.report.drawing.figures.write", drawing["pictures"])
    if request.node.get_closest_marker("pages") is not None:
        monkeypatch.setattr("roundround.command_line.launch.Job.leave_page", drawing["pages"])


@pytest.fixture
def hangup() -> Iterator[None]:
    """SIGHUP means what it means in a terminal, also where the tests run under nohup, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `export` load a stock Llama in this process to check it; one of its own imports transformers for seconds."""
    from roundround.trained.export import check, folder

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "roundround", sys.modules["roundround"])  # put back: check.py takes it away
            check.main(*command[3:])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(folder, "subprocess", SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of two hundred paragraphs whose order a model can learn something from."""
    path = tmp_path_factory.mktemp("corpus") / "fables.txt"
    animals, deeds = ["fox", "crow", "stork", "ass", "hare"], ["ran home", "sang", "slept", "lost the cheese"]
    tales = [f"The {animals[i % 5]} number {i} {deeds[i % 4]} and met the {animals[(i * 3) % 5]}." for i in range(200)]
    path.write_text("\n\n".join(tales))
    return path


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], object]) -> None:
    """What happens as a training step begins, counted from 0; Lightning takes no Mock for a method."""
    from roundround.training.module import LanguageModel

    sound = LanguageModel.training_step

    def training_step(self: LanguageModel, batch: Any, index: int) -> Any:
        if self.step == step:
            act()
        return sound(self, batch, index)

    monkeypatch.setattr(LanguageModel, "training_step", training_step)


def held_out_stream(corpus: Path, fraction: float = 0.3) -> bytes:
    """What a model of bytes is scored on, a zero byte for the end of each document."""
    from roundround.data.corpora import is_held_out

    texts = [text for text in corpus.read_text().split("\n\n") if fraction == 1 or is_held_out(text, fraction)]
    return "".join(text + "\0" for text in texts).encode()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*args: str) -> Done:
    """A command as a person would type it, inside this process and the current folder."""
    from roundround.cli import run

    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["roundround", *args]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(list(args))
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = argv
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def roundround(here: Path) -> Callable[..., Done]:
    """`roundround("train", "pe=rope")` as a person would type it, in an empty folder."""
    return typed


@pytest.fixture
def train(roundround: Callable[..., Done], corpus: Path) -> Callable[..., Done]:
    """A training run of the fast model on the small text; what is given comes last and wins."""
    return lambda *args: roundround("train", *FAST, "data=text", f"data.path={corpus}", *args)


@pytest.fixture
def fast(corpus: Path) -> list[str]:
    """The overrides of the fast model on the small text."""
    return [*FAST, "data=text", f"data.path={corpus}"]


def shell(*args: str, cwd: Path, timeout: float = 240) -> Done:
    """The command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "roundround", *args],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return Done(done.returncode, done.stdout, done.stderr)
