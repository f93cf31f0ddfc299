"""Where a training run starts: from weights drawn by its seed, from a checkpoint's, or where it stopped.

`starting_point` decides that once, from the composed config. The run then asks its `Start` for the tokenizer, the
vocabulary and the weights.

Tested by tests/trained/test_initial.py and tests/training/test_train.py.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
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
from roundround.data.tasks.base import BYTES_OF_TOKEN, Task
from roundround.data.tasks.batches import TaskData
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import HuggingFace, TokenizerRecipe
from roundround.distributed.device import check_fits
from roundround.model.decoder import Decoder, belongs_to_a_variant, fill, is_sharded
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
OF_THE_WEIGHTS = {"model", "tokenizer", "pattern", "qk_norm", "gate"}
NOT_IN_WEIGHTS = {"model.train_length", "model.initializer_range"}  # may be given beside init=
OF_TEXT = {  # keys that mean nothing beside a task, and what says it there
    "tokenizer": "a task has its own vocabulary",
    "validation_tokens": "a task says data.validation_examples",
    "model.train_length": "a task says data.train_lengths, which make the context",
}


class Start:
    """A start from weights that the seed draws, and the base class of the other starts, which override its hooks.

    choices: the option of each config group, as the run reports it. config: what the run records as its own. facts:
    what the manifest keeps about the start. message: a line about it for the person at the terminal. task: what the run
    learns, where that had to be built to know the config.
    """

    config: dict[str, Any]

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
        """Give a freshly initialised decoder its weights, from its `past` where it has one."""


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
        module = f"{name.rpartition('.softmax.')[0]}.softmax"
        alike = type(decoder.get_submodule(module)) is type(before.get_submodule(module))
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


def starting_point(cfg: DictConfig, invocation: Invocation) -> tuple[TrainConfig, Start]:
    """The typed config of a training run and where it starts, from the config as it was composed, which stays as it is.

    Raises UserError where that cannot be.
    """
    cfg, overrides = copy.deepcopy(cfg), invocation.overrides
    OmegaConf.set_struct(cfg, False)
    if cfg.resume is not None:
        cfg, start = resumed(cfg, invocation)
    else:
        choices = {group: choice for group, choice in invocation.choices.items() if not group.startswith("hydra/")}
        if cfg.init is None:
            close_unread_parts(cfg, overrides, choices)
            start = Start(choices)
        elif str(cfg.init).startswith(RUN):
            start = from_run(cfg, invocation, choices)
        else:
            close_unread_parts(cfg, overrides, choices)
            start = from_llama(cfg, overrides, choices)
        decide_by_data(cfg, overrides, start)
        give_theta(cfg)
    start.config = as_dict(cfg)
    return checked(TrainConfig, cfg), start


def from_llama(cfg: DictConfig, overrides: list[str], choices: dict[str, Any]) -> Start:
    """`starting_point` of a new run that begins with the weights of a Llama-type checkpoint: it completes `cfg`."""
    from roundround.hf.checkpoint import read_checkpoint, target  # transformers takes seconds to import

    checkpoint = read_checkpoint(cfg.init)
    refuse_own_model(overrides)
    nodes, name = checkpoint.nodes, checkpoint.folder.name
    brought: dict[str, Any] = dict.fromkeys(("pattern", "qk_norm", "gate")) | nodes.others
    brought |= {"model": nodes.model, "pe": nodes.pe, "init": checkpoint.reference}
    brought["tokenizer"] = {"_target_": target(HuggingFace), "name": checkpoint.tokenizer}
    names: dict[str, str | None] = dict.fromkeys(("pattern", "qk_norm", "gate"))
    names |= {"model": name, "tokenizer": "hf"} | dict.fromkeys(nodes.others, name)
    names["pe"] = None if nodes.pe is None else str(nodes.pe["_target_"]).split(".")[-2]
    return FromLlama(checkpoint, take_over(cfg, overrides, choices, brought, names))


def from_run(cfg: DictConfig, invocation: Invocation, choices: dict[str, Any]) -> Start:
    """`starting_point` of a new run that begins with the weights of a finished one, perhaps with another encoding."""
    overrides, name = invocation.overrides, str(cfg.init).removeprefix(RUN)
    directory = find_run(name, cfg.outputs, "train", done=True, sweep=invocation.sweep)
    start = FromRun(directory, trust=cfg.trust, choices=choices)
    of_kinds = {override for override in overrides if PART_OF_KIND.search(override.partition("=")[0])}
    refuse_own_model([override for override in overrides if override not in of_kinds])
    own, parts = start.trained.config, ("model", "tokenizer", *PARTS)
    brought = {part: plain(own.get(part)) for part in parts} | {"init": f"{RUN}{directory}"}
    if of_kinds:
        brought["pattern"] = plain(replaced_in_pattern(own.get("pattern"), cfg.pattern))
    then = start.trained.manifest["choices"]
    start.choices = take_over(cfg, overrides, choices, brought, {part: then.get(part) for part in parts})
    close_unread_parts(cfg, overrides, start.choices)
    return start


def decide_by_data(cfg: DictConfig, overrides: list[str], start: Start) -> None:
    """Put into the config what its data decide beside the tokens: the tokenizer, and the context of a task.

    Raises UserError for minimal pairs, for what the command line says of text beside a task, and where the validation
    examples of a task, half as long in the mean, are more than the memory holds.
    """
    keys, kind = overridden(overrides), target_class(cfg.data, Source)
    if issubclass(kind, MinimalPairs):
        raise UserError("data= is minimal pairs, which eval asks of a trained model; give text or a task to learn")
    nodes = [cfg.data, *(cfg.data.sources.values() if "sources" in cfg.data else [])]  # of a mixture every source
    brings_one = any(issubclass(target_class(node, Source), Prepared) for node in nodes)
    if brings_one and cfg.init is None and not any(key.partition(".")[0] == "tokenizer" for key in keys):
        OmegaConf.update(cfg, "tokenizer", load_option("tokenizer", "prepared"), merge=False)
        start.choices["tokenizer"] = "prepared"
    if not issubclass(kind, Task):
        return
    task = start.task = build(cfg.data, Task)  # type: ignore[type-abstract]
    is_text = isinstance(task, TextTask)
    for name, reason in OF_TEXT.items():
        given = next((key for key in sorted(keys) if key == name or key.startswith(f"{name}.")), None)
        if given is not None and (not is_text or name == "validation_tokens"):
            raise UserError(f"{given}= is for text; leave it out: {reason}")
    if not is_text and cfg.init is not None:
        raise UserError("init= brings a tokenizer, and this task has its own vocabulary; leave one of them out")
    if not is_text:
        cfg.tokenizer = start.choices["tokenizer"] = None
    if "model.train_length" not in keys:
        shortest, longest = task.train_lengths
        context = task.context(longest)
        check_fits(
            task.validation_examples * context // 2 * BYTES_OF_TOKEN,
            torch.device("cpu"),
            f"data.validation_examples={task.validation_examples} of data.train_lengths=[{shortest},{longest}]",
            "give fewer or shorter ones",
        )
        cfg.model.train_length = context


def refuse_own_model(overrides: list[str]) -> None:
    """Raises UserError where the command line gives the model or the tokenizer beside `init`, which brings both."""
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
    """Put the nodes that a checkpoint brings into the config; the choices with their names.

    Its encoding and its normaliser give way to those of the command line; `pe.theta` null is the checkpoint's.
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


def resumed(cfg: DictConfig, invocation: Invocation) -> tuple[DictConfig, Start]:
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
