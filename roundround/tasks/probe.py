"""`roundround probe`: how a decoder uses the frequencies of its RoPE, and what changes when some of them are zero."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from safetensors.torch import save_file

from roundround.build import build
from roundround.data.corpora import Corpus
from roundround.directories import find_run
from roundround.errors import UserError
from roundround.probing import ablation
from roundround.probing.maximum import entropy_by_length
from roundround.probing.probe import RIDE_UP_TO, batches, check, observe
from roundround.probing.subject import Subject, TrainedHere
from roundround.probing.texts import APOSTROPHE, texts_of
from roundround.report import probe as report
from roundround.report import probe_figures as figures
from roundround.run import Logger, Run, opened, tell
from roundround.schema import ProbeConfig, checked
from roundround.tasks.assembly import as_dict, describe_device, pick_device, told_in_lines
from roundround.tasks.pretrained import opened_subject
from roundround.tasks.rebuilding import decoder_of_run, held_out_tokens


def probe(cfg: DictConfig) -> None:
    """Look at a model with `texts`, `data` or the run's own held-out text, and at one prompt token by token."""
    config = checked(ProbeConfig, cfg)
    bands = [ablation.parse_band(text) for text in config.ablate if text != "curve"]
    ablation.check_apart(bands)
    job = HydraConfig.get()
    directory = Path(job.runtime.output_dir)
    device = pick_device(config.device)
    with subject_of(config, device) as (subject, source):
        texts = texts_for(config, subject, source)
        sweep = str(directory.parent) if job.mode == RunMode.MULTIRUN else None
        logger, overrides = build(config.logger, Logger), list(job.overrides.task)
        with (
            opened(
                directory, verb="probe", config=as_dict(cfg), overrides=overrides, logger=logger, sweep=sweep
            ) as run,
            told_in_lines(),
        ):
            run.note(
                choices={g: c for g, c in job.runtime.choices.items() if c is not None},
                device=describe_device(device),
                run=None if source is None else str(source),
                facts={"model": subject.name, "texts": len(texts), "tokens": sum(map(len, texts))},
            )
            if config.ablate:
                ablate(run, config, subject, texts, bands)
            elif config.prompt == "maximum":
                look_at_maximum(run, subject)
            else:
                look(run, config, subject, texts)


@contextmanager
def subject_of(config: ProbeConfig, device: torch.device) -> Iterator[tuple[Subject, Path | None]]:
    """What is probed, and the run directory where it was trained here."""
    if config.model is not None:
        with opened_subject(config.model, config.pe, config.softmax, device) as subject:
            yield subject, None
        return
    assert config.run is not None
    source = find_run(config.run, config.outputs, "train", done=True)
    decoder, vocabulary = decoder_of_run(
        source, checkpoint=config.checkpoint, trust=config.trust, pe=config.pe, softmax=config.softmax
    )
    decoder.requires_grad_(False)
    name = "/".join(source.parts[-2:])
    yield TrainedHere(name, decoder.to(device), vocabulary.tokenizer, vocabulary.end_of_document), source


def texts_for(config: ProbeConfig, subject: Subject, source: Path | None) -> list[list[int]]:
    """Token ids of the texts, each after the token with which the model knows texts to begin; no more are read."""
    if config.data is None and config.texts is None and source is not None:
        stream: Iterator[int] = map(int, held_out_tokens(source, trust=config.trust))
        return limited(windows(stream, subject, config.length or subject.longest), config)
    documents = documents_of(config)
    if config.length is not None:
        tokens = (token for text in documents for token in subject.text_tokens(text))
        return limited(windows(tokens, subject, config.length), config)
    return limited((subject.tokens(text)[: subject.longest] for text in documents), config)


def documents_of(config: ProbeConfig) -> Iterator[str]:
    """The texts themselves: those of the package, or the documents of `data`, held out or not."""
    if config.data is None:
        return iter(texts_of(config.texts or "shakespeare"))
    corpus = build(config.data, Corpus)  # type: ignore[type-abstract]
    return islice((text for _, text in corpus.documents()), config.max_documents)


def windows(tokens: Iterator[int], subject: Subject, length: int) -> Iterator[list[int]]:
    """Running text in windows of `length` tokens, each after the token with which texts begin."""
    first = [] if subject.first_token is None else [subject.first_token]
    n_windows = 0
    while len(window := list(islice(tokens, length))) == length:
        n_windows += 1
        yield first + window
    if not n_windows:
        raise UserError(f"length={length}: the text has only {len(window):,} tokens; choose a shorter length")


def limited(texts: Iterator[list[int]], config: ProbeConfig) -> list[list[int]]:
    """Texts until `max_tokens` or `max_documents` is reached; at least one."""
    found: list[list[int]] = []
    n_tokens = 0
    for text in islice(texts, config.max_documents):
        if found and config.max_tokens is not None and n_tokens + len(text) > config.max_tokens:
            break
        found.append(text)
        n_tokens += len(text)
    return found


def look(run: Run, config: ProbeConfig, subject: Subject, texts: list[list[int]]) -> None:
    """Norms, entropies and rows of the texts, and one prompt token by token."""
    if config.model is not None and config.model.offload:
        passes = sum(1 for _ in batches(texts, config.batch_tokens, apart=max(map(len, texts)) > RIDE_UP_TO))
        if passes > 1:
            tell(f"the weights pass through {passes} times; a larger batch_tokens puts more texts into one pass")
    prompt = subject.tokens(APOSTROPHE if config.prompt is None else config.prompt)
    seen = observe(
        subject, texts, batch_tokens=config.batch_tokens, rows=config.rows, entropy=config.entropy, prompt=prompt
    )
    assert seen.prompt is not None
    run.log(0, tokens=seen.n_tokens, **report.shares(seen))
    run.results(report.records(seen), **report.shares(seen))
    if not run.writes:
        return
    save_file(seen.arrays(), run.directory / "probe.safetensors")
    save_file(seen.prompt.arrays(), run.directory / "prompt.safetensors")
    report.write_alignment(seen.prompt, seen, run.directory / "alignment.json")
    figures.draw_all(seen, seen.prompt, run.directory / "figures")
    report.show(seen)
    tell(f"{seen.n_texts:,} texts, {seen.n_tokens:,} tokens; arrays in probe.safetensors, figures/ has the pictures")


def look_at_maximum(run: Run, subject: Subject) -> None:
    """Entropy of every head at the end of a question about the largest of ever more numbers."""
    check(subject, subject.tokens(APOSTROPHE))
    entropies = entropy_by_length(subject)
    run.results(report.records_of_maximum(entropies))
    if run.writes:
        figures.draw_maximum(entropies, subject.name, run.directory / "figures")
        report.show_maximum(entropies)


def ablate(run: Run, config: ProbeConfig, subject: Subject, texts: list[list[int]], bands: list[ablation.Band]) -> None:
    """Perplexity by context length with frequencies at zero: of the bands together, or along the whole ladder."""
    check(subject, texts[0])
    cut = [ablation.without(table, bands) for table in subject.tables()]
    before = ablation.text_loss(subject, texts, batch_tokens=config.batch_tokens)
    if not bands:
        draw_curve(run, config, subject, texts, before)
        return
    name = ",".join(map(str, bands))
    with subject.turning_at(cut):
        after = ablation.text_loss(subject, texts, batch_tokens=config.batch_tokens)
    changes, seen, changed = [], None, None
    if config.rows:
        seen = observe(subject, texts, batch_tokens=config.batch_tokens, entropy=False)
        with subject.turning_at(cut):
            changed = observe(subject, texts, batch_tokens=config.batch_tokens, entropy=False, ablated=True)
        changes = report.records_of_change(seen, changed, name)
    run.results(report.records_of_ablation(before, after, name) + changes)
    if not run.writes:
        return
    report.show_ablation(before, after, subject.name, name)
    if seen is not None and changed is not None:
        arrays = {f"{key}_before": value for key, value in seen.arrays().items() if key.startswith("places")}
        arrays |= {f"{key}_after": value for key, value in changed.arrays().items() if key.startswith("places")}
        save_file(arrays, run.directory / "ablation.safetensors")
        report.show_change(seen, changed)


def draw_curve(
    run: Run, config: ProbeConfig, subject: Subject, texts: list[list[int]], before: ablation.TextLoss
) -> None:
    """Perplexity against the fraction of frequencies kept, from both ends."""
    steps = ablation.curve(max(int((table > 0).sum()) for table in subject.tables()))
    losses = [ablation.ablated_loss(subject, [band], texts, batch_tokens=config.batch_tokens) for band in steps]
    run.results(report.records_of_curve(before, steps, losses))
    if run.writes:
        figures.draw_curve(before, steps, losses, subject.name, run.directory / "figures")
        report.show_curve(before, steps, losses)
