"""`data.separate_documents=true` from a training run to what is evaluated, probed and refused."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
import torch
from conftest import FAST, Done, held_out_stream, typed

from roundround.records import checkpoints
from roundround.trained.models import TrainedRun

APART = "data.separate_documents=true"
END = 256  # the token that ends a document, behind the 256 bytes
N_TARGETS = 256  # of each measurement in training


class Killed(BaseException):
    """As kill -9 ends a process."""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Done:
    """A run whose documents did not see each other, for the tests that look at it."""
    text = ["data=text", f"data.path={corpus}", "data.held_out=0.3", APART]
    with contextlib.chdir(tmp_path_factory.mktemp("apart")):
        done = typed("train", *FAST, *text, "pe=rope", "softmax=ssmax", "optim.lr=0.02", "model.initializer_range=0.3")
    assert done.code == 0, done.err
    return done


def test_training_and_eval_measure_each_document_by_itself(
    apart: Done, roundround: Callable[..., Done], corpus: Path
) -> None:
    run, of_eval = f"run={apart.directory}", ["logger=none", "length=32", f"max_tokens={N_TARGETS}"]
    # the mean loss of windows that meet, each document in them by itself in a pass of its own
    stream = held_out_stream(corpus)
    decoder, losses = TrainedRun(apart.directory, trust=False).decoder("best"), []
    for start in range(0, N_TARGETS, 32):
        part = [byte or END for byte in stream[start : start + 32 + 1]]
        first = 0
        for last in range(32):
            if part[last] == END or last == 32 - 1:  # the end of a document is in it, and has a target too
                inputs, targets = part[first : last + 1], part[first + 1 : last + 2]
                with torch.no_grad():
                    losses += decoder(torch.tensor([inputs]), targets_BT=torch.tensor([targets]))[0].tolist()
                first = last + 1
    expected = math.fsum(losses) / N_TARGETS
    assert apart.value("nats_per_token") == pytest.approx(expected, rel=1e-5)
    told = roundround("eval", run, *of_eval)
    assert told.value("perplexity_with_joints", separate_documents=True) == pytest.approx(math.exp(expected), rel=1e-5)
    assert "Documents in a window do not see each other" in told.err
    text = ["data=text", f"data.path={corpus}", "data.held_out=0.3", "data.separate_documents=false"]
    joined = roundround("eval", run, *of_eval, *text)
    assert abs(joined.value("perplexity_with_joints", separate_documents=False) / math.exp(expected) - 1) > 1e-3
    assert "do not see each other" not in joined.err


def test_a_resumed_run_keeps_its_documents_apart(
    train: Callable[..., Done], roundround: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(APART, "trainer.max_steps=6", "optim.lr=0.02")
    write = Mock(wraps=checkpoints.write_tensors, side_effect=[*[DEFAULT] * 3, Killed()])  # in the second checkpoint
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_tensors", write)
        with pytest.raises(Killed):
            train(APART, "trainer.max_steps=6", "optim.lr=0.02")
    done = roundround("train", f"resume={max(Path('outputs/train').glob('*/*'))}", "logger=none")
    assert "resuming after step 2" in done.err
    assert done.manifest["data"]["separate_documents"] is True
    assert done.value("nats_per_token") == whole.value("nats_per_token")
