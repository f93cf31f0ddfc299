"""`roundround eval`: which model is asked, one trained here (`run=`) or a pretrained one (`model=`), and what.

Tested by tests/training/test_eval.py and tests/asking/test_eval_pretrained.py.
"""

from __future__ import annotations

from omegaconf import DictConfig

from roundround.asking.losses import check_dispersion
from roundround.asking.reader import refuse_checkpoint
from roundround.config.build import build, checked
from roundround.config.recorded import give_theta, overridden
from roundround.data.corpora import Corpus, Source
from roundround.distributed.device import pick_device
from roundround.records.directories import find_run, read_manifest
from roundround.records.run import Invocation
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.trained.models import TrainedRun, give_default_data, opened_pretrained, text_for
from roundround.trained.patterns import layer_lines
from roundround.verbs.eval import EvalConfig
from roundround.verbs.eval.harness import evaluate_harness
from roundround.verbs.eval.questions import (
    Subject,
    evaluate_pairs,
    evaluate_task,
    evaluate_text,
    pairs_asked_for,
    refuse,
    task_of_text,
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
    task = None if config.tasks or pairs is not None else trained.task()
    device = pick_device(config.device)
    decoder = trained.decoder(config.checkpoint).to(device)
    subject = Subject(
        model=decoder,
        device=device,
        choices=trained.choices_with(invocation.given),
        context=int(trained.config.model.train_length),
        trained=trained,
    )
    if config.tasks:
        evaluate_harness(cfg, config, invocation, subject)
    elif pairs is not None:
        evaluate_pairs(cfg, config, invocation, pairs, subject)
    elif task is not None:
        evaluate_task(cfg, config, invocation, task, subject)
    else:
        refuse_keys_of_tasks(invocation, f"{source} was trained on text")
        longest = max(config.length)
        subject.check_room(longest, f"length={longest}")
        separate = trained.separate_documents  # as in training, unless the command line says otherwise
        if config.data is not None and "data.separate_documents" in overridden(invocation.overrides):
            separate = build(config.data, Corpus).separate_documents  # type: ignore[type-abstract]
        check_dispersion(config.dispersion, separate=separate)
        data = trained.held_out_text()
        remarks = [] if config.pattern is None else layer_lines(decoder)
        if data.corpus_hash != trained.manifest["data"]["corpus_hash"]:
            remarks.append(
                "this is not the corpus that the run was trained on, as it was then: it may have seen held-out text"
            )
        if decoder.draws_positions:
            remarks.append("the loss is the mean of five draws of positions, of each window or of all documents")
        evaluate_text(cfg, config, invocation, data, subject, separate_documents=separate, remarks=remarks)


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
    device = pick_device(config.device)
    with opened_pretrained(config.model, config.pe, config.softmax, device) as probed:
        give_theta(cfg, probed.theta)
        choices = {"softmax": "its own", "pe": "its own", **given, "model": probed.name}
        subject = Subject(model=probed, device=device, choices=choices, context=probed.longest)
        if config.tasks:
            evaluate_harness(cfg, config, invocation, subject)
            return
        if pairs is not None:
            evaluate_pairs(cfg, config, invocation, pairs, subject)
            return
        corpus = build(config.data, Source)  # type: ignore[type-abstract]
        if not isinstance(corpus, Corpus):
            evaluate_task(cfg, config, invocation, task_of_text(probed, corpus, subject), subject)
            return
        refuse_keys_of_tasks(invocation, f"data={given.get('data')} is text")
        check_dispersion(config.dispersion, separate=corpus.separate_documents)
        data = text_for(subject.vocabulary, corpus)
        evaluate_text(cfg, config, invocation, data, subject, separate_documents=corpus.separate_documents)


def refuse_keys_of_tasks(invocation: Invocation, why: str) -> None:
    refuse(invocation, ["examples"], f"is for a task, and {why}; give max_tokens=")
    refuse(invocation, ["by"], f"is for a task, and {why}; leave it out")
