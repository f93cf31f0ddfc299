"""`roundround train`: from a config to a trained model in its run directory."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig

from roundround.build import build, checked_values
from roundround.data.batches import TrainingWindows, evaluation_windows
from roundround.data.corpora import Corpus
from roundround.data.tokens import TokenData, default_cache_dir, prepare
from roundround.directories import read_manifest
from roundround.errors import Interrupted, UserError, one_line
from roundround.model.decoder import Decoder
from roundround.run import Logger, Run, opened, tell
from roundround.schema import TrainConfig, checked
from roundround.tasks.assembly import (
    as_dict,
    check_buildable,
    config_of_run,
    decoder_of,
    describe_device,
    n_parameters,
    told_in_lines,
)
from roundround.tasks.initial import check_fits, recipe_of, start_again, take_over, with_vocabulary
from roundround.training import checkpoints
from roundround.training.conductor import Conductor
from roundround.training.module import LanguageModel
from roundround.training.optim import Optimiser
from roundround.training.schedules import Schedule

if TYPE_CHECKING:
    from roundround.hf.initial import Initial

OWNED = {  # arguments of Lightning's Trainer that the run decides
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
    "limit_val_batches": 0,
    "val_check_interval": None,
    "check_val_every_n_epoch": 1,
    "num_sanity_val_steps": 0,
    "max_epochs": 1,
    "max_time": None,
}


FREE_ON_RESUME = {"resume", "outputs", "logger", "trust", "trainer.log_every_n_steps"}


def train(cfg: DictConfig) -> None:
    """Train a decoder as the config says; go on with a run where `resume` names one."""
    job = HydraConfig.get()
    directory = Path(job.runtime.output_dir)
    overrides = list(job.overrides.task)
    choices = {group: choice for group, choice in job.runtime.choices.items() if not group.startswith("hydra/")}
    start = None
    if cfg.resume is not None:
        if job.mode == RunMode.MULTIRUN:
            raise UserError("resume= goes on with one run; leave out -m")
        cfg, choices = config_of_run(cfg, directory, overrides, verb="train", free=FREE_ON_RESUME)
    elif cfg.init is not None:
        start, choices = take_over(cfg, overrides, choices)
    config = checked(TrainConfig, cfg)
    check_buildable(config.model, config.pe, config.softmax)
    if config.resume is not None:
        start = start_again(config, directory)
    if start is not None:
        check_fits(start, config)
    checked_values(config.trainer, lightning.Trainer, ["callbacks", *OWNED])
    corpus, recipe = build(config.data, Corpus), recipe_of(config, directory)  # type: ignore[type-abstract]
    optimiser, schedule = build(config.optim, Optimiser), build(config.schedule, Schedule)
    data = with_vocabulary(prepare(corpus, recipe, default_cache_dir()), config, start, directory)
    if config.resume is not None:
        check_same_data(directory, data)
    sweep = str(directory.parent) if job.mode == RunMode.MULTIRUN else None
    logger = build(config.logger, Logger)
    with opened(directory, verb="train", config=as_dict(cfg), overrides=overrides, logger=logger, sweep=sweep) as run:
        run.note(choices=choices)
        if start is not None:
            run.note(init={"folder": str(start.folder), "sha256": start.sha256})
        fit(run, config, data, optimiser, schedule, start)
        report(run, config, data)


def fit(
    run: Run, config: TrainConfig, data: TokenData, optimiser: Optimiser, schedule: Schedule, start: Initial | None
) -> None:
    """Train from the newest checkpoint, or where there is none from the weights of `start`, or from the seed."""
    n_steps, n_micro = count(config.trainer, "max_steps"), count(config.trainer, "accumulate_grad_batches")
    torch.manual_seed(config.seed)
    decoder = decoder_of(config.model, config.pe, config.softmax, data.n_vocab)
    resumed = newest_checkpoint(run)
    first_step = resumed.state["step"] if resumed else 0
    if resumed:
        decoder.load_state_dict(resumed.weights)
    elif start is not None:
        start.put_into(decoder)
    length = config.model.train_length
    windows = evaluation_windows(data.held_out, length=length, longest=length, max_tokens=config.validation_tokens)
    conductor = Conductor(
        run,
        windows=windows[:],
        tokens_per_step=config.batch_size * length,
        log_every=count(config.trainer, "log_every_n_steps"),
        validate_every=config.validate_every,
        checkpoint_every=config.checkpoint_every,
        resumed=resumed,
    )
    trainer = trainer_of(config.trainer, conductor, n_steps - first_step)
    batches = TrainingWindows(
        data.train,
        seed=config.seed,
        length=length,
        batch_size=config.batch_size,
        n_micro_batches=n_micro,
        rank=trainer.global_rank,
        world_size=trainer.world_size,
        first_step=first_step,
        n_steps=n_steps - first_step,
    )
    module = LanguageModel(decoder, optimiser=optimiser, schedule=schedule, first_step=first_step, n_steps=n_steps)
    announce(run, config, data, decoder, trainer, first_step)
    if start is not None and run.writes:
        tell(f"starting from the weights of {start.folder}")
    if config.compile:
        decoder.compile()
    try:
        if first_step < n_steps:
            with told_in_lines():
                trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    except Interrupted:
        if run.writes:
            tell(f"go on with: roundround train resume={run.directory}")
        raise
    run.note(seconds_of_training=conductor.training_seconds)


def count(trainer: DictConfig, name: str) -> int:
    """A whole number of at least 1 from the trainer's node, which Lightning's own annotations do not promise."""
    value = trainer[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"trainer.{name}={value} must be a whole number of at least 1")
    return value


def announce(
    run: Run, config: TrainConfig, data: TokenData, decoder: Decoder, trainer: lightning.Trainer, first_step: int
) -> None:
    """Record what is about to be trained, and tell it in two lines."""
    facts: dict[str, Any] = {"parameters": n_parameters(decoder), **decoder.encoding.facts()}
    run.note(
        device=describe_device(trainer.strategy.root_device),
        facts=facts,
        data={
            "corpus_hash": data.corpus_hash,
            "tokenizer_hash": data.tokenizer_hash,
            "n_vocab": data.n_vocab,
            "end_of_document": data.end_of_document,
            "training_tokens": len(data.train),
            "held_out_tokens": len(data.held_out),
            "held_out_bytes_per_token": data.held_out_bytes_per_token,
        },
    )
    if run.writes:
        data.tokenizer.save(str(run.directory / "tokenizer.json"))
        choices = run.manifest["choices"]
        details = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in facts.items())
        tell(f"{choices.get('model')} model, pe={choices.get('pe')}, softmax={choices.get('softmax')}: {details}")
        tell(f"{len(data.train):,} training tokens, {len(data.held_out):,} held out, vocabulary {data.n_vocab:,}")
        if first_step:
            tell(f"going on after step {first_step}")


def newest_checkpoint(run: Run) -> checkpoints.Checkpoint | None:
    folder = checkpoints.newest(run.directory / "checkpoints")
    return checkpoints.load(folder) if folder else None


def trainer_of(node: DictConfig, conductor: Conductor, n_steps: int) -> lightning.Trainer:
    """Lightning's Trainer from its node; UserError for what it refuses and for a precision that loses updates."""
    if node.precision in ("bf16-true", "16-true"):
        raise UserError(
            f"trainer.precision={node.precision} keeps the weights themselves in 16 bits, where updates smaller than a "
            "few thousandths of a weight are rounded away; use trainer.precision=bf16-mixed"
        )
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):  # what it has to say goes to the run's log
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    settings = node.copy()
    accelerator = node.accelerator
    gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    settings.precision = node.precision or ("bf16-mixed" if gpu else "32-true")
    del settings["max_steps"]
    try:
        return build(settings, lightning.Trainer, callbacks=[conductor], max_steps=n_steps, **OWNED)
    except (MisconfigurationException, TypeError, RuntimeError) as error:
        raise UserError(f"trainer: {one_line(error)}") from error


def report(run: Run, config: TrainConfig, data: TokenData) -> None:
    """Write the results of a finished run: its best held-out loss in three units, and what it cost."""
    folder = checkpoints.newest(run.directory / "checkpoints")
    assert folder is not None, "a finished run has a checkpoint"
    state = checkpoints.read_state(folder)
    nats = state["best"]["nats_per_token"]
    values = {
        "perplexity": math.exp(nats),
        "nats_per_token": nats,
        "nats_per_byte": nats / data.held_out_bytes_per_token,
    }
    choices = run.manifest["choices"]
    common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": config.seed}
    records = [
        {"metric": name, **common, "length": config.model.train_length, "step": state["best"]["step"], "value": value}
        for name, value in values.items()
    ]
    records += [{"metric": name, **common, "value": value} for name, value in run.manifest["facts"].items()]
    run.results(records, **values, step=state["best"]["step"])
    if run.writes:
        tell(
            f"held-out perplexity {values['perplexity']:.3f} ({nats:.4f} nats a token, "
            f"{values['nats_per_byte']:.4f} a byte) at step {state['best']['step']}"
        )


def check_same_data(directory: Path, data: TokenData) -> None:
    """Raises UserError where the corpus or the tokenizer is no longer the one that the run began with."""
    before = read_manifest(directory)["data"] or {}
    now = {"corpus_hash": data.corpus_hash, "tokenizer_hash": data.tokenizer_hash}
    changed = [name.removesuffix("_hash") for name, value in now.items() if before.get(name, value) != value]
    if changed:
        raise UserError(f"the {changed[0]} is no longer the one that {directory} began with; start a new run")
