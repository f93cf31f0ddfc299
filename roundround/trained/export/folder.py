"""A training run as a folder that Hugging Face's `from_pretrained` loads, and whether it computes what the run does.

config.json  generation_config.json  model.safetensors  tokenizer.json  tokenizer_config.json  README.md
modeling_roundround.py and the source files that it imports, only where no class of transformers computes this model

Tested by tests/trained/test_export_folder.py.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from roundround.config.build import checked_values, target_class
from roundround.data.tasks.base import Examples
from roundround.data.tasks.text_task import TextTask, beginning
from roundround.hf.private import packages_needed
from roundround.model.decoder import Decoder
from roundround.pe.base import PositionalEncoding
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError
from roundround.support.files import folder_in_one_step, usual_mode, write_atomically
from roundround.trained.export import check, modeling
from roundround.trained.export.card import Card, Question, model_card
from roundround.trained.export.modeling import RoundroundConfig, RoundroundForCausalLM
from roundround.trained.export.sources import source_files
from roundround.trained.export.stock import stock_config, stock_weights, weights_by_llama_name
from roundround.trained.models import OF_THE_BUILDER, TrainedRun
from roundround.trained.patterns import FAMILIES, SIZES, KindConfig, parts_of, split_pattern

TO_READ = 4  # the length of the example in the card, where training had it
COPIES = 3  # of the weights at once: read, in the decoder, to be written
MAKERS = {"pe": "make_encoding", "softmax": "make_softmax", "qk_norm": "make_qk_norm", "gate": "make_gate"}
MODELING = "modeling_roundround"  # .py
OPTIONS = ("norms", "attention_bias", "mlp", "other_biases", "embedding_norm", "logit_cap")  # of the decoder


@dataclass(frozen=True)
class ExportedKind:
    """A kind of layer. parts: a class's name and arguments, by the argument of `LayerKind`. classes: by their names."""

    sizes: dict[str, Any]
    parts: dict[str, dict[str, Any]]
    classes: dict[str, type]


def exported_kinds(
    *, pattern: DictConfig | None, qk_norm: DictConfig | None, gate: DictConfig | None, **parts: DictConfig | None
) -> dict[str, ExportedKind]:
    """The kinds of layers of a run, by name; none where `ModelToExport.encoding` and `normaliser` say everything."""
    if not (pattern or qk_norm or gate):
        return {}
    otherwise = {**parts, "qk_norm": qk_norm, "gate": gate}
    kinds = split_pattern(pattern)[0] if pattern else {"layer": KindConfig()}
    found = {}
    for name, kind in kinds.items():
        nodes = {part: getattr(kind, part) or otherwise[part] for part in FAMILIES}
        given = {part: node for part, node in nodes.items() if node}
        of = {part: target_class(node, FAMILIES[part]) for part, node in given.items()}
        found[name] = ExportedKind(
            sizes={size: getattr(kind, size) for size in SIZES},
            parts={
                MAKERS[part]: {"class": of[part].__name__, "arguments": checked_values(node, FAMILIES[part], [])}
                for part, node in given.items()
            },
            classes={each.__name__: each for each in of.values()},
        )
    return found


@dataclass(frozen=True, kw_only=True)
class ModelToExport:
    """A decoder, the arguments that it, its encoding and its normaliser were built with, and its tokenizer.

    kinds: of its layers, where they are of several, by name; each with its sizes, and its parts' classes and arguments.
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
    kinds: dict[str, ExportedKind] = field(default_factory=dict)


def model_to_export(trained: TrainedRun, decoder: Decoder) -> ModelToExport:
    """The run's decoder, with a checkpoint's weights, and all that it takes to build it elsewhere."""
    vocabulary, own = trained.vocabulary(), trained.config
    of_text_task = isinstance(trained.task(), TextTask)
    kinds = exported_kinds(**parts_of(own))
    return ModelToExport(
        decoder=decoder,
        sizes=checked_values(own.model, Decoder, OF_THE_BUILDER),
        encoding={} if kinds else checked_values(own.pe, PositionalEncoding, []),
        normaliser={} if kinds else checked_values(own.softmax, AttentionSoftmax, []),
        kinds=kinds,
        tokenizer=vocabulary.tokenizer,
        first_token=beginning(vocabulary)[-1] if of_text_task else vocabulary.first_token,
        end_of_document=vocabulary.end_of_document,
        separate_documents=trained.separate_documents,
    )


def question_of(trained: TrainedRun) -> Question | None:
    """A short example of the task that the run learns, up to the first scored token; None where it is text."""
    task = trained.task()
    if task is None:
        return None
    shortest, longest = task.train_lengths
    length = min(longest, max(shortest, TO_READ))
    example = Examples(task, seed=trained.config.seed, split="test", length=length)[0]
    tokens, targets, scored = example.tokens, example.targets, example.scored
    first = int(scored.argmax())
    n_tokens = int(np.append(scored[first:], False).argmin())  # tokens that are written without another question
    text, of_text = trained.vocabulary().tokenizer, isinstance(task, TextTask)
    prompt, answer = (
        text.decode(part.tolist(), skip_special_tokens=of_text)
        for part in (tokens[:first], targets[first : first + n_tokens])
    )
    return Question(prompt=prompt, answer=answer, n_tokens=n_tokens, train_lengths=task.train_lengths, of_text=of_text)


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


def stock_class(trained: ModelToExport) -> str | None:
    """The class of transformers that computes this decoder, None where none does."""
    config = stock_config(trained.decoder, trained.sizes)
    return None if config is None else str(config.architectures[0])


def write_folder(trained: ModelToExport, folder: Path, card: Card) -> None:
    """All files of an exported model. UserError where a source that it needs cannot be found."""
    config = stock_config(trained.decoder, trained.sizes)
    stock = None if config is None else str(config.architectures[0])
    if config is not None:
        weights = stock_weights(trained.decoder, config)
    else:
        config, weights = own_config(trained), weights_by_llama_name(trained.decoder)
        normaliser = trained.decoder.get_submodule("layers.0.self_attn.softmax")
        classes: dict[str, type] = {"Encoding": type(trained.decoder.encoding), "Normaliser": type(normaliser)}
        classes |= {name: of for kind in trained.kinds.values() for name, of in kind.classes.items()}
        for name, text in source_files(modeling.__name__, classes, main_file=MODELING).items():
            write_atomically(folder / name, text)
    ends = {"eos_token_id": trained.end_of_document, "bos_token_id": trained.first_token}
    # no token for padding: it would learn nothing as an input, and the only one there is joins documents
    config.update(ends | {"pad_token_id": None} | ({"separate_documents": True} if trained.separate_documents else {}))
    config.save_pretrained(folder)
    generation = GenerationConfig(**ends, pad_token_id=trained.end_of_document, use_cache=config.use_cache)
    generation.save_pretrained(folder)
    shared = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    save_file(shared, folder / "model.safetensors", metadata={"format": "pt"})
    own_tokenizer(trained).save_pretrained(folder)
    needs = sorted(packages_needed(folder) - sys.stdlib_module_names - {"torch", "transformers"})
    write_atomically(folder / "README.md", model_card(card, trained.decoder, stock=stock, needs=needs))


def own_tokenizer(trained: ModelToExport) -> PreTrainedTokenizerFast:
    """The tokenizer as the run used it: it adds no token by itself, and reads no special token out of a text."""
    bare = json.loads(trained.tokenizer.to_str()) | {"post_processor": None}
    first, end = map(trained.tokenizer.id_to_token, (trained.first_token, trained.end_of_document))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(bare)),
        bos_token=first,  # of a run on text the same token, which closes each document and stands before the next
        eos_token=end,
        pad_token=end,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def own_config(trained: ModelToExport) -> RoundroundConfig:
    """The configuration for the folder's own code."""
    shape, sizes = trained.decoder.encoding.shape, trained.sizes
    config = RoundroundConfig(
        vocab_size=trained.decoder.embed_tokens.num_embeddings,
        hidden_size=shape.d_model,
        intermediate_size=sizes["d_mlp"],
        num_hidden_layers=sizes["n_layers"],
        num_attention_heads=shape.n_heads,
        num_key_value_heads=sizes["n_key_heads"],  # of layers whose kind has none of its own
        head_dim=sizes["head_dim"] or shape.d_model // shape.n_heads,
        max_position_embeddings=shape.train_length,
        rms_norm_eps=sizes["norm_eps"],
        initializer_range=sizes["initializer_range"],
        tie_word_embeddings=trained.decoder.lm_head is None,
        geglu=sizes["geglu"],
        scaled_embeddings=sizes["scaled_embeddings"],
        encoding=trained.encoding,
        normaliser=trained.normaliser,
        options={name: sizes[name] for name in OPTIONS if name in sizes},
        kinds=[{"name": name, "sizes": kind.sizes, "parts": kind.parts} for name, kind in trained.kinds.items()],
        order=[list(trained.kinds).index(kind.name) for kind in trained.decoder.kinds] if trained.kinds else [],
        architectures=[RoundroundForCausalLM.__name__],
        dtype="float32",
        eos_token_id=trained.end_of_document,
        bos_token_id=trained.first_token,
    )
    classes = {"AutoConfig": RoundroundConfig, "AutoModelForCausalLM": RoundroundForCausalLM}
    for name, value in windows_of(trained.decoder).items():
        setattr(config, name, value)
    config.auto_map = {auto: f"{MODELING}.{of.__name__}" for auto, of in classes.items()}
    return config


def windows_of(decoder: Decoder) -> dict[str, Any]:
    """How far layers see, by transformers' names, for whoever asks the config; nothing where all see everything."""
    windows = {kind.window for kind in decoder.kinds if kind.window is not None}
    chunks = {kind.chunk for kind in decoder.kinds if kind.chunk is not None}
    if not (windows or chunks):
        return {}
    types = [
        "chunked_attention"
        if kind.chunk is not None
        else "full_attention"
        if kind.window is None
        else "sliding_attention"
        for kind in decoder.kinds
    ]
    largest = {"sliding_window": max(windows, default=None), "attention_chunk_size": max(chunks, default=None)}
    return {"layer_types": types, **{name: size for name, size in largest.items() if size is not None}}


log = logging.getLogger(__name__)

# largest difference allowed, as a share of the largest logit
# transformers' code, and a definition that is compiled here alone, round otherwise: by 4e-7, where attention is very
# sharp by 1.2e-5
TOLERANCE = 5e-5
LOGITS_COMPARED = 2**24  # at most: 64 MiB


class NotTheSame(Exception):
    """What was exported does not compute what the run's own decoder does."""


@dataclass(frozen=True)
class Agreement:
    """How an exported folder was found to agree: logits compared, their largest difference and their largest size."""

    n_logits: int
    difference: float
    largest: float


def agreement(trained: ModelToExport, folder: Path, tokens_BT: Tensor) -> Agreement:
    """Load the folder in a process that cannot import roundround, and compare logits on these tokens.

    Raises NotTheSame where the folder does not load, or computes or tokenises something else.
    """
    stock = stock_class(trained)
    (n_windows, length), n_vocab = tokens_BT.shape, trained.decoder.embed_tokens.num_embeddings
    n_rows = max(1, min(length, LOGITS_COMPARED // (n_windows * n_vocab)))
    rows = torch.linspace(0, length - 1, n_rows).round().long()  # as many as fit, spread evenly
    text = trained.tokenizer.decode(tokens_BT[0].tolist())
    facts, theirs = answer_of(folder, tokens_BT, rows, text, code="stock" if stock else "trust")
    module, _, name = facts["class"].rpartition(".")
    if stock and (name != stock or not module.startswith("transformers.models.")):
        raise NotTheSame(f"the folder loads as {facts['class']}, not as the {stock} of transformers")
    ids = trained.tokenizer.encode(text, add_special_tokens=False).ids
    ends = facts["first_token"], facts["end_of_document"]
    if facts["ids"] != ids or not facts["fast"] or ends != (trained.first_token, trained.end_of_document):
        raise NotTheSame("the folder's tokenizer does not give the run's tokens")
    decoder = trained.decoder.eval()
    with torch.no_grad():
        ours = decoder.unembed(decoder.hidden(tokens_BT)[:, rows])
    if ours.shape != theirs.shape or not bool(ours.isfinite().all()):
        raise NotTheSame(f"logits of shape {list(theirs.shape)}, where the run's are finite and {list(ours.shape)}")
    found = Agreement(ours.numel(), float((ours - theirs).abs().max()), float(ours.abs().max()))
    if not found.difference <= TOLERANCE * found.largest:
        raise NotTheSame(
            f"logits of the exported folder differ from the run's by up to {found.difference:.2g}, "
            f"where the largest is {found.largest:.3g}"
        )
    return found


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
            errors="replace",
            check=False,
        )
        log.debug("check of %s:\n%s%s", folder, done.stdout, done.stderr)
        if done.returncode:
            last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise NotTheSame(f"the exported folder does not load in a process of its own: {last[-1]}")
        with safe_open(answer, framework="pt") as file:
            return json.loads(file.metadata()["facts"]), file.get_tensor("logits")
