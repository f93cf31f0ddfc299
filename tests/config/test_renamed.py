"""Old dotted names, in yamls and in the import lines of variants."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import roundround as rr
from roundround.config.build import build, target_class
from roundround.kernels.keys import Keys
from roundround.pe.base import PositionalEncoding
from roundround.records.loggers.base import Logger, NoLogger


def test_a_yaml_that_names_an_old_room_builds_the_class_of_today() -> None:
    node = OmegaConf.create({"_target_": "roundround.runs.loggers.none.NoLogger"})
    assert isinstance(build(node, Logger), NoLogger)


def test_a_variant_that_imports_from_an_old_room_gets_the_modules_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "older.py").write_text(
        "from roundround.attention.keys import Keys\nfrom roundround.attention.kernels import repeated\n"
        "from roundround.pe.base import PositionalEncoding\nclass Older(PositionalEncoding):\n"
        "    keys = Keys\n    def __init__(self):\n        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    older = target_class(OmegaConf.create({"_target_": "older.Older"}), PositionalEncoding)
    assert older.keys is Keys, "a class exists once"
    assert sys.modules["roundround.kernels.keys"].__spec__.name == "roundround.kernels.keys"
    assert callable(rr.attention)
    assert callable(rr.runs)
