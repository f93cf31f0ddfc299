"""`roundround eval`: perplexity of a model on held-out text, at several context lengths, and its dispersion.

The model is one trained here (`run=`) or a pretrained one (`model=`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from roundround.config.build import build
from roundround.config.checked import checked
from roundround.config.models import give_default_data, opened_pretrained
from roundround.config.recorded import as_dict, overridden
from roundround.config.schema import EvalConfig
from roundround.console import print_status, print_table, warnings_as_lines
from roundround.data.batches import EvaluationWindows, evaluation_windows
from roundround.data.corpora import Corpus
from roundround.data.tokenizers import AlreadyLoaded
from roundround.data.tokens import TokenData, default_cache_dir, prepare
from roundround.errors import UserError, printable
from roundround.files import write_json
from roundround.model.scoring import PositionLoss, Share, score
from roundround.probing.dispersion import Dispersion, watched
from roundround.probing.probed_model import AfterFirstToken, ProbedModel
from roundround.report import dispersion_tables, evaluation, perplexity
from roundround.runs.device import describe_device, pick_device
from roundround.runs.directories import find_run
from roundround.runs.loggers.several import build_logger
from roundround.runs.opening import opened
from roundround.runs.peers import Peers
from roundround.runs.rebuilt import TrainedRun
from roundround.runs.run import Invocation, Run
from roundround.softmax.base import RunsInBlocks
from roundround.tasks.evaluate_task import check_lengths, evaluate_task, of_all

TARGETS_TO_CHOOSE_BY = 2048  # enough to tell nats apart that differ by a few hundredths


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A model and the text that it is measured on.

    peers: the processes that share its windows. choices: the option of each config group, as results name it.
    train_length: tokens of the context that the model was trained on. seed, run: of a run trained here. first_token:
    the text of the token in front of every window.
    separate_documents: whether documents in a window do not see each other.
    """

    model: nn.Module
    data: TokenData
    device: torch.device
    peers: Peers
    choices: dict[str, str]
    train_length: int
    seed: int | None = None
    run: str | None = None
    first_token: str | None = None
    separate_documents: bool = False

    def reading(self) -> dict[str, str | bool | None]:
        """How the text is read, which every result names: a loss depends on it."""
        return {
            "first_token": self.first_token,
            "joining_token": self.data.joining_token,
            "separate_documents": self.separate_documents,
        }

    def title(self) -> str:
        choices = self.choices
        return printable(f"{choices.get('model')}, pe={choices.get('pe')}, softmax={choices.get('softmax')}")


def evaluate(cfg: DictConfig, invocation: Invocation) -> None:
    """Score a run, rebuilt from its manifest, or a pretrained model; `pe`, `softmax`, `data` replace its own."""
    given = invocation.given | give_default_data(cfg, otherwise="pydoc")
    config = checked(EvalConfig, cfg)
    if config.model is None:
        evaluate_run(cfg, config, invocation)
    else:
        evaluate_pretrained(cfg, config, invocation, given)


def evaluate_run(cfg: DictConfig, config: EvalConfig, invocation: Invocation) -> None:
    if config.bos == "true":
        raise UserError(
            "bos=true is for a pretrained model=; a run was trained on windows that begin anywhere in a text"
        )
    source = run_to_evaluate(config)
    trained = TrainedRun(source, trust=config.trust, pe=config.pe, softmax=config.softmax, data=config.data)
    task = trained.task()
    if task is not None:
        evaluate_task(cfg, config, invocation, trained, task)
        return
    if "examples" in overridden(invocation.overrides):
        raise UserError(f"examples= is for a task, and {source} was trained on text; give max_tokens=")
    replaced = {group: choice for group, choice in invocation.given.items() if group in ("pe", "softmax", "data")}
    choices = {**trained.manifest.get("choices", {}), **replaced}
    device = pick_device(config.device)
    decoder = trained.decoder(config.checkpoint).to(device)
    check_lengths(decoder, max(config.length), f"length={max(config.length)}", choices)
    separate = separates_documents(config, invocation, trained)
    data = trained.held_out_text()
    evaluated = Evaluated(
        model=decoder,
        data=data,
        device=device,
        choices=choices,
        train_length=int(trained.config.model.train_length),
        seed=trained.config.seed,
        run=str(source),
        separate_documents=separate,
        peers=invocation.peers,
    )
    with opened_run(cfg, config, invocation, evaluated) as run:
        if data.corpus_hash != trained.manifest["data"]["corpus_hash"]:
            print_status(
                "this is not the corpus that the run was trained on, as it was then: it may have seen held-out text"
            )
        score_and_report(run, config, evaluated)


def separates_documents(config: EvalConfig, invocation: Invocation, trained: TrainedRun) -> bool:
    """Whether documents in a window do not see each other: as in training, unless the command line says otherwise.

    UserError for the dispersion of such windows, whose rows are counted by their place in the window.
    """
    separate = trained.separate_documents
    if config.data is not None and "data.separate_documents" in overridden(invocation.overrides):
        separate = build(config.data, Corpus).separate_documents  # type: ignore[type-abstract]
    if separate and config.dispersion:
        raise UserError(
            "dispersion=true reads windows as one text, and in this run's documents do not see each other; look at "
            "its documents with roundround probe, or give data= with data.separate_documents=false"
        )
    return separate


def run_to_evaluate(config: EvalConfig) -> Path:
    """The run directory. UserError where there is none, which says what can be evaluated without one."""
    try:
        return find_run(config.run, config.outputs, "train", done=True)
    except UserError as error:
        if config.run != "last":
            raise
        raise UserError(f"{error}, or evaluate the model in the package: roundround eval model=stories260k") from error


def evaluate_pretrained(cfg: DictConfig, config: EvalConfig, invocation: Invocation, given: dict[str, str]) -> None:
    if config.run != "last":
        raise UserError("give run= for a model trained here or model= for a pretrained one, not both")
    device = pick_device(config.device)
    with opened_pretrained(config.model, config.pe, config.softmax, device) as probed:
        corpus = build(config.data, Corpus)  # type: ignore[type-abstract]
        if corpus.separate_documents:
            raise UserError("data.separate_documents=true is for a run trained here; leave it out")
        recipe = AlreadyLoaded(probed.tokenizer, probed.name, end_of_document=probed.first_token)
        data = prepare(corpus, recipe, default_cache_dir(), needs=["held_out"])
        choices = {"softmax": "its own", "pe": "its own", **given, "model": probed.name}
        with warnings_as_lines(RunsInBlocks):
            first = chosen_first_token(config, probed, data, device, invocation.peers)
        evaluated = Evaluated(
            model=AfterFirstToken(probed, first),
            data=data,
            device=device,
            choices=choices,
            train_length=probed.longest,
            first_token=None if first is None else data.tokenizer.id_to_token(first),
            peers=invocation.peers,
        )
        with opened_run(cfg, config, invocation, evaluated) as run:
            score_and_report(run, config, evaluated)


@contextmanager
def opened_run(cfg: DictConfig, config: EvalConfig, invocation: Invocation, evaluated: Evaluated) -> Iterator[Run]:
    """The run directory, with what is known before the first number."""
    with opened(invocation, config=as_dict(cfg), logger=build_logger(config.logger)) as run:
        data = evaluated.data
        hashes = {"corpus_hash": data.corpus_hash, "tokenizer_hash": data.tokenizer_hash}
        facts = {"seed": evaluated.seed, "run": evaluated.run, **evaluated.reading()}
        run.note(choices=evaluated.choices, device=describe_device(evaluated.device), data=hashes, **facts)
        yield run


def score_and_report(run: Run, config: EvalConfig, evaluated: Evaluated) -> None:
    with warnings_as_lines(RunsInBlocks):
        losses, dispersions = measure(config, evaluated)
    options = {name: evaluated.choices.get(name) for name in ("pe", "softmax")}
    common = {**options, "seed": evaluated.seed, **evaluated.reading(), "stride": config.stride}
    report(run, evaluated, losses, common, more=dispersion_tables.records(dispersions, common), table=config.table)
    if dispersions and run.writes:
        dispersion_tables.leave(dispersions, run.directory, title=evaluated.title(), on_output=config.table == "stdout")


def chosen_first_token(
    config: EvalConfig, probed: ProbedModel, data: TokenData, device: torch.device, peers: Peers
) -> int | None:
    """The token in front of every window, or None: as `bos` says, or what the first targets are cheaper with.

    Models differ: one whose first key is a sink needs it before any window; one trained on windows that begin anywhere
    takes it for the beginning of a text, which most windows are not.
    """
    first = probed.first_token
    if first is None and config.bos == "true":
        raise UserError(f"bos=true: the tokenizer of {probed.name} puts no token at the beginning of a text")
    if first is None or config.bos == "false":
        return None
    if config.bos == "true":
        return first
    length = max(config.length)
    n_targets = max(length, min(TARGETS_TO_CHOOSE_BY, config.max_tokens or TARGETS_TO_CHOOSE_BY))
    windows = evaluation_windows(
        data.held_out, length=length, longest=length, stride=config.stride, max_tokens=n_targets
    )
    with_it, without = (
        score_windows(AfterFirstToken(probed, token), windows, config, data, device, peers) for token in (first, None)
    )
    better = with_it.token_loss() < without.token_loss()
    print_status(
        f"windows begin {'with' if better else 'without'} {data.tokenizer.id_to_token(first)}: "
        f"{with_it.token_loss():.3f} nats per token with it, {without.token_loss():.3f} without, over the first "
        f"{without.n_targets:,} targets at context {length:,} (bos=true or false decides)"
    )
    return first if better else None


def score_windows(
    model: nn.Module,
    windows: EvaluationWindows,
    config: EvalConfig,
    data: TokenData,
    device: torch.device,
    peers: Peers,
    *,
    separate: bool = False,
) -> PositionLoss:
    """The losses of all windows, of which each process reads a share."""
    share = Share(windows, first=peers.rank, n=peers.n)
    own = score(
        model,
        share,
        batch=max(1, config.batch_tokens // windows.length),
        device=device,
        first_scored=lambda rows: windows.first_scored(share.among_all(rows)),
        joint=data.end_of_document,
        separator=data.end_of_document if separate else None,
    )
    total = PositionLoss(windows.length)
    total.add_all(peers.gather(own))
    return total


def measure(config: EvalConfig, evaluated: Evaluated) -> tuple[dict[int, PositionLoss], dict[int, Dispersion]]:
    """Losses at each length, and where asked for the dispersion of the attention that led to them.

    The targets are the same at all lengths: every token of the stream but the first, or the first max_tokens of them.
    """
    model, data = evaluated.model, evaluated.data
    losses, dispersions = {}, {}
    for length in sorted(set(config.length)):
        windows = evaluation_windows(
            data.held_out,
            length=length,
            longest=max(config.length),
            stride=config.stride,
            max_tokens=config.max_tokens,
        )
        n_before = model.n_before if isinstance(model, AfterFirstToken) else 0
        with watched(model, n_before + length) if config.dispersion else nullcontext() as seen:
            losses[length] = score_windows(
                model, windows, config, data, evaluated.device, evaluated.peers, separate=evaluated.separate_documents
            )
        if seen is not None:
            dispersions[length] = of_all(seen, evaluated.peers)
    return losses, dispersions


def report(
    run: Run,
    evaluated: Evaluated,
    losses: dict[int, PositionLoss],
    common: dict[str, Any],
    *,
    more: list[dict[str, Any]],
    table: str,
) -> None:
    """Write results, with `more` of them, and the figure, and show the table."""
    train_length, title = evaluated.train_length, evaluated.title()
    n_bytes = evaluation.scored_bytes(losses, evaluated.data)
    by_length = {length: evaluation.values(loss, n_bytes) for length, loss in losses.items()}
    for length, values in by_length.items():
        run.log(length, length=length, **values)
    records = evaluation.records(losses, n_bytes, common)
    run.results(
        records + more, **{f"perplexity_{length}": values["perplexity"] for length, values in by_length.items()}
    )
    if run.writes:
        curves = {length: loss.by_position for length, loss in losses.items()}
        write_json(run.directory / "loss_by_position.json", curves)
        perplexity.draw(losses, train_length=train_length, title=title, folder=run.directory / "figures")
        shown = evaluation.table(by_length, train_length=train_length, title=f"held-out text, {title}")
        print_table(shown, on_output=table == "stdout")
        for line in evaluation.scope(losses, evaluated.data, separate_documents=evaluated.separate_documents):
            print_status(line)
