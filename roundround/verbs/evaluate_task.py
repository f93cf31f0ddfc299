"""`roundround eval` of a run that learns a task: how many examples it gets right at each length."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from roundround.config.recorded import as_dict, overridden
from roundround.config.verbs.eval import EvalConfig
from roundround.data.tasks.base import BYTES_OF_TOKEN, Examples, Task, distinct
from roundround.data.tasks.batches import same_length_batches
from roundround.distributed.device import describe_device, pick_device
from roundround.distributed.peers import Peers
from roundround.loading.rebuilt import TrainedRun
from roundround.model.answers import AnswerScores, score_answers
from roundround.model.decoder import Decoder
from roundround.probing.dispersion import Dispersion, watched
from roundround.report import answers, dispersion_tables
from roundround.runs.loggers.several import build_logger
from roundround.runs.opening import opened
from roundround.runs.run import Invocation, Run
from roundround.softmax.base import RunsInBlocks
from roundround.support.console import print_status, print_table, warnings_as_lines
from roundround.support.errors import UserError, printable
from roundround.support.memory import check_fits

OF_TEXT = ("stride", "max_tokens", "bos")  # options that mean nothing to a task
TIMES = (1, 2, 4)  # the longest length in training: where lengths are not given


@dataclass(frozen=True, kw_only=True)
class TaskEvaluation:
    """A decoder and the task it is evaluated on: `contexts` maps a length to the tokens of its longest example.

    train_lengths: the shortest and the longest length in training. choices: as results name them.
    """

    decoder: Decoder
    task: Task
    contexts: dict[int, int]
    train_lengths: tuple[int, int]
    seed: int
    choices: dict[str, str]
    device: torch.device

    def title(self) -> str:
        names = self.choices
        return printable(
            f"{names.get('data')}, {names.get('model')}, pe={names.get('pe')}, softmax={names.get('softmax')}"
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Scores by length and by part of the task ("" where it has none), and dispersions by length where asked for.

    n_shared: examples that may be in training too.
    """

    by_part: dict[int, dict[str, AnswerScores]]
    dispersions: dict[int, Dispersion]
    n_shared: int

    def scores(self) -> dict[int, AnswerScores]:
        """All parts together, by length."""
        return {
            length: AnswerScores(torch.stack([scores.sums for scores in parts.values()]).sum(dim=0))
            for length, parts in self.by_part.items()
        }

    def by_name(self) -> dict[str, dict[int, AnswerScores]]:
        """By the part's name, then by length; empty where the task is one."""
        names = sorted({name for parts in self.by_part.values() for name in parts} - {""})
        return {name: {n: parts[name] for n, parts in self.by_part.items() if name in parts} for name in names}


def evaluate_task(cfg: DictConfig, config: EvalConfig, invocation: Invocation, trained: TrainedRun, task: Task) -> None:
    """Score test examples of each length under teacher forcing, which is greedy decoding; see `model/answers.py`."""
    evaluation = task_evaluation(cfg, config, invocation, trained, task)
    with opened(invocation, config=as_dict(cfg), logger=build_logger(config.logger)) as run:
        run.note(
            choices=evaluation.choices,
            device=describe_device(evaluation.device),
            data={"corpus_hash": task.identity(), "tokenizer_hash": trained.manifest["data"]["tokenizer_hash"]},
            seed=evaluation.seed,
            run=str(trained.directory),
        )
        with warnings_as_lines(RunsInBlocks):
            found = measure(config, evaluation, invocation.peers)
        record(run, evaluation, found)
        if run.writes:
            show(run, config, evaluation, found)


def task_evaluation(
    cfg: DictConfig, config: EvalConfig, invocation: Invocation, trained: TrainedRun, task: Task
) -> TaskEvaluation:
    """The run's decoder, and the lengths that are asked of it. UserError for what it or the task does not take."""
    keys = overridden(invocation.overrides)
    refused = [key for key in OF_TEXT if key in keys]
    if refused:
        raise UserError(f"{refused[0]}= is for text, and this run learns a task; give examples= and length=")
    shortest, longest = trained.manifest["data"].get("train_lengths", task.train_lengths)  # `task` may be another one
    if "length" not in keys:
        config.length = list(task.test_lengths() or [n * longest for n in TIMES])
        OmegaConf.update(cfg, "length", config.length)
    lengths = sorted(set(config.length))
    for length in lengths:
        task.check_length(length, "length")
    decoder, choices, device = decoder_of(config, invocation, trained)
    contexts = {length: task.context(length) for length in lengths}
    most = contexts[lengths[-1]]
    check_lengths(decoder, most, f"length={lengths[-1]} ({most} tokens)", choices)
    check_examples_fit(config, task, contexts, d_model=int(trained.config.model.d_model), device=device)
    return TaskEvaluation(
        decoder=decoder,
        task=task,
        contexts=contexts,
        train_lengths=(shortest, longest),
        seed=trained.config.seed,
        choices=choices,
        device=device,
    )


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
    replaced = {group: choice for group, choice in invocation.given.items() if group in ("pe", "softmax", "data")}
    device = pick_device(config.device)
    decoder = trained.decoder(config.checkpoint).to(device)
    return decoder, {**trained.manifest.get("choices", {}), **replaced}, device


def check_lengths(decoder: Decoder, n_tokens: int, what: str, choices: dict[str, Any]) -> None:
    """Raises UserError where the encoding has fewer positions than `n_tokens`, which `what` asks for."""
    longest = decoder.encoding.longest()
    if longest is not None and n_tokens > longest:
        raise UserError(
            f"pe={choices.get('pe')} has {longest} positions and {what} asks for more; "
            "evaluate at a smaller length, or train with more positions"
        )


def measure(config: EvalConfig, evaluation: TaskEvaluation, peers: Peers) -> Measured:
    """Ask all lengths, each of every part that tests it; each process draws all examples and asks a share of them."""
    by_part: dict[int, dict[str, AnswerScores]] = {}
    dispersions, n_shared = {}, 0
    for length, context in evaluation.contexts.items():
        by_part[length] = {}
        with watched(evaluation.decoder, context) if config.dispersion else nullcontext() as seen:
            for name, part in parts_of(evaluation.task, length).items():
                test = Examples(part, seed=evaluation.seed, split="test", length=length)
                n = config.examples if test.n is None else min(config.examples, test.n)
                share = distinct(test[i] for i in range(n))[peers.rank :: peers.n]
                own = score_answers(
                    evaluation.decoder, same_length_batches(share, config.batch_tokens), device=evaluation.device
                )
                by_part[length][name] = AnswerScores(torch.stack(peers.gather(own.sums)).sum(dim=0))
                n_shared += test.n_shared
        if seen is not None:
            dispersions[length] = of_all(seen, peers)
    return Measured(by_part=by_part, dispersions=dispersions, n_shared=n_shared)


def of_all(own: Dispersion, peers: Peers) -> Dispersion:
    """One process's dispersion with those of the others added."""
    sums = peers.gather((own.sums_LHN, own.n_rows_LN))
    own.add_all(theirs for rank, theirs in enumerate(sums) if rank != peers.rank)
    return own


def parts_of(task: Task, length: int) -> dict[str, Task]:
    """The tasks whose scores are told apart at a length: those of its groups that test it."""
    groups = task.groups() or {"": task}
    parts = {}
    for name, part in groups.items():
        tested = part.test_lengths()
        if tested is None or length in tested:
            parts[name] = part
    return parts or groups  # a length that no test has is asked of all


def record(run: Run, evaluation: TaskEvaluation, found: Measured) -> None:
    """Write the results: of all parts together, and of each where there are several."""
    choices, contexts, scores = evaluation.choices, evaluation.contexts, found.scores()
    common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": evaluation.seed}
    records = answers.records(scores, contexts, common)
    records += dispersion_tables.records(found.dispersions, common, contexts)
    for name, of_part in found.by_name().items():
        records += answers.records(of_part, contexts, {**common, "task": name})
    by_length = {length: answers.values(one) for length, one in scores.items()}
    for length, values in by_length.items():
        run.log(length, length=length, **values)
    run.results(records, **{f"exact_match_{length}": values["exact_match"] for length, values in by_length.items()})


def show(run: Run, config: EvalConfig, evaluation: TaskEvaluation, found: Measured) -> None:
    """Draw the figures, print the tables, and say over what the numbers were taken."""
    scores, contexts, title = found.scores(), evaluation.contexts, evaluation.title()
    trained, on_output = evaluation.train_lengths, config.table == "stdout"
    answers.draw(scores, train_lengths=trained, title=title, folder=run.directory / "figures")
    print_table(answers.table(scores, contexts, trained, title=title), on_output=on_output)
    by_name = found.by_name()
    if by_name:
        print_table(answers.table_of_parts(by_name, sorted(contexts), title=title), on_output=on_output)
    each = " of each part, where there are so many," if by_name else ""
    line = (
        f"{config.examples:,} test examples{each} at each length; intervals of 95 %, in which those that are the same "
    )
    line += f"count once; checkpoint {config.checkpoint}"
    if evaluation.decoder.encoding.draws_positions:
        line += "; each example is the mean of five draws of its positions"
    line += f"; training had lengths {trained[0]} to {trained[1]}"
    if found.n_shared:
        line += f"; {found.n_shared:,} examples may be in training too, of a length that has too few"
    print_status(line)
    if found.dispersions:
        dispersion_tables.leave(found.dispersions, run.directory, title=title, on_output=on_output, contexts=contexts)
