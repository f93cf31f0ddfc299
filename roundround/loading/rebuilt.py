"""A training run rebuilt from its directory alone: its decoder, its tokenizer, its held-out text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from roundround.config.build import build
from roundround.config.recorded import THETA, flat, give_theta, own_config
from roundround.data.corpora import Corpus, Source
from roundround.data.tasks.base import BOS, Task
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import AlreadyOpen, TokenizerRecipe, Vocabulary
from roundround.data.tokens import TokenData, default_cache_dir, prepare
from roundround.loading.models import build_decoder, planned
from roundround.model.decoder import Decoder
from roundround.runs import checkpoints
from roundround.runs.directories import read_manifest
from roundround.runs.provenance import REBUILT, tell_changes
from roundround.support.errors import UserError

PARTS_WITH_PARAMETERS = {"pe": "encodings.", "softmax": ".softmax."}  # how their parameters are named


class TrainedRun:
    """A training run: its directory, its manifest, and its config with the nodes given here in place of its own.

    A given `pe` whose theta is null takes the run's own.
    source_changes: a line for each class from outside whose source is not what the run kept; printed at once.
    Raises UserError where the run is of another verb, where it stopped before it had a model, or where its config names
    a class from outside, unless `trust`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        trust: bool,
        pe: DictConfig | None = None,
        softmax: DictConfig | None = None,
        data: DictConfig | None = None,
    ) -> None:
        self.directory, self.manifest = directory, read_manifest(directory)
        if self.manifest["verb"] != "train":
            raise UserError(f"{directory} is a run of {self.manifest['verb']}; only a run of train holds a model")
        if self.manifest["data"] is None:
            raise UserError(f"{directory} stopped before its model was built; there is nothing to evaluate")
        self.config = own_config(self.manifest, directory, trust=trust, pe=pe, softmax=softmax, data=data)
        give_theta(self.config, flat(self.manifest["config"]).get("pe.theta") or THETA)
        self.replaced = {name for name, node in (("pe", pe), ("softmax", softmax)) if node is not None}
        given = self.replaced | ({"data"} if data is not None else set())
        own = {name: self.manifest["config"].get(name, {}) for name in REBUILT if name not in given}
        self.source_changes = tell_changes(directory, self.manifest, own)

    def decoder(self, checkpoint: str) -> Decoder:
        """The decoder with a checkpoint's weights (best, last, step-00000100), in evaluation mode.

        Raises UserError for a parameter that a replaced part needs and the checkpoint lacks.
        """
        folder = checkpoints.find(self.directory, checkpoint)
        weights, own = checkpoints.load_weights(folder), self.config

        def make() -> Decoder:
            return build_decoder(own.model, own.pe, own.softmax, self.manifest["data"]["n_vocab"])

        plan = planned(make)  # before a wrong size takes the memory
        for part in self.replaced:
            mark = PARTS_WITH_PARAMETERS[part]
            weights = {name: value for name, value in weights.items() if mark not in name}
            needed = sorted(name for name in plan.state_dict() if mark in name)
            if needed:
                raise UserError(f"{part} has parameters that the checkpoint lacks: {', '.join(needed)}; train with it")
        checkpoints.check_weights(plan, weights, folder)
        decoder = make()
        checkpoints.load_into(decoder, weights, folder)
        return decoder.eval()

    def vocabulary(self) -> Vocabulary:
        """The tokenizer that the run kept."""
        saved = saved_tokenizer(self.directory, self.manifest).build([])
        own = self.manifest["config"]["tokenizer"] is None  # the vocabulary of a task, as `config_of_task` leaves it
        return replace(saved, first=BOS) if own else saved

    @property
    def learns_a_task(self) -> bool:
        return "train_examples" in self.manifest["data"]  # as `TaskMaterial.facts` has it

    @property
    def separate_documents(self) -> bool:
        """Whether no document saw another in training; False of a task."""
        return bool(self.manifest["data"].get("separate_documents", False))

    def task(self) -> Task | None:
        """The task that the run learns, or that `data` put in its place; None where it is text.

        UserError where the one given is of the other kind, or has another vocabulary than the run.
        """
        source = build(self.config.data, Source)  # type: ignore[type-abstract]
        if isinstance(source, Task) != self.learns_a_task:
            kinds = ("a task", "text") if self.learns_a_task else ("text", "a task")
            raise UserError(f"{self.directory} was trained on {kinds[0]}, and data= is {kinds[1]}")
        if not isinstance(source, Task):
            return None
        if isinstance(source, TextTask):
            return source.with_vocabulary(self.vocabulary())
        if source.vocabulary().tokenizer.get_vocab() != self.vocabulary().tokenizer.get_vocab():
            raise UserError(
                f"data= has another vocabulary than the task that {self.directory} was trained on; give it the symbols "
                "of that one"
            )
        return source

    def held_out_text(self) -> TokenData:
        """The corpus in the run's tokens; from the cache where the run left them, else with the tokenizer it kept.

        None of its documents need be left for training.
        """
        corpus, recorded = build(self.config.data, Corpus), self.manifest["data"]  # type: ignore[type-abstract]
        began_elsewhere = self.config.get("init") is not None  # its tokenizer's folder need not be there any more
        if corpus.identity() == recorded["corpus_hash"] and not began_elsewhere:
            recipe = build(self.config.tokenizer, TokenizerRecipe)  # type: ignore[type-abstract]
            data = prepare(corpus, recipe, default_cache_dir(), needs=["held_out"])
            if data.tokenizer_hash == recorded["tokenizer_hash"]:
                return data
        tokenizer = saved_tokenizer(self.directory, self.manifest)
        return prepare(corpus, tokenizer, default_cache_dir(), needs=["held_out"])


def saved_tokenizer(directory: Path, manifest: dict[str, Any]) -> AlreadyOpen:
    """The tokenizer that a run kept in its directory, once it had read its data.

    Raises UserError where it is none, or not the one that run.json tells of.
    """
    path, data = directory / "tokenizer.json", manifest["data"]
    saved = AlreadyOpen.from_file(path, data["end_of_document"])
    vocabulary = saved.build([])
    if vocabulary.tokenizer.id_to_token(data["end_of_document"]) is None:
        raise UserError(f"{path} has no token {data['end_of_document']}, which run.json says ends a document")
    if vocabulary.size > data["n_vocab"]:
        raise UserError(f"{path} has ids up to {vocabulary.size - 1} and run.json says n_vocab={data['n_vocab']}")
    return saved
