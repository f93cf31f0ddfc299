"""What `train` says before the first step: a line for settings that may not be what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ROOT, Done
from helpers_manifest import CONFIG, a_manifest

from roundround.config.options import load_option, named
from roundround.records.run import Run
from roundround.support.files import write_json
from roundround.trained.models import build_decoder
from roundround.training.preflight import about_warmup, duplicate_job, trains_as_softmax
from roundround.training.schedules import Schedule

NORMALISERS = [path.stem for path in (ROOT / "conf" / "softmax").glob("*.yaml")]
# the last four act beyond the training context
PLAIN_IN_TRAINING = {"softmax", "adaptive_temperature", "log_n", "llama4", "ministral3", "inkling"}


def acts_in_training(name: str, **numbers: object) -> bool:
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "train_length": 256}
    nodes = load_option("model", "tiny", **sizes), load_option("pe", "rope"), load_option("softmax", name, **numbers)
    return not trains_as_softmax(build_decoder(*nodes, 8))


def test_some_normalisers_train_as_the_plain_softmax() -> None:
    assert {name for name in NORMALISERS if not acts_in_training(name)} == PLAIN_IN_TRAINING


def test_a_window_acts_in_training_where_texts_are_longer() -> None:
    nodes = [load_option("pe", "rope"), load_option("softmax", "softmax")]
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_key_heads": 1, "d_mlp": 24, "train_length": 32}
    decoder = build_decoder(load_option("model", "tiny", **sizes), *nodes, 8)
    for window, as_softmax in ((None, True), (32, True), (31, False)):
        decoder.layers[0].self_attn.softmax.window = window
        assert trains_as_softmax(decoder) is as_softmax


@pytest.mark.parametrize(
    ("warmup", "n_steps", "part"),
    [
        (50, 60, "83%"),
        (50, 50, "the whole run"),
        (50, 4, "the whole run"),
        (50, 100, "50%"),
        (50, 600, None),
    ],
)
def test_a_warm_up_of_most_of_the_run_is_said(warmup: int, n_steps: int, part: str | None) -> None:
    note = about_warmup(named("schedule", "cosine", Schedule, warmup_steps=warmup)(), n_steps)
    assert note is None if part is None else part in note


def test_a_run_says_it_in_a_line_each(train: Callable[..., Done]) -> None:
    done = train("softmax=adaptive_temperature", "model.train_length=256", "validate_every=4")
    assert "softmax=adaptive_temperature acts at inference only" in done.err
    assert "warms up during the whole run: schedule.warmup_steps=50, trainer.max_steps=4" in done.err
    assert "documents have" in done.err
    assert done.manifest["trains_as_softmax"] is True
    quiet = train("softmax=sigmoid", "schedule.warmup_steps=1")
    assert not any(word in quiet.err for word in ("acts at inference", "warms up", "documents have"))


def test_a_sweep_that_repeats_a_training_says_so(train: Callable[..., Done]) -> None:
    done = train("-m", "softmax=softmax,adaptive_temperature", "seed=1,2", "trainer.max_steps=1")
    assert done.code == 0, done.err
    repeats = [line for line in done.err.splitlines() if "the same training as job" in line]
    assert [line.split("job ")[1].split()[0] for line in repeats] == ["0", "1"]
    assert all("softmax=adaptive_temperature" in line for line in repeats)
    assert len(list(Path(done.directory).glob("*/run.json"))) == 4


@pytest.mark.parametrize(
    ("status", "duplicate"), [("done", "0"), ("running", "0"), ("failed: boom", None), ("interrupted", None)]
)
def test_only_a_job_that_leaves_a_model_is_named_as_the_same_training(
    tmp_path: Path, status: str, duplicate: str | None
) -> None:
    (tmp_path / "0").mkdir()
    write_json(tmp_path / "0" / "run.json", a_manifest(status=status, trains_as_softmax=True))
    config = {**CONFIG, "softmax": {"_target_": "x.LogN"}}
    manifest = {"sweep": str(tmp_path), "trains_as_softmax": True, "config": config}
    found = duplicate_job(Run(tmp_path / "1", manifest, writes=True))
    assert (found.name if found else None) == duplicate
