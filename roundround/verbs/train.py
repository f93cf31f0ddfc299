"""`roundround train`: from a config to a trained model in its run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, Dataset

from roundround.analysis.past_run import past_run
from roundround.config.build import build, plain, target_class
from roundround.config.checked import checked
from roundround.config.recorded import as_dict
from roundround.config.schema import TrainConfig
from roundround.data.batches import Shares
from roundround.data.corpora import Corpus, Source
from roundround.data.tasks.base import Task
from roundround.data.tasks.batches import task_data
from roundround.data.tasks.text_task import TextTask
from roundround.data.tokens import default_cache_dir, prepare
from roundround.distributed.device import describe_device
from roundround.distributed.launcher import launched_from_outside
from roundround.distributed.peers import Peers
from roundround.loading.exportable import export_best
from roundround.loading.models import build_decoder, check_buildable, planned
from roundround.loading.start import Start, starting_point
from roundround.model.block import Block
from roundround.model.decoder import Decoder, n_parameters
from roundround.runs import checkpoints
from roundround.runs.directories import jobs_of_sweep
from roundround.runs.loggers.several import build_logger
from roundround.runs.opening import opened
from roundround.runs.run import Invocation, Run
from roundround.softmax.base import RunsInBlocks
from roundround.support.console import print_status, warnings_as_lines
from roundround.support.errors import Interrupted, UserError, one_line
from roundround.support.files import write_atomically
from roundround.training.callback import TrainingCallback
from roundround.training.footprint import check_batch_fits, check_model_fits, check_window_fits
from roundround.training.lightning_messages import lightning_messages_in_log
from roundround.training.material import Material, Measured
from roundround.training.meter import Meter, Timed, peak_flops, training_flops
from roundround.training.module import LanguageModel
from roundround.training.notes import about_softmax, about_warmup, trains_as_softmax
from roundround.training.optim import OptimizerFactory
from roundround.training.processes import processes_of_lightning
from roundround.training.schedules import Schedule
from roundround.training.sharding import FullyShardedStrategy, sharded_decoder
from roundround.training.task_material import TaskMaterial
from roundround.training.text_material import TextMaterial
from roundround.training.trainer_options import (
    OWNED,
    check_processes,
    check_sharding,
    check_trainer,
    default_precision,
    devices_that_divide,
    shards,
    who_starts_processes,
)


def train(cfg: DictConfig, invocation: Invocation) -> None:
    """Train a decoder as the config says; go on with a run where `resume` names one."""
    cfg, start = starting_point(cfg, invocation)
    config = checked(TrainConfig, cfg)
    target_class(config.trainer, lightning.Trainer)
    check_trainer(plain(config.trainer))
    check_model_fits(check_buildable(config.model, config.pe, config.softmax), config.trainer)
    start.check(config)
    check_window_fits(config.model, config.trainer)
    source = start.task or build(config.data, Source)  # type: ignore[type-abstract]
    optimizer, schedule = build(config.optim, OptimizerFactory), build(config.schedule, Schedule)
    logger = build_logger(config.logger)  # a wrong option is said before hours of tokenising
    material = material_of(config, start, source)
    check_model_fits(check_buildable(config.model, config.pe, config.softmax, material.n_vocab), config.trainer)
    known = {"choices": start.choices, "data": material.facts(), **start.facts}
    with opened(invocation, config=as_dict(cfg), logger=logger, known=known) as run:
        with lightning_messages_in_log():
            fit(run, config, material, optimizer, schedule, start, invocation.peers)
        if run.writes:
            report(run, config, material)
            if shards(config.trainer):
                leave_whole(run)


def material_of(config: TrainConfig, start: Start, source: Source) -> Material:
    """What the run learns: a tokenised corpus, from the cache or tokenised now, or a task."""
    if isinstance(source, TextTask):
        source = source.with_vocabulary(start.tokenizer(config).build(source.training_texts()))
    if isinstance(source, Task):
        return TaskMaterial(start.checked_data(task_data(source)), config)
    assert isinstance(source, Corpus), "a source is one or the other"
    data = start.checked_data(prepare(source, start.tokenizer(config), default_cache_dir()))
    return TextMaterial(data, config, separate_documents=source.separate_documents)


def fit(
    run: Run,
    config: TrainConfig,
    material: Material,
    optimizer: OptimizerFactory,
    schedule: Schedule,
    start: Start,
    peers: Peers,
) -> None:
    """Train the decoder from where the run starts to its last step."""
    n_steps, past = config.trainer.max_steps, start.past(sharded=shards(config.trainer))
    first_step = past.state["step"] if past else 0
    decoder, shard = decoder_of(config, material.n_vocab, start, past)
    callback = callback_of(run, config, material, past)
    trainer = trainer_of(config, run, callback, n_steps - first_step)
    batches = Timed(batches_of(config, material, trainer, first_step))
    callback.meter = meter_of(run, config, material, decoder, trainer, batches)
    module = LanguageModel(
        decoder,
        material,
        optimizer=optimizer,
        schedule=schedule,
        first_step=first_step,
        n_steps=n_steps,
        shard=shard,
    )
    announce(run, material, decoder, trainer, config.trainer.strategy, first_step, start)
    give_notes(run, config, material, decoder, schedule)
    if config.compile and shard is None:
        decoder.compile()
    try:
        if first_step < n_steps:
            with warnings_as_lines(RunsInBlocks), processes_of_lightning(peers):
                trainer.fit(module, DataLoader(batches, batch_size=None))
            if module.step != n_steps:
                raise RuntimeError(f"Lightning ended the run at step {module.step} of {n_steps}")
    except Interrupted:
        if run.writes:
            print_status(f"resume with: roundround train resume={run.directory}")
        raise
    run.note(seconds_of_training=callback.training_seconds)


def decoder_of(
    config: TrainConfig, n_vocab: int, start: Start, past: checkpoints.Checkpoint | None
) -> tuple[Decoder, Callable[[DeviceMesh], Decoder] | None]:
    """The decoder with its weights; where they are shared out, a plan of it, and what makes it once processes meet."""

    def make(shard_layer: Callable[[Block], object] | None = None) -> Decoder:
        decoder = build_decoder(config.model, config.pe, config.softmax, n_vocab, shard_layer=shard_layer)
        decoder.activation_checkpointing = config.activation_checkpointing
        if str(config.trainer.precision).startswith("64"):  # before it is given weights; Lightning does it after that
            decoder.double()
        return decoder

    def shard(mesh: DeviceMesh) -> Decoder:
        decoder = sharded_decoder(make, mesh, seed=config.seed, compiled=config.compile)
        start.load_into(decoder, past)
        return decoder

    if shards(config.trainer):
        return planned(make), shard
    torch.manual_seed(config.seed)
    decoder = make()
    start.load_into(decoder, past)
    return decoder, None


def callback_of(
    run: Run, config: TrainConfig, material: Material, resumed: checkpoints.Checkpoint | None
) -> TrainingCallback:
    """What is done between two steps, at the intervals of the config."""
    return TrainingCallback(
        run,
        material=material,
        log_every=config.trainer.log_every_n_steps,
        validate_every=config.validate_every,
        checkpoint_every=config.checkpoint_every,
        resumed=resumed,
    )


def batches_of(config: TrainConfig, material: Material, trainer: lightning.Trainer, first_step: int) -> Dataset[Any]:
    """This process's share of the batches from a step to the last. UserError where one does not fit into the memory."""
    n_micro, device = config.trainer.accumulate_grad_batches, trainer.strategy.root_device
    check_batch_fits(config.batch_size, config.model, n_shares=n_micro * trainer.world_size, device=device)
    shares = Shares(
        batch_size=config.batch_size,
        n_micro_batches=n_micro,
        rank=trainer.global_rank,
        world_size=trainer.world_size,
        first_step=first_step,
        n_steps=config.trainer.max_steps - first_step,
    )
    return material.batches(shares)


def meter_of(
    run: Run, config: TrainConfig, material: Material, decoder: Decoder, trainer: lightning.Trainer, batches: Timed
) -> Meter:
    """What tells how well the run uses its devices, whose peak is given, known by name or measured as it goes."""
    flops = training_flops(decoder, length=int(config.model.train_length), scored=material.scored_share)
    device = trainer.strategy.root_device
    peak = config.trainer.get("peak_flops") or peak_flops(device, str(trainer.precision))
    if peak is None and run.writes:
        print_status(f"no peak is known of {describe_device(device)}: give trainer.peak_flops= for its utilisation")
    return Meter(batches, flops_per_step=flops * material.tokens_per_step, peak=peak, n_devices=trainer.world_size)


def announce(
    run: Run,
    material: Material,
    decoder: Decoder,
    trainer: lightning.Trainer,
    strategy: str,
    first_step: int,
    start: Start,
) -> None:
    """Record what is about to be trained, and by how many processes from which step on; print it in two lines."""
    facts: dict[str, Any] = {"parameters": n_parameters(decoder), **decoder.facts()}
    now = {
        "from_step": first_step,
        "n": trainer.world_size,
        "strategy": strategy,
        "device": trainer.strategy.root_device.type,
        "precision": trainer.precision,
    }
    before = [those for those in run.manifest.get("processes", []) if those["from_step"] < first_step]
    run.note(device=describe_device(trainer.strategy.root_device), facts=facts, processes=[*before, now])
    if not run.writes:
        return
    write_atomically(run.directory / "tokenizer.json", material.tokenizer.to_str(pretty=True))
    choices = run.manifest["choices"]
    details = ", ".join(
        f"{name.replace('_', ' ')} {value if isinstance(value, str) else f'{value:,}'}" for name, value in facts.items()
    )
    print_status(f"{choices.get('model')} model, pe={choices.get('pe')}, softmax={choices.get('softmax')}: {details}")
    print_status(material.about())
    if first_step:
        print_status(f"resuming after step {first_step}")
    if start.message is not None:
        print_status(start.message)


def give_notes(run: Run, config: TrainConfig, material: Material, decoder: Decoder, schedule: Schedule) -> None:
    """Print a line for each setting that may not be what was meant, and record a training that is the softmax's."""
    as_softmax = trains_as_softmax(decoder)
    run.note(trains_as_softmax=as_softmax)
    if not run.writes:
        return
    notes = [
        about_warmup(schedule, config.trainer.max_steps),
        *material.notes(),
        about_softmax(decoder, str(run.manifest["choices"].get("softmax")), twin_in_sweep(run), as_softmax=as_softmax),
    ]
    for note in notes:
        if note is not None:
            print_status(note)


def twin_in_sweep(run: Run) -> Path | None:
    """A job of the same sweep whose training is this one: both train as the plain softmax, and nothing else differs.

    Not a job that failed or was interrupted, which leaves no model to evaluate.
    """
    if run.manifest["sweep"] is None or not run.manifest["trains_as_softmax"]:
        return None
    mine = {**run.manifest["config"], "softmax": None}
    for directory, manifest in jobs_of_sweep(Path(run.manifest["sweep"])):
        same = {**manifest["config"], "softmax": None} == mine and manifest["status"] in ("done", "running")
        if same and directory != run.directory and manifest.get("trains_as_softmax"):
            return directory
    return None


def trainer_of(config: TrainConfig, run: Run, callback: TrainingCallback, n_steps: int) -> lightning.Trainer:
    """Lightning's Trainer from its node; UserError for what it refuses."""
    settings = config.trainer.copy()
    accelerator = settings.accelerator
    gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    settings.precision = settings.precision or precision_before(run) or default_precision(gpu)
    if settings.precision in (16, "16", "16-mixed") and not gpu:  # on a CPU Lightning would take bf16-mixed
        raise UserError(f"trainer.precision={settings.precision} needs a GPU; use trainer.precision=bf16-mixed")
    settings.devices, message = devices_that_divide(settings, config.batch_size)
    processes = who_starts_processes()
    launched = launched_from_outside()
    if launched is not None:
        if config.trainer.devices == "auto":
            settings.devices, message = launched.n_on_machine, None
        if "num_nodes" in settings:
            del processes["num_nodes"]
    if message is not None and run.writes:
        print_status(message)
    del settings["max_steps"]
    settings.pop("peak_flops", None)  # `meter_of` reads it; runs from before it was there have none
    if shards(settings):
        check_sharding(settings)  # the precision is known now
        del settings["strategy"]
        processes["strategy"] = FullyShardedStrategy()
    try:
        trainer = build(settings, lightning.Trainer, callbacks=[callback], max_steps=n_steps, **OWNED, **processes)
    except (MisconfigurationException, TypeError, RuntimeError, ImportError) as error:  # the last: torch_xla of a TPU
        raise UserError(f"trainer: {one_line(error)}") from error
    check_processes(trainer.global_rank, trainer.num_devices * trainer.num_nodes)
    return trainer


def precision_before(run: Run) -> str | None:
    """The precision in which a run that is gone on with was trained, perhaps on another kind of device."""
    return run.manifest["processes"][-1]["precision"] if run.manifest.get("processes") else None


def report(run: Run, config: TrainConfig, material: Material) -> None:
    """Write the results of a finished run: what its best checkpoint was measured to be, and what it cost."""
    folder = checkpoints.newest(run.directory / "checkpoints")
    assert folder is not None, "a finished run has a checkpoint"
    best = checkpoints.read_state(folder).get("best")
    if best is None:  # where a run was resumed at its last step, nothing was measured now
        raise UserError(f"{folder} has no held-out loss, which every checkpoint of this verb has; start a new run")
    choices = run.manifest["choices"]
    common = {"pe": choices.get("pe"), "softmax": choices.get("softmax"), "seed": config.seed}
    curve = measurements(run)
    records, headline = material.results(best, curve)
    numbers = {name: value for name, value in run.manifest["facts"].items() if not isinstance(value, str)}
    facts = [{"metric": name, "value": value} for name, value in numbers.items()]
    run.results([common | record for record in [*records, *facts]], **headline, step=best["step"])
    for line in material.remarks(curve):
        print_status(line)
    print_status(f"{material.conclusion(best)} at step {best['step']}")


def leave_whole(run: Run) -> None:
    """Put the best checkpoint together from its shards, for programs that know Hugging Face's names alone."""
    try:
        folder = export_best(run.directory, run.manifest["facts"]["parameters"])
        print_status(f"exported to {folder}")
    except UserError as error:  # the run has what it was for
        print_status(f"not exported: {error}")


def measurements(run: Run) -> list[Measured]:
    """What was measured on held-out data from the first step on, before a resume too."""
    lines, _ = past_run(run.directory).metrics()
    mark = "held_out_"
    found = [
        {"step": line["step"]}
        | {key.removeprefix(mark): float(value) for key, value in line.items() if key.startswith(mark)}  # "nan" is one
        for line in lines
    ]
    return [line for line in found if "nats_per_token" in line]
