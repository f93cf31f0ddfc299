"""`roundround eval`: perplexity of a trained run on held-out text, at several context lengths, and its dispersion."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from roundround.build import build
from roundround.data.batches import evaluation_windows
from roundround.data.corpora import Corpus
from roundround.data.tokenizers import Saved, TokenizerRecipe
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
from roundround.tasks.assembly import as_dict, decoder_of, describe_device, pick_device, refuse_foreign, told_in_lines
from roundround.training import checkpoints


def evaluate(cfg: DictConfig) -> None:
    """Rebuild a run from its manifest and score it; `pe`, `softmax` and `data` replace its own where given."""
    job = HydraConfig.get()
    config = checked(EvalConfig, cfg)
    source = find_run(config.run, config.outputs, "train", done=True)
    manifest = read_manifest(source)
    if manifest["verb"] != "train":
        raise UserError(f"{source} is a run of {manifest['verb']}; eval takes one of train")
    given = {group: choice for group, choice in job.runtime.choices.items() if choice is not None}
    choices = {**manifest.get("choices", {}), **{g: c for g, c in given.items() if g in ("pe", "softmax", "data")}}
    own = own_config(config, manifest)
    device = pick_device(config.device)
    directory = Path(job.runtime.output_dir)
    decoder = load_decoder(config, own, manifest, source).to(device)
    check_lengths(config, decoder, choices)
    data = held_out_text(own, manifest, source)
    overrides = list(job.overrides.task)
    sweep = str(directory.parent) if job.mode == RunMode.MULTIRUN else None
    logger = build(config.logger, Logger)
    with opened(directory, verb="eval", config=as_dict(cfg), overrides=overrides, logger=logger, sweep=sweep) as run:
        run.note(
            choices=choices,
            seed=own.seed,
            run=str(source),
            device=describe_device(device),
            data={"corpus_hash": data.corpus_hash, "tokenizer_hash": data.tokenizer_hash},
        )
        if data.corpus_hash != manifest["data"]["corpus_hash"]:
            tell("this is not the corpus that the run was trained on, as it was then: it may have seen held-out text")
        with told_in_lines():
            losses, dispersions = measure(config, decoder, data, device)
        common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": own.seed}
        report(run, own, losses, data, choices, common, more=dispersion.records(dispersions, common))
        if dispersions and run.writes:
            report_dispersion(run, dispersions, choices)


def own_config(config: EvalConfig, manifest: dict[str, Any]) -> DictConfig:
    """The run's own config with what the command line replaces."""
    own = OmegaConf.create(manifest["config"])
    assert isinstance(own, DictConfig)
    refuse_foreign(own, trust=config.trust)
    for name in ("pe", "softmax", "data"):
        node = getattr(config, name)
        if node is not None:
            own[name] = node
    return own


def load_decoder(config: EvalConfig, own: DictConfig, manifest: dict[str, Any], source: Path) -> Decoder:
    """The run's decoder with its weights; UserError for a parameter that a replaced part needs and they lack."""
    if not manifest.get("data"):
        raise UserError(f"{source} stopped before its model was built; there is nothing to evaluate")
    weights = checkpoints.load_weights(checkpoints.find(source, config.checkpoint))
    decoder = decoder_of(own.model, own.pe, own.softmax, manifest["data"]["n_vocab"])
    if config.pe is not None:
        weights = {name: value for name, value in weights.items() if not name.startswith("encodings.")}
        own_state = {name for name in decoder.state_dict() if name.startswith("encodings.")}
        if own_state:
            raise UserError(
                f"pe has parameters that the checkpoint lacks: {', '.join(sorted(own_state))}; train with it"
            )
    if config.softmax is not None:
        weights = {name: value for name, value in weights.items() if ".softmax." not in name}
        own_state = {name for name in decoder.state_dict() if ".softmax." in name}
        if own_state:
            raise UserError(
                f"softmax has parameters that the checkpoint lacks: {', '.join(sorted(own_state))}; train with it"
            )
    decoder.load_state_dict(weights)
    return decoder


def held_out_text(own: DictConfig, manifest: dict[str, Any], source: Path) -> TokenData:
    """The corpus in the run's own tokens; from the cache where the run left them, else with the tokenizer it kept."""
    corpus = build(own.data, Corpus)  # type: ignore[type-abstract]
    began_elsewhere = own.get("init") is not None  # its tokenizer came from a folder that need not be there any more
    if corpus.identity() == manifest["data"]["corpus_hash"] and not began_elsewhere:
        data = prepare(corpus, build(own.tokenizer, TokenizerRecipe), default_cache_dir())  # type: ignore[type-abstract]
        if data.tokenizer_hash == manifest["data"]["tokenizer_hash"]:
            return data
    kept = Saved(source / "tokenizer.json", manifest["data"]["end_of_document"])
    return prepare(corpus, kept, default_cache_dir())


def check_lengths(config: EvalConfig, decoder: Decoder, choices: dict[str, str]) -> None:
    """Raises UserError where the encoding knows fewer positions than a length asks for."""
    longest = decoder.encoding.longest()
    if longest is not None and max(config.length) > longest:
        raise UserError(
            f"pe={choices.get('pe')} has learned {longest} positions and length={max(config.length)} asks for more; "
            f"evaluate at length={longest} or less, or train with more positions"
        )


def measure(
    config: EvalConfig, decoder: Decoder, data: TokenData, device: torch.device
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
        with watched(decoder, length) if config.dispersion else nullcontext() as seen:
            losses[length] = score(decoder, windows, batch=batch, device=device)
        if seen is not None:
            dispersions[length] = seen
    return losses, dispersions


def report(
    run: Run,
    own: DictConfig,
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
        mark = " *" if length == own.model.train_length else ""
        table.add_row(f"{length:,}{mark}", *(f"{value:.4f}" for value in values.values()))
        run.log(length, length=length, **values)
    run.results(
        records + more, **{f"perplexity_{length}": math.exp(loss.nats_per_token) for length, loss in losses.items()}
    )
    if run.writes:
        write_json(run.directory / "loss_by_position.json", {n: loss.by_position for n, loss in losses.items()})
        curves = {length: loss.by_position for length, loss in losses.items()}
        perplexity.draw(
            curves, train_length=own.model.train_length, title=title(choices), folder=run.directory / "figures"
        )
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
