"""`roundround eval` of a task: how many examples a run or a pretrained model gets right at each length.

Tested by tests/training/test_task_runs.py and tests/asking/test_task_answers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf

from roundround.asking.generation import Writer, decoder_writer, pretrained_writer
from roundround.asking.losses import of_all
from roundround.asking.task_answers import AnsweringPretrained, check_is_written, score_written
from roundround.config.recorded import overridden
from roundround.data.corpora import Source
from roundround.data.tasks.base import BYTES_OF_TOKEN, IDENTIFYING, Example, Examples, Task, distinct
from roundround.data.tasks.batches import same_length_batches
from roundround.data.tasks.length_tests import LengthTest
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import content_hash
from roundround.distributed.device import check_fits
from roundround.distributed.peers import Peers
from roundround.kernels.trial import FallsBack
from roundround.model.answers import AnswerScores, score_answers
from roundround.model.decoder import Decoder
from roundround.probing.dispersion import Dispersion, watched
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.report import evaluation as report
from roundround.report.drawing.tables import Record
from roundround.report.eval_panels import TASK, crossed, grid
from roundround.support.console import print_status, warnings_as_lines
from roundround.support.errors import UserError
from roundround.verbs.eval import EvalConfig
from roundround.verbs.eval.subject import Subject, refuse, show

if TYPE_CHECKING:
    from roundround.hf.load import ProbedHuggingFaceModel

TIMES = (1, 2, 4)  # the longest length in training: where lengths are not given


def task_of_text(probed: ProbedHuggingFaceModel, task: Source, subject: Subject) -> Task:
    """The task in the tokens of a pretrained model. UserError for a task with a vocabulary of its own."""
    if not isinstance(task, TextTask):
        raise UserError(
            f"data={subject.choices.get('data')} has symbols of its own, which a pretrained model does not know; give "
            "a task of text, such as data=needle, or a text"
        )
    vocabulary, end = subject.vocabulary, probed.tokenizer.eos_token_id
    if end is not None:  # an answer ends as the model ends a text, not with the token that joins documents
        vocabulary = replace(vocabulary, end_of_document=end)
    task = task.with_vocabulary(vocabulary)
    task.check_is_read()
    return task


def evaluate_task(cfg: DictConfig, config: EvalConfig, invocation: Invocation, task: Task, subject: Subject) -> None:
    """Score test examples of each length: under teacher forcing, which is greedy decoding, or by what is written.

    UserError for what the model or the task does not take.
    """
    refuse(invocation, ("stride", "max_tokens", "bos"), "is for text, and this is a task; give examples= and length=")
    trained = subject.trained
    own = {} if trained is None else trained.manifest["data"]
    of_training = own.get("train_lengths", task.train_lengths)  # `task` may be another one
    learnt = trained is not None and trained.learns_a_task
    in_training = of_training if learnt else (subject.context, subject.context)
    if "length" not in overridden(invocation.overrides):
        config.length = list(task.test_lengths() or [n * of_training[1] for n in TIMES])
        OmegaConf.update(cfg, "length", config.length)
    lengths = sorted(set(config.length))
    for length in lengths:
        task.check_length(length, "length")
    contexts = {length: task.context(length) for length in lengths}
    most = contexts[lengths[-1]] + (task.written if config.by == "generation" and isinstance(task, LengthTest) else 0)
    subject.check_room(most, f"length={lengths[-1]} ({most} tokens)")
    check_examples_fit(config, task, contexts, subject)
    if config.by == "generation":
        examples = Examples(task, seed=subject.seed or 0, split="test", length=lengths[0])
        for i in range(IDENTIFYING):  # by chance one of them may ask at its end alone
            check_is_written(task, examples[i])
    tokenizer = own["tokenizer_hash"] if own else content_hash(subject.vocabulary.tokenizer)
    with opened_run(invocation, cfg) as run:
        run.note(data={"corpus_hash": task.identity(), "tokenizer_hash": tokenizer}, **subject.known())
        with warnings_as_lines(FallsBack):
            by_part, dispersions, n_shared = measure(config, task, subject, contexts, invocation.peers)
        common = subject.common() | ({"by": config.by} if config.by == "generation" else {})
        scores = {length: summed(parts.values()) for length, parts in by_part.items()}
        records = report.records_of_task(scores, contexts, common)
        records += report.records_of_dispersion(dispersions, common, contexts)
        part = task.part()
        for name in dict.fromkeys(name for parts in by_part.values() for name in parts if name):
            of_part = {length: parts[name] for length, parts in by_part.items() if name in parts}
            place = {part: name if part == "task" else float(name)}
            records += report.records_of_task(of_part, contexts, {**common, **place})
        records += quarter_turns(task, subject, lengths, common)
        headline = {}
        for length, one in scores.items():
            numbers = report.values_of_task(one)
            run.log(length, length=length, **numbers)
            headline[f"exact_match_{length}"] = numbers["exact_match"]
        run.results(records, **headline)
        if not run.writes:
            return
        title, n = subject.title(), scores[lengths[0]].n_examples
        tables = [TASK.table(records, in_training, title)]
        if rows := crossed(records, "exact_match", part, "length"):
            first = "exact match" if part == "task" else f"exact match by {part}"
            columns = {length: str(length) for length in lengths}
            tables.append(grid(title, first, rows, columns, {}, name_of_part, lambda r: f"{r['value']:.2f}"))
        drawing = TASK.drawing(records, in_training, title, f"{n:,} examples at each length.")
        show(run, config, drawing, tables, [scope(config, task, subject, in_training, n_shared, n)])
        if dispersions:
            report.leave_dispersion(dispersions, run.directory, config, title=title, contexts=contexts)


def name_of_part(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def quarter_turns(task: Task, subject: Subject, lengths: Sequence[int], common: Mapping[str, Any]) -> list[Record]:
    """The distance at which the slowest pair has turned by pi / 2, for each length, of a task that has distances.

    A search by meaning that uses this pair works up to about this distance: Barbero et al. 2024, arXiv:2410.06205,
    Theorem 6.1. None where a pair does not rotate.
    """
    facts = subject.decoder.facts() if task.part() == "distance" and subject.decoder is not None else {}
    wavelength = facts.get("slowest_wavelength")
    if not isinstance(wavelength, int) or facts["rotated_pairs"] != facts["pairs"]:
        return []
    return [{"metric": "quarter_turn", **common, "length": n, "value": wavelength / 4} for n in lengths]


def check_examples_fit(config: EvalConfig, task: Task, contexts: Mapping[int, int], subject: Subject) -> None:
    """Raises UserError where the examples of a length, or the layers' input of one, are more than the memory holds."""
    if isinstance(subject.model, Decoder):
        d_model = subject.model.embed_tokens.embedding_dim
    else:
        d_model = subject.model.normalisers[0].shape.d_model
    for length, context in contexts.items():
        if task.test_lengths() is None:  # else there are so many as there are
            n_bytes = config.examples * context * BYTES_OF_TOKEN
            what = f"examples={config.examples} of length={length} ({context:,} tokens)"
            check_fits(n_bytes, torch.device("cpu"), what, "give fewer or shorter ones")
        check_fits(8 * d_model * context, subject.device, f"length={length} ({context:,} tokens)", "give a smaller one")


def scope(
    config: EvalConfig, task: Task, subject: Subject, in_training: tuple[int, int], n_shared: int, n_examples: int
) -> str:
    """Over what the numbers were taken."""
    parts = task.groups() and task.part()
    each = " of each part, where there are so many," if parts == "task" else ""
    n = config.examples if parts == "task" else n_examples
    line = f"{n:,} test examples{each} at each length; intervals of 95 %, in which those that are the same count once"
    line += f"; checkpoint {config.checkpoint}" if subject.decoder is not None else ""
    if config.by == "generation":
        line += "; scored by what the model writes, the likeliest token each time"
    elif subject.decoder is not None and subject.decoder.draws_positions:
        line += "; each example is the mean of five draws of its positions"
    low, high = in_training
    of_text = subject.trained is None or not subject.trained.learns_a_task
    line += f"; the training context is {high:,} tokens" if of_text else f"; training had lengths {low} to {high}"
    if n_shared:
        line += f"; {n_shared:,} examples may be in training too, of a length that has too few"
    return line


def answering(config: EvalConfig, subject: Subject) -> Callable[[Task, list[tuple[Example, int]]], AnswerScores]:
    """The function that scores different examples, each with how often it was drawn."""
    if config.by == "generation":
        if subject.trained is not None:
            writer: Writer = decoder_writer(subject.trained, subject.model)
        else:
            writer = pretrained_writer(subject.model)
        if writer.remark is not None:
            print_status(writer.remark)
        return partial(score_written, writer)
    model = subject.model if isinstance(subject.model, Decoder) else AnsweringPretrained(subject.model)
    return lambda _, share: score_answers(model, same_length_batches(share, config.batch_tokens), device=subject.device)


def measure(
    config: EvalConfig, task: Task, subject: Subject, contexts: Mapping[int, int], peers: Peers
) -> tuple[dict[int, dict[str, AnswerScores]], dict[int, Dispersion], int]:
    """Scores by length and part of the task ("" where it has none), dispersions by length where asked for.

    Also how many examples may be in training too. Each process draws all examples and asks a share of them. contexts:
    the tokens of the longest example of each length.
    """
    by_part: dict[int, dict[str, AnswerScores]] = {}
    dispersions, n_shared, answer = {}, 0, answering(config, subject)
    module = subject.model if isinstance(subject.model, Decoder) else subject.model.model
    groups = task.groups() or {"": task}
    tests = {name: part.test_lengths() for name, part in groups.items()}
    wanted = config.examples if task.part() == "task" else -(-config.examples // len(groups))
    for length, context in contexts.items():
        tested = {name: groups[name] for name, known in tests.items() if known is None or length in known}
        by_part[length] = {}
        with watched(module, context) if config.dispersion else nullcontext() as seen:
            for name, part in (tested or groups).items():  # a length that no test has is asked of all
                test = Examples(part, seed=subject.seed or 0, split="test", length=length)
                n = wanted if test.n is None else min(wanted, test.n)
                own = answer(part, distinct(test[i] for i in range(n))[peers.rank :: peers.n])
                by_part[length][name] = summed(
                    AnswerScores(sums, written=own.written) for sums in peers.gather(own.sums)
                )
                n_shared += test.n_shared
        if seen is not None:
            dispersions[length] = of_all(seen, peers)
    return by_part, dispersions, n_shared


def summed(scores: Iterable[AnswerScores]) -> AnswerScores:
    every = list(scores)
    return AnswerScores(torch.stack([one.sums for one in every]).sum(dim=0), written=every[0].written)
