"""`roundround eval` of a run that learns a task: how many examples it gets right at each length.

Tested by tests/training/test_task_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from roundround.attention.trial import FallsBack
from roundround.config.recorded import overridden
from roundround.config.verbs.eval import EvalConfig
from roundround.data.tasks.base import BYTES_OF_TOKEN, Examples, Task, distinct
from roundround.data.tasks.batches import same_length_batches
from roundround.distributed.device import check_fits, describe_device, pick_device
from roundround.distributed.peers import Peers
from roundround.loading.models import TrainedRun
from roundround.model.answers import AnswerScores, score_answers
from roundround.model.decoder import Decoder
from roundround.probing.dispersion import Dispersion, watched
from roundround.report import answers, dispersion_tables
from roundround.report.eval_panels import drawing
from roundround.report.figures import save_drawing
from roundround.runs.opening import opened_run
from roundround.runs.run import Invocation
from roundround.support.console import print_status, print_table, warnings_as_lines
from roundround.support.errors import UserError, printable

OF_TEXT = ("stride", "max_tokens", "bos")  # options that mean nothing to a task
TIMES = (1, 2, 4)  # the longest length in training: where lengths are not given


def evaluate_task(cfg: DictConfig, config: EvalConfig, invocation: Invocation, trained: TrainedRun, task: Task) -> None:
    """Score test examples of each length under teacher forcing, which is greedy decoding; see `model/answers.py`.

    UserError for what the run's decoder or the task does not take.
    """
    keys, seed = overridden(invocation.overrides), trained.config.seed
    for key in OF_TEXT:
        if key in keys:
            raise UserError(f"{key}= is for text, and this run learns a task; give examples= and length=")
    in_training = trained.manifest["data"].get("train_lengths", task.train_lengths)  # `task` may be another one
    if "length" not in keys:
        config.length = list(task.test_lengths() or [n * in_training[1] for n in TIMES])
        OmegaConf.update(cfg, "length", config.length)
    lengths = sorted(set(config.length))
    for length in lengths:
        task.check_length(length, "length")
    decoder, choices, device = decoder_of(config, invocation, trained)
    contexts = {length: task.context(length) for length in lengths}
    most = contexts[lengths[-1]]
    check_lengths(decoder, most, f"length={lengths[-1]} ({most} tokens)", choices)
    check_examples_fit(config, task, contexts, d_model=int(trained.config.model.d_model), device=device)
    with opened_run(invocation, cfg) as run:
        run.note(
            choices=choices,
            device=describe_device(device),
            data={"corpus_hash": task.identity(), "tokenizer_hash": trained.manifest["data"]["tokenizer_hash"]},
            seed=seed,
            run=str(trained.directory),
        )
        with warnings_as_lines(FallsBack):
            by_part, dispersions, n_shared = measure(config, decoder, task, seed, contexts, device, invocation.peers)
        scores = {length: summed(parts.values()) for length, parts in by_part.items()}
        names = sorted({name for parts in by_part.values() for name in parts} - {""})
        by_name = {name: {n: parts[name] for n, parts in by_part.items() if name in parts} for name in names}
        common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": seed}
        records = answers.records(scores, contexts, common)
        records += dispersion_tables.records(dispersions, common, contexts)
        for name, of_part in by_name.items():
            records += answers.records(of_part, contexts, {**common, "task": name})
        by_length = {length: answers.values(one) for length, one in scores.items()}
        for length, values in by_length.items():
            run.log(length, length=length, **values)
        run.results(records, **{f"exact_match_{length}": values["exact_match"] for length, values in by_length.items()})
        if run.writes:
            named = f"pe={choices.get('pe')}, softmax={choices.get('softmax')}"
            title = printable(f"{choices.get('data')}, {choices.get('model')}, {named}")
            on_output = config.table == "stdout"
            n = next(iter(scores.values())).n_examples
            figure = drawing(records, in_training, f"{title}; {n:,} examples at each length")
            save_drawing(figure, run.directory / "figures")
            print_table(answers.table(scores, contexts, in_training, title=title), on_output=on_output)
            if by_name:
                print_table(answers.table_of_parts(by_name, lengths, title=title), on_output=on_output)
            print_status(scope(config, in_training, decoder, n_shared, in_parts=bool(by_name)))
            if dispersions:
                dispersion_tables.leave(dispersions, run.directory, title=title, on_output=on_output, contexts=contexts)


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


def check_lengths(decoder: Decoder, n_tokens: int, what: str, choices: dict[str, Any]) -> None:
    """Raises UserError where the encoding has fewer positions than `n_tokens`, which `what` asks for."""
    longest = decoder.longest()
    if longest is not None and n_tokens > longest:
        raise UserError(
            f"pe={choices.get('pe')} has {longest} positions and {what} asks for more; "
            "evaluate at a smaller length, or train with more positions"
        )


def scope(config: EvalConfig, in_training: tuple[int, int], decoder: Decoder, n_shared: int, *, in_parts: bool) -> str:
    """Over what the numbers were taken."""
    each = " of each part, where there are so many," if in_parts else ""
    line = (
        f"{config.examples:,} test examples{each} at each length; intervals of 95 %, in which those that are the same "
    )
    line += f"count once; checkpoint {config.checkpoint}"
    if decoder.draws_positions:
        line += "; each example is the mean of five draws of its positions"
    line += f"; training had lengths {in_training[0]} to {in_training[1]}"
    if n_shared:
        line += f"; {n_shared:,} examples may be in training too, of a length that has too few"
    return line


def measure(
    config: EvalConfig,
    decoder: Decoder,
    task: Task,
    seed: int,
    contexts: dict[int, int],
    device: torch.device,
    peers: Peers,
) -> tuple[dict[int, dict[str, AnswerScores]], dict[int, Dispersion], int]:
    """Scores by length and part of the task ("" where it has none), dispersions by length where asked for.

    Also how many examples may be in training too. Each process draws all examples and asks a share of them. contexts:
    the tokens of the longest example of each length.
    """
    by_part: dict[int, dict[str, AnswerScores]] = {}
    dispersions, n_shared = {}, 0
    for length, context in contexts.items():
        groups = task.groups() or {"": task}
        tests = {name: part.test_lengths() for name, part in groups.items()}
        tested = {name: groups[name] for name, known in tests.items() if known is None or length in known}
        by_part[length] = {}
        with watched(decoder, context) if config.dispersion else nullcontext() as seen:
            for name, part in (tested or groups).items():  # a length that no test has is asked of all
                test = Examples(part, seed=seed, split="test", length=length)
                n = config.examples if test.n is None else min(config.examples, test.n)
                share = distinct(test[i] for i in range(n))[peers.rank :: peers.n]
                own = score_answers(decoder, same_length_batches(share, config.batch_tokens), device=device)
                by_part[length][name] = summed(AnswerScores(sums) for sums in peers.gather(own.sums))
                n_shared += test.n_shared
        if seen is not None:
            dispersions[length] = of_all(seen, peers)
    return by_part, dispersions, n_shared


def summed(scores: Iterable[AnswerScores]) -> AnswerScores:
    return AnswerScores(torch.stack([one.sums for one in scores]).sum(dim=0))


def of_all(own: Dispersion, peers: Peers) -> Dispersion:
    """One process's dispersion with those of the others added."""
    sums = peers.gather((own.sums_LHN, own.n_rows_LN))
    own.add_all(theirs for rank, theirs in enumerate(sums) if rank != peers.rank)
    return own
