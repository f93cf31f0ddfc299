"""The names of transformers outside its public interface that this project uses, as they are in transformers 5.23.

`trained/export/modeling.py` uses four more: `CacheLayerMixin`, the cache's `layer_class_to_replicate` and the model's
`_tied_weights_keys` and `_is_stateful`. It is copied into exports, which import nothing of roundround.

Tested by tests/hf/test_private_transformers.py, which fails if a version of transformers lacks one of the names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.dynamic_module_utils import get_imports


def attention_name(config: PreTrainedConfig) -> Any:
    """The name of the attention function that a model with this config calls."""
    return config._attn_implementation


def set_attention_name(config: PreTrainedConfig, name: Any) -> None:
    """Let the model of this config, and the models of the configs in it, call another attention function."""
    config._attn_implementation = name


def packages_needed(folder: Path) -> set[str]:
    """The packages without which transformers refuses to load the source files of a folder."""
    return {package for file in folder.glob("*.py") for package in get_imports(file)}
