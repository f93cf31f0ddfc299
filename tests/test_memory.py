"""What a device holds, and that nothing larger is begun."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from roundround.distributed import device
from roundround.support.errors import UserError
from roundround.training.trainer import check_model_fits

CPU = torch.device("cpu")


def plan(n_parameters: int) -> torch.nn.Module:
    return torch.nn.ParameterList([torch.empty(n_parameters, device="meta")])


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


def test_a_limit_on_the_address_space_is_one_on_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, 8192))
    assert device.memory(CPU) == 4096


@pytest.mark.parametrize(("precision", "n_bytes"), [(None, 1600), ("bf16-mixed", 1600), ("64-true", 3200), (64, 3200)])
def test_a_parameter_takes_four_numbers_in_training(
    precision: object, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "memory", lambda device: n_bytes)
    check_model_fits(plan(100), {"accelerator": "cpu", "precision": precision})
    with pytest.raises(UserError, match="training 101 parameters needs"):
        check_model_fits(plan(101), {"accelerator": "cpu", "precision": precision})


@pytest.mark.parametrize(
    ("settings", "n_shares"),
    [
        ({"accelerator": "cpu", "devices": 4}, 1),  # in the memory of one machine
        ({"accelerator": "gpu", "devices": 4, "num_nodes": 2}, 8),
        ({"accelerator": "gpu", "devices": "0,2"}, 2),
        ({"accelerator": "gpu", "devices": "auto"}, 5),
    ],
)
def test_of_parameters_that_are_shared_out_each_device_holds_its_share(
    settings: dict[str, object], n_shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    monkeypatch.setattr(device, "memory", lambda device: 1600)
    trainer = {**settings, "precision": None, "strategy": "fsdp2"}
    check_model_fits(plan(100 * n_shares), trainer)
    with pytest.raises(UserError, match=r"parameters.* needs at least"):
        check_model_fits(plan(100 * n_shares + 1), trainer)
