"""The command line, by what a person types and reads: exit codes, one-line errors, sweeps, completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from conftest import Done, assert_refused, shell

# -- wrong input


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["pe=prope"], ["pe=prope", "did you mean 'p_rope'?"]),
        (["seeed=1"], ["'seeed'", "did you mean 'seed'?"]),
        (["pe.tehta=1"], ["'pe.tehta'", "did you mean 'theta'?"]),
        (["+typo=1"], ["'typo'"]),
        (["+trainer.val_check_interval=5"], ["roundround accepts no trainer.val_check_interval"]),
        (["seed=abc"], ["seed", "abc"]),
        (["pe=p_rope", "pe.p=high"], ["pe.p", "'high'"]),
        (["pe=p_rope", "pe.p=1.5"], ["pe", "p=1.5"]),
        (["model.d_model=31"], ["model", "d_model=31", "n_heads=2"]),
        (["trainer.max_steps=0"], ["trainer.max_steps=0"]),
        (["data.path=nowhere.txt"], ["nowhere.txt"]),
        (["resume=nowhere"], ["nowhere", "not a run directory"]),
        (["batch_size=3", "trainer.accumulate_grad_batches=2"], ["batch_size=3"]),
        (["pe._target_=roundround.pe.rope.Rope"], ["pe._target_"]),
        (["nonsense"], ["'nonsense'", "key=value"]),
        (["--config-dir", "nowhere"], ["nowhere"]),
        (["logger=wand"], ["did you mean 'wandb'?"]),
        (["pe=rope,nope"], ["pe=rope,nope gives several values; add -m"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_costs_one_line(train: Callable[..., Done], args: list[str], parts: list[str]) -> None:
    assert_refused(train(*args), *parts)


@pytest.mark.parametrize(
    ("args", "form"),
    [
        (["train", "pe=RoPE"], "did you mean 'rope'?"),
        (["eval", "model=folder"], "; write model=hf model.path=folder"),
        (["train", "data=roneneldan/TinyStories"], "; write data=hub data.name=roneneldan/TinyStories"),
        (["train", "--pe", "rope"], "; write pe=rope"),
        (["train", "--optim.lr=3"], "; write optim.lr=3"),
        (["eval", "last"], "; write run=last"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_answered_with_the_form_that_works(
    roundround: Callable[..., Done], args: list[str], form: str
) -> None:
    Path("folder").mkdir()
    assert_refused(roundround(*args), form)


def test_a_hub_dataset_without_network_names_the_alternative(roundround: Callable[..., Done]) -> None:
    assert_refused(roundround("train", "data=wikitext103", "logger=none"), "Salesforce/wikitext", "data=pydoc")


def test_a_typo_inside_the_users_own_yaml_is_named(train: Callable[..., Done]) -> None:
    Path("mine/pe").mkdir(parents=True)
    Path("mine/pe/mine.yaml").write_text("_target_: roundround.pe.rope.RoPE\ntehta: 100.0\n")
    assert_refused(train("--config-dir", "mine", "pe=mine"), "'tehta'", "did you mean 'theta'?")


def test_a_full_disk_costs_one_line(train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from roundround.records import checkpoints

    monkeypatch.setattr(
        checkpoints,
        "write_tensors",
        Mock(side_effect=OSError(errno.ENOSPC, "No space left on device", "model.safetensors")),
    )
    done = train()
    assert done.code == 2
    assert done.err.strip().splitlines()[-1].endswith("free some, or give outputs=DIR")
    run = next(Path("outputs/train").glob("*/*"))
    assert list((run / "checkpoints").iterdir()) == []


# -- what works


def test_outputs_moves_the_root(train: Callable[..., Done]) -> None:
    done = train("outputs=elsewhere", "trainer.max_steps=1")
    assert done.code == 0, done.err
    assert done.directory.is_relative_to(Path("elsewhere").absolute())
    assert done.manifest["status"] == "done"


def test_a_users_variant_lives_in_their_own_folder(train: Callable[..., Done]) -> None:
    Path("mine/pe").mkdir(parents=True)
    Path("mine/pe/half.yaml").write_text("# roundround train pe=half\n_target_: half_rope.Half\nfactor: 0.5\n")
    Path("mine/half_rope.py").write_text(
        "from roundround.pe.base import PositionalEncoding\n"
        "class Half(PositionalEncoding):\n"
        '    """Halves what it embeds."""\n'
        "    def __init__(self, shape, *, factor: float):\n"
        "        super().__init__(shape)\n"
        "        self.factor = factor\n"
        "    def embed(self, x_BTD, pos_BT):\n"
        "        return x_BTD * self.factor\n"
    )
    done = train("pe=half", "--config-dir", "mine", "trainer.max_steps=1")
    assert done.code == 0, done.err
    assert done.manifest["config"]["pe"] == {"_target_": "half_rope.Half", "factor": 0.5}


def test_a_sweep_runs_every_combination_in_its_own_directory(train: Callable[..., Done]) -> None:
    done = train("pe=nope,rope", "-m", "seed=1,2", "trainer.max_steps=1", "optim.betas=0.8,0.9")
    assert done.code == 0, done.err
    sweep = done.directory
    assert sweep.name.endswith("-sweep")
    manifests = [json.loads((sweep / str(i) / "run.json").read_text()) for i in range(4)]
    assert [(m["choices"]["pe"], m["seed"]) for m in manifests] == [
        ("nope", 1),
        ("nope", 2),
        ("rope", 1),
        ("rope", 2),
    ]
    assert {m["sweep"] for m in manifests} == {str(sweep)}
    assert {tuple(m["config"]["optim"]["betas"]) for m in manifests} == {(0.8, 0.9)}


def test_one_failing_job_of_a_sweep_does_not_stop_the_others(train: Callable[..., Done]) -> None:
    done = train("-m", "pe=p_rope", "pe.p=0.5,7,0.75", "trainer.max_steps=1")
    assert done.code == 2
    assert "p=7" in done.err
    assert "Error executing job" not in done.err
    runs = sorted(Path("outputs/train").glob("*/*-sweep/*/run.json"))
    assert [json.loads(run.read_text())["status"] for run in runs] == ["done", "done"]


def test_a_task_that_fails_exits_with_1_and_keeps_its_traceback(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    from roundround.training.module import LanguageModel

    def fail(*_: object) -> None:
        raise RuntimeError("a tensor has\nthe wrong shape")

    monkeypatch.setattr(LanguageModel, "training_step", fail)  # Lightning takes no Mock for a method
    done = train()
    assert done.code == 1
    last = done.err.strip().splitlines()[-1]
    assert "RuntimeError: a tensor has the wrong shape" in last
    run = next(Path("outputs/train").glob("*/*"))
    assert json.loads((run / "run.json").read_text())["status"].startswith("failed: RuntimeError")
    assert "Traceback" in (run / "train.log").read_text()
    assert str(run / "train.log") in last


@pytest.mark.slow
def test_joblib_runs_a_sweep_in_parallel(here: Path, fast: list[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="the joblib extra is not installed")
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    done = shell("train", *fast, "-m", "pe=nope,rope", "trainer.max_steps=1", *launcher, cwd=here)
    assert done.code == 0, done.err
    assert {json.loads(p.read_text())["status"] for p in done.directory.glob("*/run.json")} == {"done"}
    assert len(list(done.directory.glob("*/run.json"))) == 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("roundround tr", "train"),
        ("roundround train pe=p_r", "pe=p_rope"),
        ("roundround train pe = p_r", "p_rope"),
        # test_arguments.py completes such lines without a process
        *(
            pytest.param(line, expected, marks=pytest.mark.slow)
            for line, expected in [
                ("roundround train pe =", "p_rope"),
                ("roundround train pe = rope softmax = so", "softmax"),
            ]
        ),
    ],
)
def test_the_shell_completes_verbs_groups_and_options(line: str, expected: str) -> None:
    """Of a command line in bash the last word is the one under the cursor."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "roundround"],
        env=os.environ | {"_ROUNDROUND_COMPLETE": "complete_bash"} | words,
        capture_output=True,
        text=True,
        check=False,
    )
    assert expected in done.stdout.split()
