"""`roundround eval`: perplexity of a model on held-out text, at several context lengths, and its dispersion.

The model is one trained here (`run=`) or a pretrained one (`model=`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from torch import nn

from roundround.build import build, load_option
from roundround.data.batches import evaluation_windows
from roundround.data.corpora import Corpus
from roundround.data.tokenizers import AlreadyLoaded
from roundround.data.tokens import TokenData, default_cache_dir, prepare
from roundround.directories import find_run, read_manifest
from roundround.errors import UserError
from roundround.files import write_json
from roundround.model.decoder import Decoder
from roundround.model.scoring import PositionLoss, score
from roundround.probing.dispersion import Dispersion, watched
from roundround.report import dispersion, perplexity
from roundround.run import Logger, Run, opened, tell
from roundround.schema import EvalConfig, checked
from roundround.tasks.assembly import as_dict, describe_device, pick_device, told_in_lines
from roundround.tasks.pretrained import FromBeginning, opened_subject
from roundround.tasks.rebuilding import held_out_text, load_decoder, own_config


def evaluate(cfg: DictConfig) -> None:
    """Score a run, rebuilt from its manifest, or a pretrained model; `pe`, `softmax`, `data` replace its own."""
    config = checked(EvalConfig, cfg)
    if config.model is None:
        evaluate_run(cfg, config)
    else:
        evaluate_pretrained(cfg, config)


def evaluate_run(cfg: DictConfig, config: EvalConfig) -> None:
    source = find_run(config.run, config.outputs, "train", done=True)
    manifest = read_manifest(source)
    if manifest["verb"] != "train":
        raise UserError(f"{source} is a run of {manifest['verb']}; eval takes one of train")
    choices = {**manifest.get("choices", {}), **{g: c for g, c in given().items() if g in ("pe", "softmax", "data")}}
    own = own_config(manifest, trust=config.trust, pe=config.pe, softmax=config.softmax, data=config.data)
    replaced = {name for name in ("pe", "softmax") if getattr(config, name) is not None}
    device = pick_device(config.device)
    decoder = load_decoder(own, manifest, source, checkpoint=config.checkpoint, replaced=replaced).to(device)
    check_lengths(config, decoder, choices)
    data = held_out_text(own, manifest, source)
    facts = {"seed": own.seed, "run": str(source)}
    with opened_run(cfg, config, device, choices, facts, data) as run:
        if data.corpus_hash != manifest["data"]["corpus_hash"]:
            tell("this is not the corpus that the run was trained on, as it was then: it may have seen held-out text")
        score_and_report(run, config, decoder, data, device, choices, int(own.model.train_length), own.seed)


def evaluate_pretrained(cfg: DictConfig, config: EvalConfig) -> None:
    if config.run != "last":
        raise UserError("give run= for a model trained here or model= for a pretrained one, not both")
    device = pick_device(config.device)
    corpus_node = config.data if config.data is not None else load_option("data", "pydoc")
    with opened_subject(config.model, config.pe, config.softmax, device) as subject:
        corpus = build(corpus_node, Corpus)  # type: ignore[type-abstract]
        data = prepare(corpus, AlreadyLoaded(subject.tokenizer, subject.name), default_cache_dir())
        choices = {"softmax": "its own", "pe": "its own", "data": "pydoc", **given(), "model": subject.name}
        with opened_run(cfg, config, device, choices, {"seed": None, "run": None}, data) as run:
            model = FromBeginning(subject)
            score_and_report(run, config, model, data, device, choices, subject.longest, None)


def given() -> dict[str, str]:
    """What the command line chose of the groups."""
    return {group: choice for group, choice in HydraConfig.get().runtime.choices.items() if choice is not None}


@contextmanager
def opened_run(
    cfg: DictConfig,
    config: EvalConfig,
    device: torch.device,
    choices: dict[str, str],
    facts: dict[str, Any],
    data: TokenData,
) -> Iterator[Run]:
    """The run directory, with what is known before the first number."""
    job = HydraConfig.get()
    directory = Path(job.runtime.output_dir)
    sweep = str(directory.parent) if job.mode == RunMode.MULTIRUN else None
    logger, overrides = build(config.logger, Logger), list(job.overrides.task)
    with opened(directory, verb="eval", config=as_dict(cfg), overrides=overrides, logger=logger, sweep=sweep) as run:
        hashes = {"corpus_hash": data.corpus_hash, "tokenizer_hash": data.tokenizer_hash}
        run.note(choices=choices, device=describe_device(device), data=hashes, **facts)
        yield run


def score_and_report(
    run: Run,
    config: EvalConfig,
    model: nn.Module,
    data: TokenData,
    device: torch.device,
    choices: dict[str, str],
    train_length: int,
    seed: int | None,
) -> None:
    with told_in_lines():
        losses, dispersions = measure(config, model, data, device)
    common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": seed}
    report(run, train_length, losses, data, choices, common, more=dispersion.records(dispersions, common))
    if dispersions and run.writes:
        report_dispersion(run, dispersions, choices)


def check_lengths(config: EvalConfig, decoder: Decoder, choices: dict[str, str]) -> None:
    """Raises UserError where the encoding knows fewer positions than a length asks for."""
    longest = decoder.encoding.longest()
    if longest is not None and max(config.length) > longest:
        raise UserError(
            f"pe={choices.get('pe')} has learned {longest} positions and length={max(config.length)} asks for more; "
            f"evaluate at length={longest} or less, or train with more positions"
        )


def measure(
    config: EvalConfig, model: nn.Module, data: TokenData, device: torch.device
) -> tuple[dict[int, PositionLoss], dict[int, Dispersion]]:
    """Losses at each length, and where asked for the dispersion of the attention that led to them.

    The targets are the same at all lengths: the stream is cut to a multiple of every length.
    """
    longest = math.lcm(*config.length)
    if len(data.held_out) <= longest and len(data.held_out) > max(config.length):
        raise UserError(
            f"length={','.join(map(str, config.length))}: {len(data.held_out):,} held-out tokens are fewer than a "
            f"stretch that all of them divide, {longest:,}; choose lengths that divide the largest"
        )
    losses, dispersions = {}, {}
    for length in sorted(set(config.length)):
        windows = evaluation_windows(data.held_out, length=length, longest=longest, max_tokens=config.max_tokens)
        batch = max(1, config.batch_tokens // length)
        n_before = model.n_before if isinstance(model, FromBeginning) else 0
        with watched(model, n_before + length) if config.dispersion else nullcontext() as seen:
            losses[length] = score(model, windows, batch=batch, device=device)
        if seen is not None:
            dispersions[length] = seen
    return losses, dispersions


def report(
    run: Run,
    train_length: int,
    losses: dict[int, PositionLoss],
    data: TokenData,
    choices: dict[str, str],
    common: dict[str, Any],
    *,
    more: list[dict[str, Any]],
) -> None:
    """Write results, with `more` of them, and the figure, and show the table."""
    records: list[dict[str, Any]] = []
    table = Table("context", "perplexity", "nats a token", "nats a byte", title=f"held-out text, {title(choices)}")
    for length, loss in losses.items():
        nats = loss.nats_per_token
        values = {
            "perplexity": math.exp(nats),
            "nats_per_token": nats,
            "nats_per_byte": nats / data.held_out_bytes_per_token,
        }
        records += [{"metric": name, **common, "length": length, "value": value} for name, value in values.items()]
        by_position = loss.by_position
        records += [
            {
                "metric": "nats_per_token",
                **common,
                "length": length,
                "first_position": a,
                "last_position": b - 1,
                "value": sum(by_position[a:b]) / (b - a),
            }
            for a, b in perplexity.position_bins(length)
        ]
        mark = " *" if length == train_length else ""
        table.add_row(f"{length:,}{mark}", *(f"{value:.4f}" for value in values.values()))
        run.log(length, length=length, **values)
    run.results(
        records + more, **{f"perplexity_{length}": math.exp(loss.nats_per_token) for length, loss in losses.items()}
    )
    if run.writes:
        write_json(run.directory / "loss_by_position.json", {n: loss.by_position for n, loss in losses.items()})
        curves = {length: loss.by_position for length, loss in losses.items()}
        perplexity.draw(curves, train_length=train_length, title=title(choices), folder=run.directory / "figures")
        n_targets = next(iter(losses.values())).n_windows * next(iter(losses))
        Console(stderr=True).print(table)
        tell(f"the same {n_targets:,} targets at each length; * is the trained length")


def report_dispersion(run: Run, dispersions: dict[int, Dispersion], choices: dict[str, str]) -> None:
    """Keep dispersion by the number of visible keys, draw the longest context and show the table."""
    write_json(run.directory / "dispersion.json", dispersion.by_visible_keys(dispersions))
    longest = max(dispersions)
    folder = run.directory / "figures"
    dispersion.draw(dispersions[longest], length=longest, title=title(choices), folder=folder)
    shown = dispersion.table(dispersions, title="dispersion: the lowest and the highest head of each layer")
    Console(stderr=True).print(shown)
    warning = dispersion.warning(dispersions)
    if warning is not None:
        tell(warning)


def title(choices: dict[str, str]) -> str:
    return f"{choices.get('model')}, pe={choices.get('pe')}, softmax={choices.get('softmax')}"
