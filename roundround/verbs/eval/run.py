"""`roundround eval`: perplexity of a model on held-out text, at several context lengths, and its dispersion.

The model is one trained here (`run=`) or a pretrained one (`model=`).

Tested by tests/training/test_eval.py and tests/asking/test_eval_pretrained.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from roundround.asking.reader import (
    Reader,
    check_dispersion,
    check_lengths,
    first_tokens_of,
    measure,
    refuse_checkpoint,
)
from roundround.config.build import build, checked
from roundround.config.recorded import give_theta, overridden
from roundround.data.corpora import Corpus, Source
from roundround.data.prepared import TokenData
from roundround.distributed.device import describe_device, pick_device
from roundround.kernels.trial import FallsBack
from roundround.model.decoder import Decoder
from roundround.model.scoring import PositionLoss
from roundround.probing.ablation import FEWEST, n_targets
from roundround.probing.probed_model import ProbedModel
from roundround.records.directories import find_run, read_manifest
from roundround.records.opening import opened_run
from roundround.records.run import Invocation, Run
from roundround.report import dispersion_tables, evaluation
from roundround.report.drawing.figures import save_drawing
from roundround.report.eval_panels import drawing
from roundround.support.console import print_status, print_table, warnings_as_lines
from roundround.support.errors import UserError, printable
from roundround.support.files import write_json
from roundround.trained.models import TrainedRun, give_default_data, opened_pretrained, text_for
from roundround.trained.patterns import chosen_parts, layer_lines
from roundround.verbs.eval import EvalConfig
from roundround.verbs.eval.harness import evaluate_harness
from roundround.verbs.eval.pairs import evaluate_pairs, pairs_asked_for, subject_of_pretrained, subject_of_run
from roundround.verbs.eval.task import (
    asked_of_pretrained,
    asked_of_run,
    decoder_of,
    evaluate_task,
)


def evaluate(cfg: DictConfig, invocation: Invocation) -> None:
    """Score a run, rebuilt from its manifest, or a pretrained model; `pe`, `softmax`, `data` replace its own."""
    given = invocation.given | ({} if cfg.tasks else give_default_data(cfg, otherwise="pydoc"))
    config = checked(EvalConfig, cfg)
    if config.model is None:
        evaluate_run(cfg, config, invocation)
    else:
        evaluate_pretrained(cfg, config, invocation, given)


def evaluate_run(cfg: DictConfig, config: EvalConfig, invocation: Invocation) -> None:
    pairs = pairs_asked_for(config, invocation)
    if config.bos == "true":
        raise UserError(
            "bos=true is for a pretrained model=; a run was trained on windows that begin anywhere in a text"
        )
    try:
        source = find_run(config.run, config.outputs, "train", done=True)
    except UserError as error:
        if config.run != "last":
            raise
        raise UserError(f"{error}, or evaluate the model in the package: roundround eval model=stories260k") from error
    sweep = read_manifest(source)["sweep"]
    if config.run == "last" and sweep is not None and invocation.sweep is None:
        print_status(f"last is {source.name} of a sweep; all of its runs: run={sweep}")
    trained = TrainedRun(
        source,
        trust=config.trust,
        pe=config.pe,
        softmax=config.softmax,
        data=None if pairs is not None else config.data,
        pattern=config.pattern,
        whole_pattern=invocation.given.get("pattern") is not None,
    )
    record_encodings(cfg, trained)
    if config.tasks:
        evaluate_harness(cfg, config, invocation, trained)
        return
    if pairs is not None:
        subject = subject_of_run(trained, *decoder_of(config, invocation, trained))
        evaluate_pairs(cfg, config, invocation, pairs, subject)
        return
    task = trained.task()
    if task is not None:
        evaluate_task(cfg, config, invocation, asked_of_run(config, invocation, trained, task))
        return
    refuse_keys_of_tasks(invocation, f"{source} was trained on text")
    decoder, choices, device = decoder_of(config, invocation, trained)
    check_lengths(decoder, max(config.length), f"length={max(config.length)}", choices.get("pe"))
    separate = trained.separate_documents  # as in training, unless the command line says otherwise
    if config.data is not None and "data.separate_documents" in overridden(invocation.overrides):
        separate = build(config.data, Corpus).separate_documents  # type: ignore[type-abstract]
    check_dispersion(config.dispersion, separate=separate)
    data = trained.held_out_text()
    remarks = [] if config.pattern is None else layer_lines(decoder)
    if data.corpus_hash != trained.manifest["data"]["corpus_hash"]:
        remarks += [
            "this is not the corpus that the run was trained on, as it was then: it may have seen held-out text"
        ]
    if decoder.draws_positions:
        remarks += ["the loss is the mean of five draws of positions, of each window or of all documents"]
    reader = reader_of(decoder, data, config, invocation, device=device, separate_documents=separate)
    train_length, seed = int(trained.config.model.train_length), trained.config.seed
    score(
        cfg, config, reader, invocation, remarks, choices=choices, train_length=train_length, seed=seed, source=source
    )


def record_encodings(cfg: DictConfig, trained: TrainedRun) -> None:
    """Put the whole of what replaces the run's encodings, bases included, into the config that is recorded."""
    if cfg.get("pe") is not None:
        cfg.pe = trained.config.pe
    for kind, given in (cfg.get("pattern") or {}).items():
        if isinstance(given, DictConfig) and given.get("pe") is not None:
            given.pe = trained.config.pattern[kind].pe


def evaluate_pretrained(cfg: DictConfig, config: EvalConfig, invocation: Invocation, given: dict[str, str]) -> None:
    pairs = pairs_asked_for(config, invocation)
    refuse_checkpoint(invocation)
    if config.run != "last":
        raise UserError("give run= for a model trained here or model= for a pretrained one, not both")
    if config.pattern is not None:
        raise UserError(
            "pattern= is for a run, whose kinds of layers are known; a pretrained model takes pe= and softmax="
        )
    assert config.model is not None
    device = pick_device(config.device)
    with opened_pretrained(config.model, config.pe, config.softmax, device) as probed:
        give_theta(cfg, probed.theta)
        if config.tasks:
            evaluate_harness(cfg, config, invocation, probed)
            return
        choices = {"softmax": "its own", "pe": "its own", **given, "model": probed.name}
        if pairs is not None:
            evaluate_pairs(cfg, config, invocation, pairs, subject_of_pretrained(probed, config, choices, device))
            return
        assert config.data is not None
        corpus = build(config.data, Source)  # type: ignore[type-abstract]
        if not isinstance(corpus, Corpus):
            evaluate_task(cfg, config, invocation, asked_of_pretrained(probed, corpus, choices))
            return
        refuse_keys_of_tasks(invocation, f"data={given.get('data')} is text")
        separate = corpus.separate_documents
        check_dispersion(config.dispersion, separate=separate)
        data = text_for(probed.vocabulary(), corpus)
        reader = reader_of(probed, data, config, invocation, device=device, separate_documents=separate)
        score(cfg, config, reader, invocation, [], choices=choices, train_length=probed.longest)


def refuse_keys_of_tasks(invocation: Invocation, why: str) -> None:
    """UserError for what is asked of tasks alone."""
    for key, instead in (("examples", "give max_tokens="), ("by", "leave it out")):
        if key in overridden(invocation.overrides):
            raise UserError(f"{key}= is for a task, and {why}; {instead}")


def reader_of(
    model: Decoder | ProbedModel,
    data: TokenData,
    config: EvalConfig,
    invocation: Invocation,
    *,
    device: torch.device,
    separate_documents: bool,
) -> Reader:
    """The model with the text, read as the command line says."""
    reading = {name: getattr(config, name) for name in ("bos", "stride", "max_tokens", "batch_tokens")}
    return Reader(
        model=model, data=data, device=device, separate_documents=separate_documents, peers=invocation.peers, **reading
    )


def score(
    cfg: DictConfig,
    config: EvalConfig,
    reader: Reader,
    invocation: Invocation,
    remarks: Sequence[str],
    *,
    choices: dict[str, str],
    train_length: int,
    seed: int | None = None,
    source: Path | None = None,
) -> None:
    """Measure and report in a run directory, which has what is known before the first number.

    choices: the option of each config group, as results name it. train_length: tokens of the context that the model was
    trained on. seed, source: of a run trained here. UserError where there is too little text.
    """
    with warnings_as_lines(FallsBack):  # the token in front of a length's windows depends on no other length
        first_tokens = first_tokens_of(reader, config.length)
    words = evaluation.first_words(reader, first_tokens)
    with opened_run(invocation, cfg) as run:
        run.note(
            choices=choices,
            device=describe_device(reader.device),
            data={"corpus_hash": reader.data.corpus_hash, "tokenizer_hash": reader.data.tokenizer_hash},
            seed=seed,
            run=None if source is None else str(source),
            first_token=words[min(words)]
            if len(set(words.values())) == 1
            else {str(length): word for length, word in words.items()},
            **reader.reading(),
        )
        for remark in remarks:
            print_status(remark)
        with warnings_as_lines(FallsBack):
            losses, dispersions = measure(reader, first_tokens, dispersion=config.dispersion)
        common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": seed}
        n_bytes = {length: reader.scored_bytes(first) for length, first in first_tokens.items()}
        by_length = {length: evaluation.values(loss, n_bytes[length]) for length, loss in losses.items()}
        for length, values in by_length.items():
            run.log(length, length=length, **values)
        records = evaluation.all_records(reader, first_tokens, losses, dispersions, common)
        run.results(
            records,
            **{f"perplexity_{length}": values["perplexity"] for length, values in by_length.items()},
        )
        if run.writes:
            title = printable(f"{choices.get('model')}, {chosen_parts(choices)}")
            show(run, config, losses, by_length, records, train_length=train_length, title=title)
            scope, *lines = evaluation.scope(losses, n_bytes, words, reader)
            for line in [f"{scope}; * is the training context length", *lines]:
                print_status(line)
            if dispersions:
                dispersion_tables.leave(dispersions, run.directory, config, title=title)


def show(
    run: Run,
    config: EvalConfig,
    losses: dict[int, PositionLoss],
    by_length: dict[int, dict[str, float]],
    records: Sequence[dict[str, Any]],
    *,
    train_length: int,
    title: str,
) -> None:
    """The losses by position, the figure and the table."""
    write_json(run.directory / "loss_by_position.json", {n: loss.by_position for n, loss in losses.items()})
    n = max(n_targets(loss) for loss in losses.values())
    few = "" if n >= FEWEST else ", too few to tell"
    note = f"{n:,} targets, the same at each length{few}."
    figure = drawing(records, (train_length, train_length), title, note)
    save_drawing(figure, run.directory / "figures", config.figures)
    table = evaluation.table(by_length, train_length=train_length, title=f"held-out text, {title}")
    print_table(table, on_output=config.table == "stdout", first_to_leave=["with joints", "nats per byte"])
