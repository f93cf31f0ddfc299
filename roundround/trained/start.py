"""The start of a training run: random weights, the weights of a checkpoint, or the state in which the run stopped.

`starting_point` chooses one of these, from the composed config, and returns a `Start` with weights and tokenizer.

Tested by tests/trained/test_initial.py and tests/training/test_train.py.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from roundround.config.build import build, checked, literal, plain, target_class
from roundround.config.options import load_option
from roundround.config.recorded import RUN, as_dict, config_of_run, give_theta, overridden
from roundround.data.corpora import Source
from roundround.data.minimal_pairs import MinimalPairs
from roundround.data.prepared import Prepared, TokenData
from roundround.data.tasks.base import Task
from roundround.data.tasks.batches import TaskData
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import HuggingFace, TokenizerRecipe
from roundround.model.decoder import Decoder, belongs_to_a_variant, fill
from roundround.records import checkpoints
from roundround.records.directories import ONE_RUN, find_run, read_manifest
from roundround.records.run import Invocation
from roundround.support.errors import UserError
from roundround.support.files import sha256
from roundround.trained.models import TrainedRun, decoder_of_config, planned, saved_tokenizer
from roundround.trained.patterns import PARTS, replaced_in_pattern, unread_keys
from roundround.verbs.train import TrainConfig

if TYPE_CHECKING:
    from roundround.hf.checkpoint import LlamaCheckpoint

Data = TypeVar("Data", TokenData, TaskData)
OF_THE_WEIGHTS = {"model", "tokenizer", "pattern", "qk_norm", "gate", "mix", "attention"}
NOT_IN_WEIGHTS = {"model.train_length", "model.initializer_range"}  # may be given beside init=
PART_OF_KIND = re.compile(r"(^[+]*|@)pattern\.")  # the key of an override for a kind of layer
OF_TEXT = {  # keys that have no effect with a task, and what a task has instead
    "tokenizer": "a task has its own vocabulary",
    "validation_tokens": "a task has data.validation_examples instead",
    "model.train_length": "the context of a task follows from data.train_lengths",
}


MakeDecoder = Callable[..., Decoder]  # takes n_vocab, and shard_layer, which is called on each new layer


class Weights:
    """Random weights, drawn with the run's seed; also the base class of the classes for other weights.

    facts: the manifest's entries about the weights. message: the line about the weights for the terminal. sha256: the
    hash of the weights' files. n_rows: the number of rows of the embeddings; None if the config decides it. tokenizer:
    the tokenizer that the weights were trained with; None if the config decides it.
    """

    def __init__(self, folder: Path | None = None, sha256: str | None = None, n_rows: int | None = None) -> None:
        self.sha256, self.n_rows = sha256, n_rows
        self.facts = {} if folder is None else {"init": {"folder": str(folder), "sha256": sha256}}
        self.message = None if folder is None else f"starting from the weights of {folder}"
        self.tokenizer: TokenizerRecipe | None = None

    def check(self, make: MakeDecoder) -> None:
        """Raises UserError if the weights do not fit the decoder that `make` builds; allocates no memory for it."""

    def load_into(self, decoder: Decoder) -> None:
        """Give a freshly initialised decoder its weights."""


@final
class LlamaWeights(Weights):
    """The weights of a Llama-type checkpoint in a folder."""

    def __init__(self, checkpoint: LlamaCheckpoint) -> None:
        self.checkpoint = checkpoint
        super().__init__(checkpoint.folder, checkpoint.sha256, checkpoint.nodes.n_vocab)

    def check(self, make: MakeDecoder) -> None:
        with torch.device("meta"):
            self.checkpoint.check(make(n_vocab=self.n_rows))

    def load_into(self, decoder: Decoder) -> None:
        self.checkpoint.load_into(decoder)


@final
class WeightsOfRun(Weights):
    """The weights of a finished run's best checkpoint.

    If the new run has a different encoding or normaliser, the parameters of this part start afresh. DroPE
    (arXiv:2512.12167) changes the encoding to NoPE in this way.
    """

    def __init__(self, directory: Path, *, trust: bool) -> None:
        self.trained, self.checkpoint = TrainedRun(directory, trust=trust), checkpoints.find(directory, "best")
        files = sorted(self.checkpoint.glob("*.safetensors"))
        super().__init__(directory, sha256(*files), int(self.trained.manifest["data"]["n_vocab"]))
        self.tokenizer = saved_tokenizer(directory, self.trained.manifest)

    def own_weights(self, decoder: Decoder) -> dict[str, Tensor]:
        """The run's weights for the decoder, without parameters of encodings and normalisers whose class has changed.

        Raises UserError if a weight is missing or has another shape.
        """
        state, stored = decoder.state_dict(), checkpoints.load_weights(self.checkpoint)
        before = planned(lambda: decoder_of_config(self.trained.config, self.trained.manifest["data"]["n_vocab"]))
        weights = {name: value for name, value in stored.items() if not belongs_to_a_variant(name)}
        for name in filter(belongs_to_a_variant, state):
            if (source := same_part(name, decoder, before)) in stored:
                weights[name] = stored[source]
        fresh = {name: value for name, value in state.items() if belongs_to_a_variant(name) and name not in weights}
        checkpoints.check_weights(decoder, {**fresh, **weights}, self.checkpoint)
        return weights

    def check(self, make: MakeDecoder) -> None:
        self.own_weights(planned(lambda: make(n_vocab=self.n_rows)))

    def load_into(self, decoder: Decoder) -> None:
        own = decoder.state_dict()
        for name, weight in self.own_weights(decoder).items():
            fill(own[name], weight)


def same_part(name: str, decoder: Decoder, before: Decoder) -> str | None:
    """The name of the parameter in the decoder `before` that corresponds to the parameter `name` in `decoder`.

    The parameter belongs to an encoding or a normaliser; None if the class of this part is different in `before`. A new
    encoding for one kind of layer can change the numbers of all encodings. So the encodings that the same layer uses in
    both decoders correspond to each other.
    """
    room, number, own = name.split(".", 2)
    if room != "encodings":
        module = f"{name.rpartition('.softmax.')[0]}.softmax"
        alike = type(decoder.get_submodule(module)) is type(before.get_submodule(module))
        return name if alike else None
    layer = decoder.encoding_of_layer.index(int(number))
    then = before.encoding_of_layer[layer]
    alike = type(decoder.encodings[int(number)]) is type(before.encodings[then])
    return f"encodings.{then}.{own}" if alike else None


@dataclass(frozen=True, kw_only=True)
class Start:
    """What is decided about a training run before its data are read, apart from its typed config.

    choices: the option of each config group, as the run reports it. config: the config that the run records. weights:
    the weights that the run begins with. make_decoder: the function that builds the model of the config. task: the task
    that the run learns; None for text and for a resumed run. tokenizer: the tokenizer of the text; None for a task with
    its own vocabulary. resumed: the directory of a resumed run; None for a new run. before: the facts about the data in
    the manifest of a resumed run; empty for a new run.
    """

    choices: dict[str, Any]
    config: dict[str, Any]
    weights: Weights
    make_decoder: MakeDecoder
    task: Task | None
    tokenizer: TokenizerRecipe | None
    resumed: Path | None
    before: dict[str, Any]


def starting_point(cfg: DictConfig, invocation: Invocation) -> tuple[TrainConfig, Start]:
    """The typed config of a training run and its start, from the composed config `cfg`, which is not changed.

    Raises UserError if the config cannot start a run.
    """
    cfg, overrides, directory = copy.deepcopy(cfg), invocation.overrides, invocation.directory
    OmegaConf.set_struct(cfg, False)
    manifest: dict[str, Any] = {}
    task, weights = None, Weights()
    if cfg.resume is not None:
        cfg, manifest, weights = resumed(cfg, invocation)
        choices = manifest.get("choices", {})
    else:
        choices = {group: choice for group, choice in invocation.choices.items() if not group.startswith("hydra/")}
        from_run = str(cfg.init).startswith(RUN)
        if from_run:
            weights, choices = weights_of_run(cfg, invocation, choices)
        for key in unread_keys(cfg, overridden(overrides), choices.get("pattern")):
            OmegaConf.update(cfg, key, None)
            choices |= {key: None} if key in PARTS else {}
        if cfg.init is not None and not from_run:
            weights, choices = llama_weights(cfg, overrides, choices)
        task = decide_by_data(cfg, overrides, choices)
        give_theta(cfg)
    config = checked(TrainConfig, cfg)
    make = partial(decoder_of_config, config)
    tokenizer = weights.tokenizer
    if tokenizer is None and config.tokenizer is not None:
        tokenizer = build(config.tokenizer, TokenizerRecipe)  # type: ignore[type-abstract]
    return config, Start(
        choices=choices,
        config=as_dict(cfg),
        weights=weights,
        make_decoder=make,
        task=task,
        tokenizer=tokenizer,
        resumed=directory if manifest else None,
        before=manifest.get("data") or {},
    )


def llama_weights(cfg: DictConfig, overrides: list[str], choices: dict[str, Any]) -> tuple[Weights, dict[str, Any]]:
    """Put the nodes of a Llama-type checkpoint into `cfg`.

    Returns the checkpoint's weights, and `choices` with the names of the checkpoint's nodes.
    """
    from roundround.hf.checkpoint import read_checkpoint, target  # transformers takes seconds to import

    checkpoint = read_checkpoint(cfg.init)
    refuse_own_model(overrides)
    nodes, name = checkpoint.nodes, checkpoint.folder.name
    brought: dict[str, Any] = {
        **dict.fromkeys(("pattern", "qk_norm", "gate", "mix", "attention")),
        **nodes.others,
        "model": nodes.model,
        "pe": nodes.pe,
        "init": checkpoint.reference,
        "tokenizer": {"_target_": target(HuggingFace), "name": checkpoint.tokenizer},
    }
    names: dict[str, str | None] = {
        **dict.fromkeys(("pattern", "qk_norm", "gate", "mix", "attention")),
        **dict.fromkeys(nodes.others, name),
        "model": name,
        "pe": None if nodes.pe is None else str(nodes.pe["_target_"]).split(".")[-2],
        "tokenizer": "hf",
    }
    return LlamaWeights(checkpoint), take_over(cfg, overrides, choices, brought, names)


def weights_of_run(cfg: DictConfig, invocation: Invocation, choices: dict[str, Any]) -> tuple[Weights, dict[str, Any]]:
    """Put the nodes of a finished run into `cfg`.

    Returns the run's weights, and `choices` with the names of the run's nodes.
    """
    overrides, name = invocation.overrides, str(cfg.init).removeprefix(RUN)
    directory = find_run(name, cfg.outputs, "train", done=True, sweep=invocation.sweep)
    weights = WeightsOfRun(directory, trust=cfg.trust)
    of_kinds = {override for override in overrides if PART_OF_KIND.search(override.partition("=")[0])}
    refuse_own_model([override for override in overrides if override not in of_kinds])
    own, parts = weights.trained.config, ("model", "tokenizer", *PARTS)
    brought = {part: plain(own.get(part)) for part in parts} | {"init": f"{RUN}{directory}"}
    if of_kinds:
        brought["pattern"] = plain(replaced_in_pattern(own.get("pattern"), cfg.pattern))
    then = weights.trained.manifest["choices"]
    return weights, take_over(cfg, overrides, choices, brought, {part: then.get(part) for part in parts})


def decide_by_data(cfg: DictConfig, overrides: list[str], choices: dict[str, Any]) -> Task | None:
    """Set the keys of the config that depend on the data: `tokenizer`, and for a task `model.train_length`.

    Returns the task; None for text.

    Raises UserError if the data are minimal pairs, or if the command line sets a key of text for a task.
    """
    keys, kind = overridden(overrides), target_class(cfg.data, Source)
    if issubclass(kind, MinimalPairs):
        raise UserError(
            "data= is minimal pairs, which only eval uses, on a trained model; give text or a task to learn"
        )
    nodes = [cfg.data, *(cfg.data.sources.values() if "sources" in cfg.data else [])]  # every source of a mixture
    brings_one = any(issubclass(target_class(node, Source), Prepared) for node in nodes)
    if brings_one and cfg.init is None and not any(key.partition(".")[0] == "tokenizer" for key in keys):
        OmegaConf.update(cfg, "tokenizer", load_option("tokenizer", "prepared"), merge=False)
        choices["tokenizer"] = "prepared"
    if not issubclass(kind, Task):
        return None
    task = build(cfg.data, Task)  # type: ignore[type-abstract]
    is_text = isinstance(task, TextTask)
    for name, reason in OF_TEXT.items():
        given = next((key for key in sorted(keys) if key == name or key.startswith(f"{name}.")), None)
        if given is not None and (not is_text or name == "validation_tokens"):
            raise UserError(f"{given}= is for text; leave it out: {reason}")
    if not is_text and cfg.init is not None:
        raise UserError("init= brings a tokenizer, but this task has its own vocabulary; leave out init= or data=")
    if not is_text:
        cfg.tokenizer = choices["tokenizer"] = None
    if "model.train_length" not in keys:
        cfg.model.train_length = task.context(task.train_lengths[1])
    return task


def refuse_own_model(overrides: list[str]) -> None:
    """Raises UserError if the command line gives the model or the tokenizer beside `init`, which brings both."""
    keys = overridden(overrides)
    brought = sorted(k for k in keys if k.partition(".")[0] in OF_THE_WEIGHTS and k not in NOT_IN_WEIGHTS)
    if brought:
        raise UserError(f"init= brings the model and the tokenizer; leave out {', '.join(brought)}")


def take_over(
    cfg: DictConfig,
    overrides: list[str],
    choices: Mapping[str, Any],
    brought: Mapping[str, Any],
    names: Mapping[str, str | None],
) -> dict[str, Any]:
    """Put the nodes of a checkpoint, `brought`, into the config; returns `choices` with the nodes' names.

    An encoding or a normaliser that the command line gives is not replaced. If the `pe.theta` of such an encoding is
    null, it becomes the `theta` of the checkpoint's encoding.
    """
    keys = overridden(overrides)
    given = {key.partition(".")[0] for key in keys} | ({"pe"} if "experiment" in keys else set())
    kept = {part for part in ("pe", "softmax") if part in given and part in brought}
    typed = {key: OmegaConf.select(cfg, key) for key in NOT_IN_WEIGHTS & keys}
    for key, node in brought.items():
        if key not in kept:
            OmegaConf.update(cfg, key, literal(node), merge=False)
    for key, value in typed.items():
        OmegaConf.update(cfg, key, value)
    if "pe" in kept and brought["pe"] is not None and "theta" in brought["pe"]:
        give_theta(cfg, brought["pe"]["theta"])
    return {**choices, **{key: name for key, name in names.items() if key not in kept}}


def resumed(cfg: DictConfig, invocation: Invocation) -> tuple[DictConfig, dict[str, Any], Weights]:
    """The config, the manifest and the initial weights of a run that continues in its own directory.

    The weights matter only if the run stopped before its first checkpoint.
    """
    directory = invocation.directory
    if invocation.sweep is not None and cfg.resume != str(directory):  # unless a job resumes its own run
        raise UserError(ONE_RUN)
    manifest = read_manifest(directory)
    cfg = config_of_run(cfg, manifest, directory, invocation.overrides, verb=invocation.verb)
    init, weights = cfg.get("init"), Weights()
    if init is None:
        return cfg, manifest, weights
    if checkpoints.newest(directory / "checkpoints") is None:
        if str(init).startswith(RUN):
            weights = WeightsOfRun(Path(str(init).removeprefix(RUN)), trust=cfg.trust)
        else:
            from roundround.hf.checkpoint import read_checkpoint

            weights = LlamaWeights(read_checkpoint(init))
        if (manifest.get("init") or {}).get("sha256", weights.sha256) != weights.sha256:
            raise UserError(f"{init} is no longer the checkpoint that {directory} began from; start a new run")
    if manifest["data"] is not None:
        weights.n_rows = int(manifest["data"]["n_vocab"])
        if (directory / "tokenizer.json").exists():  # the folder of the weights may be gone
            weights.tokenizer = saved_tokenizer(directory, manifest)
    return cfg, manifest, weights


def checked_data(data: Data, before: Mapping[str, Any], n_rows: int | None) -> Data:
    """The data with `n_vocab` set to `n_rows`, the number of rows of the embeddings; unchanged if `n_rows` is None.

    before: the facts about the data in the manifest of a resumed run. Raises UserError if the data are not the same as
    in these facts, or if the embeddings have fewer rows than the tokenizer has ids.
    """
    now: dict[str, Any] = {"corpus_hash": data.corpus_hash, "tokenizer_hash": data.tokenizer_hash}
    if isinstance(data, TokenData):
        now["n_groups"] = data.n_groups  # among which windows are shuffled
    names = {"corpus_hash": "corpus", "tokenizer_hash": "tokenizer", "n_groups": "grouping of the shards"}
    changed = [names[key] for key, value in now.items() if before.get(key, value) != value]
    if changed:
        raise UserError(f"the {changed[0]} is no longer the one that the run began with; start a new run")
    if n_rows is None:
        return data
    if data.n_vocab > n_rows:
        raise UserError(f"the tokenizer has ids up to {data.n_vocab - 1}; the embeddings of init= have {n_rows} rows")
    return replace(data, n_vocab=n_rows)
