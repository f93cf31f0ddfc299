"""`roundround eval`: perplexity of a model on held-out text, at several context lengths, and its dispersion.

The model is one trained here (`run=`) or a pretrained one (`model=`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from roundround.config.build import build
from roundround.config.checked import checked
from roundround.config.recorded import as_dict, give_theta, overridden
from roundround.config.verbs.eval import EvalConfig
from roundround.data.corpora import Corpus
from roundround.data.tokenizers import AlreadyOpen
from roundround.data.tokens import TokenData, default_cache_dir, prepare
from roundround.distributed.device import describe_device, pick_device
from roundround.loading.models import give_default_data, opened_pretrained
from roundround.loading.reading import Reader
from roundround.loading.rebuilt import TrainedRun
from roundround.model.decoder import Decoder
from roundround.model.scoring import PositionLoss
from roundround.probing.dispersion import Dispersion, watched
from roundround.probing.probed_model import ProbedModel
from roundround.report import dispersion_tables, evaluation, perplexity
from roundround.runs.directories import find_run
from roundround.runs.loggers.several import build_logger
from roundround.runs.opening import opened
from roundround.runs.run import Invocation, Run
from roundround.softmax.base import RunsInBlocks
from roundround.support.console import print_status, print_table, warnings_as_lines
from roundround.support.errors import UserError, printable
from roundround.support.files import write_json
from roundround.verbs.evaluate_task import check_lengths, decoder_of, evaluate_task, of_all


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A model with the text that it is measured on.

    first_tokens: the token in front of every window of each length, None for none. choices: the option of each config
    group, as results name it. train_length: tokens of the context that the model was trained on. seed, run: of a run
    trained here.
    """

    reader: Reader
    first_tokens: dict[int, int | None]
    choices: dict[str, str]
    train_length: int
    seed: int | None = None
    run: str | None = None

    def title(self) -> str:
        choices = self.choices
        return printable(f"{choices.get('model')}, pe={choices.get('pe')}, softmax={choices.get('softmax')}")

    def first_words(self) -> dict[int, str | None]:
        """What stands in front of the windows of each length, as text."""
        read = self.reader.data.tokenizer.id_to_token
        return {length: None if token is None else read(token) for length, token in self.first_tokens.items()}


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
    give_theta(cfg, OmegaConf.select(trained.config, "pe.theta"))
    task = trained.task()
    if task is not None:
        evaluate_task(cfg, config, invocation, trained, task)
        return
    if "examples" in overridden(invocation.overrides):
        raise UserError(f"examples= is for a task, and {source} was trained on text; give max_tokens=")
    decoder, choices, device = decoder_of(config, invocation, trained)
    check_lengths(decoder, max(config.length), f"length={max(config.length)}", choices)
    separate = trained.separate_documents  # as in training, unless the command line says otherwise
    if config.data is not None and "data.separate_documents" in overridden(invocation.overrides):
        separate = build(config.data, Corpus).separate_documents  # type: ignore[type-abstract]
    check_dispersion(config, separate=separate)
    data = trained.held_out_text()
    evaluated = evaluated_on(
        data,
        config,
        invocation,
        model=decoder,
        device=device,
        separate_documents=separate,
        choices=choices,
        train_length=int(trained.config.model.train_length),
        seed=trained.config.seed,
        run=str(source),
    )
    remarks = []
    if data.corpus_hash != trained.manifest["data"]["corpus_hash"]:
        remarks = ["this is not the corpus that the run was trained on, as it was then: it may have seen held-out text"]
    if decoder.encoding.draws_positions:
        remarks += ["the loss is the mean of five draws of positions, of each window or of all documents"]
    score(cfg, config, invocation, evaluated, remarks)


def evaluated_on(
    data: TokenData,
    config: EvalConfig,
    invocation: Invocation,
    *,
    model: Decoder | ProbedModel,
    device: torch.device,
    separate_documents: bool,
    **known: Any,
) -> Evaluated:
    """The model with the text, read as the command line says. UserError where there is too little text.

    The token in front of the windows of a length does not depend on the other lengths. known: fields of `Evaluated`.
    """
    reading = {name: getattr(config, name) for name in ("bos", "stride", "max_tokens", "batch_tokens")}
    reader = Reader(
        model=model,
        data=data,
        device=device,
        separate_documents=separate_documents,
        peers=invocation.peers,
        **reading,
    )
    reader.check(max(config.length))
    with warnings_as_lines(RunsInBlocks):
        first_tokens = {length: reader.first_token(length) for length in sorted(set(config.length))}
    return Evaluated(reader=reader, first_tokens=first_tokens, **known)


def check_dispersion(config: EvalConfig, *, separate: bool) -> None:
    """UserError for the dispersion of separate documents: rows are counted by their position in the window."""
    if separate and config.dispersion:
        raise UserError(
            "dispersion=true reads windows as one text, and here documents do not see each other; look at "
            "the documents with roundround probe, or give data= with data.separate_documents=false"
        )


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
        give_theta(cfg, probed.theta)
        corpus = build(config.data, Corpus)  # type: ignore[type-abstract]
        separate = corpus.separate_documents
        check_dispersion(config, separate=separate)
        data = prepare(corpus, AlreadyOpen(probed.vocabulary()), default_cache_dir(), needs=["held_out"])
        evaluated = evaluated_on(
            data,
            config,
            invocation,
            model=probed,
            device=device,
            separate_documents=separate,
            choices={"softmax": "its own", "pe": "its own", **given, "model": probed.name},
            train_length=probed.longest,
        )
        score(cfg, config, invocation, evaluated)


def score(
    cfg: DictConfig, config: EvalConfig, invocation: Invocation, evaluated: Evaluated, remarks: Sequence[str] = ()
) -> None:
    """Measure and report in a run directory, which has what is known before the first number."""
    with opened(invocation, config=as_dict(cfg), logger=build_logger(config.logger)) as run:
        reader, words = evaluated.reader, evaluated.first_words()
        same = len(set(words.values())) == 1
        run.note(
            choices=evaluated.choices,
            device=describe_device(reader.device),
            data={"corpus_hash": reader.data.corpus_hash, "tokenizer_hash": reader.data.tokenizer_hash},
            seed=evaluated.seed,
            run=evaluated.run,
            first_token=next(iter(words.values())) if same else {str(length): word for length, word in words.items()},
            **reader.reading(),
        )
        for remark in remarks:
            print_status(remark)
        with warnings_as_lines(RunsInBlocks):
            losses, dispersions = measure(config, evaluated)
        options = {name: evaluated.choices.get(name) for name in ("pe", "softmax")}
        common = {**options, "seed": evaluated.seed, **reader.reading(), "stride": config.stride}
        more = dispersion_tables.records(dispersions, common)
        report(run, evaluated, losses, common, more=more, table=config.table)
        if dispersions and run.writes:
            on_output = config.table == "stdout"
            dispersion_tables.leave(dispersions, run.directory, title=evaluated.title(), on_output=on_output)


def measure(config: EvalConfig, evaluated: Evaluated) -> tuple[dict[int, PositionLoss], dict[int, Dispersion]]:
    """Losses at each length, and where asked for the dispersion of the attention that led to them.

    The targets are the same at all lengths: every token of the stream but the first, or the first max_tokens of them.
    """
    reader = evaluated.reader
    losses, dispersions = {}, {}
    for length, first in evaluated.first_tokens.items():
        n_keys, model = length + (first is not None), reader.scored_model(first)
        with watched(model, n_keys) if config.dispersion else nullcontext() as seen:
            losses[length] = reader.loss(length, first)
        if seen is not None:
            dispersions[length] = of_all(seen, reader.peers)
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
    train_length, title, words = evaluated.train_length, evaluated.title(), evaluated.first_words()
    n_bytes = {length: evaluated.reader.scored_bytes(first) for length, first in evaluated.first_tokens.items()}
    by_length = {length: evaluation.values(loss, n_bytes[length]) for length, loss in losses.items()}
    for length, values in by_length.items():
        run.log(length, length=length, **values)
    records = [*evaluation.records(losses, n_bytes, common), *more]
    run.results(
        [{**record, "first_token": words[record["length"]]} for record in records],
        **{f"perplexity_{length}": values["perplexity"] for length, values in by_length.items()},
    )
    if run.writes:
        curves = {length: loss.by_position for length, loss in losses.items()}
        write_json(run.directory / "loss_by_position.json", curves)
        perplexity.draw(losses, train_length=train_length, title=title, folder=run.directory / "figures")
        shown = evaluation.table(by_length, train_length=train_length, title=f"held-out text, {title}")
        print_table(shown, on_output=table == "stdout")
        scope, *lines = evaluation.scope(losses, n_bytes, words, evaluated.reader)
        for line in [f"{scope}; * is the training context length", *lines]:
            print_status(line)
