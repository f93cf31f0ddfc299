"""Write a training run as a folder for Hugging Face's `from_pretrained`; check that the folder gives the run's logits.

config.json  generation_config.json  model.safetensors  tokenizer.json  tokenizer_config.json  README.md
modeling_roundround.py and the source files that it imports, only if no class of transformers computes this model

Tested by tests/trained/test_export_folder.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from roundround.config.build import checked_values, target_class
from roundround.data.tasks.text_task import TextTask, beginning
from roundround.hf.private import packages_needed
from roundround.model.block import SIZES
from roundround.model.decoder import Decoder
from roundround.records import checkpoints
from roundround.support.errors import UserError
from roundround.support.files import usual_mode, write_atomically
from roundround.trained.export import check, modeling
from roundround.trained.export.card import Card, model_card
from roundround.trained.export.modeling import RoundroundConfig, RoundroundForCausalLM
from roundround.trained.export.sources import source_files
from roundround.trained.export.stock import stock_config, stock_weights, weights_by_llama_name
from roundround.trained.models import OF_THE_BUILDER, TrainedRun
from roundround.trained.patterns import ATTRIBUTES, FAMILIES, KindConfig, kinds_by_name, nodes_of, parts_of

MODELING = "modeling_roundround"  # .py


@dataclass(frozen=True, kw_only=True)
class ModelToExport:
    """A decoder, the arguments that it and its layers were built with, and its tokenizer.

    sizes: the arguments of the decoder. kinds: the kinds of layers, each with its name, its sizes, and the classes and
    arguments of its parts. classes: {name: class} for the classes of the parts. first_token: the id of the token at the
    start of every text; for a model of text, the same as `end_of_document`. end_of_document: the id of the token that
    ends a document. separate_documents: True if no token attended to another document in training.
    """

    decoder: Decoder
    sizes: dict[str, Any]
    kinds: list[dict[str, Any]]
    classes: dict[str, type]
    tokenizer: Tokenizer
    first_token: int
    end_of_document: int
    separate_documents: bool = False


def exported_kinds(
    *, pattern: DictConfig | None = None, **parts: DictConfig | None
) -> tuple[list[dict[str, Any]], dict[str, type]]:
    """The `kinds` and `classes` of `ModelToExport`, from the parts of a run's config."""
    found, classes = [], {}
    for name, kind in (kinds_by_name(pattern) if pattern else {"layer": KindConfig()}).items():
        made = {}
        for part, node in nodes_of(name, kind, parts).items():
            of = target_class(node, FAMILIES[part])
            classes[of.__name__] = of
            arguments = checked_values(node, FAMILIES[part], [])
            made[f"make_{ATTRIBUTES.get(part, part)}"] = {"class": of.__name__, "arguments": arguments}
        found.append({"name": name, "sizes": {size: getattr(kind, size) for size in SIZES}, "parts": made})
    return found, classes


def model_to_export(trained: TrainedRun, decoder: Decoder) -> ModelToExport:
    """The run's tokenizer, the decoder with a checkpoint's weights, and the arguments that build the same decoder."""
    vocabulary, own = trained.vocabulary(), trained.config
    kinds, classes = exported_kinds(**parts_of(own))
    return ModelToExport(
        decoder=decoder,
        sizes=checked_values(own.model, Decoder, OF_THE_BUILDER),
        kinds=kinds,
        classes=classes,
        tokenizer=vocabulary.tokenizer,
        first_token=beginning(vocabulary)[-1] if isinstance(trained.task(), TextTask) else vocabulary.first_token,
        end_of_document=vocabulary.end_of_document,
        separate_documents=trained.separate_documents,
    )


def card_of(trained: TrainedRun, name: str, checkpoint: str) -> Card:
    """The `Card` of a run and one of its checkpoints."""
    state = checkpoints.read_state(checkpoints.find(trained.directory, checkpoint))
    return Card(name=name, manifest=trained.manifest, checkpoint=checkpoint, state=state)


def check_free(destination: Path) -> None:
    """Make the folder that will contain the destination.

    Raises UserError if that fails, or if the destination is a file or a folder that is not empty.
    """
    if destination.is_symlink() or (destination.exists() and not destination.is_dir()):
        raise UserError(f"to={destination} is a file; give a folder")
    if destination.exists() and any(destination.iterdir()):
        raise UserError(f"to={destination} is there already and not empty; give another folder")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"to={destination} cannot be written: {error.strerror}") from error
    if not os.access(destination.parent, os.W_OK):
        raise UserError(f"to={destination} cannot be written: permission denied")


def write_folder(trained: ModelToExport, folder: Path, card: Card) -> None:
    """Write all files of an exported model. Raises UserError if a source file of the model cannot be found."""
    config = stock_config(trained.decoder, trained.sizes)
    stock = None if config is None else str(config.architectures[0])
    if config is not None:
        weights = stock_weights(trained.decoder, config)
    else:
        config, weights = own_config(trained), weights_by_llama_name(trained.decoder)
        for name, text in source_files(modeling.__name__, trained.classes, main_file=MODELING).items():
            write_atomically(folder / name, text)
    ends = {"eos_token_id": trained.end_of_document, "bos_token_id": trained.first_token}
    # no token for padding: transformers would not train its embedding, and the only candidate joins documents
    config.update(ends | {"pad_token_id": None} | ({"separate_documents": True} if trained.separate_documents else {}))
    config.save_pretrained(folder)
    generation = GenerationConfig(**ends, pad_token_id=trained.end_of_document, use_cache=config.use_cache)
    generation.save_pretrained(folder)
    shared = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    save_file(shared, folder / "model.safetensors", metadata={"format": "pt"})
    own_tokenizer(trained).save_pretrained(folder)
    needs = sorted(packages_needed(folder) - sys.stdlib_module_names - {"torch", "transformers"})
    write_atomically(folder / "README.md", model_card(card, trained.decoder, stock=stock, needs=needs))
    for file in folder.iterdir():  # safetensors makes files for their owner alone
        usual_mode(file)


def own_tokenizer(trained: ModelToExport) -> PreTrainedTokenizerFast:
    """The tokenizer as the run used it: it adds no token, and it reads the name of a special token as ordinary text."""
    bare = json.loads(trained.tokenizer.to_str()) | {"post_processor": None}
    first, end = map(trained.tokenizer.id_to_token, (trained.first_token, trained.end_of_document))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(bare)),
        bos_token=first,  # after training on text it is also `end`: it closes a document and begins the next
        eos_token=end,
        pad_token=end,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def own_config(trained: ModelToExport) -> RoundroundConfig:
    """The configuration for `modeling_roundround.py`, the model's code in the folder."""
    shape, names = trained.decoder.encoding.shape, [kind["name"] for kind in trained.kinds]
    classes = {"AutoConfig": RoundroundConfig, "AutoModelForCausalLM": RoundroundForCausalLM}
    return RoundroundConfig(
        vocab_size=trained.decoder.embed_tokens.num_embeddings,
        hidden_size=shape.d_model,
        num_hidden_layers=len(trained.decoder.layers),
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_key_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.train_length,
        tie_word_embeddings=trained.decoder.lm_head is None,
        arguments=trained.sizes | {"tied_embeddings": True},  # the class around the decoder has the output matrix
        kinds=trained.kinds,
        order=[names.index(kind.name) for kind in trained.decoder.kinds],
        architectures=[RoundroundForCausalLM.__name__],
        auto_map={auto: f"{MODELING}.{of.__name__}" for auto, of in classes.items()},
        dtype="float32",
        eos_token_id=trained.end_of_document,
        bos_token_id=trained.first_token,
    )


# largest difference allowed, as a share of the largest logit
# code of transformers, and a definition that is compiled only here, round differently: by 4e-7, or by 1.2e-5 if
# attention is very sharp
TOLERANCE = 5e-5
LOGITS_COMPARED = 2**24  # at most: 64 MiB


class NotTheSame(Exception):
    """The exported folder does not give the same logits or tokens as the run's own decoder and tokenizer."""


@dataclass(frozen=True)
class Agreement:
    """An exported folder compared with its run.

    n_logits: the number of logits compared. difference: the largest difference between a logit of the folder and the
    same logit of the run. largest: the largest absolute logit of the run.
    """

    n_logits: int
    difference: float
    largest: float


def agreement(trained: ModelToExport, folder: Path, tokens_BT: Tensor) -> Agreement:
    """Load the folder in a process that cannot import roundround, and compare logits on these tokens.

    Raises NotTheSame if the folder does not load, or if the folder's logits or tokens differ from the run's.
    """
    (n_windows, length), n_vocab = tokens_BT.shape, trained.decoder.embed_tokens.num_embeddings
    n_rows = max(1, min(length, LOGITS_COMPARED // (n_windows * n_vocab)))
    rows = torch.linspace(0, length - 1, n_rows).round().long()  # as many as fit, spread evenly
    text = trained.tokenizer.decode(tokens_BT[0].tolist())
    code = "trust" if (folder / f"{MODELING}.py").exists() else "stock"
    facts, theirs = answer_of(folder, tokens_BT, rows, text, code=code)
    ids = trained.tokenizer.encode(text, add_special_tokens=False).ids
    ends = facts["first_token"], facts["end_of_document"]
    if facts["ids"] != ids or ends != (trained.first_token, trained.end_of_document):
        raise NotTheSame("the folder's tokenizer does not give the run's tokens")
    decoder = trained.decoder.eval()
    with torch.no_grad():
        ours = decoder.unembed(decoder.hidden(tokens_BT)[:, rows])
    found = Agreement(ours.numel(), float((ours - theirs).abs().max()), float(ours.abs().max()))
    if not found.difference <= TOLERANCE * found.largest:
        raise NotTheSame(
            f"logits of the exported folder differ from the run's by up to {found.difference:.2g}, "
            f"and the largest logit is {found.largest:.3g}"
        )
    return found


def answer_of(folder: Path, tokens_BT: Tensor, rows: Tensor, text: str, *, code: str) -> tuple[dict[str, Any], Tensor]:
    """Run `check.py` on the folder in a separate process; returns its `facts` about the tokenizer, and the logits.

    Raises NotTheSame if the process fails.
    """
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
        if done.returncode:
            last = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise NotTheSame(f"the exported folder does not load in a process of its own: {last[-1]}")
        with safe_open(answer, framework="pt") as file:
            return json.loads(file.metadata()["facts"]), file.get_tensor("logits")
