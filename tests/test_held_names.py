"""Names that users hold: in their yamls, in checkpoints, and in the files that their scripts read.

tests/golden/held_names.json lists them. A name that is new is added there; one that leaves breaks what somebody has.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import Done, beside, metrics_of, option, typed
from safetensors import safe_open

from roundround.config.options import conf_dir, load_option, options_of
from roundround.config.renamed import today
from roundround.trained.models import build_decoder

HELD = json.loads((Path(__file__).parent / "golden" / "held_names.json").read_text())


def flat_keys(node: object, where: str = "") -> list[str]:
    if not isinstance(node, dict):
        return [where]
    return [name for key, child in node.items() for name in flat_keys(child, f"{where}.{key}" if where else str(key))]


def test_the_classes_that_yamls_name_stand_where_they_stood() -> None:
    for target in HELD["targets"]:
        module, _, name = today(target).rpartition(".")
        assert hasattr(importlib.import_module(module), name), target


def test_every_class_of_a_packaged_yaml_is_held() -> None:
    text = "\n".join(path.read_text() for path in conf_dir().rglob("*.yaml"))
    assert set(re.findall(r"_target_: (roundround\.\S+)", text)) == set(map(today, HELD["targets"]))


@pytest.mark.parametrize("group", ["pe", "softmax"])
def test_tensors_of_checkpoints_keep_their_names_and_their_order(group: str) -> None:
    """The optimizer's state goes by this order."""
    found = {}
    small = {"d_model": 8, "n_layers": 2, "n_heads": 2, "n_key_heads": 1, "d_mlp": 8, "train_length": 8}
    for name in sorted(options_of(group)):
        choices = {"pe": beside(name) if group == "softmax" else "rope", "softmax": "softmax", group: name}
        parts = [option(group, choice) for group, choice in choices.items()]
        found[name] = [
            key for key, _ in build_decoder(load_option("model", "tiny", **small), *parts, 8).named_parameters()
        ]
    common = set.intersection(*(set(keys) for keys in found.values()))
    assert [key for key in found["rope" if group == "pe" else "softmax"] if key in common] == HELD["tensors"]
    own = {name: [key for key in keys if key not in common] for name, keys in found.items()}
    assert {name: keys for name, keys in own.items() if keys} == HELD[f"tensors of {group}"]
    orders = {name: [key for key in keys if key in common] for name, keys in found.items()}
    assert all(keys == HELD["tensors"] for keys in orders.values())


@pytest.mark.parametrize("verb", sorted(HELD["config"]))
def test_keys_of_configs_are_those_that_scripts_set(verb: str) -> None:
    keys = flat_keys(yaml.safe_load(typed(verb, "--cfg", "job").out))
    assert sorted(keys) == HELD["config"][verb]


def test_keys_of_the_files_of_a_run_are_those_that_scripts_read(train: Callable[..., Done]) -> None:
    done = train("trainer.max_steps=2", "validate_every=2", "checkpoint_every=2")
    run, manifest, records = done.directory, done.manifest, done.results
    assert list(manifest) == HELD["run.json"]
    parts = ("git", "peak_memory", "data", "facts", "headline", "choices")
    assert {part: sorted(manifest[part]) for part in parts} == HELD["parts of run.json"]
    assert sorted(json.loads((run / "checkpoints" / "last" / "state.json").read_text())) == HELD["state.json"]
    assert [record["metric"] for record in records] == HELD["metrics of train"]
    assert {key for record in records for key in record if "." not in key} == set(HELD["keys of records"])
    lines = metrics_of(run)
    assert {key for line in lines for key in line} >= set(HELD["metrics.jsonl"])
    with safe_open(run / "checkpoints" / "last" / "model.safetensors", "pt") as file:
        assert set(file.keys()) >= set(HELD["tensors"])
