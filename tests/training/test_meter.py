"""The numbers that say how well a training run uses its machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import ROOT, Done, metrics_of
from omegaconf import OmegaConf
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import Dataset
from torch.utils.flop_counter import FlopCounterMode

from roundround.kernels import whole_rows
from roundround.trained.models import build_decoder
from roundround.training import bookkeeping as meter
from roundround.training.bookkeeping import Meter, Timed, flops_by_name, training_flops

LENGTH, N_WINDOWS = 96, 2
SIZES = {"d_model": 64, "n_layers": 2, "n_heads": 4, "n_key_heads": 2, "d_mlp": 80, "train_length": LENGTH}


@pytest.mark.parametrize("softmax", ["softmax", "sigmoid", "ssmax"])
@pytest.mark.parametrize(
    "sizes", [{}, {"d_mlp": 0, "tied_embeddings": False}, {"head_dim": 24, "geglu": True}], ids=str
)
@pytest.mark.parametrize("n_scored", [LENGTH, 12])
def test_the_formula_is_what_pytorch_counts(
    softmax: str, sizes: dict[str, Any], n_scored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_rows, "library", lambda: None)  # its products PyTorch does not see
    pe, normaliser = (OmegaConf.load(ROOT / "conf" / path) for path in ("pe/rope.yaml", f"softmax/{softmax}.yaml"))
    model = OmegaConf.merge(OmegaConf.load(ROOT / "conf" / "model" / "tiny.yaml"), SIZES | sizes)
    decoder = build_decoder(model, pe, normaliser, n_vocab=300)
    tokens = torch.randint(300, (N_WINDOWS, LENGTH + 1))
    scored = (torch.arange(LENGTH) < n_scored).expand(N_WINDOWS, -1)
    # of the kernels on a CPU PyTorch counts the one that makes the matrix of logits
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        decoder(tokens[:, :-1], targets_BT=tokens[:, 1:], scored_BT=scored).sum().backward()
    formula = training_flops(decoder, length=LENGTH, scored=n_scored / LENGTH) * N_WINDOWS * LENGTH
    assert formula == pytest.approx(counted.get_total_flops(), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("Tesla T4", 65),
        ("NVIDIA T400", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_a_peak_is_known_by_the_name_of_the_device_or_not_at_all(name: str, teraflops: float | None) -> None:
    assert flops_by_name(name) == (None if teraflops is None else teraflops * 1e12)


class Slow(Dataset[int]):
    """Batches that take a quarter of a second each, on a clock that only they move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(meter.time, "perf_counter", lambda: self.now)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.now += 0.25
        return index


def test_waiting_is_the_share_of_the_time_since_the_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Timed(Slow(monkeypatch))
    found = Meter(batches, flops_per_step=3e9, peak=1e10)
    assert [batches[i] for i in (3, 4)] == [3, 4]
    first = found.numbers(2, 2.0)
    assert (first["waiting_share"], first["mfu"]) == (0.25, 0.3)
    assert first["peak_memory_gb"] > 0.01
    assert batches[5] == 5
    assert found.numbers(1, 1.0)["waiting_share"] == 0.25
    assert "mfu" not in Meter(batches, flops_per_step=3e9, peak=None).numbers(1, 10.0)


def recorded(run: Done) -> list[dict[str, Any]]:
    lines = metrics_of(run.directory)
    return [line for line in lines if "loss" in line]


def test_a_run_records_its_utilisation_memory_and_waiting(train: Callable[..., Done]) -> None:
    done = train("trainer.peak_flops=1e12")
    config = OmegaConf.create(done.manifest["config"])
    decoder = build_decoder(config.model, config.pe, config.softmax, done.manifest["data"]["n_vocab"])
    flops, steps = training_flops(decoder, length=32), recorded(done)
    assert len(steps) == 4
    for line in steps:
        assert line["mfu"] == pytest.approx(flops * line["tokens_per_second"] / 1e12)
        assert 0 < line["waiting_share"] < 1
        assert 0.05 < line["peak_memory_gb"] < 50
    assert f"mfu {steps[-1]['mfu']:.0%}" in done.err


@pytest.mark.parametrize(("threads", "peak", "said"), [(2, 1e15, 1), (1, 1e15, 0), (2, 1.0, 0)])
def test_a_slow_run_with_several_threads_says_once_that_one_may_be_faster(
    train: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, threads: int, peak: float, said: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    done = train(f"trainer.peak_flops={peak}")
    assert done.err.count("0% of the processor is used; if others keep it busy, OMP_NUM_THREADS=1 is faster") == said


def test_of_a_task_only_scored_targets_have_logits(roundround: Callable[..., Done]) -> None:
    sizes = ["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.n_key_heads=1", "model.d_mlp=0"]
    task = ["data=copy", "data.train_lengths=[5,5]", "data.n_symbols=400", "data.validation_examples=8", "batch_size=4"]
    done = roundround("train", *sizes, *task, "trainer.max_steps=1", "trainer.peak_flops=1e12", "logger=none")
    assert done.code == 0, done.err
    (line,) = recorded(done)
    # an example of copy: a beginning, 5 symbols, a separator, 5 symbols and an end, of which the last 6 are targets
    n_vocab, length = done.manifest["data"]["n_vocab"], done.manifest["config"]["model"]["train_length"]
    per_token = 6 * (16 * 16 * 3 + 6 / length * n_vocab * 16 + 2 * 16 * length)
    assert line["mfu"] == pytest.approx(per_token * line["tokens_per_second"] / 1e12)


def test_a_peak_is_measured_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter.timeit, "repeat", lambda *args, **options: [0.1, 0.5, 0.25, 1.0])
    assert meter.peak_flops(torch.device("cpu"), "32-true") == 2 * 512**3 / 0.25  # the fastest but the first
    assert meter.peak_flops(torch.device("cpu"), "32-true", n_devices=2) is None, "two share the cores"


def test_a_step_that_is_faster_than_the_peak_has_no_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Meter(Timed(Slow(monkeypatch)), flops_per_step=4e9, peak=1e9)
    assert "mfu" not in found.numbers(1, 1.0)
    assert found.numbers(1, 8.0)["mfu"] == 0.5
