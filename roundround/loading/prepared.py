"""What a prepared corpus decides beside its tokens: the tokenizer."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf, open_dict

from roundround.config.build import target_class
from roundround.config.options import load_option
from roundround.config.recorded import overridden
from roundround.data.corpora import Source
from roundround.data.prepared import Prepared


def brings_tokenizer(node: DictConfig) -> bool:
    """Whether the node `data` is a prepared corpus, or a mixture with one in it."""
    nodes = [node, *(node.sources.values() if "sources" in node else [])]
    return any(issubclass(target_class(part, Source), Prepared) for part in nodes)


def config_of_prepared(
    cfg: DictConfig, overrides: list[str], choices: dict[str, str | None]
) -> tuple[DictConfig, dict[str, str | None]]:
    """The config with the tokenizer that the corpus brings, unless the command line names one, and the choices."""
    if not brings_tokenizer(cfg.data) or any(key.partition(".")[0] == "tokenizer" for key in overridden(overrides)):
        return cfg, choices
    with open_dict(cfg):
        OmegaConf.update(cfg, "tokenizer", load_option("tokenizer", "prepared"), merge=False)
    return cfg, {**choices, "tokenizer": "prepared"}
