"""The measurements of `roundround eval`: the loss of a text, a task, minimal pairs, tasks of EleutherAI's harness.

Each of them writes notes to the manifest, then numbers, records and a figure, and prints tables and lines.

Tested by tests/training/test_eval.py, tests/training/test_task_runs.py, tests/training/test_pair_runs.py,
tests/asking/test_eval_pretrained.py and tests/asking/test_task_answers.py.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from roundround.asking.generation import (
    AnsweringPretrained,
    PretrainedWriter,
    Writer,
    decoder_writer,
    score_written,
)
from roundround.asking.reader import Reader, check_dispersion, check_lengths, first_tokens_of, measure, of_all
from roundround.asking.sentence_scores import log_probabilities
from roundround.config.build import build, target_class
from roundround.config.options import load_option
from roundround.config.recorded import overridden
from roundround.data.corpora import Corpus, Source
from roundround.data.minimal_pairs import MinimalPairs
from roundround.data.prepared import TokenData
from roundround.data.tasks.base import Example, Examples, Task, distinct
from roundround.data.tasks.batches import same_length_batches
from roundround.data.tasks.length_tests import LengthTest
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokenizers import Vocabulary, check_known, content_hash, unknown_token
from roundround.distributed.device import describe_device
from roundround.distributed.peers import Peers
from roundround.kernels.trial import FallsBack
from roundround.model.decoder import Decoder
from roundround.model.scoring import FEWEST, AnswerScores, n_targets, score_answers
from roundround.probing.dispersion import Dispersion, watched
from roundround.records.opening import opened_run
from roundround.records.run import Invocation, Run
from roundround.report import evaluation as report
from roundround.report.drawing.figures import save_drawing
from roundround.report.drawing.tables import Record, Table
from roundround.report.eval_panels import (
    PAIRS,
    TASK,
    TEXT,
    ResultKind,
    at_each,
    crossed,
    grid,
    label,
    scope_of_harness,
    table_of_harness,
)
from roundround.support.console import print_status, print_table, warnings_as_lines
from roundround.support.errors import UserError, printable
from roundround.support.files import write_atomically, write_json
from roundround.trained.models import TrainedRun, first_of, text_for
from roundround.trained.patterns import chosen_parts
from roundround.verbs.eval import EvalConfig

if TYPE_CHECKING:
    from roundround.hf.load import ProbedHuggingFaceModel

TO_LEAVE = ("with separators", "nats per byte")  # columns to drop if a terminal is narrow
TIMES = (1, 2, 4)  # default lengths, as multiples of the longest length in training
OF_TEXT = ("data", "stride", "max_tokens", "bos", "dispersion", "by")  # keys that the harness does not use
OF_OTHERS = ("by", "length", "stride", "max_tokens", "bos", "examples", "dispersion")  # keys of text and tasks alone


# -- the model, and the files of a run


@dataclass(frozen=True, kw_only=True)
class AskedModel:
    """The model that is evaluated.

    choices: {config group: the name of its option in the results}. context: the context length in training, in tokens.
    trained: the run that trained the model; None for a pretrained model.
    """

    model: Decoder | ProbedHuggingFaceModel
    device: torch.device
    choices: dict[str, Any]
    context: int
    trained: TrainedRun | None = None

    @property
    def decoder(self) -> Decoder | None:
        return self.model if isinstance(self.model, Decoder) else None

    @property
    def probed(self) -> ProbedHuggingFaceModel:
        """The pretrained model."""
        assert not isinstance(self.model, Decoder)
        return self.model

    @property
    def draws_positions(self) -> bool:
        """Whether each number is the mean over several draws of positions."""
        return self.decoder is not None and self.decoder.draws_positions

    @property
    def seed(self) -> int | None:
        return None if self.trained is None else int(self.trained.config.seed)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        owner: Any = self.trained or self.model
        found: Vocabulary = owner.vocabulary()
        return found

    def known(self) -> dict[str, Any]:
        """The fields that the manifest has for every model."""
        run = None if self.trained is None else str(self.trained.directory)
        return {"choices": self.choices, "device": describe_device(self.device), "seed": self.seed, "run": run}

    def common(self) -> dict[str, Any]:
        """Fields that every record has."""
        return {"pe": self.choices.get("pe"), "softmax": self.choices.get("softmax"), "seed": self.seed}

    def title(self) -> str:
        """The data, the model and its attention in words."""
        return printable(f"{self.choices.get('data')}, {self.choices.get('model')}, {chosen_parts(self.choices)}")

    def check_room(self, n_tokens: int, what: str) -> None:
        """Raises UserError if the encoding has fewer positions than `n_tokens`. what: the setting that needs them."""
        if self.decoder is not None:
            check_lengths(self.decoder, n_tokens, what, self.choices.get("pe"))


def refuse(invocation: Invocation, keys: Iterable[str], why: str) -> None:
    """Raises UserError if a key was given that this measurement does not use. why: the message after the key."""
    given = {name.partition(".")[0] for name in overridden(invocation.overrides)}
    for key in keys:
        if key in given:
            raise UserError(f"{key}= {why}")


def finish(
    run: Run,
    config: EvalConfig,
    kind: ResultKind,
    records: list[Record],
    in_training: tuple[int, int] | None,
    title: str,
    note: str,
    *more: Table,
) -> None:
    """Write the numbers, draw the figure, and print tables and lines. Only the first process writes, draws and prints.

    more: the tables that are printed before the table of `kind`.
    """
    headline = {}
    for place, row in at_each(records, kind.along).items():
        numbers = {name: record["value"] for name, record in row.items() if name in kind.logged}
        run.log(place, **{kind.along: place}, **numbers)
        headline[f"{kind.headline}_{place}"] = numbers[kind.headline]
    run.results(records, **headline)
    if run.writes:
        save_drawing(kind.drawing(records, in_training, title, note), run.directory / "figures", config.figures)
        show(config, [*more, kind.table(records, in_training, title)], kind.scope(records, in_training))


def show(config: EvalConfig, tables: Iterable[Table], lines: Iterable[str]) -> None:
    """Print tables and lines."""
    for table in tables:
        print_table(table.rich(), on_output=config.table == "stdout", first_to_leave=TO_LEAVE)
    for line in lines:
        print_status(line)


# -- a text


def evaluate_text(
    cfg: DictConfig,
    config: EvalConfig,
    invocation: Invocation,
    data: TokenData,
    separate_documents: bool,
    subject: AskedModel,
) -> None:
    """Measure the loss of a text and report it in a run directory; the manifest is written before the measurement.

    Raises UserError if there is too little text.
    """
    check_dispersion(config.dispersion, separate=separate_documents)
    read_as: dict[str, Any] = {name: getattr(config, name) for name in ("bos", "stride", "max_tokens", "batch_tokens")}
    reader = Reader(
        model=subject.model,
        data=data,
        device=subject.device,
        separate_documents=separate_documents,
        peers=invocation.peers,
        **read_as,
    )
    with warnings_as_lines(FallsBack):  # chosen for each length by itself
        first_tokens = first_tokens_of(reader, config.length)
    words = report.first_words(reader, first_tokens)
    alike = len(set(words.values())) == 1
    with opened_run(invocation, cfg) as run:
        run.note(
            data={"corpus_hash": data.corpus_hash, "tokenizer_hash": data.tokenizer_hash},
            first_token=words[min(words)] if alike else {str(length): word for length, word in words.items()},
            **subject.known(),
            **reader.reading(),
        )
        with warnings_as_lines(FallsBack):
            losses, dispersions = measure(reader, first_tokens, dispersion=config.dispersion)
        records = report.records_of_text(reader, first_tokens, losses, dispersions, subject.common())
        title, n = subject.title(), max(n_targets(loss) for loss in losses.values())
        note = f"{n:,} targets, the same at each length{'' if n >= FEWEST else ', too few for a reliable number'}."
        finish(run, config, TEXT, records, (subject.context, subject.context), title, note)
        if run.writes:
            if not separate_documents and (line := data.about_documents("held_out", max(losses))):
                print_status(line)
            if subject.draws_positions:
                print_status("The loss is the mean over five draws of positions, for each window or for all documents.")
            write_json(run.directory / "loss_by_position.json", {n: loss.by_position for n, loss in losses.items()})
            report.leave_dispersion(dispersions, run.directory, config, title=title)


# -- a task


def in_tokens_of(subject: AskedModel, task: Source) -> Task:
    """The task in the tokens of a pretrained model. Raises UserError if the task has a vocabulary of its own."""
    if not isinstance(task, TextTask):
        raise UserError(
            f"data={subject.choices.get('data')} has symbols of its own, which a pretrained model does not know; give "
            "a task of text, such as data=needle, or a text"
        )
    vocabulary, end = subject.vocabulary, subject.probed.tokenizer.eos_token_id
    if end is not None:  # an answer ends as the model ends a text, not with the token that joins documents
        vocabulary = replace(vocabulary, end_of_document=end)
    task = task.with_vocabulary(vocabulary)
    task.check_is_read()
    return task


def evaluate_task(cfg: DictConfig, config: EvalConfig, invocation: Invocation, task: Task, subject: AskedModel) -> None:
    """Score test examples of each length, under teacher forcing (the same as greedy decoding) or by generated text.

    Raises UserError if the model or the task does not support the settings.
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
    tokenizer = own["tokenizer_hash"] if own else content_hash(subject.vocabulary.tokenizer)
    with opened_run(invocation, cfg) as run:
        run.note(data={"corpus_hash": task.identity(), "tokenizer_hash": tokenizer}, **subject.known())
        with warnings_as_lines(FallsBack):
            by_part, dispersions, n_shared = measure_task(config, task, subject, contexts, invocation.peers)
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
        title, tables = subject.title(), []
        if rows := crossed(records, "exact_match", part, "length"):
            first, columns = f"exact match by {part}", {length: str(length) for length in lengths}
            tables = [grid(title, first, rows, columns, {}, cell=lambda r: f"{r['value']:.2f}")]
        note = f"{scores[lengths[0]].n_examples:,} examples at each length."
        finish(run, config, TASK, records, in_training, title, note, *tables)
        if run.writes:
            if subject.draws_positions and config.by != "generation":
                print_status("The score of each example is the mean over five draws of its positions.")
            if n_shared:
                print_status(
                    f"{n_shared:,} examples may be in training too, because there are too few different examples of "
                    "their length"
                )
            report.leave_dispersion(dispersions, run.directory, config, title=title, contexts=contexts)


def quarter_turns(task: Task, subject: AskedModel, lengths: Sequence[int], common: Mapping[str, Any]) -> list[Record]:
    """Records of the distance in tokens at which the slowest pair of channels has turned by pi / 2.

    Each length gets a record, and all records have the same value. Semantic attention that uses this pair works up to
    about this distance: Barbero et al. 2024, arXiv:2410.06205, Theorem 6.1. Returns [] if some pair does not rotate, or
    if the task does not have one part for each distance.
    """
    facts = subject.decoder.facts() if task.part() == "distance" and subject.decoder is not None else {}
    wavelength = facts.get("slowest_wavelength")
    if not isinstance(wavelength, int) or facts["rotated_pairs"] != facts["pairs"]:
        return []
    return [{"metric": "quarter_turn", **common, "length": n, "value": wavelength / 4} for n in lengths]


def answering(config: EvalConfig, subject: AskedModel) -> Callable[[Task, list[tuple[Example, int]]], AnswerScores]:
    """The function that scores examples. It takes pairs: an example, and the number of times that it was drawn."""
    if config.by == "generation":
        writer: Writer
        if subject.trained is not None and subject.decoder is not None:
            writer = decoder_writer(subject.trained, subject.decoder)
        else:
            writer = PretrainedWriter(subject.probed)
        return partial(score_written, writer)
    model = subject.decoder or AnsweringPretrained(subject.probed)
    return lambda _, share: score_answers(model, same_length_batches(share, config.batch_tokens), device=subject.device)


def measure_task(
    config: EvalConfig, task: Task, subject: AskedModel, contexts: Mapping[int, int], peers: Peers
) -> tuple[dict[int, dict[str, AnswerScores]], dict[int, Dispersion], int]:
    """Returns ({length: {part of the task: scores}}, {length: dispersion}, the number of shared examples).

    A task without parts has one part, named "". Dispersions are empty unless the config asks for them. An example is
    shared if training can contain the same example. Each process draws all examples and scores a part of them.
    contexts: {length: the number of tokens of the longest example of this length}.
    """
    by_part: dict[int, dict[str, AnswerScores]] = {}
    dispersions, n_shared, answer = {}, 0, answering(config, subject)
    module = subject.decoder or subject.probed.model
    groups = task.groups() or {"": task}
    tests = {name: part.test_lengths() for name, part in groups.items()}
    wanted = config.examples if task.part() == "task" else -(-config.examples // len(groups))
    for length, context in contexts.items():
        tested = {name: groups[name] for name, known in tests.items() if known is None or length in known}
        by_part[length] = {}
        with watched(module, context) if config.dispersion else nullcontext() as seen:
            for name, part in (tested or groups).items():  # if no part has this length, all parts are tested
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


# -- minimal pairs


def pairs_asked_for(config: EvalConfig, invocation: Invocation) -> MinimalPairs | None:
    """The minimal pairs that `data=` names; None if it names other data.

    Raises UserError if an option was given that this kind of data does not use.
    """
    if config.data is None or not issubclass(target_class(config.data, Source), MinimalPairs):
        refuse(
            invocation, ["prefix"], "is text before the sentences of minimal pairs; give data=blimp or data=zorro too"
        )
        return None
    refuse(invocation, OF_OTHERS, "is for text and tasks, but data= names minimal pairs; give prefix= or data.pairs=")
    if config.data.path is not None and "data.sample" in overridden(invocation.overrides):
        raise UserError(
            "data.sample= chooses among the package's pairs of sentences, and data.path= replaces them; leave out one"
        )
    return build(config.data, MinimalPairs)


def evaluate_pairs(
    cfg: DictConfig, config: EvalConfig, invocation: Invocation, pairs: MinimalPairs, subject: AskedModel
) -> None:
    """Score all pairs after each prefix, and report in a run directory.

    Raises UserError if the model was trained on a task, or if it cannot read the longest prefix.
    """
    trained = subject.trained
    if trained is not None and trained.learns_a_task:
        raise UserError(
            f"{trained.directory} was trained on a task, but data= gives English sentences; give a run trained on text"
        )
    first = subject.vocabulary.end_of_document if trained is None else first_of(subject.vocabulary)
    asked, prefixes = pairs.by_phenomenon(), sorted(set(config.prefix))
    vocabulary, sentences = subject.vocabulary, {}  # right, wrong, right, wrong, ..., in the order of the pairs
    for name, own in asked.items():
        texts = [pairs.before + text for pair in own for text in (pair.good, pair.bad)]
        sentences[name] = [list(e.ids) for e in vocabulary.tokenizer.encode_batch(texts, add_special_tokens=False)]
    unknown = unknown_token(vocabulary.tokenizer, vocabulary.end_of_document)
    check_known([token for own in sentences.values() for ids in own for token in ids], unknown, "the sentences")
    n_tokens = max(len(sentence) for own in sentences.values() for sentence in own)
    subject.check_room(prefixes[-1] + n_tokens, f"prefix={prefixes[-1]} with a sentence of {n_tokens} tokens")
    if prefixes[-1] and first is None:
        assert trained is not None
        raise UserError(
            f"{trained.directory} was trained on separate documents, so it reads no prefix; leave out prefix="
        )
    text = cut(subject, config, prefixes[-1]) if prefixes[-1] else []
    is_sample = pairs.of_package or pairs.n_pairs is not None
    with opened_run(invocation, cfg) as run:
        facts = {} if subject.decoder is not None else {"model": subject.choices["model"]}
        run.note(data={"corpus_hash": pairs.identity()}, facts=facts, **subject.known())
        by_prefix = {}
        for prefix in prefixes:
            with warnings_as_lines(FallsBack):
                before = text[len(text) - prefix :]
                by_prefix[prefix] = scored(subject, sentences, config, invocation.peers, first=first, prefix=before)
        common = {key: subject.choices.get(key) for key in ("pe", "softmax")}
        records = report.records_of_pairs(by_prefix, common | {"sample": is_sample})
        if run.writes:
            table = io.StringIO()  # a row for each prefix and pair: ln p of the pair's two sentences
            writer = csv.writer(table, lineterminator="\n")
            writer.writerow(["prefix", "phenomenon", "pair", "good", "bad"])
            writer.writerows(
                [prefix, name, i, f"{good:.6f}", f"{bad:.6f}"]
                for prefix, scores in by_prefix.items()
                for name, own in scores.items()
                for i, (good, bad) in enumerate(own.tolist())
            )
            write_atomically(run.directory / "pairs.csv", table.getvalue())
        rows = crossed(records, "accuracy", "phenomenon", "prefix")
        columns = {prefix: f"behind {prefix:,}" for prefix in prefixes}
        phenomena = grid(subject.title(), "phenomenon", rows, columns, {"pairs": "pairs"})
        finish(
            run, config, PAIRS, records, None, subject.title(), f"{sum(map(len, asked.values())):,} pairs.", phenomena
        )


def cut(subject: AskedModel, config: EvalConfig, n: int) -> list[int]:
    """The longest prefix: n tokens of held-out text, up to the end of a document.

    Each shorter prefix is the end of the longest prefix, so that the tokens next to a sentence are always the same.
    Raises UserError if there is too little text.
    """
    if subject.trained is not None:
        data = subject.trained.held_out_text()
    else:
        assert config.model is not None, "a subject without a run is a pretrained model"
        option = str(OmegaConf.select(config.model, "default_data") or "pydoc")  # as in `eval` of this model
        corpus = build(load_option("data", option), Corpus)  # type: ignore[type-abstract]
        data = text_for(subject.vocabulary, corpus)
    ids = np.asarray(data.held_out)
    ends = np.flatnonzero(ids == data.end_of_document)
    if not (ends >= n).any():
        raise UserError(f"prefix={n} is longer than the held-out text, which has {len(ids):,} tokens")
    end = int(np.random.default_rng(subject.seed or 0).choice(ends[ends >= n]))
    prefix: list[int] = ids[end - n : end].tolist()
    return prefix


def scored(
    subject: AskedModel,
    sentences: Mapping[str, list[list[int]]],
    config: EvalConfig,
    peers: Peers,
    *,
    first: int | None,
    prefix: Sequence[int],
) -> report.PairScores:
    """The log-probabilities of all sentences after a prefix; each process reads a share of the pairs."""
    every = [sentence for own in sentences.values() for sentence in own]
    mine = [place for place in range(len(every)) if place // 2 % peers.n == peers.rank]
    own = log_probabilities(
        subject.model,
        [every[place] for place in mine],
        first=first,
        prefix=prefix,
        batch_tokens=config.batch_tokens,
        device=subject.device,
    )
    found: NDArray[np.float64] = np.empty(len(every))
    for places, values in peers.gather((mine, own.numpy())):
        found[places] = values
    ends = np.cumsum([len(own) for own in sentences.values()])[:-1]
    parts = [part.reshape(-1, 2) for part in np.split(found, ends)]
    return dict(zip(sentences, parts, strict=True))


# -- tasks of EleutherAI's harness


def evaluate_harness(cfg: DictConfig, config: EvalConfig, invocation: Invocation, subject: AskedModel) -> None:
    """Run EleutherAI's harness on the tasks that the config names.

    Raises UserError if the harness is not installed, or if it lacks one of these tasks.
    """
    keys = overridden(invocation.overrides)
    refuse(invocation, OF_TEXT, "is for text and tasks of roundround; tasks=lm_eval:... takes length= and examples=")
    if "length" in keys and len(config.length) > 1:
        raise UserError("with tasks=lm_eval:..., length= is the longest context in tokens; give a single length")
    try:
        from roundround.asking.harness import VERSION, HarnessModel, asked, opened_tasks
    except ModuleNotFoundError as error:
        raise UserError(
            f"tasks=lm_eval:... needs EleutherAI's harness ({error}): pip install 'roundround[lm_eval]'"
        ) from error
    examples = config.examples if "examples" in keys else None
    loaded = opened_tasks(config.tasks, config.tasks_path, trust=config.trust)
    longest = config.length[0] if "length" in keys else subject.context
    options: dict[str, Any] = {"longest": longest, "batch_tokens": config.batch_tokens, "peers": invocation.peers}
    subject.check_room(longest, f"length={longest}")
    if subject.trained is not None and subject.decoder is not None:
        model = HarnessModel.of_run(subject.trained, subject.decoder, **options)
    else:
        model = HarnessModel.of_pretrained(subject.probed, **options)
    OmegaConf.update(cfg, "length", [longest])
    OmegaConf.update(cfg, "examples", examples)
    begins = model.tok_encode("a")[:1] == [model.first]  # otherwise the token is only used if a context is empty
    tokenizer: Any = subject.vocabulary.tokenizer
    first = tokenizer.id_to_token(model.first) if begins else None
    with opened_run(invocation, cfg) as run:
        versions = {name: task.VERSION for name, task in loaded["tasks"].items()}
        run.note(lm_eval=VERSION, tasks=versions, first_token=first, **subject.known())
        with warnings_as_lines(FallsBack):
            found = asked(model, loaded, examples=examples, trust=config.trust)
        common = subject.common() | {"length": longest, "first_token": first, "lm_eval": VERSION}
        records = report.records_of_harness(found, common)
        numbers = {label(record): record["value"] for record in records}
        run.results(records, **numbers)
        run.log(0, **numbers)
        n_cut = sum(invocation.peers.gather(model.n_cut))
        if run.writes:
            cut = f"the beginning of {n_cut:,} texts was cut off" if n_cut else "no text was cut"
            title = printable(f"lm_eval {VERSION}, {subject.choices.get('model')}, {chosen_parts(subject.choices)}")
            show(config, [table_of_harness(records, title)], [*scope_of_harness(records), cut])
