"""What a run keeps to itself: keys in the environment, what lies outside a run.

And what it does not do: run code that lies among the data.
"""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from damage import PICKLE
from forkserver import Ended
from stopping import EVAL, MAX_RETRIEVAL, RESTLESS, TRAIN, Bench, text_in

SECRETS = {
    "WANDB_API_KEY": "c0ffee00" * 5,
    "HF_TOKEN": "hf_" + "CANARYcanary" * 3,
    "HUGGING_FACE_HUB_TOKEN": "hf_" + "SECONDcanary" * 3,
    "AWS_SECRET_ACCESS_KEY": "aws/canary+0123456789",
    "AWS_SESSION_TOKEN": "session-canary-0123456789",
    "SOME_PASSWORD": "other-canary-31415926",
}
CHECKPOINT = "step-00000002"


COMMANDS = {
    "eval": ["eval", "run=foreign", *EVAL],
    "train": ["train", "resume=foreign", "logger=none"],
    "export": ["export", "run=foreign", "to=exported"],
}
EVIL = "import os; os.system('touch EXECUTED')\n"


@pytest.fixture(scope="module")
def guarded(bench: Bench) -> Bench:
    return replace(bench, env={**bench.env, **SECRETS})


@pytest.fixture(scope="module")
def finished(guarded: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, which a test may copy and not change."""
    folder = tmp_path_factory.mktemp("finished")
    args = [*TRAIN, *RESTLESS, "pe=rope", "trainer.max_steps=2", *text_in(tmp_path_factory.mktemp("corpus"))]
    ended = guarded.run(args, folder)
    assert ended.code == 0, ended.err
    return Path(ended.out.strip())


def foreign(finished: Path, folder: Path, change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> Path:
    """A copy of the finished run, called `foreign`, with a run.json that somebody has changed."""
    run = folder / "foreign"
    shutil.copytree(finished, run, symlinks=True)
    manifest = json.loads((run / "run.json").read_text())
    change(manifest)
    (run / "run.json").write_text(json.dumps(manifest))
    return run


def holding(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """Which of these texts stand in which files below a folder."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    kept = [(path, path.read_bytes()) for path in files]
    return [f"{name} in {path.name}" for path, data in kept for name, text in texts.items() if text.encode() in data]


def told(ended: Ended, texts: Mapping[str, str] = SECRETS) -> list[str]:
    return [name for name, text in texts.items() if text in ended.out + ended.err]


# -- keys in the environment


@pytest.mark.faults
def test_no_secret_of_the_environment_is_told_or_kept(guarded: Bench, finished: Path, tmp_path: Path) -> None:
    folder = finished.parents[3]
    for args in (
        ["eval", "run=last", *EVAL],
        ["probe", "run=last", "max_tokens=64", "logger=none"],
        ["export", "run=last", f"to={tmp_path / 'exported'}"],
        MAX_RETRIEVAL,
    ):
        ended = guarded.run(args, folder, timeout=200)
        assert ended.code == 0, ended.err
        assert told(ended) == []
    assert holding(folder, SECRETS) + holding(tmp_path, SECRETS) == []
    assert (tmp_path / "exported" / "README.md").exists()


# -- ways out of a run


@pytest.mark.faults
@pytest.mark.parametrize("verb", ["eval", "export"])
@pytest.mark.parametrize("way_out", ["../../elsewhere", "ABSOLUTE"])
def test_a_checkpoint_is_never_read_from_outside_its_run(
    verb: str, way_out: str, guarded: Bench, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run, symlinks=True)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(finished / "checkpoints" / CHECKPOINT, elsewhere)
    way_out = str(elsewhere) if way_out == "ABSOLUTE" else way_out
    rest = EVAL if verb == "eval" else ["to=exported"]
    ended = guarded.run([verb, f"run={run}", f"checkpoint={way_out}", *rest], tmp_path)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err
    assert not (tmp_path / "exported").exists()


# -- a manifest that somebody else wrote


@pytest.mark.faults
@pytest.mark.parametrize("verb", ["eval", "train", "export"])
@pytest.mark.parametrize("place", ["pe.theta", "data.split_regex", "choices.pe", "command"])
def test_a_foreign_manifest_reads_nothing_of_the_environment(
    verb: str,
    place: str,
    guarded: Bench,
    finished: Path,
    tmp_path: Path,
) -> None:
    def change(manifest: dict[str, Any]) -> None:
        node: Any = {"pe": manifest["config"]["pe"], "data": manifest["config"]["data"], **manifest}
        *parents, key = place.split(".")
        for parent in parents:
            node = node[parent]
        node[key] = "${oc.env:SOME_PASSWORD}"
        manifest["command"] = node["command"] if not parents else manifest["command"]

    foreign(finished, tmp_path, change)
    ended = guarded.run(COMMANDS[verb], tmp_path)
    assert told(ended) + holding(tmp_path, SECRETS) == []
    assert "Traceback" not in ended.err


# -- code among the data


def test_the_pickle_that_lies_among_the_data_would_leave_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(PICKLE)
    assert list(tmp_path.rglob("EXECUTED")) != []


@pytest.mark.faults
def test_nothing_that_lies_beside_the_weights_of_a_run_is_executed(
    guarded: Bench, finished: Path, tmp_path: Path
) -> None:
    run = foreign(finished, tmp_path)
    for folder in (run, run / "checkpoints", run / "checkpoints" / CHECKPOINT):
        for name in ("model.bin", "pytorch_model.bin", "optimizer.pt", "state.pkl", "last.ckpt"):
            (folder / name).write_bytes(PICKLE)
        for name in ("sitecustomize.py", "conftest.py", "variants.py"):
            (folder / name).write_text(EVIL)
    for verb in ("eval", "export"):
        ended = guarded.run(COMMANDS[verb], tmp_path, timeout=200)
        assert ended.code in (0, 2), ended.err
    assert list(tmp_path.rglob("EXECUTED")) == []


@pytest.mark.faults
@pytest.mark.parametrize("way", ["command", "cwd"])
def test_nothing_that_lies_beside_a_run_is_executed_when_it_is_repeated(
    way: str, guarded: Bench, finished: Path, tmp_path: Path
) -> None:
    modules = tmp_path / "conf"
    (modules / "pe").mkdir(parents=True)
    for name in ("lightning", "safetensors", "typer", "sitecustomize", "roundround"):
        (modules / f"{name}.py").write_text(f"open({str(tmp_path / 'EXECUTED')!r}, 'a')")
    lies = {"command": f"roundround train --config-dir {modules}", "cwd": str(modules)}
    run = foreign(finished, tmp_path, lambda manifest: manifest.update({way: lies[way]}))
    ended = guarded.run(["rerun", str(run), "logger=none"], tmp_path, timeout=200)
    assert ended.code == {"command": 2, "cwd": 0}[way], ended.err
    assert "trust=true" in ended.err
    assert list(tmp_path.rglob("EXECUTED")) == []


@pytest.mark.faults
def test_nothing_that_lies_beside_the_weights_of_a_pretrained_model_is_executed(
    guarded: Bench, finished: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    assert guarded.run(["export", f"run={finished}", f"to={model}"], tmp_path, timeout=200).code == 0
    for name in ("pytorch_model.bin", "adapter_model.bin", "training_args.bin"):
        with zipfile.ZipFile(model / name, "w") as file:
            file.writestr("archive/data.pkl", PICKLE)
    (model / "optimizer.pt").write_bytes(PICKLE)
    for name in ("modeling_llama.py", "custom_generate.py", "conftest.py", "evil.py"):
        (model / name).write_text(EVIL)
    (model / "chat_template.jinja").write_text("{{ cycler.__init__.__globals__.os.system('touch EXECUTED') }}")
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}
    (model / "config.json").write_text(json.dumps(config))
    for args in (
        ["probe", "model=hf", f"model.path={model}", "max_tokens=64", "logger=none"],
        ["eval", "model=hf", f"model.path={model}", *EVAL, *text_in(tmp_path)],
    ):
        ended = guarded.run(args, tmp_path, timeout=200)
        assert ended.code in (0, 2), ended.err
    assert list(tmp_path.rglob("EXECUTED")) == []
