"""From the nodes `model`, `pe` and `softmax` to a model: a decoder of this project, or a pretrained one, loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from roundround.config.build import build, checked_values, maker
from roundround.config.options import load_option, options_of
from roundround.loading.patterns import kinds_of, parts_of
from roundround.model.block import Block
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax
from roundround.support.console import print_status
from roundround.support.errors import UserError, one_line

if TYPE_CHECKING:
    from roundround.loading.probed_model import ProbedHuggingFaceModel

M = TypeVar("M", bound=nn.Module)
OF_THE_BUILDER = {"n_vocab", "kinds", "shard_layer"}  # arguments of the decoder that stand in no config


def build_decoder(
    model: DictConfig,
    pe: DictConfig | None,
    softmax: DictConfig | None,
    n_vocab: int,
    *,
    pattern: DictConfig | None = None,
    qk_norm: DictConfig | None = None,
    gate: DictConfig | None = None,
    shard_layer: Callable[[Block], object] | None = None,
) -> Decoder:
    """The decoder that the nodes describe, freshly initialised from torch's global generator."""
    kind = model.get("kind")
    if kind != "architecture":
        raise UserError(f"model is of kind '{kind}'; this verb takes an architecture: see roundround list model")
    return build(
        model,
        Decoder,
        n_vocab=n_vocab,
        kinds=kinds_of(
            int(checked_values(model, Decoder, OF_THE_BUILDER)["n_layers"]),
            pattern=pattern,
            pe=pe,
            softmax=softmax,
            qk_norm=qk_norm,
            gate=gate,
        ),
        shard_layer=shard_layer,
    )


def decoder_of_config(config: Any, n_vocab: int, *, shard_layer: Callable[[Block], object] | None = None) -> Decoder:
    """`build_decoder` of the nodes of a training run's config."""
    return build_decoder(config.model, n_vocab=n_vocab, shard_layer=shard_layer, **parts_of(config))


def check_buildable(config: Any, n_vocab: int = 2) -> int:
    """The number of parameters of the decoder that a training run's config describes; costs no memory.

    Raises UserError where its nodes do not fit each other, before minutes go into data.
    """
    return count_parameters(lambda: decoder_of_config(config, n_vocab))


def count_parameters(make: Callable[[], nn.Module]) -> int:
    """The number of parameters of the model that `make` gives. UserError for sizes that no memory is addressed by."""
    return sum(parameter.numel() for parameter in planned(make).parameters())


def planned(make: Callable[[], M]) -> M:
    """The model that `make` gives, without its numbers. UserError for sizes that no memory is addressed by."""
    try:
        with torch.device("meta"):
            return make()
    except RuntimeError as error:
        raise UserError(f"model: the sizes are too large: {one_line(error)}") from error


def give_default_data(cfg: DictConfig, otherwise: str | None) -> dict[str, str]:
    """Put the text that goes with a pretrained model into a config without `data`; the choice that this makes.

    otherwise: the option of `data=` for a model that none goes with; None leaves the config as it is. UserError for
    an option that roundround does not have: those of --config-dir are only known to Hydra.
    """
    node = OmegaConf.select(cfg, "model")  # a group that is null has no key
    name = None if node is None else OmegaConf.select(node, "default_data") or otherwise
    if name is None or OmegaConf.select(cfg, "data") is not None:
        return {}
    if name not in options_of("data"):  # an own one has not been composed, and may need other keys to be
        raise UserError(
            f"model.default_data is '{name}', and it can name an option of roundround's alone; give data=DATA"
        )
    OmegaConf.update(cfg, "data", load_option("data", name), force_add=True)
    return {"data": name}


@contextmanager
def opened_pretrained(
    model: DictConfig, pe: DictConfig | None, softmax: DictConfig | None, device: torch.device
) -> Iterator[ProbedHuggingFaceModel]:
    """The pretrained model of a node of kind `pretrained`, patched inside the block; UserError for another kind."""
    if model.get("kind") != "pretrained":
        raise UserError(
            f"model is of kind '{model.get('kind')}', which has no weights of its own; give a pretrained one, such as "
            "model=stories260k or model=hf model.path=DIR (roundround list model), or run=DIR for one trained here"
        )
    from roundround.loading.load import Pretrained
    from roundround.loading.patching.patch import Patch
    from roundround.loading.probed_model import ProbedHuggingFaceModel

    source = build(model, Pretrained)
    loaded, tokenizer = source.load(device)
    make_softmax = None if softmax is None else maker(softmax, AttentionSoftmax)
    make_encoding = None if pe is None else maker(pe, PositionalEncoding)
    patch = Patch(loaded, make_softmax, make_encoding)
    if patch.remark is not None:
        print_status(patch.remark)
    with patch:
        name, reads = source.path.rstrip("/").rpartition("/")[2], source.special_tokens == "read"
        yield ProbedHuggingFaceModel(name, loaded, tokenizer, reads_special_tokens=reads)
