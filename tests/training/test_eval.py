"""`roundround eval`: a run rebuilds itself, and its numbers at different lengths compare."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import Done
from omegaconf import OmegaConf
from safetensors.torch import load_file

LENGTHS = "length=16,32,64"


@pytest.fixture
def run(train: Callable[..., Done]) -> Path:
    done = train("trainer.max_steps=20", "optim.lr=0.02")
    assert done.code == 0, done.err
    return done.directory


def evaluated(roundround: Callable[..., Done], run: Path | str, *args: str) -> Done:
    done = roundround("eval", f"run={run}", "logger=none", *args)
    assert done.code == 0, done.err
    return done


def test_perplexity_equals_a_loop_over_the_targets(roundround: Callable[..., Done], run: Path) -> None:
    """Every target of the stream, cut to a multiple of the longest, predicted from its own window alone."""
    from roundround.config.build import build
    from roundround.config.models import build_decoder
    from roundround.data.corpora import Corpus
    from roundround.data.tokenizers import TokenizerRecipe
    from roundround.data.tokens import default_cache_dir, prepare

    done = evaluated(roundround, run, LENGTHS)
    config = OmegaConf.create(json.loads((run / "run.json").read_text())["config"])
    data = prepare(build(config.data, Corpus), build(config.tokenizer, TokenizerRecipe), default_cache_dir())
    decoder = build_decoder(config.model, config.pe, config.softmax, data.n_vocab)
    decoder.load_state_dict(load_file(run / "checkpoints" / "best" / "model.safetensors"))
    stream = torch.from_numpy(data.held_out.astype("int64"))
    n_targets = (len(stream) - 1) // 64 * 64
    for length in (16, 32, 64):
        nats = []
        for start in range(0, n_targets, length):
            window = stream[start : start + length + 1]
            with torch.no_grad():
                logits = decoder(window[None, :-1])[0]
            nats += F.cross_entropy(logits, window[1:], reduction="none").tolist()
        assert len(nats) == n_targets
        assert done.value("perplexity", length=length) == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-5)


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
        whole = [r["value"] for r in total if "first_position" not in r]
        assert whole == [pytest.approx(sum(curve) / length)]
        bins = [r for r in total if "first_position" in r]
        assert [bins[0]["first_position"], bins[-1]["last_position"]] == [0, length - 1]


def test_the_figure_is_drawn(roundround: Callable[..., Done], run: Path) -> None:
    done = evaluated(roundround, run, LENGTHS)
    assert (done.directory / "figures" / "perplexity.pdf").stat().st_size > 1000
    assert "training context length" in (done.directory / "figures" / "perplexity.svg").read_text()


def test_best_is_the_checkpoint_of_the_lowest_held_out_loss(roundround: Callable[..., Done], run: Path) -> None:
    steps = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "held_out_nats_per_token" in row:
            steps[row["step"]] = row["held_out_nats_per_token"]
    best = min(steps, key=steps.__getitem__)
    assert (run / "checkpoints" / "best").resolve().name == f"step-{best:08d}"
    done = evaluated(roundround, run, "length=32", "max_tokens=256")
    assert done.value("nats_per_token", length=32, first_position=None) == pytest.approx(steps[best], rel=1e-5)


def test_an_encoding_is_replaced_at_inference(roundround: Callable[..., Done], run: Path) -> None:
    own = evaluated(roundround, run, "length=32")
    nope = evaluated(roundround, run, "length=32", "pe=nope")
    assert nope.manifest["choices"]["pe"] == "nope"
    assert own.value("perplexity", pe="p_rope") != nope.value("perplexity", pe="nope")


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
        (["length=[]"], "length is empty"),
        (["length=0"], "length=0"),
        (["length=1000000"], "tokens"),
        (["length=16,x"], "x"),
        (["device=gpu7"], "device=gpu7"),
        (["max_tokens=5"], "max_tokens"),
    ],
)
def test_a_mistake_costs_one_line(roundround: Callable[..., Done], run: Path, args: list[str], part: str) -> None:
    done = roundround("eval", f"run={run}", "logger=none", "length=32", *args)
    assert done.code == 2, done
    assert len(done.err.strip().splitlines()) == 1, done.err
    assert part in done.err
