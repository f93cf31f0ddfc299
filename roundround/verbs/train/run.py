"""`roundround train`: from a config to a trained model in its run directory.

Tested by tests/training/test_train.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning
from omegaconf import DictConfig
from torch.utils.data import DataLoader

from roundround.analysis.past_run import past_run
from roundround.config.build import build, plain
from roundround.data.batches import Shares
from roundround.distributed.device import describe_device
from roundround.kernels.torch_internals import compile_in_place
from roundround.kernels.trial import FallsBack
from roundround.model.block import Block
from roundround.model.decoder import Decoder, n_parameters
from roundround.records import checkpoints
from roundround.records.opening import build_logger, opened
from roundround.records.run import Invocation, Run
from roundround.support.console import print_status, warnings_as_lines
from roundround.support.errors import Interrupted, UserError
from roundround.support.files import write_atomically
from roundround.trained.models import check_plan, planned
from roundround.trained.patterns import chosen_parts, layer_lines
from roundround.trained.start import Start, starting_point
from roundround.training.bookkeeping import Meter, Timed, peak_flops, training_flops
from roundround.training.callback import TrainingCallback
from roundround.training.material import Material, Measured, material_of
from roundround.training.module import LanguageModel, about_softmax, decoder_of
from roundround.training.optim import OptimizerFactory, Schedule
from roundround.training.trainer import (
    check_model_fits,
    check_trainer,
    make_trainer,
    messages_in_log,
    processes_of_lightning,
    shards,
)
from roundround.verbs.train import TrainConfig


def train(cfg: DictConfig, invocation: Invocation) -> None:
    """Train a decoder as the config says, or continue the run that `resume` names."""
    config, start = starting_point(cfg, invocation)
    check_trainer(plain(config.trainer))
    make = start.make_decoder
    start.weights.check(make)
    optimizer, schedule = build(config.optim, OptimizerFactory), build(config.schedule, Schedule)
    plan = planned(partial(make, n_vocab=2))
    optimizer.check(plan, sharded=shards(config.trainer))
    if config.attention_stats_every and not plan.normalisers:
        raise UserError("attention_stats_every= records attention, but no layer of this model has any")
    check_model_fits(plan, config.trainer)
    check_plan(plan)
    logger = build_logger(config.logger)  # a wrong option is reported before hours of tokenising
    material = material_of(config, start)
    check_model_fits(planned(partial(make, n_vocab=material.n_vocab)), config.trainer)
    known = {"choices": start.choices, "data": material.facts(), **start.weights.facts}
    with opened(invocation, config=start.config, logger=logger, known=known) as run:
        messages_in_log()
        fit(run, config, material, optimizer, schedule, start, invocation)
        if run.writes:
            report(run, material)


def fit(
    run: Run,
    config: TrainConfig,
    material: Material,
    optimizer: OptimizerFactory,
    schedule: Schedule,
    start: Start,
    invocation: Invocation,
) -> None:
    """Train the decoder from the step at which the run starts to its last step."""
    n_steps, sharded = config.trainer.max_steps, shards(config.trainer)
    past, newest = None, start.resumed and checkpoints.newest(start.resumed / "checkpoints")
    if newest is not None:
        if sharded:  # each process reads its share of the weights later
            past = checkpoints.Checkpoint({}, {}, checkpoints.read_state(newest), newest)
        else:
            past = checkpoints.load(newest)
    first_step = past.state["step"] if past else 0
    recomputed, in_64_bits = config.activation_checkpointing, str(config.trainer.precision).startswith("64")

    def make(shard_layer: Callable[[Block], object] | None = None) -> Decoder:
        decoder = start.make_decoder(n_vocab=material.n_vocab, shard_layer=shard_layer)
        decoder.activation_checkpointing = recomputed
        return decoder.double() if in_64_bits else decoder  # before it gets weights; Lightning does it after that

    decoder, share = decoder_of(make, start.weights, past, seed=config.seed, compiled=config.compile, sharded=sharded)
    trainer = make_trainer(config.trainer, run, max(1, n_steps - first_step))
    n_micro, device = config.trainer.accumulate_grad_batches, trainer.strategy.root_device
    shares = Shares(
        batch_size=config.batch_size,
        n_micro_batches=n_micro,
        rank=trainer.global_rank,
        world_size=trainer.world_size,
        first_step=first_step,
        n_steps=max(1, n_steps - first_step),  # with 0 steps Lightning calls no callback
    )
    batches = Timed(material.batches(shares))
    flops = training_flops(decoder, length=int(config.model.train_length), scored=material.scored_share)
    peak = config.trainer.peak_flops or peak_flops(device, str(trainer.precision), n_devices=trainer.world_size)
    if peak is None and run.writes:
        print_status(
            f"the peak speed of {describe_device(device)} is not known: give trainer.peak_flops= to see its utilisation"
        )
    flops *= material.tokens_per_step
    meter = Meter(batches, flops_per_step=flops, peak=peak, n_devices=trainer.world_size)
    callback = TrainingCallback(run, config, material, meter, first_step=first_step, past=past)
    trainer.callbacks.append(callback)
    module = LanguageModel(
        decoder,
        material,
        optimizer=optimizer,
        schedule=schedule,
        first_step=first_step,
        n_steps=n_steps,
        share=share,
    )
    announce(run, material, decoder, trainer, config.trainer.strategy, first_step)
    for note in filter(None, [start.weights.message, *about_softmax(run, decoder)]):
        if run.writes:
            print_status(note)
    if config.compile and share is None:
        compile_in_place(decoder)
    try:
        if first_step < n_steps or callback.owed is not None:
            with warnings_as_lines(FallsBack), processes_of_lightning(invocation.peers):
                trainer.fit(module, DataLoader(batches, batch_size=None))
            if module.step != n_steps:
                raise RuntimeError(f"Lightning ended the run at step {module.step} of {n_steps}")
    except Interrupted as stop:
        stop.advice = invocation.resume_line
        raise
    if first_step < n_steps:
        run.note(seconds_of_training=callback.training_seconds)


def announce(
    run: Run,
    material: Material,
    decoder: Decoder,
    trainer: lightning.Trainer,
    strategy: str,
    first_step: int,
) -> None:
    """Record the model, the number of processes and the first step in the manifest; print lines about them."""
    facts: dict[str, Any] = {"parameters": n_parameters(decoder), **decoder.facts()}
    now = {
        "from_step": first_step,
        "n": trainer.world_size,
        "strategy": strategy,
        "device": trainer.strategy.root_device.type,
        "precision": trainer.precision,
    }
    before = [past for past in run.manifest.get("processes", []) if past["from_step"] < first_step]
    run.note(device=describe_device(trainer.strategy.root_device), facts=facts, processes=[*before, now])
    if not run.writes:
        return
    write_atomically(run.directory / "tokenizer.json", material.tokenizer.to_str(pretty=True))
    choices = run.manifest["choices"]
    details = ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:,}'}" for name, value in facts.items()
    )
    named = [f"{choices['model']} model" if choices.get("model") else "model", chosen_parts(choices)]
    print_status(f"{', '.join(filter(None, named))}: {details}")
    for line in layer_lines(decoder) if len(set(decoder.kinds)) > 1 else []:
        print_status(line)
    for line in material.about():
        print_status(line)
    if first_step:
        print_status(f"resuming after step {first_step}")


def report(run: Run, material: Material) -> None:
    """Write the results of a finished run: the measurements of its best checkpoint, and the cost of training."""
    folder = checkpoints.newest(run.directory / "checkpoints")
    assert folder is not None, "a finished run has a checkpoint"
    best = checkpoints.read_state(folder)["best"]
    lines = past_run(run.directory).metrics()  # from the first step on, before a resume too
    prefix = "held_out_"
    found = [
        {"step": line["step"]}
        | {key.removeprefix(prefix): float(value) for key, value in line.items() if key.startswith(prefix)}  # or "nan"
        for line in lines
    ]
    curve: list[Measured] = [line for line in found if "nats_per_token" in line]
    choices = run.manifest["choices"]
    common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": run.manifest["seed"]}
    records, headline = material.results(best, curve)
    numbers = {name: value for name, value in run.manifest["facts"].items() if not isinstance(value, str)}
    facts = [{"metric": name, "value": value} for name, value in numbers.items()]
    run.results([common | record for record in [*records, *facts]], **headline, step=best["step"])
    for line in material.remarks(curve):
        print_status(line)
    print_status(f"{material.conclusion(best)} at step {best['step']}")
