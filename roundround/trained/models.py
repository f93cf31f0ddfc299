"""Models: a decoder built from the nodes of a config, the model of a training run, and a pretrained model.

Tested by tests/asking/test_hf_commands.py, tests/trained/test_patterns.py and tests/config/test_starting.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from roundround.config.build import build, checked_values, constructed, maker
from roundround.config.options import load_option
from roundround.config.recorded import flat, give_theta, own_config
from roundround.data.corpora import Corpus, Source
from roundround.data.prepared import TokenData, default_cache_dir, prepare
from roundround.data.tasks.base import BOS, Task
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import AlreadyOpen, TokenizerRecipe, Vocabulary
from roundround.model.block import Block
from roundround.model.decoder import Decoder
from roundround.model.trial import check_encodings
from roundround.pe.base import PositionalEncoding
from roundround.records import checkpoints
from roundround.records.directories import read_manifest
from roundround.records.provenance import REBUILT, tell_changes
from roundround.softmax.base import AttentionSoftmax
from roundround.support.console import print_status
from roundround.support.errors import UserError, one_line
from roundround.trained.patterns import KindConfig, kinds_by_name, kinds_of, parts_of, replaced_in_pattern, why_unread

if TYPE_CHECKING:
    from roundround.hf.load import ProbedHuggingFaceModel

M = TypeVar("M", bound=nn.Module)
OF_THE_BUILDER = {"n_vocab", "kinds", "shard_layer"}  # arguments of the decoder that stand in no config
# a string in the names of the parameters of each part
MARKS = {"pe": "encodings.", "softmax": ".softmax.", "qk_norm": ".qk_norm.", "gate": ".gate.", "mix": ".mix."}


def build_decoder(
    model: DictConfig,
    pe: DictConfig | None,
    softmax: DictConfig | None,
    n_vocab: int,
    *,
    pattern: DictConfig | None = None,
    shard_layer: Callable[[Block], object] | None = None,
    **others: DictConfig | None,
) -> Decoder:
    """The decoder that the nodes describe, freshly initialised from torch's global generator.

    others: the nodes of `qk_norm`, `gate`, `mix` and `attention`, as far as there are any.
    """
    kind = model.get("kind")
    if kind != "architecture":
        raise UserError(f"model is of kind '{kind}'; this verb takes an architecture: see roundround list model")
    sizes = checked_values(model, Decoder, OF_THE_BUILDER)
    kinds = kinds_of(int(sizes["n_layers"]), pattern=pattern, pe=pe, softmax=softmax, **others)
    return constructed(model, Decoder, sizes, n_vocab=n_vocab, kinds=kinds, shard_layer=shard_layer)


def decoder_of_config(config: Any, n_vocab: int, *, shard_layer: Callable[[Block], object] | None = None) -> Decoder:
    """`build_decoder` of the nodes of a training run's config."""
    return build_decoder(config.model, n_vocab=n_vocab, shard_layer=shard_layer, **parts_of(config))


def check_buildable(config: Any, n_vocab: int = 2) -> int:
    """The number of parameters of the decoder that a training run's config describes; allocates no memory for them.

    Raises UserError if nodes of the config do not fit each other. So the error comes before the data are prepared.
    """
    decoder = planned(lambda: decoder_of_config(config, n_vocab))
    check_plan(decoder)
    return sum(parameter.numel() for parameter in decoder.parameters())


def check_plan(decoder: Decoder) -> None:
    """`check_encodings`, but it raises UserError."""
    try:
        check_encodings(decoder)
    except ValueError as error:
        raise UserError(f"pe: {one_line(error)}") from error


def planned(make: Callable[[], M]) -> M:
    """The model from `make`, on the meta device. Raises UserError if a size is too large for a tensor."""
    try:
        with torch.device("meta"):
            return make()
    except RuntimeError as error:
        raise UserError(f"model: the sizes are too large: {one_line(error)}") from error


class TrainedRun:
    """A training run: its directory, its manifest and its config.

    In the config, the arguments `pe`, `softmax` and `data` replace the run's own nodes. If the `theta` of the new `pe`
    is null, it becomes the run's `pe.theta`. `pattern` replaces the run's whole pattern if `whole_pattern` is true;
    otherwise each kind of layer keeps the parts that `pattern` does not set.
    A class from outside the package is named on standard error if its source differs from the run's copy.
    Raises UserError if the run's verb is not train, if the run stopped before its model was built, if the new `pe` or
    `softmax` is not used by any layer, or if the config names a class from outside the package and `trust` is false.
    """

    def __init__(
        self,
        directory: Path,
        *,
        trust: bool,
        pe: DictConfig | None = None,
        softmax: DictConfig | None = None,
        data: DictConfig | None = None,
        pattern: DictConfig | None = None,
        whole_pattern: bool = False,
    ) -> None:
        self.directory, self.manifest = directory, read_manifest(directory)
        if self.manifest["verb"] != "train":
            raise UserError(f"{directory} is a run of {self.manifest['verb']}; only a run of train holds a model")
        if self.manifest["data"] is None:
            raise UserError(f"{directory} stopped before its model was built; there is nothing to evaluate")
        self.config = own_config(self.manifest, directory, trust=trust, pe=pe, softmax=softmax, data=data)
        replaced = {name for name, node in (("pe", pe), ("softmax", softmax)) if node is not None}
        own_pattern = self.config.get("pattern")
        if pattern is not None:
            self.config.pattern = pattern if whole_pattern else replaced_in_pattern(own_pattern, pattern)
            replaced |= {"pe", "softmax", "pattern"}
        else:
            kinds = kinds_by_name(own_pattern) if own_pattern else {"layer": KindConfig()}
            attention = self.config.get("attention")
            for why in (why_unread(part, kinds, "the run's pattern", attention) for part in replaced):
                if why:
                    raise UserError(why)
        give_theta(self.config, flat(self.manifest["config"]).get("pe.theta"))
        given = replaced | ({"data"} if data is not None else set())
        own = {name: self.manifest["config"].get(name, {}) for name in REBUILT if name not in given}
        tell_changes(directory, self.manifest, own)

    def decoder(self, checkpoint: str) -> Decoder:
        """The decoder with a checkpoint's weights (best, last, step-00000100), in evaluation mode.

        Raises UserError if the checkpoint does not fit the decoder, for example because a new `pe` has more parameters.
        """
        folder = checkpoints.find(self.directory, checkpoint)
        weights, own = checkpoints.load_weights(folder), self.config

        def make() -> Decoder:
            return decoder_of_config(own, self.manifest["data"]["n_vocab"])

        plan = planned(make)  # finds a wrong size before memory is allocated
        for part, mark in MARKS.items():
            needed, there = ({name for name in names if mark in name} for names in (plan.state_dict(), weights))
            if needed != there and (needed or part in ("qk_norm", "gate", "mix")):
                raise UserError(
                    f"{part} has parameters that the checkpoint lacks, or lacks parameters of the checkpoint: "
                    f"{', '.join(sorted(needed ^ there))}"
                )
            if not needed:
                weights = {name: value for name, value in weights.items() if mark not in name}
        checkpoints.check_weights(plan, weights, folder)
        decoder = make()
        checkpoints.load_into(decoder, weights, folder)
        check_plan(decoder)
        return decoder.eval()

    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokenizer that the run saved."""
        saved = saved_tokenizer(self.directory, self.manifest).build([])
        own = self.manifest["config"]["tokenizer"] is None  # if a task has its own vocabulary (`decide_by_data`)
        return replace(saved, first=BOS if own else None, documents_apart=self.separate_documents)

    def choices_with(self, given: dict[str, str]) -> dict[str, Any]:
        """The option of each config group, for the results: the run's own option, or the one that the command gave."""
        own = ("pe", "softmax", "data", "pattern")
        replaced = {group: choice for group, choice in given.items() if group in own or "@pattern." in group}
        return {**self.manifest.get("choices", {}), **replaced}

    @property
    def learns_a_task(self) -> bool:
        return "train_examples" in self.manifest["data"]  # `TaskMaterial.facts` has this key

    @property
    def separate_documents(self) -> bool:
        """True if documents did not attend to each other in training; False also for a run that learnt a task."""
        return bool(self.manifest["data"].get("separate_documents", False))

    def task(self) -> Task | None:
        """The task that the run learnt, or the task that `data` gives instead; None for text.

        Raises UserError if `data` does not fit the run. A run that learnt text needs text; a run that learnt a task
        needs a task with the same symbols. A run with a tokenizer of text also accepts every `TextTask`, because
        the examples of such a task are written in the run's tokens.
        """
        source = build(self.config.data, Source)  # type: ignore[type-abstract]
        if isinstance(source, TextTask) and self.manifest["config"]["tokenizer"] is not None:
            return source.with_vocabulary(self.vocabulary())
        if isinstance(source, Task) != self.learns_a_task:
            kinds = ("a task", "text") if self.learns_a_task else ("text", "a task")
            raise UserError(f"{self.directory} was trained on {kinds[0]}, but data= is {kinds[1]}")
        if not isinstance(source, Task):
            return None
        own = self.vocabulary().tokenizer.get_vocab()
        if isinstance(source, TextTask) or source.vocabulary().tokenizer.get_vocab() != own:
            raise UserError(f"data= does not have the symbols of the task that {self.directory} was trained on")
        return source

    def held_out_text(self) -> TokenData:
        """The held-out text of the corpus in the run's tokens. It works even if every document is held out.

        The text comes from the cache if the run's tokens are still there; otherwise the run's saved tokenizer
        tokenises it.
        """
        corpus, recorded = build(self.config.data, Corpus), self.manifest["data"]  # type: ignore[type-abstract]
        began_elsewhere = self.config.get("init") is not None  # its tokenizer's folder need not be there any more
        if corpus.identity() == recorded["corpus_hash"] and not began_elsewhere:
            with suppress(UserError):  # a tokenizer of a folder or of the hub may be gone
                recipe = build(self.config.tokenizer, TokenizerRecipe)  # type: ignore[type-abstract]
                data = prepare(corpus, recipe, default_cache_dir(), needs=["held_out"])
                if data.tokenizer_hash == recorded["tokenizer_hash"]:
                    return data
        tokenizer = saved_tokenizer(self.directory, self.manifest)
        return prepare(corpus, tokenizer, default_cache_dir(), needs=["held_out"])


def first_of(vocabulary: Vocabulary) -> int | None:
    """The token with which every text for the model must begin; None if the model was trained on separate documents."""
    return None if vocabulary.documents_apart else vocabulary.first_token


def text_for(vocabulary: Vocabulary, corpus: Corpus) -> TokenData:
    """The held-out text of a corpus in a pretrained model's tokens. It works even if every document is held out."""
    return prepare(corpus, AlreadyOpen(vocabulary), default_cache_dir(), needs=["held_out"])


def saved_tokenizer(directory: Path, manifest: dict[str, Any]) -> AlreadyOpen:
    """The tokenizer that a run saved in its directory. Raises UserError if there is none that can be read."""
    return AlreadyOpen.from_file(directory / "tokenizer.json", manifest["data"]["end_of_document"])


def give_default_data(cfg: DictConfig, otherwise: str | None) -> dict[str, str]:
    """If a config has no `data`, set `data` to the `default_data` of the config's pretrained model.

    otherwise: the option of `data=` for a model without `default_data`; if None, such a config is not changed. Returns
    {"data": the option}, or {} if nothing was changed.
    """
    node = OmegaConf.select(cfg, "model")  # a group that is null has no key
    name = None if node is None else OmegaConf.select(node, "default_data") or otherwise
    if name is None or OmegaConf.select(cfg, "data") is not None:
        return {}
    OmegaConf.update(cfg, "data", load_option("data", name), force_add=True)
    return {"data": name}


def refuse_other_kinds(model: DictConfig) -> None:
    """Raises UserError if the node is not a pretrained model."""
    if model.get("kind") != "pretrained":
        raise UserError(
            f"model is of kind '{model.get('kind')}', which has no weights of its own; give a pretrained model, such "
            "as model=stories260k or model=hf model.path=DIR (roundround list model), or a run: run=DIR"
        )


@contextmanager
def opened_pretrained(
    model: DictConfig, pe: DictConfig | None, softmax: DictConfig | None, device: torch.device
) -> Iterator[ProbedHuggingFaceModel]:
    """The model of a node of kind `pretrained`; inside the block its attention uses the given `pe` and `softmax`.

    Raises UserError if the node is of another kind.
    """
    refuse_other_kinds(model)
    from roundround.hf.load import Pretrained, ProbedHuggingFaceModel
    from roundround.hf.patching.patch import Patch

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
