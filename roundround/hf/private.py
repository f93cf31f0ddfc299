"""What this project uses of transformers outside its public interface, in one place; read in transformers 5.23.

`trained/export/modeling.py` is copied into exports, which import nothing of roundround: it uses `CacheLayerMixin`, the
cache's `layer_class_to_replicate` and the model's `_tied_weights_keys` itself.

Tested by tests/hf/test_private_transformers.py, which fails where a version of transformers has no such names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.dynamic_module_utils import get_imports


def attention_name(config: PreTrainedConfig) -> Any:
    """Which attention a model with this config calls."""
    return config._attn_implementation


def set_attention_name(config: PreTrainedConfig, name: Any) -> None:
    """Let the model of this config, and of the configs inside, call another attention."""
    config._attn_implementation = name


def packages_needed(folder: Path) -> set[str]:
    """The packages without which transformers refuses to load the source files of a folder."""
    return {package for file in folder.glob("*.py") for package in get_imports(file)}
