"""A trained decoder as a folder that Hugging Face's `from_pretrained` loads, checked in a process without roundround.

config.json  generation_config.json  model.safetensors  tokenizer.json  tokenizer_config.json  README.md
modeling_roundround.py   only where Llama's own code does not compute this model
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.dynamic_module_utils import get_imports

from roundround.errors import UserError
from roundround.files import current_umask, folder_in_one_step, write_atomically
from roundround.hf.export import check, modeling
from roundround.hf.export.bundle import bundle
from roundround.hf.export.card import Card, model_card
from roundround.hf.export.modeling import RoundroundConfig, RoundroundForCausalLM
from roundround.hf.llama import llama_name, stock_config, stock_weights
from roundround.model.decoder import Decoder

log = logging.getLogger(__name__)

MODELING = "modeling_roundround"  # .py
# largest difference allowed, as a share of the largest logit
TOLERANCE = 1e-5  # of the same code in another process, where nothing should differ
STOCK_TOLERANCE = 5e-5  # of Llama's code, whose sums round otherwise: by 4e-7, by 3e-6 where attention is very sharp
LOGITS_COMPARED = 2**24  # at most: 64 MiB
HEADING = """# The model of this folder in one file, made by `roundround export` from roundround's sources (Apache-2.0).
# Load it with AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)."""


class NotTheSame(Exception):
    """What was exported does not compute what the run's own decoder does."""


@dataclass(frozen=True, kw_only=True)
class ModelToExport:
    """A decoder, the arguments that it, its encoding and its normaliser were built with, and its tokenizer."""

    decoder: Decoder
    sizes: dict[str, Any]
    encoding: dict[str, Any]
    normaliser: dict[str, Any]
    tokenizer: Tokenizer
    end_of_document: int


@dataclass(frozen=True)
class Agreement:
    """How an exported folder was found to agree: logits compared, their largest difference and their largest size."""

    n_logits: int
    difference: float
    largest: float


# -- writing the folder


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
            file.chmod(0o666 & ~current_umask())
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
    if config is not None:
        weights = stock_weights(trained.decoder)
    else:
        config, weights = own_config(trained), own_weights(trained.decoder)
        normaliser = trained.decoder.get_submodule("layers.0.self_attn.softmax")
        values: dict[str, type] = {"Encoding": type(trained.decoder.encoding), "Normaliser": type(normaliser)}
        write_atomically(folder / f"{MODELING}.py", bundle(modeling.__name__, values, heading=HEADING))
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), trained.end_of_document)
    config.update(ends)
    config.save_pretrained(folder)
    GenerationConfig(**ends, use_cache=config.use_cache).save_pretrained(folder)
    shared = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    save_file(shared, folder / "model.safetensors", metadata={"format": "pt"})
    fast_tokenizer(trained).save_pretrained(folder)
    text = model_card(card, trained.decoder, stock=is_stock(trained), needs=packages_needed(folder))
    write_atomically(folder / "README.md", text)


def packages_needed(folder: Path) -> list[str]:
    """What the folder's own code imports beside torch and transformers."""
    own = folder / f"{MODELING}.py"
    found = set(get_imports(own)) if own.exists() else set()
    return sorted(found - sys.stdlib_module_names - {"torch", "transformers"})


def own_config(trained: ModelToExport) -> PreTrainedConfig:
    """The configuration for the folder's own modelling file."""
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


def own_weights(decoder: Decoder) -> dict[str, Tensor]:
    """The weights by the names of the folder's own modelling file, which are Llama's where Llama has such a thing."""
    return {llama_name(name): tensor for name, tensor in decoder.state_dict().items()}


def fast_tokenizer(trained: ModelToExport) -> PreTrainedTokenizerFast:
    """The tokenizer as the run used it: it adds no token by itself, and reads no special token out of a text.

    The run knows one special token, which closes each document and so stands before the next one too.
    """
    bare = json.loads(trained.tokenizer.to_str()) | {"post_processor": None}
    end = trained.tokenizer.id_to_token(trained.end_of_document)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(bare)),
        bos_token=end,
        eos_token=end,
        pad_token=end,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


# -- the check


def agreement(trained: ModelToExport, folder: Path, tokens_BT: Tensor) -> Agreement:
    """Load the folder in a process that cannot import roundround, and compare logits on these tokens.

    Raises NotTheSame where the folder does not load, or computes or tokenises something else.
    """
    stock = is_stock(trained)
    rows = rows_compared(tokens_BT, trained.decoder.embed_tokens.num_embeddings)
    text = trained.tokenizer.decode(tokens_BT[0].tolist())
    facts, theirs = answer_of(folder, tokens_BT, rows, text, code="stock" if stock else "trust")
    llama = f"{LlamaForCausalLM.__module__}.{LlamaForCausalLM.__qualname__}"
    if stock and facts["class"] != llama:
        raise NotTheSame(f"the folder loads as {facts['class']}, not as {llama}")
    ids = trained.tokenizer.encode(text, add_special_tokens=False).ids
    if facts["ids"] != ids or not facts["fast"] or facts["end_of_document"] != trained.end_of_document:
        raise NotTheSame("the folder's tokenizer does not give the run's tokens")
    decoder = trained.decoder.eval()
    with torch.no_grad():
        ours = decoder.unembed(decoder.hidden(tokens_BT)[:, rows])
    if ours.shape != theirs.shape or not bool(ours.isfinite().all()):
        raise NotTheSame(f"logits of shape {list(theirs.shape)}, where the run's are finite and {list(ours.shape)}")
    found = Agreement(ours.numel(), float((ours - theirs).abs().max()), float(ours.abs().max()))
    if not found.difference <= (STOCK_TOLERANCE if stock else TOLERANCE) * found.largest:
        raise NotTheSame(
            f"logits of the exported folder differ from the run's by up to {found.difference:.2g}, "
            f"where the largest is {found.largest:.3g}"
        )
    return found


def rows_compared(tokens_BT: Tensor, n_vocab: int) -> Tensor:
    """Positions whose logits are compared: all, or as many as fit, spread evenly."""
    n_windows, length = tokens_BT.shape
    n_rows = max(1, min(length, LOGITS_COMPARED // (n_windows * n_vocab)))
    return torch.linspace(0, length - 1, n_rows).round().long()


def answer_of(folder: Path, tokens_BT: Tensor, rows: Tensor, text: str, *, code: str) -> tuple[dict[str, Any], Tensor]:
    """What `check.py` says of the folder in a process of its own: facts, and logits. NotTheSame where it fails."""
    with tempfile.TemporaryDirectory() as name:
        question, answer = Path(name, "question.safetensors"), Path(name, "answer.safetensors")
        save_file({"tokens": tokens_BT.contiguous(), "rows": rows}, question, metadata={"text": text})
        done = subprocess.run(
            [sys.executable, "-I", check.__file__, str(folder), str(question), str(answer), code],
            cwd=name,
            stdin=subprocess.DEVNULL,
            env=os.environ
            | {
                "HF_HUB_OFFLINE": "1",
                "HF_MODULES_CACHE": name,  # where the folder's code is copied to be imported
                "OMP_NUM_THREADS": str(torch.get_num_threads()),  # the same order of sums
            },
            capture_output=True,
            text=True,
            check=False,
        )
        log.debug("check of %s:\n%s%s", folder, done.stdout, done.stderr)
        if done.returncode:
            last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise NotTheSame(f"the exported folder does not load in a process of its own: {last[-1]}")
        with safe_open(answer, framework="pt") as file:
            return json.loads(file.metadata()["facts"]), file.get_tensor("logits")
