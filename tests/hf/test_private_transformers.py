"""Names of transformers outside its public interface: there in this version, and doing what is expected of them."""

from __future__ import annotations

import transformers
from helpers_hf import tiny
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from roundround.hf import private


def test_the_names_are_there_in_this_version() -> None:
    version = f"transformers {transformers.__version__} has no"
    assert int(transformers.__version__.partition(".")[0]) >= 5
    assert hasattr(PreTrainedModel, "_tied_weights_keys"), f"{version} _tied_weights_keys"
    assert hasattr(DynamicCache(), "layer_class_to_replicate"), f"{version} layer_class_to_replicate"
    for name in ("lazy_initialization", "update", "get_seq_length", "get_mask_sizes", "reorder_cache"):
        assert hasattr(CacheLayerMixin, name), f"{version} CacheLayerMixin.{name}"


def test_the_attention_of_a_model_is_read_and_set() -> None:
    model = tiny("llama")
    model.set_attn_implementation("sdpa")
    own = private.attention_name(model.config)
    private.set_attention_name(model.config, "eager")
    assert (own, private.attention_name(model.config)) == ("sdpa", "eager")
