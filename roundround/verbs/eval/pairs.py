"""`roundround eval data=blimp`: which sentence of a minimal pair a model finds likelier, also behind a growing prefix.

Tested by tests/training/test_pair_runs.py.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from roundround.asking.sentence_scores import log_probabilities
from roundround.config.build import build, target_class
from roundround.config.options import load_option
from roundround.config.recorded import overridden
from roundround.data.corpora import Corpus, Source
from roundround.data.minimal_pairs import MinimalPairs, Pair
from roundround.data.prepared import TokenData
from roundround.data.tokenizers import Vocabulary, check_known, unknown_token
from roundround.distributed.peers import Peers
from roundround.kernels.trial import FallsBack
from roundround.records.opening import opened_run
from roundround.records.run import Invocation
from roundround.report import evaluation as report
from roundround.report.eval_panels import PAIRS, at_each, crossed, grid
from roundround.support.console import warnings_as_lines
from roundround.support.errors import UserError
from roundround.support.files import write_atomically
from roundround.trained.models import text_for
from roundround.verbs.eval import EvalConfig
from roundround.verbs.eval.subject import Subject, refuse, show

OF_OTHERS = ("by", "length", "stride", "max_tokens", "bos", "examples", "dispersion")  # options of text and of tasks


def pairs_asked_for(config: EvalConfig, invocation: Invocation) -> MinimalPairs | None:
    """The minimal pairs that `data=` is, None where it is anything else. UserError for options of the other kind."""
    if config.data is None or not issubclass(target_class(config.data, Source), MinimalPairs):
        refuse(
            invocation, ["prefix"], "is text before the sentences of minimal pairs; give data=blimp or data=zorro too"
        )
        return None
    refuse(invocation, OF_OTHERS, "is for text and tasks, and data= is minimal pairs; they take prefix=, data.pairs=")
    if config.data.path is not None and "data.sample" in overridden(invocation.overrides):
        raise UserError(
            "data.sample= is for the package's pairs, and data.path= is read in their place; give one of them"
        )
    return build(config.data, MinimalPairs)


def evaluate_pairs(
    cfg: DictConfig, config: EvalConfig, invocation: Invocation, pairs: MinimalPairs, subject: Subject
) -> None:
    """Ask all pairs behind each prefix, and report in a run directory. UserError for what cannot be asked."""
    trained = subject.trained
    if trained is not None and trained.learns_a_task:
        raise UserError(f"{trained.directory} was trained on a task, and data= is sentences of English")
    first = subject.vocabulary.end_of_document if trained is None else trained.first_token(subject.vocabulary)
    asked, prefixes = pairs.by_phenomenon(), sorted(set(config.prefix))
    sentences = tokens_of(asked, pairs.before, subject.vocabulary)
    check_room(subject, prefixes[-1], max(len(s) for own in sentences.values() for s in own))
    if prefixes[-1] and first is None:
        assert trained is not None
        raise UserError(f"{trained.directory} was trained on documents that do not see each other; leave prefix= out")
    name, text = cut(subject, config, prefixes[-1]) if prefixes[-1] else ("", [])
    is_sample = pairs.of_package or pairs.n_pairs is not None
    with opened_run(invocation, cfg) as run:
        facts = {} if subject.decoder is not None else {"model": subject.choices["model"]}
        run.note(data={"corpus_hash": pairs.identity()}, facts=facts, **subject.known())
        by_prefix = {}
        for prefix in prefixes:
            with warnings_as_lines(FallsBack):
                before = text[len(text) - prefix :]
                by_prefix[prefix] = scored(subject, sentences, config, invocation.peers, first=first, prefix=before)
            run.log(prefix, prefix=prefix, accuracy=float(by_prefix[prefix].shares().mean()))
        common = {key: subject.choices.get(key) for key in ("pe", "softmax")}
        records = report.records_of_pairs(by_prefix, common | {"sample": is_sample})
        over_all = at_each(records, "prefix")
        run.results(records, **{f"accuracy_{prefix}": row["accuracy"]["value"] for prefix, row in over_all.items()})
        if not run.writes:
            return
        write_atomically(run.directory / "pairs.csv", csv_of(by_prefix))
        n_pairs, title = sum(map(len, asked.values())), subject.title()
        scope = f"{'a sample of ' * is_sample}{n_pairs:,} pairs of {len(asked):,} phenomena"
        rows = crossed(records, "accuracy", "phenomenon", "prefix")
        if len(prefixes) == 1:
            phenomena = grid(title, "phenomenon", rows, {prefixes[0]: "accuracy"}, {"pairs": "pairs"})
        else:
            columns = {prefix: f"behind {prefix:,}" for prefix in prefixes}
            phenomena = grid(title, "phenomenon", rows, columns, {"pairs": "pairs"}, cell=lambda r: f"{r['value']:.3f}")
        tables = [phenomena, PAIRS.table(records, None, f"{title}; {scope}")]
        lines = remarks(pairs, scope, name and f"one piece of {name}, cut by seed {subject.seed or 0}", first=first)
        show(run, config, PAIRS.drawing(records, None, title, f"{scope}."), tables, lines)


def remarks(pairs: MinimalPairs, scope: str, prefix: str, *, first: int | None) -> list[str]:
    """Over what the numbers were taken. prefix: where it is from. first: the token before every sentence."""
    lines = [
        f"{scope}; a pair is right where its wrong sentence has no larger sum of log-probabilities; chance is 0.5",
        "intervals of 95 %: of a phenomenon over its pairs, of all over the phenomena, each of which counts once",
    ]
    if pairs.of_package:
        all_of_it = "data.path=FOLDER" + (" or data.name=nyu-mll/blimp" if pairs.sample == "blimp" else "")
        lines.append(
            f"these are of the sample in the package, which says little of one phenomenon; {all_of_it} has all"
        )
    if first is None:
        lines.append("nothing stands before a sentence, so its first token is not counted")
    if prefix:
        lines.append(f"a prefix is {prefix}, and ends where a document does")
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
    longest = None if subject.decoder is None else subject.decoder.longest()
    if longest is not None and prefix + n_sentence > longest:
        raise UserError(
            f"pe={subject.choices.get('pe')} has {longest} positions, and prefix={prefix} with a sentence of "
            f"{n_sentence} tokens needs {prefix + n_sentence}; give a shorter prefix, or train with more positions"
        )


def prefix_text(subject: Subject, config: EvalConfig) -> tuple[str, TokenData]:
    """The text of a prefix and its name: the run's held-out text, or what `eval` reads with a pretrained model."""
    if subject.trained is not None:
        return "the run's held-out text", subject.trained.held_out_text()
    name = str(OmegaConf.select(config.model, "default_data") or "pydoc")
    corpus = build(load_option("data", name), Corpus)  # type: ignore[type-abstract]
    return f"data={name}", text_for(subject.vocabulary, corpus)


def cut(subject: Subject, config: EvalConfig, n: int) -> tuple[str, list[int]]:
    """The text of the longest prefix, n tokens that end where a document does, and whose it is. A shorter prefix is its
    end, so that what is near a sentence is always the same. UserError where there is too little text.
    """
    name, data = prefix_text(subject, config)
    ids = np.asarray(data.held_out)
    ends = np.flatnonzero(ids == data.end_of_document)
    if not len(ends) or n > ends[-1]:
        most = int(ends[-1]) if len(ends) else 0
        raise UserError(f"prefix={n} is longer than {name}, which has {most:,} tokens up to the end of a document")
    end = int(np.random.default_rng(subject.seed or 0).choice(ends[ends >= n]))
    return name, ids[end - n : end].tolist()


def scored(
    subject: Subject,
    sentences: Mapping[str, list[list[int]]],
    config: EvalConfig,
    peers: Peers,
    *,
    first: int | None,
    prefix: Sequence[int],
) -> report.PairScores:
    """The log-probabilities of all sentences behind a prefix; each process reads a share of the pairs."""
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
    return report.PairScores(dict(zip(sentences, parts, strict=True)))


def csv_of(by_prefix: Mapping[int, report.PairScores]) -> str:
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
