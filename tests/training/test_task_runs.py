"""`roundround train data=copy` and its evaluation: what counts is counted, and one pass tells what generation would."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import metrics_of, saved_weights, shell, typed
from rounding import rounding
from scipy import stats

from roundround.analysis.intervals import wilson
from roundround.asking.generation import decoder_writer, score_written
from roundround.data.batches import Shares
from roundround.data.tasks.base import BOS, EOS, Example, Examples, distinct
from roundround.data.tasks.batches import AskedBatch, TrainingExamples, padded, same_length_batches
from roundround.data.tasks.copying import Copy
from roundround.model.decoder import Decoder
from roundround.model.scoring import AnswerScores, score_answers
from roundround.report.evaluation import intervals
from roundround.report.evaluation import values_of_task as values
from roundround.trained.models import TrainedRun
from roundround.training.material import TaskMaterial, left_plateau, unread_loss
from roundround.verbs.eval.questions import AskedModel, measure_task, summed

TINY = [
    *("logger=none", "pe=nope", "data=copy", "data.n_symbols=8", "data.train_lengths=[1,2]", "batch_size=32"),
    *("model.d_model=16", "model.n_layers=2", "model.n_heads=2", "model.n_key_heads=1", "model.d_mlp=24"),
    *("trainer.accelerator=cpu", "trainer.devices=1", "trainer.log_every_n_steps=10", "data.validation_examples=64"),
    *("trainer.max_steps=120", "validate_every=60", "checkpoint_every=60", "optim.lr=0.02", "schedule.warmup_steps=5"),
]
TASK = Copy(n_symbols=8, train_lengths=[1, 9], train_examples=None, validation_examples=64)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that copies up to two symbols, some of them rightly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("learnt"))
        done = typed("train", *TINY)
        assert done.code == 0, done.err
        return done.directory.absolute()


@pytest.fixture(scope="module")
def learnt_bits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of flip-flop, whose answers stand between the questions."""
    words = [word for word in TINY if not word.startswith("data")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("learnt_bits"))
        done = typed("train", *words, "data=flip_flop", "data.p_read=0.3", "data.train_lengths=[8,16]")
        assert done.code == 0, done.err
        return done.directory.absolute()


@pytest.fixture(scope="module")
def decoder(learnt: Path) -> Decoder:
    return TrainedRun(learnt, trust=False).decoder("last")


def drawn(run: Path, split: str, n: int) -> list[Example]:
    task = TrainedRun(run, trust=False).task()
    assert task is not None
    examples = Examples(task, seed=0, split=split)
    return [examples[i] for i in range(n)]


# -- batches


def test_a_batch_is_the_same_however_it_is_spread() -> None:
    def part(rank: int, world_size: int, n_micro: int, index: int) -> tuple[torch.Tensor, ...]:
        shares = Shares(
            batch_size=8, n_steps=2, first_step=5, n_micro_batches=n_micro, rank=rank, world_size=world_size
        )
        return TrainingExamples(TASK, shares, seed=3)[index]

    def rows(batch: tuple[torch.Tensor, ...]) -> list[list[int]]:
        tokens, targets, scored, _ = batch
        return [targets[row][scored[row]].tolist() for row in range(len(tokens))]

    whole = rows(part(0, 1, 1, 1))
    spread = [row for rank in (0, 1) for micro in (0, 1) for row in rows(part(rank, 2, 2, 2 + micro))]
    assert spread == whole
    shares = [float(part(rank, 2, 2, 2 + micro)[3]) for rank in (0, 1) for micro in (0, 1)]
    assert np.mean(shares) == pytest.approx(1)
    assert len(set(shares)) > 1  # the parts hold different numbers of scored targets


def test_the_mean_over_parts_is_the_mean_over_all_scored_targets(decoder: Decoder, learnt: Path) -> None:
    examples = drawn(learnt, "train", 16)
    whole = padded(examples)
    loss_BT = decoder(whole.tokens, targets_BT=whole.targets, scored_BT=whole.scored)
    n = int(whole.scored.sum())
    parts = [examples[:4], examples[4:8], examples[8:12], examples[12:]]
    total = torch.zeros(())
    for part in parts:
        share = len(parts) * sum(int(e.scored.sum()) for e in part) / n
        batch = padded(part, share=share)
        loss = decoder(batch.tokens, targets_BT=batch.targets, scored_BT=batch.scored)
        total = total + loss.sum() / batch.scored.sum() * batch.share / len(parts)
    torch.testing.assert_close(total, loss_BT.sum() / n)
    dense = decoder(whole.tokens, targets_BT=whole.targets)  # of every target, scored or not
    torch.testing.assert_close(loss_BT[whole.scored], dense[whole.scored])


def test_padding_changes_nothing(decoder: Decoder, learnt: Path) -> None:
    examples = drawn(learnt, "train", 16)
    narrow, wide = padded(examples), padded(examples, width=40)
    assert wide.tokens.shape[1] == 39
    losses = [
        decoder(batch.tokens, targets_BT=batch.targets, scored_BT=batch.scored)[batch.scored]
        for batch in (narrow, wide)
    ]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    times = distinct(examples)
    alone = score_answers(decoder, same_length_batches(times, 64), device=torch.device("cpu"))
    whole = padded([example for example, _ in times], width=40)
    asked = AskedBatch(*whole[:3], torch.zeros_like(whole.scored), torch.tensor([n for _, n in times]))
    together = score_answers(decoder, [asked], device=torch.device("cpu"))
    assert alone["exact"] == together["exact"]
    assert alone["nats"] == pytest.approx(together["nats"], rel=1e-5)


def test_a_finite_set_is_gone_through_again_and_again() -> None:
    task = Copy(n_symbols=8, train_lengths=[4, 4], train_examples=12, validation_examples=1)
    batches = TrainingExamples(task, Shares(batch_size=8, n_steps=6), seed=1)
    seen = [tuple(row.tolist()) for step in range(6) for row in batches[step].tokens]
    assert all(sorted(seen[first : first + 12]) == sorted(seen[:12]) for first in (0, 12, 24, 36))
    assert seen[:12] != seen[12:24]
    again = TrainingExamples(task, Shares(batch_size=8, n_steps=2, first_step=4), seed=1)
    assert again[0].tokens.tolist() == batches[4].tokens.tolist()


# -- scores


@torch.no_grad()
@pytest.mark.parametrize("run", ["learnt", "learnt_bits"])
def test_one_forward_pass_tells_what_greedy_decoding_would_write(run: str, request: pytest.FixtureRequest) -> None:
    directory = request.getfixturevalue(run)
    decoder, right = TrainedRun(directory, trust=False).decoder("last"), []
    for example in drawn(directory, "train", 48):
        tokens, scored = example.tokens, example.scored
        written: list[int] = []
        for token, is_answer in zip(tokens.tolist(), scored, strict=True):
            written.append(int(decoder(torch.tensor([written]))[0, -1].argmax()) if is_answer else token)
        right.append(written == tokens.tolist())
        one = score_answers(decoder, same_length_batches([(example, 1)], 64), device=torch.device("cpu"))
        assert one["exact"] == right[-1]
    assert 0 < sum(right) < len(right)  # both kinds have been seen


def test_scores_add_up_over_processes(decoder: Decoder, learnt: Path) -> None:
    examples = distinct(drawn(learnt, "test", 30))
    whole, *halves = (
        score_answers(decoder, same_length_batches(part, 64), device=torch.device("cpu"))
        for part in (examples, examples[::2], examples[1::2])
    )
    summed = AnswerScores(halves[0].sums + halves[1].sums)
    assert values(summed) == pytest.approx(values(whole))
    assert (summed.n_examples, summed.n_distinct) == (30, len(examples))
    for name, between in intervals(whole).items():
        assert intervals(summed)[name] == pytest.approx(between)


# -- runs


def test_a_run_says_what_was_measured_and_on_which_examples(learnt: Path) -> None:
    manifest, results = (json.loads((learnt / name).read_text()) for name in ("run.json", "results.json"))
    assert manifest["config"]["tokenizer"] is None
    assert manifest["config"]["model"]["train_length"] == 7  # <bos> x x <sep> x x <eos>
    found = {record["metric"]: record for record in results}
    assert found["exact_match"]["split"] == "validation"
    assert found["exact_match"]["examples"] == 64
    n_distinct = len({example.tokens.tobytes() for example in drawn(learnt, "validation", 64)})
    assert found["exact_match"]["distinct"] == manifest["data"]["distinct_validation_examples"] == n_distinct < 64
    assert 0 < found["exact_match"]["value"] < 1
    best = max(line["held_out_exact_match"] for line in metrics_of(learnt) if "held_out_exact_match" in line)
    assert found["exact_match"]["value"] == best
    assert json.loads((learnt / "tokenizer.json").read_text())["model"]["vocab"]["<sep>"] == 1


def test_an_evaluation_scores_each_length_of_the_task(learnt: Path, here: Path) -> None:
    done = typed("eval", f"run={learnt}", "logger=none", "length=2,6", "examples=40", "dispersion=true")
    assert done.code == 0, done.err
    record = next(r for r in done.results if r["metric"] == "exact_match" and r["length"] == 6)
    assert (record["context"], record["examples"], record["data"]) == (15, 40, "copy")
    of_two = next(r for r in done.results if r["metric"] == "exact_match" and r["length"] == 2)
    assert of_two["distinct"] < record["distinct"] == 40  # of 64 strings of two symbols an eighth is in the test
    low, high = wilson(of_two["value"] * of_two["distinct"], of_two["distinct"])
    assert of_two["low"] <= low + 0.05
    assert of_two["high"] >= high - 0.05
    assert "distinct" in done.out + done.err
    assert record["low"] <= record["value"] <= record["high"]
    assert done.value("error_rate", length=2) == pytest.approx(1 - done.value("token_accuracy", length=2))
    assert {r["length"] for r in done.results if r["metric"] == "entropy"} == {2, 6}
    again = typed("eval", f"run={learnt}", "logger=none", "length=2", "examples=40")
    assert again.value("exact_match", length=2) == done.value("exact_match", length=2)


def test_what_is_written_is_scored_as_one_forward_pass_tells(learnt: Path, here: Path) -> None:
    """Of a task whose answer is all that follows: the same examples are right."""
    trained, cpu = TrainedRun(learnt, trust=False), torch.device("cpu")
    task, decoder = trained.task(), trained.decoder("last")
    assert task is not None
    writer, right = decoder_writer(trained, decoder), []
    for example in drawn(learnt, "train", 48):
        written = score_written(writer, task, [(example, 1)])
        forced = score_answers(decoder, same_length_batches([(example, 1)], 64), device=cpu)
        assert written["exact"] == written["hits"] == forced["exact"]
        right.append(written["exact"])
    assert 0 < sum(right) < len(right), "both kinds have been seen"
    done = typed("eval", f"run={learnt}", "logger=none", "length=1,2", "examples=20", "by=generation")
    assert done.code == 0, done.err
    assert {record["metric"] for record in done.results} == {"exact_match", "string_match"}
    assert {record["by"] for record in done.results} == {"generation"}
    assert "Scored on the text that the model writes" in done.err


def test_processes_share_the_distinct_examples(learnt: Path) -> None:
    trained = TrainedRun(learnt, trust=False)
    task = trained.task()
    assert task is not None
    config: Any = SimpleNamespace(examples=40, batch_tokens=64, dispersion=False, by="forcing")
    lengths = {length: task.context(length) for length in (1, 2)}
    decoder, device = trained.decoder("last"), torch.device("cpu")
    subject = AskedModel(model=decoder, device=device, choices={}, context=2, trained=trained)
    sums = []
    for rank, n in ((0, 1), (0, 2), (1, 2)):
        peers: Any = SimpleNamespace(rank=rank, n=n, gather=lambda value: [value])
        by_part, _, _ = measure_task(config, task, subject, lengths, peers)
        sums.append({length: summed(parts.values()).sums for length, parts in by_part.items()})
    whole, first, second = sums
    for length in lengths:
        torch.testing.assert_close(first[length] + second[length], whole[length], rtol=1e-6, atol=1e-9)
        assert AnswerScores(whole[length]).n_distinct < 40


def test_the_lengths_in_training_are_those_of_the_run_and_not_of_a_task_in_its_place(learnt: Path, here: Path) -> None:
    other = ["data=copy", "data.n_symbols=8", "data.train_lengths=[3,5]"]
    done = typed("eval", f"run={learnt}", "logger=none", "examples=4", *other)
    assert done.code == 0, done.err
    assert "Lengths in training: 1 to 2" in done.err
    assert done.manifest["config"]["length"] == [2, 4, 8]


def test_without_lengths_it_scores_once_twice_and_four_times_the_longest_in_training(learnt: Path, here: Path) -> None:
    done = typed("eval", f"run={learnt}", "logger=none", "examples=4")
    assert {r["length"] for r in done.results} == {2, 4, 8}
    assert done.manifest["config"]["length"] == [2, 4, 8]


def test_a_stopped_run_goes_on_bit_for_bit(learnt: Path, here: Path) -> None:
    first = typed("train", *TINY)
    copy = here / "stopped"
    shutil.copytree(first.directory, copy, symlinks=True)
    for folder in [path for path in (copy / "checkpoints").iterdir() if not path.is_symlink()]:
        if json.loads((folder / "state.json").read_text())["step"] == 120:
            shutil.rmtree(folder)
    on = typed("train", f"resume={copy}", "logger=none")
    assert on.code == 0, on.err
    assert "resuming after step 60" in on.err
    assert on.results == [r | {"run": str(on.directory)} for r in json.loads((learnt / "results.json").read_text())]


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with RoPE that copies two symbols, some of them rightly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("rotated"))
        done = typed("train", *[word for word in TINY if word != "pe=nope"], "pe=rope", "data.train_lengths=[2,2]")
        assert done.code == 0, done.err
        return done.directory.absolute()


@torch.no_grad()
@pytest.mark.usefixtures("checked_here")
def test_an_exported_model_writes_what_greedy_decoding_here_does(rotated: Path, here: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = typed("export", f"run={rotated}", "to=folder", "logger=none", "checkpoint=last")
    assert done.code == 0, done.err
    tokenizer, model = AutoTokenizer.from_pretrained("folder"), AutoModelForCausalLM.from_pretrained("folder")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<eos>")
    assert (model.config.bos_token_id, model.config.eos_token_id) == (BOS, EOS)
    decoder, right = TrainedRun(rotated, trust=False).decoder("last"), []
    for tokens, scored, *_ in drawn(rotated, "train", 12):
        ours = tokens[: int(scored.argmax())].tolist()
        asked = tokenizer(tokenizer.decode(ours), return_tensors="pt")
        while len(ours) < len(tokens) and ours[-1] != EOS:
            ours.append(int(decoder(torch.tensor([ours]))[0, -1].argmax()))
        theirs = model.generate(**asked, max_new_tokens=int(scored.sum()))[0].tolist()
        assert theirs == ours
        right.append(theirs == tokens.tolist())
    assert any(right)
    card = (here / "folder" / "README.md").read_text()
    assert "training tokens" not in card
    assert "perplexity" not in card
    assert "| task | `copy (n_symbols=8, train_lengths=[2, 2], validation_examples=64)` |" in card
    (last,) = [line for line in metrics_of(rotated) if line["step"] == 120 and "held_out_exact_match" in line]
    assert f"| exact match on validation examples | {last['held_out_exact_match']:.3f} (token accuracy" in card


def test_a_learned_encoding_has_no_positions_beyond_training(here: Path) -> None:
    done = typed("train", *[word for word in TINY if word != "pe=nope"], "pe=learned", "trainer.max_steps=2")
    assert done.code == 0, done.err
    refused = typed("eval", f"run={done.directory}", "logger=none", "length=9")
    assert refused.code == 2
    assert "pe=learned has 7 positions and length=9 (21 tokens) asks for more" in refused.err


# -- the plateau


def test_the_loss_of_an_answer_that_reads_nothing_is_the_entropy_of_the_targets() -> None:
    examples = [Example(np.array([0, 5, 5, 6]), np.array([False, True, True, True])) for _ in range(3)]
    assert unread_loss(examples) == pytest.approx(stats.entropy([2, 1]))


def test_training_leaves_the_plateau_below_the_bound() -> None:
    curve = [{"step": step, "nats_per_token": loss} for step, loss in ((10, 2.0), (20, 1.1), (30, 0.9), (40, 0.2))]
    assert left_plateau(curve, 1.0) == 30
    assert left_plateau(curve[:2], 1.0) is None


@pytest.mark.slow
def test_two_processes_learn_a_task_as_one_does(here: Path) -> None:
    steady = [*TINY, "trainer.max_steps=6", "validate_every=3", "trainer.log_every_n_steps=1", "optim.eps=1e-3"]
    both = shell("train", *steady, "trainer.devices=2", "trainer.strategy=ddp", cwd=here)
    assert both.code == 0, both.err
    alone = typed("train", *steady)
    a, b = (saved_weights(run.directory) for run in (alone, both))
    steps = 6 * 3 * rounding(256, 0.1)  # of lr / eps = 3, with gradients of 0.1: sums over the tokens of a batch
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=steps)
    for x, y in zip(metrics_of(alone.directory), metrics_of(both.directory), strict=True):
        for name in ("loss", "held_out_nats_per_token", "held_out_exact_match", "held_out_token_accuracy"):
            assert x.get(name, 0) == pytest.approx(y.get(name, 0), rel=1e-5)


def test_recall_is_scored_by_distance_and_names_the_quarter_turn_of_a_model_that_rotates_all_pairs(here: Path) -> None:
    words = [word for word in TINY if not word.startswith(("data", "pe=", "trainer.max_steps"))]
    words += ["data=recall", "data.distances=[4,40]", "data.train_lengths=[18,24]", "trainer.max_steps=1", "pe=p_rope"]
    quarter = round(2 * np.pi * 1000 ** (3 / 4)) / 4  # of the slowest of four pairs
    for p, turns in ((1, [quarter]), (0.5, [])):
        run = typed("train", *words, "model.head_dim=8", f"pe.p={p}", "pe.theta=1000").directory
        done = typed("eval", f"run={run}", "length=24,64", "examples=8", "logger=none", "device=cpu")
        found = json.loads((done.directory / "results.json").read_text())
        by_distance = [(r["length"], r["distance"]) for r in found if r["metric"] == "exact_match" and "distance" in r]
        assert by_distance == [(24, 4), (64, 4), (64, 40)]
        assert "exact match by distance" in done.err
        assert [r["value"] for r in found if r["metric"] == "quarter_turn"] == 2 * turns  # at each length
    table = typed("compare", str(here / "outputs"), "verb=eval", "metric=exact_match,quarter_turn", "length=64")
    assert (table.directory / "figures" / "eval_exact_match_by_distance.svg").exists()


def test_a_loss_that_is_not_finite_is_never_the_best() -> None:
    first, odd = {"nats_per_token": math.inf}, {"exact_match": 0.0, "nats_per_token": math.nan}
    some = {"exact_match": 0.0, "nats_per_token": 2.0}
    is_better = TaskMaterial.is_better
    none: Any = None
    assert not is_better(none, odd, first)
    assert is_better(none, some, first)
    assert is_better(none, some | {"nats_per_token": 1.0}, some)


# -- a run that is started again by its own words


def test_a_sweep_that_is_typed_again_keeps_what_is_done_and_one_typed_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context and the tokenizer were settled by the task when the runs began, and are not in the words."""
    monkeypatch.chdir(tmp_path)
    short = ["trainer.max_steps=4", "validate_every=4", "checkpoint_every=4", "model=tiny"]
    words = ["train", "-m", *(word for word in TINY if not word.startswith("optim")), *short, "seed=1,2"]
    words += ["hydra.sweep.dir=sweep"]
    assert typed(*words, "optim.lr=1e-2").code == 0
    before = [json.loads((tmp_path / f"sweep/{job}/run.json").read_text()) for job in "01"]
    shutil.rmtree(tmp_path / "sweep/1")
    again = typed(*words, "optim.lr=1e-2")
    assert again.code == 0, again.err
    after = [json.loads((tmp_path / f"sweep/{job}/run.json").read_text()) for job in "01"]
    assert after[1]["config"] == before[1]["config"]
    assert after[0] == before[0]  # it was done, and is not touched
    assert "finished before, and kept" in again.err
    looks = ["eval", "run=sweep", "length=2", "examples=8", "logger=none", "device=cpu", "hydra.sweep.dir=looks"]
    assert typed(*looks).code == 0
    look = (tmp_path / "looks/1/run.json").read_text()
    shutil.rmtree(tmp_path / "looks/0")
    repeated = typed(*looks)
    assert repeated.code == 0, repeated.err
    assert (tmp_path / "looks/1/run.json").read_text() == look
    assert (tmp_path / "looks/0/results.json").exists()
    otherwise = typed(*words, "optim=muon")
    assert otherwise.code == 2
    assert "holds a run that was started with these settings: " in otherwise.err


def test_a_job_that_slurm_puts_back_into_the_queue_resumes_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", *TINY, "trainer.max_steps=4", "validate_every=4", "checkpoint_every=4"]
    words += ["experiment=length/reverse", "hydra.mode=RUN"]
    for name, value in {"SLURM_JOB_ID": "4711", "SLURM_CLUSTER_NAME": "big"}.items():
        monkeypatch.setenv(name, value)
    first = typed(*words)
    assert first.code == 0, first.err
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    manifest = first.directory / "run.json"
    manifest.write_text(manifest.read_text().replace('"status": "done"', '"status": "interrupted"'))
    second = typed(*words)
    assert second.code == 0, second.err
    assert second.directory == first.directory
    assert "resuming after step 4" in second.err + second.out
