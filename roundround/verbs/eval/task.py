"""`roundround eval` of a task: how many examples a run or a pretrained model gets right at each length.

Tested by tests/training/test_task_runs.py and tests/asking/test_task_answers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf

from roundround.asking.generation import (
    AnsweringPretrained,
    PretrainedWriter,
    Writer,
    check_is_written,
    decoder_writer,
    score_written,
)
from roundround.asking.reader import check_lengths, of_all
from roundround.config.recorded import overridden
from roundround.data.corpora import Source
from roundround.data.tasks.base import BYTES_OF_TOKEN, IDENTIFYING, Example, Examples, Task, distinct
from roundround.data.tasks.batches import same_length_batches
from roundround.data.tasks.length_tests import LengthTest
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import content_hash
from roundround.distributed.device import check_fits, describe_device, pick_device
from roundround.distributed.peers import Peers
from roundround.kernels.trial import FallsBack
from roundround.model.answers import AnswerScores, score_answers
from roundround.model.decoder import Decoder
from roundround.probing.dispersion import Dispersion, watched
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.report import answers, dispersion_tables
from roundround.report.drawing.figures import save_drawing
from roundround.report.drawing.tables import Record
from roundround.report.eval_panels import drawing
from roundround.support.console import print_status, print_table, warnings_as_lines
from roundround.support.errors import UserError, printable
from roundround.trained.models import TrainedRun
from roundround.verbs.eval import EvalConfig

if TYPE_CHECKING:
    from roundround.hf.load import ProbedHuggingFaceModel

OF_TEXT = ("stride", "max_tokens", "bos")  # options that mean nothing to a task
TIMES = (1, 2, 4)  # the longest length in training: where lengths are not given


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model and the task that it is asked, with what results say of both.

    in_training: the shortest and the longest length of its training; `of_text` its context. longest: the
    length of which TIMES are asked where none are given. seed: of the test examples. d_model: the width of its layers.
    facts: what else the run's manifest notes.
    """

    model: Decoder | ProbedHuggingFaceModel
    task: Task
    device: torch.device
    choices: dict[str, Any]
    in_training: tuple[int, int]
    longest: int
    seed: int
    d_model: int
    tokenizer_hash: str
    make_writer: Callable[[], Writer]
    facts: dict[str, Any]
    of_text: bool = False

    @property
    def decoder(self) -> Decoder | None:
        return self.model if isinstance(self.model, Decoder) else None

    @cached_property
    def writer(self) -> Writer:
        """What the model writes with."""
        writer = self.make_writer()
        if writer.remark is not None:
            print_status(writer.remark)
        return writer

    def scores(self, part: Task, share: list[tuple[Example, int]], config: EvalConfig) -> AnswerScores:
        """Of some different examples, each with how often it was drawn."""
        if config.by == "generation":
            return score_written(self.writer, part, share)
        model = self.model if isinstance(self.model, Decoder) else AnsweringPretrained(self.model)
        return score_answers(model, same_length_batches(share, config.batch_tokens), device=self.device)


def asked_of_run(config: EvalConfig, invocation: Invocation, trained: TrainedRun, task: Task) -> Asked:
    """A run and its task, or the task that `data` gives. UserError for what the run's decoder does not take."""
    decoder, choices, device = decoder_of(config, invocation, trained)
    own, model = trained.manifest["data"], trained.config.model
    lengths = own.get("train_lengths", task.train_lengths)  # `task` may be another one
    in_text = int(model.train_length), int(model.train_length)
    return Asked(
        model=decoder,
        task=task,
        device=device,
        choices=choices,
        in_training=lengths if trained.learns_a_task else in_text,
        longest=lengths[1],
        seed=trained.config.seed,
        d_model=int(model.d_model),
        tokenizer_hash=own["tokenizer_hash"],
        make_writer=partial(decoder_writer, trained, decoder),
        facts={"seed": trained.config.seed, "run": str(trained.directory)},
        of_text=not trained.learns_a_task,
    )


def asked_of_pretrained(probed: ProbedHuggingFaceModel, task: Source, choices: dict[str, Any]) -> Asked:
    """A pretrained model and a task of text. UserError for a task with a vocabulary of its own."""
    if not isinstance(task, TextTask):
        raise UserError(
            f"data={choices.get('data')} has symbols of its own, which a pretrained model does not know; give a task "
            "of text, such as data=needle, or a text"
        )
    vocabulary, end = probed.vocabulary(), probed.tokenizer.eos_token_id
    if end is not None:  # an answer ends as the model ends a text, not with the token that joins documents
        vocabulary = replace(vocabulary, end_of_document=end)
    task = task.with_vocabulary(vocabulary)
    task.check_is_read()
    return Asked(
        model=probed,
        task=task,
        device=probed.device,
        choices=choices,
        in_training=(probed.longest, probed.longest),
        longest=task.train_lengths[1],
        seed=0,
        d_model=probed.normalisers[0].shape.d_model,
        tokenizer_hash=content_hash(vocabulary.tokenizer),
        make_writer=partial(PretrainedWriter, probed),
        facts={"seed": None, "run": None},
        of_text=True,
    )


def evaluate_task(cfg: DictConfig, config: EvalConfig, invocation: Invocation, asked: Asked) -> None:
    """Score test examples of each length: under teacher forcing, which is greedy decoding, or by what is written.

    UserError for what the model or the task does not take.
    """
    keys, task, decoder = overridden(invocation.overrides), asked.task, asked.decoder
    for key in OF_TEXT:
        if key in keys:
            raise UserError(f"{key}= is for text, and this is a task; give examples= and length=")
    in_training = asked.in_training
    if "length" not in keys:
        config.length = list(task.test_lengths() or [n * asked.longest for n in TIMES])
        OmegaConf.update(cfg, "length", config.length)
    lengths = sorted(set(config.length))
    for length in lengths:
        task.check_length(length, "length")
    contexts = {length: task.context(length) for length in lengths}
    most = contexts[lengths[-1]] + (task.written if config.by == "generation" and isinstance(task, LengthTest) else 0)
    if decoder is not None:
        check_lengths(decoder, most, f"length={lengths[-1]} ({most} tokens)", asked.choices.get("pe"))
    check_examples_fit(config, task, contexts, d_model=asked.d_model, device=asked.device)
    if config.by == "generation":
        examples = Examples(task, seed=asked.seed, split="test", length=lengths[0])
        for i in range(IDENTIFYING):  # by chance one of them may ask at its end alone
            check_is_written(task, examples[i])
    with opened_run(invocation, cfg) as run:
        data = {"corpus_hash": task.identity(), "tokenizer_hash": asked.tokenizer_hash}
        run.note(choices=asked.choices, device=describe_device(asked.device), data=data, **asked.facts)
        with warnings_as_lines(FallsBack):
            by_part, dispersions, n_shared = measure(config, asked, contexts, invocation.peers)
        scores = {length: summed(parts.values()) for length, parts in by_part.items()}
        names = list(dict.fromkeys(name for parts in by_part.values() for name in parts if name))
        by_name = {name: {n: parts[name] for n, parts in by_part.items() if name in parts} for name in names}
        choices = asked.choices
        common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": asked.facts["seed"]}
        common |= {"by": config.by} if config.by == "generation" else {}
        records = answers.records(scores, contexts, common)
        records += dispersion_tables.records(dispersions, common, contexts)
        for name, of_part in by_name.items():
            part = {task.part(): name if task.part() == "task" else float(name)}
            records += answers.records(of_part, contexts, {**common, **part})
        records += quarter_turns(asked, lengths, common)
        by_length = {length: answers.values(one) for length, one in scores.items()}
        for length, values in by_length.items():
            run.log(length, length=length, **values)
        run.results(records, **{f"exact_match_{length}": values["exact_match"] for length, values in by_length.items()})
        if run.writes:
            named = f"pe={choices.get('pe')}, softmax={choices.get('softmax')}"
            title = printable(f"{choices.get('data')}, {choices.get('model')}, {named}")
            on_output = config.table == "stdout"
            n = next(iter(scores.values())).n_examples
            figure = drawing(records, in_training, title, f"{n:,} examples at each length.")
            save_drawing(figure, run.directory / "figures", config.figures)
            print_table(answers.table(scores, contexts, in_training, title=title), on_output=on_output)
            if by_name:
                parts = answers.table_of_parts(by_name, lengths, part=task.part(), title=title)
                print_table(parts, on_output=on_output)
            print_status(scope(config, asked, n_shared, n))
            if dispersions:
                dispersion_tables.leave(dispersions, run.directory, config, title=title, contexts=contexts)


def quarter_turns(asked: Asked, lengths: Sequence[int], common: Mapping[str, Any]) -> list[Record]:
    """The distance at which the slowest pair has turned by pi / 2, for each length, of a task that has distances.

    A search by meaning that uses this pair works up to about this distance: Barbero et al. 2024, arXiv:2410.06205,
    Theorem 6.1. None where a pair does not rotate.
    """
    facts = asked.decoder.facts() if asked.task.part() == "distance" and asked.decoder is not None else {}
    wavelength = facts.get("slowest_wavelength")
    if not isinstance(wavelength, int) or facts["rotated_pairs"] != facts["pairs"]:
        return []
    return [{"metric": "quarter_turn", **common, "length": n, "value": wavelength / 4} for n in lengths]


def check_examples_fit(
    config: EvalConfig, task: Task, contexts: dict[int, int], *, d_model: int, device: torch.device
) -> None:
    """Raises UserError where the examples of a length, or the layers' input of one, are more than the memory holds."""
    for length, context in contexts.items():
        if task.test_lengths() is None:  # else there are so many as there are
            n_bytes = config.examples * context * BYTES_OF_TOKEN
            what = f"examples={config.examples} of length={length} ({context:,} tokens)"
            check_fits(n_bytes, torch.device("cpu"), what, "give fewer or shorter ones")
        check_fits(8 * d_model * context, device, f"length={length} ({context:,} tokens)", "give a smaller one")


def decoder_of(
    config: EvalConfig, invocation: Invocation, trained: TrainedRun
) -> tuple[Decoder, dict[str, str], torch.device]:
    """A run's decoder on its device, with the choices that results name: the run's own, or what replaces them."""
    device = pick_device(config.device)
    decoder = trained.decoder(config.checkpoint).to(device)
    return decoder, trained.choices_with(invocation.given), device


def scope(config: EvalConfig, asked: Asked, n_shared: int, n_examples: int) -> str:
    """Over what the numbers were taken."""
    parts = asked.task.groups() and asked.task.part()
    each = " of each part, where there are so many," if parts == "task" else ""
    n = config.examples if parts == "task" else n_examples
    line = f"{n:,} test examples{each} at each length; intervals of 95 %, in which those that are the same count once"
    line += f"; checkpoint {config.checkpoint}" if asked.decoder is not None else ""
    if config.by == "generation":
        line += "; scored by what the model writes, the likeliest token each time"
    elif asked.decoder is not None and asked.decoder.draws_positions:
        line += "; each example is the mean of five draws of its positions"
    low, high = asked.in_training
    line += f"; the training context is {high:,} tokens" if asked.of_text else f"; training had lengths {low} to {high}"
    if n_shared:
        line += f"; {n_shared:,} examples may be in training too, of a length that has too few"
    return line


def measure(
    config: EvalConfig, asked: Asked, contexts: dict[int, int], peers: Peers
) -> tuple[dict[int, dict[str, AnswerScores]], dict[int, Dispersion], int]:
    """Scores by length and part of the task ("" where it has none), dispersions by length where asked for.

    Also how many examples may be in training too. Each process draws all examples and asks a share of them. contexts:
    the tokens of the longest example of each length.
    """
    by_part: dict[int, dict[str, AnswerScores]] = {}
    dispersions, n_shared, task = {}, 0, asked.task
    module = asked.model if isinstance(asked.model, Decoder) else asked.model.model
    for length, context in contexts.items():
        groups = task.groups() or {"": task}
        tests = {name: part.test_lengths() for name, part in groups.items()}
        tested = {name: groups[name] for name, known in tests.items() if known is None or length in known}
        wanted = config.examples if task.part() == "task" else -(-config.examples // len(groups))
        by_part[length] = {}
        with watched(module, context) if config.dispersion else nullcontext() as seen:
            for name, part in (tested or groups).items():  # a length that no test has is asked of all
                test = Examples(part, seed=asked.seed, split="test", length=length)
                n = wanted if test.n is None else min(wanted, test.n)
                share = distinct(test[i] for i in range(n))[peers.rank :: peers.n]
                own = asked.scores(part, share, config)
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
