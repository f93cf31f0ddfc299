"""Where a training run starts: from weights drawn by its seed, from a checkpoint's, or where it stopped.

`starting_point` decides that once. The run then asks its `Start` for the tokenizer, the vocabulary and the weights.

Tested by tests/trained/test_initial.py and tests/training/test_train.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor

from roundround.config.build import build, literal, plain, target_class
from roundround.config.options import load_option
from roundround.config.recorded import (
    RUN,
    config_from_checkpoint,
    config_of_run,
    give_theta,
    overridden,
    refuse_own_model,
)
from roundround.data.corpora import Source
from roundround.data.minimal_pairs import MinimalPairs
from roundround.data.prepared import Prepared, TokenData
from roundround.data.tasks.base import BYTES_OF_TOKEN, Task
from roundround.data.tasks.batches import TaskData
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import HuggingFace, TokenizerRecipe
from roundround.distributed.device import check_fits
from roundround.model.decoder import Decoder, belongs_to_a_variant
from roundround.model.shards import fill, is_sharded
from roundround.records import checkpoints
from roundround.records.directories import ONE_RUN, find_run, read_manifest
from roundround.records.run import Invocation
from roundround.support.errors import UserError
from roundround.support.files import sha256
from roundround.trained.models import TrainedRun, decoder_of_config, planned, saved_tokenizer
from roundround.trained.patterns import PARTS, close_unread_parts, replaced_in_pattern
from roundround.verbs.train import TrainConfig

if TYPE_CHECKING:
    from roundround.hf.checkpoint import LlamaCheckpoint

Data = TypeVar("Data", TokenData, TaskData)
OF_TEXT = {  # keys that mean nothing beside a task, and what says it there
    "tokenizer": "a task has its own vocabulary",
    "validation_tokens": "a task says data.validation_examples",
    "model.train_length": "a task says data.train_lengths, which make the context",
}


class Start:
    """The weights that the seed draws, and the base of other places to start from, which override its hooks.

    choices: the option of each config group, as the run reports it. facts: what the manifest keeps about the start.
    message: a line about it for the person at the terminal. task: what the run learns, where that had to be built to
    know the config.
    """

    message: str | None = None
    task: Task | None = None

    def __init__(self, choices: dict[str, Any]) -> None:
        self.choices = choices
        self.facts: dict[str, Any] = {}

    def check(self, config: TrainConfig) -> None:
        """Raises UserError where the weights do not fit the model that the config describes; it takes no memory."""

    def tokenizer(self, config: TrainConfig) -> TokenizerRecipe:
        """The tokenizer that the run reads its text with."""
        if config.tokenizer is None:
            raise UserError("tokenizer has no value, and text needs one; give tokenizer=bpe or tokenizer=bytes")
        return build(config.tokenizer, TokenizerRecipe)  # type: ignore[type-abstract]

    def checked_data(self, data: Data) -> Data:
        """The data with the vocabulary of the start. Raises UserError where they do not go together."""
        return data

    def past(self, *, sharded: bool) -> checkpoints.Checkpoint | None:
        """The run's own checkpoint, where it is resumed; without weights where processes read their shares."""
        return None

    def load_into(self, decoder: Decoder, past: checkpoints.Checkpoint | None) -> None:
        """Give a freshly initialised decoder its weights, those of its `past` where it has one."""


class FromElsewhere(Start):
    """Base of starts from other weights, whose model and tokenizer the run's config has taken over.

    folder: where they lie. sha256: of their files. n_vocab: rows of their embeddings.
    """

    def __init__(self, folder: Path, sha256: str, n_vocab: int, choices: dict[str, Any]) -> None:
        super().__init__(choices)
        self.folder, self.sha256, self.n_vocab = folder, sha256, n_vocab
        self.facts = {"init": {"folder": str(folder), "sha256": sha256}}
        self.message = f"starting from the weights of {folder}"

    def checked_data(self, data: Data) -> Data:
        return with_rows(data, self.n_vocab, str(self.folder))


@final
class FromLlama(FromElsewhere):
    """The weights of a Llama-type checkpoint in a folder."""

    def __init__(self, checkpoint: LlamaCheckpoint, choices: dict[str, Any]) -> None:
        super().__init__(checkpoint.folder, checkpoint.sha256, checkpoint.nodes.n_vocab, choices)
        self.checkpoint = checkpoint

    def check(self, config: TrainConfig) -> None:
        with torch.device("meta"):
            self.checkpoint.check(decoder_of_config(config, self.n_vocab))

    def load_into(self, decoder: Decoder, past: checkpoints.Checkpoint | None) -> None:
        self.checkpoint.load_into(decoder)


PART_OF_KIND = re.compile(r"(^[+]*|@)pattern\.")  # the key of an override


@final
class FromRun(FromElsewhere):
    """The weights of a finished run's best checkpoint.

    Its encoding and its normaliser may be others: what they learn begins anew (DroPE, arXiv:2512.12167, with NoPE).
    """

    def __init__(self, directory: Path, *, trust: bool, choices: dict[str, Any]) -> None:
        self.trained, self.checkpoint = TrainedRun(directory, trust=trust), checkpoints.find(directory, "best")
        files = sorted(self.checkpoint.glob("*.safetensors"))
        super().__init__(directory, sha256(*files), int(self.trained.manifest["data"]["n_vocab"]), choices)

    def own_weights(self, decoder: Decoder) -> dict[str, Tensor]:
        """The run's weights that the decoder has too. UserError where others are missing or of another shape."""
        state, stored = decoder.state_dict(), checkpoints.load_weights(self.checkpoint)
        before = planned(lambda: decoder_of_config(self.trained.config, self.n_vocab))
        weights = {name: value for name, value in stored.items() if not belongs_to_a_variant(name)}
        for name in filter(belongs_to_a_variant, state):
            if (source := same_part(name, decoder, before)) in stored:
                weights[name] = stored[source]
        fresh = {name: value for name, value in state.items() if belongs_to_a_variant(name) and name not in weights}
        checkpoints.check_weights(decoder, {**fresh, **weights}, self.checkpoint)
        return weights

    def check(self, config: TrainConfig) -> None:
        self.own_weights(planned(lambda: decoder_of_config(config, self.n_vocab)))

    def tokenizer(self, config: TrainConfig) -> TokenizerRecipe:
        return saved_tokenizer(self.folder, self.trained.manifest)

    def load_into(self, decoder: Decoder, past: checkpoints.Checkpoint | None) -> None:
        own = decoder.state_dict()
        for name, weight in self.own_weights(decoder).items():
            fill(own[name], weight)


def same_part(name: str, decoder: Decoder, before: Decoder) -> str | None:
    """The name that a parameter of an encoding or normaliser had in another decoder; None where its class is another.

    Encodings are numbered anew where a kind of layer has another one: by the layer they are found again.
    """
    room, number, own = name.split(".", 2)
    if room != "encodings":
        place = f"{name.rpartition('.softmax.')[0]}.softmax"
        alike = type(decoder.get_submodule(place)) is type(before.get_submodule(place))
        return name if alike else None
    layer = decoder.encoding_of_layer.index(int(number))
    then = before.encoding_of_layer[layer]
    alike = type(decoder.encodings[int(number)]) is type(before.encodings[then])
    return f"encodings.{then}.{own}" if alike else None


@final
class ResumedStart(Start):
    """The newest checkpoint of the run in a directory; where it was stopped before the first, what it began from."""

    def __init__(self, directory: Path, manifest: dict[str, Any], began: Start, *, began_elsewhere: bool) -> None:
        super().__init__(manifest.get("choices", {}))
        self.directory, self.manifest, self.began = directory, manifest, began
        self.began_elsewhere = began_elsewhere
        self.facts, self.message = began.facts, began.message

    def check(self, config: TrainConfig) -> None:
        self.began.check(config)

    def tokenizer(self, config: TrainConfig) -> TokenizerRecipe:
        kept = self.manifest["data"] is not None and (self.directory / "tokenizer.json").exists()
        if self.began_elsewhere and kept:  # the folder need not be there any more
            return saved_tokenizer(self.directory, self.manifest)
        return self.began.tokenizer(config)

    def checked_data(self, data: Data) -> Data:
        before = self.manifest["data"] or {}
        now: dict[str, Any] = {"corpus_hash": data.corpus_hash, "tokenizer_hash": data.tokenizer_hash}
        if isinstance(data, TokenData):
            now["n_groups"] = data.n_groups  # among which windows are shuffled
        names = {"corpus_hash": "corpus", "tokenizer_hash": "tokenizer", "n_groups": "grouping of the shards"}
        changed = [names[key] for key, value in now.items() if before.get(key, value) != value]
        if changed:
            raise UserError(f"the {changed[0]} is no longer the one that {self.directory} began with; start a new run")
        if self.began_elsewhere and before:
            return with_rows(data, int(before["n_vocab"]), str(self.directory))
        return self.began.checked_data(data)

    def past(self, *, sharded: bool) -> checkpoints.Checkpoint | None:
        newest = checkpoints.newest(self.directory / "checkpoints")
        if newest is None:
            return None
        if sharded:
            return checkpoints.Checkpoint({}, {}, checkpoints.read_state(newest), newest)
        return checkpoints.load(newest)

    def load_into(self, decoder: Decoder, past: checkpoints.Checkpoint | None) -> None:
        if past is None:
            self.began.load_into(decoder, None)
        elif any(is_sharded(parameter) for parameter in decoder.parameters()):
            from roundround.records.sharded_checkpoints import load_shards_into  # torch.distributed takes a second

            load_shards_into(decoder, past)
        else:
            checkpoints.load_into(decoder, past.weights, past.folder)


def starting_point(cfg: DictConfig, invocation: Invocation) -> tuple[DictConfig, Start]:
    """Where the run starts, and its config with what that brings. Raises UserError where that cannot be."""
    choices = {group: choice for group, choice in invocation.choices.items() if not group.startswith("hydra/")}
    if cfg.resume is not None:
        return resumed(cfg, invocation)
    task, kind = None, target_class(cfg.data, Source)
    if issubclass(kind, MinimalPairs):
        raise UserError("data= is minimal pairs, which eval asks of a trained model; give text or a task to learn")
    if issubclass(kind, Task):
        task = build(cfg.data, Task)  # type: ignore[type-abstract]
        cfg, choices = config_of_task(cfg, task, invocation.overrides, choices)
    cfg, choices = config_of_prepared(cfg, invocation.overrides, choices)
    if not str(cfg.init).startswith(RUN):  # else it is the run's pattern that leaves parts open
        close_unread_parts(cfg, invocation.overrides, choices)
    cfg, start = fresh_or_from_checkpoint(cfg, invocation, choices)
    give_theta(cfg)
    start.task = task
    return cfg if task is None else with_context(cfg, task, invocation.overrides), start


def fresh_or_from_checkpoint(
    cfg: DictConfig, invocation: Invocation, choices: dict[str, str | None]
) -> tuple[DictConfig, Start]:
    """`starting_point` of a new run."""
    if cfg.init is None:
        return cfg, Start(choices)
    if str(cfg.init).startswith(RUN):
        return from_run(cfg, invocation, choices)
    from roundround.hf.checkpoint import read_checkpoint  # transformers takes seconds to import
    from roundround.hf.config_nodes import target

    checkpoint = read_checkpoint(cfg.init)
    refuse_own_model(invocation.overrides)
    nodes, name = checkpoint.nodes, checkpoint.folder.name
    brought: dict[str, Any] = dict.fromkeys(("pattern", "qk_norm", "gate")) | nodes.others
    brought |= {"model": nodes.model, "pe": nodes.pe, "init": checkpoint.reference}
    brought["tokenizer"] = {"_target_": target(HuggingFace), "name": checkpoint.tokenizer}
    names: dict[str, str | None] = dict.fromkeys(("pattern", "qk_norm", "gate"))
    names |= {"model": name, "tokenizer": "hf"} | dict.fromkeys(nodes.others, name)
    names["pe"] = None if nodes.pe is None else str(nodes.pe["_target_"]).split(".")[-2]
    cfg, choices = config_from_checkpoint(cfg, invocation.overrides, choices, brought, names)
    return cfg, FromLlama(checkpoint, choices)


def from_run(cfg: DictConfig, invocation: Invocation, choices: dict[str, str | None]) -> tuple[DictConfig, Start]:
    """`starting_point` of a new run that begins with the weights of a finished one, perhaps with another encoding."""
    name = str(cfg.init).removeprefix(RUN)
    directory = find_run(name, cfg.outputs, "train", done=True, sweep=invocation.sweep)
    start = FromRun(directory, trust=cfg.trust, choices=choices)
    of_kinds = {override for override in invocation.overrides if PART_OF_KIND.search(override.partition("=")[0])}
    refuse_own_model([override for override in invocation.overrides if override not in of_kinds])
    own, parts = start.trained.config, ("model", "tokenizer", *PARTS)
    brought = {part: plain(own.get(part)) for part in parts} | {"init": f"{RUN}{directory}"}
    if of_kinds:
        brought["pattern"] = plain(replaced_in_pattern(own.get("pattern"), cfg.pattern))
    then = start.trained.manifest["choices"]
    cfg, start.choices = config_from_checkpoint(
        cfg, invocation.overrides, choices, brought, {part: then.get(part) for part in parts}
    )
    if cfg.get("pattern") is not None:
        close_unread_parts(cfg, invocation.overrides, start.choices)
    return cfg, start


def resumed(cfg: DictConfig, invocation: Invocation) -> tuple[DictConfig, ResumedStart]:
    """`starting_point` of a run that continues in its own directory."""
    directory = invocation.directory
    if invocation.sweep is not None and cfg.resume != str(directory):  # unless a job resumes its own
        raise UserError(ONE_RUN)
    manifest = read_manifest(directory)
    if (given := cfg.init) is not None:
        recorded = manifest["config"].get("init")
        if recorded is not None and not (str(given).startswith(RUN) or str(recorded).startswith(RUN)):
            from roundround.hf.checkpoint import checkpoint_folder

            if checkpoint_folder(given).resolve() == checkpoint_folder(recorded).resolve():
                given = recorded  # the same folder by another name
        cfg.init = literal(given)
    cfg = config_of_run(cfg, manifest, directory, invocation.overrides, verb=invocation.verb)
    init, began = cfg.get("init"), Start({})
    if init is not None and checkpoints.newest(directory / "checkpoints") is None:
        if str(init).startswith(RUN):
            began = FromRun(Path(str(init).removeprefix(RUN)), trust=cfg.trust, choices={})
        else:
            from roundround.hf.checkpoint import read_checkpoint

            began = FromLlama(read_checkpoint(init), {})
        if (manifest.get("init") or {}).get("sha256", began.sha256) != began.sha256:
            origin = init if isinstance(began, FromRun) else began.folder
            raise UserError(f"{origin} is no longer the checkpoint that {directory} began from; start a new run")
    return cfg, ResumedStart(directory, manifest, began, began_elsewhere=init is not None)


def with_rows(data: Data, n_vocab: int, origin: str) -> Data:
    """The data for embeddings of `n_vocab` rows: more, perhaps, than tokens in use. UserError where they are fewer."""
    if data.n_vocab > n_vocab:
        raise UserError(f"{origin}: the tokenizer has ids up to {data.n_vocab - 1} and the embeddings {n_vocab} rows")
    return replace(data, n_vocab=n_vocab)


# -- what the data decide beside the tokens: tokenizer and context


def config_of_task(
    cfg: DictConfig, task: Task, overrides: list[str], choices: dict[str, str | None]
) -> tuple[DictConfig, dict[str, str | None]]:
    """The config without a tokenizer, unless it is a task of text, and with the choices that this makes.

    Raises UserError for what the command line says of text.
    """
    refused = {"validation_tokens": OF_TEXT["validation_tokens"]} if isinstance(task, TextTask) else OF_TEXT
    for key in sorted(overridden(overrides)):
        for name, reason in refused.items():
            if key == name or key.startswith(name + "."):
                raise UserError(f"{key}= is for text; leave it out: {reason}")
    if isinstance(task, TextTask):
        return cfg, choices
    if cfg.init is not None:
        raise UserError("init= brings a tokenizer, and this task has its own vocabulary; leave one of them out")
    with open_dict(cfg):
        OmegaConf.update(cfg, "tokenizer", None, merge=False)
    return cfg, {**choices, "tokenizer": None}


def with_context(cfg: DictConfig, task: Task, overrides: list[str]) -> DictConfig:
    """The config with the task's context as the one of training, where the command line gives none.

    UserError where the validation examples, half as long in the mean, are more than the memory holds.
    """
    if "model.train_length" not in overridden(overrides):
        shortest, longest = task.train_lengths
        context = task.context(longest)
        check_fits(
            task.validation_examples * context // 2 * BYTES_OF_TOKEN,
            torch.device("cpu"),
            f"data.validation_examples={task.validation_examples} of data.train_lengths=[{shortest},{longest}]",
            "give fewer or shorter ones",
        )
        with open_dict(cfg):
            OmegaConf.update(cfg, "model.train_length", context)
    return cfg


def config_of_prepared(
    cfg: DictConfig, overrides: list[str], choices: dict[str, str | None]
) -> tuple[DictConfig, dict[str, str | None]]:
    """The config with the tokenizer that the corpus brings, unless the command line names one, and the choices."""
    nodes = [cfg.data, *(cfg.data.sources.values() if "sources" in cfg.data else [])]  # those of a mixture too
    brings_one = any(issubclass(target_class(node, Source), Prepared) for node in nodes)
    if not brings_one or any(key.partition(".")[0] == "tokenizer" for key in overridden(overrides)):
        return cfg, choices
    with open_dict(cfg):
        OmegaConf.update(cfg, "tokenizer", load_option("tokenizer", "prepared"), merge=False)
    return cfg, {**choices, "tokenizer": "prepared"}
