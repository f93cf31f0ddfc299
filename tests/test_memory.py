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
from roundround.trained.start import decide_by_data

CPU = torch.device("cpu")


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


def test_validation_examples_that_fit_nowhere_are_refused_before_they_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "memory", lambda device: 10**6)
    copy = {"_target_": "roundround.data.tasks.copying.Copy", "n_symbols": 10, "train_examples": None}
    copy |= {"train_lengths": [1, 20], "validation_examples": 512}
    node = OmegaConf.create({"model": {"train_length": 8}, "init": None, "tokenizer": None, "data": copy})
    decide_by_data(node, [], {})
    assert node.model.train_length == 43
    node.data.train_lengths = [1, 2000]
    with pytest.raises(UserError, match=r"^data.validation_examples=512 of data.train_lengths=\[1,2000\] needs"):
        decide_by_data(node, [], {})
