"""What a checkpoint brings to the config of the run that starts from it."""

from __future__ import annotations

import copy

import pytest
from omegaconf import OmegaConf

from roundround.config.models import give_default_data
from roundround.config.starting import config_from_checkpoint
from roundround.errors import UserError


def test_what_a_checkpoint_brings_can_be_brought_again() -> None:
    rope = {"_target_": "roundround.pe.rope.RoPE", "theta": 500.0}
    brought = {"model": {"d_model": 64, "train_length": 512}, "pe": rope, "tokenizer": {}, "init": "hf:there"}
    before = copy.deepcopy(brought)
    for length in (32, 48):
        cfg = OmegaConf.create({"model": {"train_length": length}, "pe": {}})
        found, _ = config_from_checkpoint(cfg, [f"model.train_length={length}"], {}, brought, "there")
        assert found.model == {"d_model": 64, "train_length": length}
        assert brought == before


def test_a_default_text_that_roundround_does_not_have_is_refused_by_its_name() -> None:
    cfg = OmegaConf.create({"model": {"default_data": "mytexts"}})
    with pytest.raises(UserError, match=r"model.default_data is 'mytexts'.*give data="):
        give_default_data(cfg, otherwise="pydoc")
