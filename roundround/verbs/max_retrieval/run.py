"""`roundround max-retrieval`: train the head of max retrieval for all seeds, and ask it about ever larger sets.

Tested by tests/papers/test_max_retrieval_command.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from roundround.config.build import build, checked
from roundround.config.recorded import as_dict, config_of_run
from roundround.config.verb import MEASURED
from roundround.distributed.device import check_fits, describe_device, pick_device
from roundround.distributed.peers import Peers
from roundround.papers.max_retrieval.evaluation import bytes_of_one_set
from roundround.papers.max_retrieval.model import MaxRetrieval, head_shape, joined, seeds_of, share_of, train
from roundround.papers.max_retrieval.sets import TrainingSets, bytes_of_training
from roundround.records import checkpoints
from roundround.records.directories import ONE_RUN, find_run, read_manifest
from roundround.records.opening import opened_run
from roundround.records.provenance import taken_over, tell_changes
from roundround.records.run import Invocation, Run
from roundround.softmax.adaptive_temperature import AdaptiveTemperature
from roundround.softmax.base import AttentionSoftmax
from roundround.support.console import print_status
from roundround.support.errors import Interrupted, UserError
from roundround.trained.models import count_parameters
from roundround.training.bookkeeping import Bookkeeping
from roundround.training.optim import OptimizerFactory
from roundround.verbs import verb_named
from roundround.verbs.max_retrieval import MaxRetrievalConfig
from roundround.verbs.max_retrieval.evaluation import report_on, softmax_of

VERB = "max-retrieval"
OF_EVALUATION = {"test_sets", "bfloat16", "one_temperature", "fit", "fit_sizes", "fit_inputs"}  # no training reads them


def max_retrieval(cfg: DictConfig, invocation: Invocation) -> None:
    """Train, unless `run` names models that are trained; then evaluate, tabulate and draw."""
    # The penalty drives the query's encoder, which carries nothing, to 1e-40, where a CPU is 7 times slower: so numbers
    # below 1.2e-38 count as zero. Threads inherit that from the one that starts them: it comes before any operation.
    torch.set_flush_denormal(True)
    try:
        prepare_and_run(cfg, invocation)
    finally:
        torch.set_flush_denormal(False)


def prepare_and_run(cfg: DictConfig, invocation: Invocation) -> None:
    """The verb: what is asked for, whether it can be done, then do it."""
    cfg, source = config_and_source(cfg, invocation)
    config = checked(MaxRetrievalConfig, cfg)
    device = pick_device(config.device)
    check_memory(config, device)
    seeds = list(range(config.seed, config.seed + config.seeds))
    peers = invocation.peers
    mine = seeds_of(peers.rank, peers.n, len(seeds))
    model = build(config.model, MaxRetrieval, seeds[mine])
    optimizer = build(config.optim, OptimizerFactory)
    optimizer.check(model, sharded=False)
    for node in config.normalisers.values():  # those that nobody evaluates too
        build(node, AttentionSoftmax, head_shape(config.model.width, config.max_items))
    softmaxes = {name: softmax_of(config, name) for name in config.names}
    if config.one_temperature and not any(isinstance(softmax, AdaptiveTemperature) for softmax in softmaxes.values()):
        raise UserError("one_temperature=true is about adaptive temperatures; give --temp adaptive too")
    known = {
        "device": describe_device(device),
        "facts": {"parameters": sum(p.numel() for p in model.parameters()) // len(seeds[mine])},
        "run": None if source is None else str(source),
    }
    with opened_run(invocation, cfg, known=known) as run:
        model.to(device)
        try:
            if source is None:
                train_all(run, config, seeds, model, optimizer.create(model), peers)
            else:
                folder = checkpoints.find(source, "last")
                checkpoints.load_into(model, share_of(checkpoints.load_weights(folder), mine), folder)
            report_on(run, config, seeds[mine], model, softmaxes, peers)
        except Interrupted as stop:
            if source is None:
                stop.advice = invocation.resume_line
            raise


def config_and_source(cfg: DictConfig, invocation: Invocation) -> tuple[DictConfig, Path | None]:
    """The config, and the run whose trained models are evaluated; None where this run trains its own."""
    directory, overrides = invocation.directory, invocation.overrides
    if cfg.resume is not None:
        if invocation.sweep is not None and cfg.resume != str(directory):  # unless a job resumes its own
            raise UserError(ONE_RUN)
        if cfg.run is not None:
            raise UserError("run= evaluates again and resume= continues training; give one of them")
        if trained(directory) != directory:
            raise UserError(f"{directory} only evaluated {trained(directory)}; there is nothing to resume")
        return config_of_run(cfg, read_manifest(directory), directory, overrides, verb=VERB), None
    if cfg.run is None:
        return cfg, None
    source = trained(find_run(str(cfg.run), cfg.outputs, VERB, done=True))  # 5 is read as a number
    manifest = read_manifest(source)
    logger = cfg.logger  # this run's own, whatever the other was logged to
    free = verb_named(VERB).keys_of(MEASURED) | OF_EVALUATION
    cfg = config_of_run(cfg, manifest, source, overrides, verb=VERB, also_free=free)
    OmegaConf.update(cfg, "logger", logger, merge=False)
    newest = checkpoints.newest(source / "checkpoints")
    step = checkpoints.read_state(newest)["step"] if newest is not None else 0
    if step < cfg.max_steps:
        raise UserError(f"{source} stopped after {step:,} of {cfg.max_steps:,} steps; continue with resume={source}")
    tell_changes(source, manifest, taken_over(as_dict(cfg), manifest["config"], overrides))
    return cfg, source


def trained(directory: Path) -> Path:
    """The run that trained the models of this one, which may have evaluated another's."""
    source = read_manifest(directory).get("run")
    return Path(source) if source else directory


def check_memory(config: MaxRetrievalConfig, device: torch.device) -> None:
    """Raises UserError for a size that does not fit in the device's memory: the seeds, a set, a block of training."""
    n_parameters = count_parameters(lambda: build(config.model, MaxRetrieval, [config.seed]))
    copies = 4 if config.run is None else 1  # in training the weights, their gradients and Adam's two moments
    together = f"seeds={config.seeds} models of {n_parameters:,} parameters"
    check_fits(4 * copies * config.seeds * n_parameters, device, together, "give fewer seeds or a smaller model.width")
    n_classes = config.model.n_classes
    options = {"width": config.model.width, "n_classes": n_classes, "n_softmaxes": len(config.names)}
    sizes = {"test_sizes": config.test_sizes[-1]}
    if "fitted" in config.names:
        sizes["fit_sizes"] = config.fit_sizes[-1]
    needed = {f"{name}={n}": bytes_of_one_set(n, **options) for name, n in sizes.items()}
    if config.run is None:
        training = bytes_of_training(config.seeds, batch_size=config.batch_size, n_max=config.max_items)
        needed[f"max_items={config.max_items}"] = training
    for given, n_bytes in needed.items():
        check_fits(n_bytes, device, given, "give less")


def train_all(
    run: Run,
    config: MaxRetrievalConfig,
    seeds: list[int],
    model: MaxRetrieval,
    optimizer: torch.optim.Optimizer,
    peers: Peers,
) -> None:
    """Train all seeds, each process its own, from the newest checkpoint where there is one."""
    mine = seeds_of(peers.rank, peers.n, len(seeds))
    first_step = resume(run, model, optimizer, mine, peers)
    n_steps = config.max_steps
    sets = TrainingSets(
        seeds[mine],
        batch_size=config.batch_size,
        n_min=config.min_items,
        n_max=config.max_items,
        n_classes=model.n_classes,
        size_of_each_set=config.size_of_each_set,
    )
    softmax = softmax_of(config, "softmax")
    bookkeeping, last_logged = Bookkeeping(run, first_step=first_step, n_steps=n_steps), first_step
    bookkeeping.start()
    try:
        for step, loss_S in train(model, softmax, optimizer, sets, first_step=first_step, n_steps=n_steps):
            last, stop = step == n_steps, bookkeeping.stop_signal.asked
            log = step % config.log_every == 0 or last
            save = step % config.checkpoint_every == 0 or last
            if log or save or (stop is not None and peers.n == 1):  # where several agree, that is now
                found = peers.gather((loss_S.tolist(), stop))
                stop = next((asked for _, asked in found if asked is not None), None)
                losses = dict(zip(seeds, (loss for own, _ in found for loss in own), strict=True))
                for seed, loss in losses.items():
                    if not np.isfinite(loss):
                        raise bookkeeping.not_finite(f"the loss of seed {seed} is not finite", step)
                save = save or stop is not None
            else:
                stop = None
            if log:
                speed, last_logged = (step - last_logged) / bookkeeping.lap(), step
                by_seed = {f"loss_{seed}": loss for seed, loss in losses.items()}
                run.log(step, loss=float(np.mean(list(losses.values()))), **by_seed, steps_per_second=speed)
                shown = " ".join(f"{loss:.3f}" for loss in losses.values())
                bookkeeping.display.metrics(step, f"loss {shown}  {speed:.0f} steps/s")
            bookkeeping.display.advance(step)
            if save:
                state = {"weights": model.state_dict(), "optimizer": optimizer.state_dict()}
                whole = joined(peers.gather(state)) if peers.n > 1 else state
                if run.writes:
                    bookkeeping.save(step, **whole, state={})
            if stop is not None:
                raise Interrupted(stop)
    finally:
        bookkeeping.close()


def resume(run: Run, model: MaxRetrieval, optimizer: torch.optim.Optimizer, mine: slice, peers: Peers) -> int:
    """Give the seeds of this process what the newest checkpoint holds of them; its step, 0 where there is none."""
    newest = peers.gather(checkpoints.newest(run.directory / "checkpoints"))[0]
    if newest is None:
        return 0
    whole = checkpoints.load(newest)
    checkpoints.load_into(model, share_of(whole.weights, mine), newest)
    state = share_of(whole.optimizer, mine)
    checkpoints.check_optimizer(state, optimizer, newest)
    optimizer.load_state_dict(state)
    first_step = int(whole.state["step"])
    print_status(f"resuming after step {first_step:,}")
    return first_step
