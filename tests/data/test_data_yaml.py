"""Every yaml of data and tokenizer builds what it names, from its numbers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from roundround.config.build import build
from roundround.data.corpora import Corpus, Source
from roundround.data.hub import Hub
from roundround.data.prepared import Mixture
from roundround.data.tokenizers import TokenizerRecipe
from roundround.support.errors import UserError

CONF = Path(__file__).parents[2] / "conf"
DATA, TOKENIZER = sorted((CONF / "data").glob("*.yaml")), sorted((CONF / "tokenizer").glob("*.yaml"))
# missing, or a list that is empty
REQUIRED = {
    "data/hub": ["name"],
    "tokenizer/hf": ["name"],
    "data/text": ["path"],
    "data/clrs_text_files": ["path"],
    "data/prepared": ["path"],
}


def node(yaml: Path, /, **changes: Any) -> DictConfig:
    """The yaml as part of a config, so that errors name its place."""
    own: Any = OmegaConf.load(yaml)
    for line in own.pop("defaults", ["_self_"])[:-1]:  # as Hydra composes them
        option, _, place = line.partition("@")
        OmegaConf.update(own, place, OmegaConf.load(yaml.with_name(f"{option}.yaml")), force_add=True)
    config = OmegaConf.create({yaml.parent.name: own})
    config[yaml.parent.name].update(changes)
    return config[yaml.parent.name]


@pytest.mark.parametrize("path", DATA + TOKENIZER, ids=lambda path: path.stem)
def test_it_builds_with_nothing_but_what_only_the_user_knows(path: Path) -> None:
    family: Any = Source if path in DATA else TokenizerRecipe
    yaml: Any = OmegaConf.load(path)
    missing = [str(key) for key in yaml if OmegaConf.is_missing(yaml, key) or yaml[key] == []]
    assert missing == REQUIRED.get(f"{path.parent.name}/{path.stem}", [])
    assert isinstance(build(node(path, **dict.fromkeys(missing, "given")), family), family)
    with pytest.raises(UserError, match="has no parameter 'typo'"):
        build(node(path, typo=1), family)


def test_ready_data_sets_differ_from_hub_in_values_only() -> None:
    own = {path.stem: list(OmegaConf.load(path)) for path in DATA if "hub.Hub" in path.read_text()}
    assert len(own) == 6
    assert all(keys == own["hub"] for keys in own.values())


def test_columns_may_be_numbers_or_one_name() -> None:
    text = CONF / "data" / "text.yaml"
    assert build(node(text, path="a.tsv", column=[0, 2]), Corpus).column == ["0", "2"]
    assert build(node(text, path="a.tsv", column="name"), Corpus).column == ["name"]
    assert build(node(text, path="a.tsv", column="name"), Corpus).path == ["a.tsv"]


def test_a_mixture_builds_its_sources_and_names_what_is_wrong_in_one() -> None:
    built = build(node(CONF / "data" / "mixture.yaml"), Mixture)
    assert {name: type(source) for name, source in built.sources.items()} == {"wikipedia": Hub, "flan_v2": Hub}
    assert built.shares == [0.5, 0.5]
    wrong = node(CONF / "data" / "mixture.yaml")
    wrong.sources.flan_v2.typo = 1
    with pytest.raises(UserError, match=r"data.sources.flan_v2 has no parameter 'typo'"):
        build(wrong, Mixture)
