"""`roundround eval`: a run rebuilds itself, and its numbers at different lengths compare."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import FAST, Done, held_out_stream, saved_weights, typed
from omegaconf import OmegaConf

LENGTHS = "length=16,32,64"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """One training run for all tests of this file."""
    with contextlib.chdir(tmp_path_factory.mktemp("trained")):
        done = typed("train", *FAST, "data=text", f"data.path={corpus}", "trainer.max_steps=20", "optim.lr=0.02")
    assert done.code == 0, done.err
    return done.directory


@pytest.fixture
def run(trained: Path, here: Path) -> Path:
    """A copy of the training run, for the test to do with as it likes."""
    return shutil.copytree(trained, here / trained.relative_to(trained.parents[3]), symlinks=True)


def evaluated(roundround: Callable[..., Done], run: Path | str, *args: str) -> Done:
    done = roundround("eval", f"run={run}", "logger=none", *args)
    assert done.code == 0, done.err
    return done


def test_the_table_goes_to_standard_output_where_it_is_asked_for(roundround: Callable[..., Done], run: Path) -> None:
    told, asked = evaluated(roundround, run, LENGTHS), evaluated(roundround, run, LENGTHS, "table=stdout")
    assert told.out == f"{told.directory}\n"
    assert "perplexity" in told.err
    *table, directory = asked.out.splitlines()
    assert Path(directory).is_dir()
    assert f"{asked.value('perplexity', length=64):.4f}" in "".join(table)
    assert "context" not in asked.err.partition("Scored targets")[0]


def test_perplexity_equals_a_loop_over_the_targets(roundround: Callable[..., Done], run: Path) -> None:
    """Every token of the stream but the first, predicted from its own window alone; ends of documents are apart."""
    from roundround.config.build import build
    from roundround.data.corpora import Corpus
    from roundround.data.prepared import default_cache_dir, prepare
    from roundround.data.tokenizers import TokenizerRecipe
    from roundround.trained.models import build_decoder

    done = evaluated(roundround, run, LENGTHS)
    config = OmegaConf.create(json.loads((run / "run.json").read_text())["config"])
    data = prepare(build(config.data, Corpus), build(config.tokenizer, TokenizerRecipe), default_cache_dir())
    decoder = build_decoder(config.model, config.pe, config.softmax, data.n_vocab)
    decoder.load_state_dict(saved_weights(run, "best"))
    stream = torch.from_numpy(np.asarray(data.held_out).astype("int64"))
    for length in (16, 32, 64):
        nats: dict[int, float] = {}
        for start in [*range(0, len(stream) - 1 - length, length), len(stream) - 1 - length]:
            window = stream[start : start + length + 1]
            with torch.no_grad():
                logits = decoder(window[None, :-1])[0]
            losses = F.cross_entropy(logits, window[1:], reduction="none").tolist()
            nats = {start + 1 + i: loss for i, loss in enumerate(losses)} | nats  # of two the earlier window's
        assert len(nats) == len(stream) - 1
        of_text = [loss for place, loss in nats.items() if stream[place] != data.end_of_document]
        assert done.value("perplexity", length=length) == pytest.approx(math.exp(sum(of_text) / len(of_text)), rel=1e-5)
        with_joints = math.exp(sum(nats.values()) / len(nats))
        assert done.value("perplexity_with_joints", length=length) == pytest.approx(with_joints, rel=1e-5)
        assert done.value("scored_targets", length=length) == len(of_text) < len(nats)


def test_last_is_the_latest_finished_training_run(
    roundround: Callable[..., Done], train: Callable[..., Done], run: Path
) -> None:
    newer = train("trainer.max_steps=1").directory
    failed = train("trainer.max_steps=1").directory
    manifest = json.loads((failed / "run.json").read_text())
    (failed / "run.json").write_text(json.dumps(manifest | {"status": "interrupted"}))
    assert evaluated(roundround, "last", "length=32").manifest["run"] == str(newer)
    assert evaluated(roundround, run, "length=32").manifest["run"] == str(run)


def test_loss_by_position_averages_to_the_loss(roundround: Callable[..., Done], run: Path) -> None:
    done = evaluated(roundround, run, LENGTHS)
    by_position = json.loads((done.directory / "loss_by_position.json").read_text())
    for length in (16, 32, 64):
        curve = by_position[str(length)]
        assert len(curve) == length
        total = [r for r in done.results if r["metric"] == "nats_per_token" and r["length"] == length]
        (whole,) = [r["value"] for r in total if "first_position" not in r]
        bins = [r for r in total if "first_position" in r]
        n_targets = sum(r["targets"] for r in bins)
        assert whole == pytest.approx(sum(r["value"] * r["targets"] for r in bins) / n_targets)
        assert all(r["targets"] >= 100 for r in bins)
        assert [bins[0]["first_position"], bins[-1]["last_position"]] == [0, length - 1]


def test_best_is_the_checkpoint_of_the_lowest_held_out_loss(roundround: Callable[..., Done], run: Path) -> None:
    steps = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "held_out_nats_per_token" in row:
            steps[row["step"]] = row["held_out_nats_per_token"]
    best = min(steps, key=steps.__getitem__)
    assert (run / "checkpoints" / "best").resolve().name == f"step-{best:08d}"
    done = evaluated(roundround, run, "length=32", "max_tokens=256")
    assert math.log(done.value("perplexity_with_joints", length=32)) == pytest.approx(steps[best], rel=1e-5)


def test_sliding_windows_score_the_same_targets_elsewhere_in_the_window(
    roundround: Callable[..., Done], run: Path
) -> None:
    apart, sliding = (evaluated(roundround, run, "length=32", f"stride={stride}") for stride in (32, 8))
    assert sliding.value("scored_targets") == apart.value("scored_targets")
    early = [json.loads((run.directory / "loss_by_position.json").read_text())["32"][0] for run in (apart, sliding)]
    assert early[0] != early[1]  # a mean over many windows, and the first target of the first


def test_a_whole_text_can_be_scored(roundround: Callable[..., Done], run: Path, corpus: Path) -> None:
    done = evaluated(roundround, run, "length=32,48", "data=text", f"data.path={corpus}", "data.held_out=1")
    n_targets = len(held_out_stream(corpus, 1)[1:].replace(b"\0", b""))
    assert done.value("scored_targets", length=48) == done.value("scored_targets", length=32) == n_targets


def test_an_encoding_is_replaced_at_inference(roundround: Callable[..., Done], run: Path) -> None:
    own = evaluated(roundround, run, "length=32")
    nope = evaluated(roundround, run, "length=32", "pe=nope")
    assert nope.manifest["choices"]["pe"] == "nope"
    assert own.value("perplexity", pe="rope") != nope.value("perplexity", pe="nope")


def test_a_parameter_that_the_checkpoint_lacks_is_named(roundround: Callable[..., Done], run: Path) -> None:
    done = roundround("eval", f"run={run}", "logger=none", "length=32", "pe=t5_bias")
    assert done.code == 2
    assert "encodings.0." in done.err


def test_a_learned_encoding_says_how_many_positions_it_has(
    roundround: Callable[..., Done], train: Callable[..., Done]
) -> None:
    run = train("pe=learned").directory
    assert evaluated(roundround, run, "length=16,32").code == 0
    done = roundround("eval", f"run={run}", "logger=none", LENGTHS)
    assert done.code == 2
    assert "32 positions" in done.err
    assert "length=64" in done.err
    assert len(done.err.splitlines()) == 1


def test_other_text_is_scored_in_the_runs_own_tokens(roundround: Callable[..., Done], run: Path, corpus: Path) -> None:
    other = Path("other.txt")
    other.write_text(corpus.read_text().replace("fox", "owl"))
    done = evaluated(roundround, run, "length=32", "data=text", f"data.path={other}")
    assert (
        done.manifest["data"]["tokenizer_hash"] == json.loads((run / "run.json").read_text())["data"]["tokenizer_hash"]
    )
    assert "not the corpus" in done.err


def test_a_run_from_elsewhere_cannot_name_foreign_code(roundround: Callable[..., Done], run: Path) -> None:
    manifest = json.loads((run / "run.json").read_text())
    manifest["config"]["pe"]["_target_"] = "os.system"
    (run / "run.json").write_text(json.dumps(manifest))
    done = roundround("eval", f"run={run}", "logger=none", "length=32")
    assert done.code == 2
    assert "trust=true" in done.err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["run=nowhere"], "nowhere is not a run directory"),
        (["checkpoint=bets"], "did you mean 'best'"),
        (["length=1000000"], "tokens"),
        (["stride=33"], "stride=33 must be from 1 to the smallest length, 32"),
        (["bos=true"], "bos=true is for a pretrained model="),
        (["device=gpu7"], "device=gpu7"),
    ],
)
def test_a_mistake_costs_one_line(roundround: Callable[..., Done], run: Path, args: list[str], part: str) -> None:
    done = roundround("eval", f"run={run}", "logger=none", "length=32", *args)
    assert done.code == 2, done
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert part in done.err
