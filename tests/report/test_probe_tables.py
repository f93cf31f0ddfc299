"""The tables of a probe on a terminal of 80 columns."""

from __future__ import annotations

import pytest
import torch
from helpers_hf import some_tokens, tiny

from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.probing.probe import observe
from roundround.probing.rows import PLACES
from roundround.report import probe_results


def test_no_cell_is_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    model = tiny("gemma3_text")
    for layer in model.model.layers:
        layer.self_attn.q_norm.weight[[7, 15]] = 100.0  # the slowest pair, of 1,117,327 tokens, is the strongest
    with installed(model):
        probe = observe(ProbedHuggingFaceModel("tiny", model, None), [some_tokens(40).tolist()])
    monkeypatch.setattr(probe_results, "standing_out", lambda seen, n: [(1, 0, place, 0.5) for place in PLACES])
    probe_results.show(probe)
    probe_results.show_maximum(list(range(18)), {256: [torch.tensor([1.26, 13.04])] * 18})
    shown = capsys.readouterr().err
    assert "1,117,32" in shown
    assert "\u2026" not in shown
