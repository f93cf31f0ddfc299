"""What a device holds, and that nothing larger is begun."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from roundround.distributed import device
from roundround.support.errors import UserError
from roundround.training.preflight import check_batch_fits, check_model_fits, check_window_fits

CPU = torch.device("cpu")
TRAINER = {"accelerator": "cpu", "precision": None}
SIZES = {"n_layers": 2, "d_model": 16, "d_mlp": 32, "train_length": 100}


def test_the_smallest_limit_around_the_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "CGROUPS", tmp_path)
    before = device.memory(CPU)
    assert before == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "memory.max").write_text("max\n")
    assert device.memory(CPU) == before
    (tmp_path / "memory.max").write_text("4096\n")
    assert device.memory(CPU) == 4096


def test_a_refusal_gives_both_numbers_and_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory", lambda device: 16 * 2**30)
    device.check_fits(16 * 2**30, CPU, "it", "give less")
    with pytest.raises(UserError, match=r"^it needs at least 17 GiB and cpu has 16; give less$"):
        device.check_fits(17 * 2**30, CPU, "it", "give less")


@pytest.mark.parametrize(("precision", "n_bytes"), [(None, 1600), ("bf16-mixed", 1600), ("64-true", 3200), (64, 3200)])
def test_a_parameter_takes_four_numbers_in_training(
    precision: object, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = OmegaConf.create({**TRAINER, "precision": precision})
    monkeypatch.setattr(device, "memory", lambda device: n_bytes)
    check_model_fits(100, settings)
    with pytest.raises(UserError, match="training 101 parameters needs"):
        check_model_fits(101, settings)


def test_layers_that_are_computed_again_keep_their_inputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # a window of 100 tokens: 8 bytes a token, the inputs of 2 layers of 16 and one MLP's 16 + 2 x 32 in 2 bytes
    monkeypatch.setattr(device, "memory", lambda device: 100 * (8 + 2 * (2 * 16 + 16 + 2 * 32)) + 8)
    check_batch_fits(1, SIZES, n_shares=1, device=CPU, recomputed=True)
    check_window_fits(SIZES, TRAINER, recomputed=True)
    with pytest.raises(UserError, match="needs at least"):
        check_batch_fits(1, SIZES, n_shares=1, device=CPU)


def test_without_mlps_a_layer_needs_its_input_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # a window of 100 tokens: 8 bytes a token and 2 layers x 16 numbers of 2 bytes, 7,200 bytes
    monkeypatch.setattr(device, "memory", lambda device: 4 * 7_200 + 8 * 4)
    check_batch_fits(4, SIZES | {"d_mlp": 0}, n_shares=1, device=CPU)
    with pytest.raises(UserError, match=r"^batch_size=5 of 100 tokens needs"):
        check_batch_fits(5, SIZES | {"d_mlp": 0}, n_shares=1, device=CPU)


def test_a_share_of_the_batch_has_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    # a window of 100 tokens: 8 bytes a token and 2 layers x 2 x (16 + 32) numbers of 2 bytes, 39,200 bytes
    monkeypatch.setattr(device, "memory", lambda device: 4 * 39_200 + 8 * 8)
    check_batch_fits(8, SIZES, n_shares=2, device=CPU)
    with pytest.raises(
        UserError, match=r"^batch_size=8 of 100 tokens needs .* a larger trainer.accumulate_grad_batches$"
    ):
        check_batch_fits(8, SIZES, n_shares=1, device=CPU)


@pytest.mark.parametrize(
    ("settings", "n_shares"),
    [
        ({"accelerator": "cpu", "devices": 4}, 1),  # in the memory of one machine
        ({"accelerator": "cpu", "devices": 4, "num_nodes": 2}, 2),
        ({"accelerator": "gpu", "devices": 4, "num_nodes": 2}, 8),
        ({"accelerator": "gpu", "devices": "0,2"}, 2),
        ({"accelerator": "gpu", "devices": [0, 1, 2]}, 3),
        ({"accelerator": "gpu", "devices": "auto"}, 5),
    ],
)
def test_of_parameters_that_are_shared_out_each_device_holds_its_share(
    settings: dict[str, object], n_shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    monkeypatch.setattr(device, "memory", lambda device: 1600)
    trainer = OmegaConf.create({**TRAINER, **settings, "strategy": "fsdp2"})
    check_model_fits(100 * n_shares, trainer)
    with pytest.raises(UserError, match=r"parameters.* needs at least"):
        check_model_fits(100 * n_shares + 1, trainer)


def test_a_window_that_fits_nowhere_is_refused_before_anything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory", lambda device: 10**5)
    check_window_fits(SIZES, TRAINER)
    with pytest.raises(UserError, match=r"^one window of 2,000 tokens needs at least .* train on shorter ones"):
        check_window_fits(SIZES | {"train_length": 2000}, TRAINER)


def test_a_limit_on_the_address_space_is_one_on_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, 8192))
    assert device.memory(CPU) == 4096
