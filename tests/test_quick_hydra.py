"""What the tests take for granted where they let Hydra read and compose less often than it does for users."""

from __future__ import annotations

from pathlib import Path

import pytest
import quick_hydra
from conftest import ROOT
from omegaconf import OmegaConf
from quick_hydra import may_be_a_sweep

from roundround.config.options import compose

YAMLS = sorted((ROOT / "conf").rglob("*.yaml"))


def test_only_experiments_say_that_they_are_sweeps() -> None:
    sweeps = [path for path in YAMLS if OmegaConf.select(OmegaConf.load(path), "hydra.mode") is not None]
    assert {path.relative_to(ROOT / "conf").parts[0] for path in sweeps} == {"experiment"}
    assert may_be_a_sweep("+experiment=rope/table2")
    assert may_be_a_sweep("hydra.mode=MULTIRUN")
    assert not may_be_a_sweep("pe=rope")


def test_a_yaml_of_the_package_is_a_copy_for_each_who_loads_it(tmp_path: Path) -> None:
    path = ROOT / "conf" / "pe" / "p_rope.yaml"
    OmegaConf.load(path).p = 0.1
    with path.open() as file:
        assert OmegaConf.load(file) == OmegaConf.load(path) == OmegaConf.create(path.read_text())
    compose("train", ["pe=p_rope", "pe.p=0.1"], None)
    assert compose("train", ["pe=p_rope"], None).pe.p == 0.75


def test_a_yaml_of_somebody_else_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for value in (1, 2):
        path.write_text(f"x: {value}\n")
        assert OmegaConf.load(path).x == value


def test_a_composition_is_a_copy_for_each_who_asks_and_what_hydra_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["pe=yarn", "pe.factor=2", "model=tiny", "model.n_layers=3", "+note=1", "~schedule.warmup_steps"]

    def composed() -> list[str]:
        return [OmegaConf.to_yaml(compose("train", given, None)) for given in (words, words, ["pe=yarn", "model=tiny"])]

    found = composed()
    assert found[0] == found[1] != found[2]
    monkeypatch.setattr(quick_hydra, "PACKAGED", ())  # nothing is kept
    assert composed() == found
