"""What a checkpoint brings to the config of the run that starts from it."""

from __future__ import annotations

import copy

import pytest
from omegaconf import OmegaConf

from roundround.config.recorded import give_theta
from roundround.kernels.keys import AttentionShape
from roundround.pe.rope import RoPE
from roundround.trained.start import take_over


def test_what_a_checkpoint_brings_can_be_brought_again() -> None:
    rope = {"_target_": "roundround.pe.rope.RoPE", "theta": 500.0}
    brought = {"model": {"d_model": 64, "train_length": 512}, "pe": rope, "tokenizer": {}, "init": "hf:there"}
    before = copy.deepcopy(brought)
    for length in (32, 48):
        cfg = OmegaConf.create({"model": {"train_length": length}, "pe": {}})
        take_over(cfg, [f"model.train_length={length}"], {}, brought, {})
        assert cfg.model == {"d_model": 64, "train_length": length}
        assert brought == before


@pytest.mark.parametrize(("given", "taken"), [(None, 500.0), (100.0, 100.0)])
def test_a_base_that_is_not_given_is_the_checkpoints(given: float | None, taken: float) -> None:
    pe = {"_target_": "roundround.pe.p_rope.PRoPE", "p": 0.5, "theta": given}
    brought = {"model": {}, "pe": {"theta": 500.0}, "tokenizer": {}, "init": "hf:there"}
    cfg = OmegaConf.create({"model": {}, "pe": pe})
    take_over(cfg, ["pe=p_rope"], {}, brought, {})
    assert cfg.pe == {**pe, "theta": taken}


def test_a_model_that_brings_no_base_has_one() -> None:
    cfg = OmegaConf.create({"pe": {"theta": None}})
    give_theta(cfg)
    sizes = {"n_heads": 1, "n_key_heads": 1, "head_dim": 8, "d_model": 8, "layer": 0, "train_length": 8}
    assert cfg.pe.theta == AttentionShape(**sizes).theta == RoPE(AttentionShape(**sizes), theta=None).theta
