"""A trained decoder as a folder that Hugging Face's `from_pretrained` loads.

config.json  generation_config.json  model.safetensors  tokenizer.json  tokenizer_config.json  README.md
modeling_roundround.py and the source files that it imports, only where Llama's own code does not compute this model
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.dynamic_module_utils import get_imports

from roundround.loading.export import modeling
from roundround.loading.export.card import Card, model_card
from roundround.loading.export.modeling import RoundroundConfig, RoundroundForCausalLM
from roundround.loading.export.sources import source_files
from roundround.loading.llama import stock_config, stock_weights, weights_by_llama_name
from roundround.model.decoder import Decoder
from roundround.support.errors import UserError
from roundround.support.files import folder_in_one_step, usual_mode, write_atomically

MODELING = "modeling_roundround"  # .py


@dataclass(frozen=True, kw_only=True)
class ModelToExport:
    """A decoder, the arguments that it, its encoding and its normaliser were built with, and its tokenizer.

    first_token: the id with which a text begins; of a model of text the end of the document before it.
    separate_documents: whether no document saw another in training.
    """

    decoder: Decoder
    sizes: dict[str, Any]
    encoding: dict[str, Any]
    normaliser: dict[str, Any]
    tokenizer: Tokenizer
    first_token: int
    end_of_document: int
    separate_documents: bool = False


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """A temporary folder beside `destination` that takes its place at the end, or is removed where anything fails.

    UserError where there is something already, or where nothing can be written.
    """
    check_free(destination)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    except OSError as error:
        raise UserError(f"to={destination} cannot be written: {error.strerror}") from error
    with folder_in_one_step(destination, temporary):  # in whose place an empty folder may be
        yield temporary
        for file in temporary.iterdir():  # safetensors makes files for their owner alone
            usual_mode(file)
        check_free(destination)


def check_free(destination: Path) -> None:
    """UserError unless the place is empty."""
    if destination.is_dir():
        if any(destination.iterdir()):
            raise UserError(f"to={destination} is there already and not empty; give another folder")
    elif destination.exists() or destination.is_symlink():
        raise UserError(f"to={destination} is a file; give a folder")


def is_stock(trained: ModelToExport) -> bool:
    """Whether Hugging Face's own Llama computes this decoder."""
    return stock_config(trained.decoder, trained.sizes) is not None


def write_folder(trained: ModelToExport, folder: Path, card: Card) -> None:
    """All files of an exported model. UserError where a source that it needs cannot be found."""
    config = stock_config(trained.decoder, trained.sizes)
    stock = config is not None
    if config is not None:
        weights = stock_weights(trained.decoder)
    else:
        config, weights = own_config(trained), weights_by_llama_name(trained.decoder)
        normaliser = trained.decoder.get_submodule("layers.0.self_attn.softmax")
        classes: dict[str, type] = {"Encoding": type(trained.decoder.encoding), "Normaliser": type(normaliser)}
        for name, text in source_files(modeling.__name__, classes, main_file=MODELING).items():
            write_atomically(folder / name, text)
    ends = dict.fromkeys(("eos_token_id", "pad_token_id"), trained.end_of_document)
    ends["bos_token_id"] = trained.first_token
    config.update(ends | ({"separate_documents": True} if trained.separate_documents else {}))
    config.save_pretrained(folder)
    GenerationConfig(**ends, use_cache=config.use_cache).save_pretrained(folder)
    shared = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    save_file(shared, folder / "model.safetensors", metadata={"format": "pt"})
    fast_tokenizer(trained).save_pretrained(folder)
    readme = model_card(card, trained.decoder, stock=stock, needs=packages_needed(folder))
    write_atomically(folder / "README.md", readme)


def packages_needed(folder: Path) -> list[str]:
    """What the folder's own code imports beside torch and transformers."""
    found = {package for file in folder.glob("*.py") for package in get_imports(file)}
    return sorted(found - sys.stdlib_module_names - {"torch", "transformers"})


def own_config(trained: ModelToExport) -> PreTrainedConfig:
    """The configuration for the folder's own code."""
    shape, sizes = trained.decoder.encoding.shape, trained.sizes
    config = RoundroundConfig(
        vocab_size=trained.decoder.embed_tokens.num_embeddings,
        hidden_size=shape.d_model,
        intermediate_size=sizes["d_mlp"],
        num_hidden_layers=sizes["n_layers"],
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_key_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.train_length,
        rms_norm_eps=sizes["norm_eps"],
        initializer_range=sizes["initializer_range"],
        tie_word_embeddings=trained.decoder.lm_head is None,
        geglu=sizes["geglu"],
        scaled_embeddings=sizes["scaled_embeddings"],
        encoding=trained.encoding,
        normaliser=trained.normaliser,
        architectures=[RoundroundForCausalLM.__name__],
        dtype="float32",
    )
    classes = {"AutoConfig": RoundroundConfig, "AutoModelForCausalLM": RoundroundForCausalLM}
    config.auto_map = {auto: f"{MODELING}.{of.__name__}" for auto, of in classes.items()}
    return config


def fast_tokenizer(trained: ModelToExport) -> PreTrainedTokenizerFast:
    """The tokenizer as the run used it: it adds no token by itself, and reads no special token out of a text.

    A run on text knows one special token, which closes each document and so stands before the next one too.
    """
    bare = json.loads(trained.tokenizer.to_str()) | {"post_processor": None}
    first, end = map(trained.tokenizer.id_to_token, (trained.first_token, trained.end_of_document))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(bare)),
        bos_token=first,
        eos_token=end,
        pad_token=end,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
