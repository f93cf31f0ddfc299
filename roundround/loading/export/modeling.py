"""The decoder behind the interface of Hugging Face's causal language models.

An export copies this file and the source files that it imports into one folder that needs no roundround; `Encoding` and
`Normaliser` are the run's own classes there. Parameters have the names of Hugging Face's `LlamaForCausalLM`; what the
encoding learns is below `model.encodings`, what a normaliser learns below `model.layers.N.self_attn.softmax`.

Shapes: B batch, T tokens, D model width, V vocabulary.

Tested by tests/loading/test_export_folder.py.
"""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from roundround.model.decoder import Decoder
from roundround.model.kinds import LayerKind
from roundround.pe.base import PositionalEncoding as Encoding
from roundround.softmax.base import AttentionSoftmax as Normaliser

PARTS: dict[str, type] = {"Encoding": Encoding, "Normaliser": Normaliser}  # more where layers are of several kinds


class RoundroundConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers is not followed
    """Sizes by Llama's names, and the arguments of the encoding and of the normaliser."""

    model_type = "roundround"

    vocab_size: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    max_position_embeddings: int = 0  # the context in tokens that the model was trained on
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    geglu: bool = False
    scaled_embeddings: bool = False
    encoding: dict[str, Any] = field(default_factory=dict)
    normaliser: dict[str, Any] = field(default_factory=dict)
    norms: str = "before"
    attention_bias: bool = False
    kinds: list[dict[str, Any]] = field(default_factory=list)  # of layers: sizes, and each part's class and arguments
    order: list[int] = field(default_factory=list)  # the kind of each layer
    use_cache: bool = False


def layer_kinds(config: RoundroundConfig) -> list[LayerKind]:
    """The kind of each layer, or the one that all layers are of."""
    if not config.kinds:
        make_encoding, make_softmax = partial(Encoding, **config.encoding), partial(Normaliser, **config.normaliser)
        return [LayerKind(make_encoding=make_encoding, make_softmax=make_softmax)]
    kinds = []
    for node in config.kinds:
        parts: dict[str, Any] = {
            name: partial(PARTS[part["class"]], **part["arguments"]) for name, part in node["parts"].items()
        }
        kinds.append(LayerKind(name=node["name"], **node["sizes"], **parts))
    return [kinds[kind] for kind in config.order]


class RoundroundForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The decoder with its output matrix. There is no cache of keys and values: `generate` computes all tokens anew.

    An `attention_mask` of padding is honoured exactly: padding is seen by nobody and has no position.
    """

    config_class = RoundroundConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: RoundroundConfig) -> None:
        super().__init__(config)
        self.model = Decoder(
            n_vocab=config.vocab_size,
            kinds=layer_kinds(config),
            d_model=config.hidden_size,
            n_layers=config.num_hidden_layers,
            n_heads=config.num_attention_heads,
            n_key_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            d_mlp=config.intermediate_size,
            train_length=config.max_position_embeddings,
            tied_embeddings=True,  # the output matrix is here
            geglu=config.geglu,
            scaled_embeddings=config.scaled_embeddings,
            norm_eps=config.rms_norm_eps,
            initializer_range=config.initializer_range,
            norms=config.norms,
            attention_bias=config.attention_bias,
        )
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: the parts have initialised themselves."""

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
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> CausalLMOutput:
        """Logits [B, T, V], and with labels [B, T] the mean nats of the next tokens (-100 counts for nothing).

        `attention_mask` [B, T] is 0 where a token is padding. `logits_to_keep` asks for the last so many rows, or for
        those of a tensor. Raises ValueError for what the decoder has no place for.
        """
        for name in ("inputs_embeds", "position_ids", "past_key_values"):
            if options.pop(name, None) is not None:
                raise ValueError(f"{name} is not taken: give input_ids, and attention_mask where there is padding")
        x_BTD = self.model.hidden(input_ids, valid_BT=valid_tokens(attention_mask))
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.lm_head(x_BTD[:, kept])
        loss = None
        if labels is not None:
            more = {name: value for name, value in options.items() if name == "num_items_in_batch"}
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **more)
        return CausalLMOutput(loss=loss, logits=logits_BTV)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> dict[str, Any]:
        """All tokens so far, because nothing is cached; of which only the last row's logits are wanted."""
        return {"input_ids": input_ids, "attention_mask": attention_mask, "logits_to_keep": 1}


def valid_tokens(attention_mask: Tensor | None) -> Tensor | None:
    """False where a token is padding; None where none is. Raises ValueError for a mask that is not [B, T]."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(f"attention_mask has shape {list(attention_mask.shape)}; it must be [batch, tokens]")
    valid_BT = attention_mask.to(torch.bool)
    return None if bool(valid_BT.all()) else valid_BT
