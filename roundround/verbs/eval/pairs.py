"""`roundround eval data=blimp`: which sentence of a minimal pair a model finds likelier, also behind a growing prefix.

Tested by tests/training/test_pair_runs.py.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from roundround.asking.sentence_scores import Model, log_probabilities
from roundround.config.build import build, target_class
from roundround.config.options import load_option
from roundround.config.recorded import overridden
from roundround.data.corpora import Corpus, Source
from roundround.data.minimal_pairs import MinimalPairs, Pair
from roundround.data.prepared import TokenData
from roundround.data.tokenizers import Vocabulary, check_known, unknown_token
from roundround.distributed.device import describe_device
from roundround.distributed.peers import Peers
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.kernels.trial import FallsBack
from roundround.model.decoder import Decoder
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.report import pairs as report
from roundround.report.drawing.figures import save_drawing
from roundround.report.pairs import PairScores
from roundround.support.console import print_status, print_table, warnings_as_lines
from roundround.support.errors import UserError, printable
from roundround.support.files import write_atomically
from roundround.trained.models import TrainedRun, first_of, text_for
from roundround.verbs.eval import EvalConfig

OF_OTHERS = ("by", "length", "stride", "max_tokens", "bos", "examples", "dispersion")  # options of text and of tasks


def pairs_asked_for(config: EvalConfig, invocation: Invocation) -> MinimalPairs | None:
    """The minimal pairs that `data=` is, None where it is anything else. UserError for options of the other kind."""
    keys = overridden(invocation.overrides)
    if config.data is None or not issubclass(target_class(config.data, Source), MinimalPairs):
        if "prefix" in keys:
            raise UserError("prefix= is text before the sentences of minimal pairs; give data=blimp or data=zorro too")
        return None
    for key in OF_OTHERS:
        if key in keys:
            raise UserError(f"{key}= is for text and tasks, and data= is minimal pairs; they take prefix=, data.pairs=")
    if config.data.path is not None and "data.sample" in keys:
        raise UserError(
            "data.sample= is for the package's pairs, and data.path= is read in their place; give one of them"
        )
    return build(config.data, MinimalPairs)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that is asked, with what its sentences stand behind.

    first: the token before every sentence, None for nothing. longest: the most tokens that it can read, None for any
    number. seed: cuts the prefix. text: the prefix's text by its name, asked for where there is a prefix. source: the
    run of a decoder.
    """

    model: Model
    vocabulary: Vocabulary
    first: int | None
    longest: int | None
    seed: int
    text: Callable[[], tuple[str, TokenData]]
    choices: dict[str, str]
    device: torch.device
    source: Path | None = None


def subject_of_run(trained: TrainedRun, decoder: Decoder, choices: dict[str, str], device: torch.device) -> Subject:
    """A run's decoder; its prefix is of its own held-out text. UserError where it learns a task."""
    if trained.learns_a_task:
        raise UserError(f"{trained.directory} was trained on a task, and data= is sentences of English")
    vocabulary = trained.vocabulary()
    return Subject(
        model=decoder,
        vocabulary=vocabulary,
        first=first_of(vocabulary),
        longest=decoder.longest(),
        seed=int(trained.config.seed),
        text=lambda: ("the run's held-out text", trained.held_out_text()),
        choices=choices,
        device=device,
        source=trained.directory,
    )


def subject_of_pretrained(
    probed: ProbedHuggingFaceModel, config: EvalConfig, choices: dict[str, str], device: torch.device
) -> Subject:
    """A pretrained model; its prefix is of the text that `eval` reads with it where none is given."""
    vocabulary = probed.vocabulary()
    assert config.model is not None
    name = str(OmegaConf.select(config.model, "default_data") or "pydoc")

    def text() -> tuple[str, TokenData]:
        corpus = build(load_option("data", name), Corpus)  # type: ignore[type-abstract]
        return f"data={name}", text_for(vocabulary, corpus)

    return Subject(
        model=probed,
        vocabulary=vocabulary,
        first=vocabulary.end_of_document,
        longest=None,
        seed=0,
        text=text,
        choices=choices,
        device=device,
    )


def evaluate_pairs(
    cfg: DictConfig, config: EvalConfig, invocation: Invocation, pairs: MinimalPairs, subject: Subject
) -> None:
    """Ask all pairs behind each prefix, and report in a run directory. UserError for what cannot be asked."""
    asked, prefixes = pairs.by_phenomenon(), sorted(set(config.prefix))
    sentences = tokens_of(asked, pairs.before, subject.vocabulary)
    check_room(subject, prefixes[-1], max(len(s) for own in sentences.values() for s in own))
    name, text = cut(subject, prefixes[-1])
    n_pairs = sum(map(len, asked.values()))
    is_sample = pairs.of_package or pairs.n_pairs is not None
    with opened_run(invocation, cfg) as run:
        run.note(
            choices=subject.choices,
            device=describe_device(subject.device),
            data={"corpus_hash": pairs.identity()},
            seed=None if subject.source is None else subject.seed,
            run=None if subject.source is None else str(subject.source),
            facts={} if isinstance(subject.model, Decoder) else {"model": subject.model.name},
        )
        by_prefix = {}
        for prefix in prefixes:
            with warnings_as_lines(FallsBack):
                by_prefix[prefix] = scored(subject, sentences, text[len(text) - prefix :], config, invocation.peers)
            run.log(prefix, prefix=prefix, accuracy=float(by_prefix[prefix].shares().mean()))
        common = {"pe": subject.choices.get("pe"), "softmax": subject.choices.get("softmax")}
        found = report.records(by_prefix, common | {"sample": is_sample})
        run.results(found, **{f"accuracy_{r['prefix']}": r["value"] for r in report.over_all(found)})
        if run.writes:
            write_atomically(run.directory / "pairs.csv", csv_of(by_prefix))
            named = f"pe={subject.choices.get('pe')}, softmax={subject.choices.get('softmax')}"
            title = printable(f"{subject.choices.get('data')}, {subject.choices.get('model')}, {named}")
            sample = "a sample of " if is_sample else ""
            scope = f"{sample}{n_pairs:,} pairs of {len(asked):,} phenomena"
            save_drawing(report.drawing(found, title, f"{scope}."), run.directory / "figures", config.figures)
            on_output = config.table == "stdout"
            print_table(report.table_of_phenomena(found, title=title), on_output=on_output)
            print_table(report.table(found, title=f"{title}; {scope}"), on_output=on_output)
            for line in remarks(pairs, scope, name, prefixes[-1], subject):
                print_status(line)


def remarks(pairs: MinimalPairs, scope: str, text: str, longest: int, subject: Subject) -> list[str]:
    """Over what the numbers were taken."""
    lines = [
        f"{scope}; a pair is right where its wrong sentence has no larger sum of log-probabilities; chance is 0.5",
        "intervals of 95 %: of a phenomenon over its pairs, of all over the phenomena, each of which counts once",
    ]
    if pairs.of_package:
        all_of_it = "data.path=FOLDER" + (" or data.name=nyu-mll/blimp" if pairs.sample == "blimp" else "")
        lines.append(
            f"these are of the sample in the package, which says little of one phenomenon; {all_of_it} has all"
        )
    if subject.first is None:
        lines.append("nothing stands before a sentence, so its first token is not counted")
    if longest:
        lines.append(f"a prefix is one piece of {text}, cut by seed {subject.seed}, and ends where a document does")
    return lines


def tokens_of(asked: Mapping[str, Sequence[Pair]], before: str, vocabulary: Vocabulary) -> dict[str, list[list[int]]]:
    """Token ids of the right and the wrong sentence of each pair, one after the other, by phenomenon."""
    found = {}
    for name, pairs in asked.items():
        texts = [before + text for pair in pairs for text in (pair.good, pair.bad)]
        found[name] = [list(e.ids) for e in vocabulary.tokenizer.encode_batch(texts, add_special_tokens=False)]
    unknown = unknown_token(vocabulary.tokenizer, vocabulary.end_of_document)
    check_known([token for own in found.values() for ids in own for token in ids], unknown, "the sentences")
    return found


def check_room(subject: Subject, prefix: int, n_sentence: int) -> None:
    """Raises UserError where the encoding has fewer positions than a prefix and the longest sentence."""
    if subject.longest is not None and prefix + n_sentence > subject.longest:
        raise UserError(
            f"pe={subject.choices.get('pe')} has {subject.longest} positions, and prefix={prefix} with a sentence of "
            f"{n_sentence} tokens needs {prefix + n_sentence}; give a shorter prefix, or train with more positions"
        )


def cut(subject: Subject, n: int) -> tuple[str, list[int]]:
    """The text of the longest prefix, n tokens that end where a document does, and whose it is. A shorter prefix is its
    end, so that what is near a sentence is always the same. UserError where there is too little text.
    """
    if n == 0:
        return "", []
    if subject.first is None:
        raise UserError(f"{subject.source} was trained on documents that do not see each other; leave prefix= out")
    name, data = subject.text()
    ids = np.asarray(data.held_out)
    ends = np.flatnonzero(ids == data.end_of_document)
    if not len(ends) or n > ends[-1]:
        most = int(ends[-1]) if len(ends) else 0
        raise UserError(f"prefix={n} is longer than {name}, which has {most:,} tokens up to the end of a document")
    end = int(np.random.default_rng(subject.seed).choice(ends[ends >= n]))
    return name, ids[end - n : end].tolist()


def scored(
    subject: Subject,
    sentences: Mapping[str, list[list[int]]],
    prefix: Sequence[int],
    config: EvalConfig,
    peers: Peers,
) -> PairScores:
    """The log-probabilities of all sentences behind a prefix; each process reads a share of the pairs."""
    every = [sentence for own in sentences.values() for sentence in own]
    mine = [place for place in range(len(every)) if place // 2 % peers.n == peers.rank]
    own = log_probabilities(
        subject.model,
        [every[place] for place in mine],
        first=subject.first,
        prefix=prefix,
        batch_tokens=config.batch_tokens,
        device=subject.device,
    )
    found: NDArray[np.float64] = np.empty(len(every))
    for places, values in peers.gather((mine, own.numpy())):
        found[places] = values
    ends = np.cumsum([len(own) for own in sentences.values()])[:-1]
    parts: Iterable[NDArray[np.float64]] = np.split(found, ends)
    return PairScores({name: part.reshape(-1, 2) for name, part in zip(sentences, parts, strict=True)})


def csv_of(by_prefix: Mapping[int, PairScores]) -> str:
    """The log-probabilities in nats of both sentences of each pair behind each prefix, a row for each.

    A phenomenon that a spreadsheet would compute, such as =1+1, has a ' in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["prefix", "phenomenon", "pair", "good", "bad"])
    for prefix, scores in by_prefix.items():
        for name, own in scores.by_phenomenon.items():
            shown = f"'{name}" if name.startswith(("=", "+", "-", "@")) else name
            writer.writerows(
                [prefix, shown, i, f"{good:.6f}", f"{bad:.6f}"] for i, (good, bad) in enumerate(own.tolist())
            )
    return text.getvalue()
