"""`roundround eval`: loads the model of a run (`run=`) or a pretrained one (`model=`), and chooses the measurement.

Tested by tests/training/test_eval.py and tests/asking/test_eval_pretrained.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from omegaconf import DictConfig

from roundround.asking.reader import refuse_checkpoint
from roundround.config.build import build, checked
from roundround.config.recorded import give_theta, overridden
from roundround.data.corpora import Corpus, Source
from roundround.data.prepared import TokenData
from roundround.data.tasks.base import Task
from roundround.distributed.device import pick_device
from roundround.records.directories import find_run
from roundround.records.run import Invocation
from roundround.support.console import print_status
from roundround.support.errors import UserError
from roundround.trained.models import TrainedRun, give_default_data, opened_pretrained, text_for
from roundround.trained.patterns import layer_lines
from roundround.verbs.eval import EvalConfig
from roundround.verbs.eval.questions import (
    AskedModel,
    evaluate_harness,
    evaluate_pairs,
    evaluate_task,
    evaluate_text,
    in_tokens_of,
    pairs_asked_for,
    refuse,
)


def evaluate(cfg: DictConfig, invocation: Invocation) -> None:
    """Measure the model of a run, or a pretrained model.

    If the config gives `pe`, `softmax` or `data`, they replace the model's parts and data.
    """
    given = invocation.given | ({} if cfg.tasks else give_default_data(cfg, otherwise="pydoc"))
    config = checked(EvalConfig, cfg)
    pairs = pairs_asked_for(config, invocation)
    with (
        of_run(cfg, config, invocation, own_data=pairs is not None)
        if config.model is None
        else pretrained(cfg, config, invocation, given) as subject
    ):
        if config.tasks:
            evaluate_harness(cfg, config, invocation, subject)
        elif pairs is not None:
            evaluate_pairs(cfg, config, invocation, pairs, subject)
        elif (task := task_of(config, subject)) is not None:
            evaluate_task(cfg, config, invocation, task, subject)
        else:
            trained = subject.trained
            read = (
                f"data={given.get('data')} is text" if trained is None else f"{trained.directory} was trained on text"
            )
            refuse(invocation, ["examples"], f"is for a task, and {read}; give max_tokens=")
            refuse(invocation, ["by"], f"is for a task, and {read}; leave it out")
            evaluate_text(cfg, config, invocation, *text_of(config, invocation, subject), subject)


@contextmanager
def of_run(cfg: DictConfig, config: EvalConfig, invocation: Invocation, own_data: bool) -> Iterator[AskedModel]:
    """The decoder of a run. If an encoding is replaced, the recorded config gets all values of the new encoding."""
    if config.bos == "true":
        raise UserError(
            "bos=true is for a pretrained model=; a run's model was trained on windows that begin anywhere in a text"
        )
    source = find_run(config.run, config.outputs, "train", done=True)
    trained = TrainedRun(
        source,
        trust=config.trust,
        pe=config.pe,
        softmax=config.softmax,
        data=None if own_data else config.data,
        pattern=config.pattern,
        whole_pattern=invocation.given.get("pattern") is not None,
    )
    if cfg.get("pe") is not None:
        cfg.pe = trained.config.pe
    for kind, given in (cfg.get("pattern") or {}).items():
        if isinstance(given, DictConfig) and given.get("pe") is not None:
            given.pe = trained.config.pattern[kind].pe
    device, context = pick_device(config.device), int(trained.config.model.train_length)
    decoder, choices = trained.decoder(config.checkpoint).to(device), trained.choices_with(invocation.given)
    yield AskedModel(model=decoder, device=device, choices=choices, context=context, trained=trained)


@contextmanager
def pretrained(
    cfg: DictConfig, config: EvalConfig, invocation: Invocation, given: dict[str, str]
) -> Iterator[AskedModel]:
    """A pretrained model; inside the block its attention uses the `pe` and `softmax` of the config."""
    refuse_checkpoint(invocation)
    if config.run != "last" or "run" in overridden(invocation.overrides):
        raise UserError("give run= for a model trained here or model= for a pretrained one, not both")
    if config.pattern is not None:
        raise UserError(
            "pattern= is for a run, whose kinds of layers are known; for a pretrained model, give pe= or softmax="
        )
    assert config.model is not None
    device = pick_device(config.device)
    with opened_pretrained(config.model, config.pe, config.softmax, device) as probed:
        give_theta(cfg, probed.theta)
        choices = {"softmax": "its own", "pe": "its own", **given, "model": probed.name}
        yield AskedModel(model=probed, device=device, choices=choices, context=probed.longest)


def task_of(config: EvalConfig, subject: AskedModel) -> Task | None:
    """The task that `data` names, or the task that the run learnt if `data` is not given; None for text."""
    if subject.trained is not None:
        return subject.trained.task()
    assert config.data is not None, "a pretrained model is given one"
    source = build(config.data, Source)  # type: ignore[type-abstract]
    return None if isinstance(source, Corpus) else in_tokens_of(subject, source)


def text_of(config: EvalConfig, invocation: Invocation, subject: AskedModel) -> tuple[TokenData, bool]:
    """The held-out text, and whether tokens attend only to tokens of their own document."""
    trained, decoder = subject.trained, subject.decoder
    if trained is None or decoder is None:
        assert config.data is not None, "a pretrained model is given one"
        corpus = build(config.data, Corpus)  # type: ignore[type-abstract]
        return text_for(subject.vocabulary, corpus), corpus.separate_documents
    longest, separate = max(config.length), trained.separate_documents  # as in training, unless the words say otherwise
    subject.check_room(longest, f"length={longest}")
    if config.data is not None and "data.separate_documents" in overridden(invocation.overrides):
        separate = build(config.data, Corpus).separate_documents  # type: ignore[type-abstract]
    data = trained.held_out_text()
    for line in [] if config.pattern is None else layer_lines(decoder):
        print_status(line)
    if data.corpus_hash != trained.manifest["data"]["corpus_hash"]:
        print_status("not the corpus that the run was trained on, or it has changed: the model may know held-out text")
    return data, separate
