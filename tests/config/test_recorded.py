"""What a run recorded is text: no resolver sees it, wherever it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers_manifest import CONFIG, a_manifest
from omegaconf import OmegaConf

from roundround.config.build import build, checked, literal
from roundround.config.recorded import as_dict, config_of_run, foreign_targets, own_config
from roundround.data.corpora import Corpus
from roundround.support.errors import UserError
from roundround.trained.start import take_over
from roundround.verbs.export import ExportConfig

ODD = ["${oc.env:HOME}", "a\\${x}", "\\\\${seed}", "${", "$${a}}", "${${a}}\\", "\\", "plain", "${nope:1}"]


@pytest.fixture
def trap() -> list[str]:
    """What a resolver of ours was called with."""
    called: list[str] = []
    OmegaConf.register_new_resolver("trap", called.append, replace=True)
    return called


def test_what_looks_like_an_interpolation_stays_as_it_is() -> None:
    for text in ODD:
        assert OmegaConf.create({"a": literal(text), "seed": 1}).a == text
    assert literal({"a": [1, None, True, "${x}"]}) == {"a": [1, None, True, "\\${x}"]}


def test_the_config_of_a_run_is_never_resolved(trap: list[str]) -> None:
    config = {**CONFIG, "outputs": "${trap:1}", "data": {**CONFIG["data"], "path": ["${trap:2}", "${pe.p}"]}}
    own = own_config(a_manifest(config=config), Path("run"), trust=False)
    assert as_dict(own) == config
    assert own.outputs == "${trap:1}"
    assert trap == []


def test_a_value_of_a_run_reaches_its_class_as_text(tmp_path: Path, trap: list[str]) -> None:
    (tmp_path / "${trap:1}.txt").write_text("one\n\ntwo")
    node: dict[str, Any] = {"_target_": "roundround.data.text.TextFiles", "path": [str(tmp_path / "${trap:1}.txt")]}
    node |= {"column": ["text"], "split_regex": "\n\n", "max_chars": None, "held_out": 0.5}
    own = own_config(a_manifest(config={**CONFIG, "data": node}), Path("run"), trust=False)
    corpus = build(own.data, Corpus)  # type: ignore[type-abstract]
    assert [text for _, text in corpus.documents()] == ["one", "two"]
    assert trap == []


def test_a_number_that_is_an_interpolation_is_a_wrong_type(trap: list[str]) -> None:
    from roundround.pe.base import PositionalEncoding

    pe = {**CONFIG["pe"], "p": "${trap:1}", "theta": 1.0}
    own = own_config(a_manifest(config={**CONFIG, "pe": pe}), Path("run"), trust=False)
    with pytest.raises(UserError, match=r"pe\.p: .*'\$\{trap:1\}'.* could not be converted to Float"):
        build(own.pe, PositionalEncoding)  # type: ignore[type-abstract]
    assert trap == []


def test_a_resumed_run_keeps_its_literals_and_those_typed_now(trap: list[str]) -> None:
    manifest = a_manifest(config={**CONFIG, "outputs": "${trap:1}", "resume": None, "note": "${trap:2}"})
    cfg = OmegaConf.create({"trust": False, "resume": "\\${trap:3}", "outputs": "out", "note": "x"})
    own = config_of_run(cfg, manifest, Path("run"), [], verb="train")
    assert (own.resume, own.outputs, own.note) == ("${trap:3}", "out", "${trap:2}")
    assert trap == []


def test_what_a_checkpoint_brings_is_text(trap: list[str]) -> None:
    brought = {"model": {"d_model": 64}, "pe": {"_target_": "a.b.C"}, "tokenizer": {"name": "/x/${trap:1}"}}
    cfg = OmegaConf.create({"model": {}, "pe": {}})
    take_over(cfg, [], {}, brought, {})
    assert cfg.tokenizer.name == "/x/${trap:1}"
    assert trap == []


def test_a_setting_of_the_command_line_is_resolved_once(trap: list[str]) -> None:
    given = {
        "run": "\\${trap:1}",
        "to": "${checkpoint}",
        "checkpoint": "best",
        "outputs": "o",
        "trust": False,
        "stock": False,
    }
    config = checked(ExportConfig, OmegaConf.create({**given, "logger": {"_target_": "x.Y"}}))
    assert (config.run, config.to) == ("${trap:1}", "best")
    assert trap == []
    wrong = OmegaConf.create({**given, "trust": "\\${trap:1}", "logger": {"_target_": "x.Y"}})
    with pytest.raises(UserError, match=r"trust: .*\$\{trap:1\}.* is not a valid bool"):
        checked(ExportConfig, wrong)


def test_a_foreign_class_is_found_in_a_list_too() -> None:
    config = {"trainer": {"_target_": "lightning.Trainer", "plugins": [{"_target_": "os.system"}]}}
    assert foreign_targets(config) == {"trainer.plugins.0": "os.system"}
