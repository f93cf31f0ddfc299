"""The decoder behind the interface of Hugging Face's causal language models.

An export copies this file, and the source files that it imports, to a folder. The model in the folder works without
roundround. In the copy, the dict PARTS holds the classes of the layers' parts. Parameters have the names that they have
in Hugging Face's `LlamaForCausalLM`. The names of an encoding's parameters begin with `model.encodings`; the names of
the parameters of layer N's normaliser begin with `model.layers.N.self_attn.softmax`.

It uses four names of transformers outside the public interface: `CacheLayerMixin`, the cache's
`layer_class_to_replicate`, `_tied_weights_keys` and `_is_stateful` (tests/hf/test_private_transformers.py).

Shapes: B batch, T tokens, D model width, V vocabulary.

Tested by tests/trained/test_export_folder.py.
"""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from roundround.model.block import LayerKind
from roundround.model.cache import Cache
from roundround.model.decoder import Decoder

PARTS: dict[str, type] = {}  # the classes of which layers are made, by name


class RoundroundConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers is not followed
    """The decoder's sizes under the names that Llama uses, the arguments of `Decoder`, and the kinds of layers."""

    model_type = "roundround"

    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    max_position_embeddings: int = 0  # the context in tokens that the model was trained on
    tie_word_embeddings: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)  # of the decoder, by their names
    kinds: list[dict[str, Any]] = field(default_factory=list)  # of layers: sizes, and each part's class and arguments
    order: list[int] = field(default_factory=list)  # the kind of each layer
    use_cache: bool = True


class KeptLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of the decoder's cache, in the form that a dynamic cache of transformers accepts.

    In layer 0, the methods that clear or reorder the cache change all layers of the decoder's cache. In the other
    layers, these methods do nothing.
    """

    is_sliding = False

    def __init__(self, cache: Cache, number: int) -> None:
        super().__init__()
        self.cache, self.number = cache, number

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the decoder initialises its own cache."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        raise ValueError("only the decoder that made this cache can add keys to it")

    def get_seq_length(self) -> int:
        return self.cache.layers[self.number].n_read

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        if self.number == 0:
            self.cache.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.number == 0:
            self.cache.select(beam_idx)

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.number == 0 and self.cache.n_texts is not None:
            self.cache.select(torch.arange(self.cache.n_texts).repeat_interleave(repeats))


class RoundroundForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The decoder with its output matrix; it uses the dynamic cache of transformers.

    No token sees the padding that `attention_mask` marks, and padding has no position.
    """

    config_class = RoundroundConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}
    _is_stateful = True  # transformers refuses assisted generation, which would take tokens out of the cache again

    def __init__(self, config: RoundroundConfig, decoder: Decoder | None = None) -> None:
        super().__init__(config)
        kinds = []
        for node in config.kinds if decoder is None else []:
            parts: dict[str, Any] = {
                name: partial(PARTS[part["class"]], **part["arguments"]) for name, part in node["parts"].items()
            }
            kinds.append(LayerKind(name=node["name"], **node["sizes"], **parts))
        order = [kinds[kind] for kind in config.order] if kinds else []
        self.model = decoder or Decoder(n_vocab=config.vocab_size, kinds=order, **config.arguments)
        has_bias = bool(config.arguments.get("other_biases")) and not config.tie_word_embeddings
        own_head = None if decoder is None else decoder.lm_head
        self.lm_head = own_head or nn.Linear(config.hidden_size, config.vocab_size, bias=has_bias)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the parts have initialised themselves."""

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.model.embed_tokens = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        past_key_values: DynamicCache | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool = False,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Returns logits [B, T, V], and the mean loss of the next tokens in nats if `labels` [B, T] are given.

        Labels of -100 are not scored. `attention_mask` [B, T] is 0 for padding; if the mask also covers the tokens in a
        cache, only its last T columns are read. `logits_to_keep` is the number of last rows to return, or a tensor of
        row numbers. `use_cache` makes a cache if `past_key_values` is None. Raises ValueError for options that the
        decoder does not support.
        """
        for name in ("output_hidden_states", "output_attentions", "inputs_embeds"):
            if options.get(name, False) is not False and options[name] is not None:
                raise ValueError(f"{name} is not supported: this model reads input_ids and returns logits and a loss")
        assert input_ids is not None
        if past_key_values is None and use_cache:
            past_key_values = DynamicCache()
        cache = None if past_key_values is None else self.own_cache(past_key_values)
        valid_BT = None if attention_mask is None else attention_mask[:, -input_ids.shape[1] :].to(torch.bool)
        valid_BT = None if valid_BT is None or bool(valid_BT.all()) else valid_BT
        x_BTD = self.model.hidden(input_ids, pos_BT=position_ids, valid_BT=valid_BT, cache=cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.model.capped(self.lm_head(x_BTD[:, kept]))
        loss = None
        if labels is not None:
            more = {name: value for name, value in options.items() if name == "num_items_in_batch"}
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **more)
        return CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=past_key_values)

    def own_cache(self, given: DynamicCache, length: int | None = None) -> Cache:
        """The decoder's cache inside the dynamic cache `given`. If `given` is empty, it gets a new decoder cache.

        length: the number of tokens of the whole text, if known. Raises ValueError if `given` is a cache of another
        kind, or belongs to another model.
        """
        if not isinstance(given, DynamicCache) or given.offloading:
            raise ValueError(
                "this model supports only a dynamic cache: leave out cache_implementation=, or give "
                "past_key_values=DynamicCache()"
            )
        first = given.layers[0] if given.layers else None
        if isinstance(first, KeptLayer):
            return first.cache
        if given.get_seq_length():
            raise ValueError("past_key_values= holds the keys of another model; give DynamicCache()")
        cache = self.model.empty_cache(length=length)
        given.layers = [KeptLayer(cache, number) for number in range(len(cache.layers))]
        given.layer_class_to_replicate = None
        return cache
