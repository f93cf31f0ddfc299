"""`pe=rope_random` is measured at drawn positions, whatever the batch, the process or the verb."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import typed

from roundround.data.tasks.base import Example, Examples, distinct
from roundround.data.tasks.batches import same_length_batches
from roundround.model.decoder import Decoder
from roundround.model.scoring import score_answers
from roundround.trained.models import TrainedRun

CPU = torch.device("cpu")
TINY = [
    *(
        "logger=none",
        "pe=rope_random",
        "pe.max_position=48",
        "data=copy",
        "data.n_symbols=8",
        "data.train_lengths=[1,3]",
    ),
    *("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.n_key_heads=1", "model.d_mlp=24"),
    *("trainer.accelerator=cpu", "trainer.devices=1", "trainer.log_every_n_steps=10", "data.validation_examples=64"),
    *("trainer.max_steps=160", "validate_every=80", "checkpoint_every=80", "optim.lr=0.02", "schedule.warmup_steps=5"),
    "batch_size=32",
]

CONSECUTIVE = ("pe=rope_random", "pe.max_position=48", "pe.positions=consecutive")


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("learnt"))
        done = typed("train", *TINY)
        assert done.code == 0, done.err
        return done.directory.absolute()


@pytest.fixture(scope="module")
def decoder(learnt: Path) -> Decoder:
    return TrainedRun(learnt, trust=False).decoder("last")


def asked(learnt: Path, n: int, split: str = "test") -> list[tuple[Example, int]]:
    task = TrainedRun(learnt, trust=False).task()
    assert task is not None
    examples = Examples(task, seed=0, split=split)
    return distinct(examples[i] for i in range(n))


@torch.no_grad()
def test_an_example_counts_as_the_mean_of_what_greedy_decoding_writes_at_its_five_draws(
    decoder: Decoder, learnt: Path
) -> None:
    shares = []
    for example, _ in asked(learnt, 24, "train"):
        tokens, scored = example.tokens, example.scored
        draws = decoder.encoding.draws(torch.from_numpy(tokens[None, :-1]))
        right = []
        for draw in draws:
            pos_1T = decoder.encoding.positions(torch.arange(len(tokens) - 1)[None], draw)
            written: list[int] = []
            for token, is_answer in zip(tokens.tolist(), scored, strict=True):
                if is_answer:
                    x = decoder.hidden(torch.tensor([written]), pos_BT=pos_1T[:, : len(written)])
                    token = int(decoder.unembed(x)[0, -1].argmax())
                written.append(token)
            right.append(written == tokens.tolist())
        shares.append(np.mean(right))
        one = score_answers(decoder, same_length_batches([(example, 1)], 64), device=CPU)
        assert one["exact"] == pytest.approx(shares[-1])
    assert any(0 < share < 1 for share in shares), "some are right at some of their draws"


@torch.no_grad()
def test_the_loss_outside_training_is_the_mean_over_five_draws(decoder: Decoder) -> None:
    rng = torch.Generator().manual_seed(0)
    tokens_BT, targets_BT = (torch.randint(4, 12, (3, 7), generator=rng) for _ in range(2))
    draws = decoder.encoding.draws(tokens_BT)
    each = torch.stack([decoder(tokens_BT, targets_BT=targets_BT, step=draw) for draw in draws])
    assert len(draws) == 5
    assert float(each.std(0).max()) > 1e-3, "draws differ"
    torch.testing.assert_close(decoder(tokens_BT, targets_BT=targets_BT), each.mean(0))
    alone = decoder(tokens_BT[1:2], targets_BT=targets_BT[1:2])
    torch.testing.assert_close(alone, each.mean(0)[1:2], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("here")
def test_eval_and_validation_draw_and_consecutive_positions_are_another_number(learnt: Path) -> None:
    words = ["eval", f"run={learnt}", "logger=none", "length=3", "examples=32", "checkpoint=best"]
    drawn, small = typed(*words), typed(*words, "batch_tokens=16")
    assert drawn.code == 0, drawn.err
    assert "the mean over five draws of its positions" in drawn.err
    for metric in ("exact_match", "nats_per_token"):
        assert small.value(metric, length=3) == pytest.approx(drawn.value(metric, length=3), rel=1e-5)
    consecutive = typed(*words, *CONSECUTIVE)
    assert consecutive.code == 0, consecutive.err
    assert "draws of its positions" not in consecutive.err
    assert abs(consecutive.value("nats_per_token", length=3) - drawn.value("nats_per_token", length=3)) > 1e-4
    records = {r["metric"]: r["value"] for r in json.loads((learnt / "results.json").read_text())}
    best = TrainedRun(learnt, trust=False).decoder("best")
    measured = score_answers(best, same_length_batches(asked(learnt, 64, "validation"), 512), device=CPU).values()
    assert measured["nats_per_token"] == pytest.approx(records["nats_per_token"], rel=1e-5)


def test_text_is_read_at_drawn_positions_up_to_the_range(here: Path) -> None:
    Path("t.txt").write_text(
        "\n\n".join(" ".join(["a", "bb", "ccc"][(i * j) % 3] for j in range(40)) for i in range(40))
    )
    words = [word for word in TINY if not word.startswith(("data", "validate_every", "trainer.max_steps"))]
    words += ["text=t.txt", "tokenizer=bytes", "model.train_length=32", "trainer.max_steps=2", "validation_tokens=320"]
    done = typed("train", *words)
    assert done.code == 0, done.err
    scored = typed("eval", f"run={done.directory}", "logger=none", "length=32,48", "max_tokens=320")
    assert scored.code == 0, scored.err
    assert "the mean over five draws of positions" in scored.err
    for verb in (["eval"], ["probe"], ["probe", "ablate=highest:0.5"]):
        refused = typed(*verb, f"run={done.directory}", "logger=none", "length=49", "max_tokens=320")
        assert refused.code == 2
        assert re.search(r"has 48 positions,? and .*49", refused.err)
