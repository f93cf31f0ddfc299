"""`roundround max-retrieval`: train the max-retrieval head for all seeds, and test it on ever larger sets.

Tested by tests/papers/test_max_retrieval_command.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.numpy import save_file

from roundround.config.build import build, checked
from roundround.config.recorded import as_dict, config_of_run
from roundround.config.verb import MEASURED
from roundround.distributed.device import describe_device, pick_device
from roundround.distributed.peers import Peers
from roundround.papers.max_retrieval.model import (
    FITTING,
    TEST,
    InBfloat16,
    MaxRetrieval,
    TrainingSets,
    at_one_temperature,
    attention_by_priority,
    evaluate,
    fit_points,
    fit_quartic,
    head_shape,
    joined,
    most_sets,
    seeds_of,
    sets_of_size,
    share_of,
    slope_and_spread,
    train,
)
from roundround.records import checkpoints
from roundround.records.directories import ONE_RUN, find_run, read_manifest
from roundround.records.opening import opened_run
from roundround.records.provenance import taken_over, tell_changes
from roundround.records.run import Invocation, Run
from roundround.report import max_retrieval as report
from roundround.report.drawing.figures import save_drawing
from roundround.softmax.adaptive_temperature import AdaptiveTemperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax
from roundround.support.console import print_status, print_table
from roundround.support.errors import Interrupted, UserError
from roundround.support.files import usual_mode, write_atomically
from roundround.training.bookkeeping import Bookkeeping, Display
from roundround.training.optim import OptimizerFactory
from roundround.verbs import verb_named
from roundround.verbs.max_retrieval import MaxRetrievalConfig

VERB = "max-retrieval"
OF_EVALUATION = {"test_sets", "bfloat16", "one_temperature", "fit", "fit_sizes", "fit_inputs"}  # no training reads them
Models = Mapping[int, MaxRetrieval | InBfloat16]  # by seed
HEAT_MAP = {"n_sets": 32, "n_items": 16}  # rows and columns of the paper's figures 2 and 6


def max_retrieval(cfg: DictConfig, invocation: Invocation) -> None:
    """Train, unless `run` names a run with trained models; then evaluate, tabulate and draw."""
    # Numbers below 1.2e-38 are flushed to zero: the L2 penalty drives the unused weights of the query's encoder to
    # 1e-40, where a CPU is 7 times slower. This comes before any operation, because threads inherit it when they start.
    torch.set_flush_denormal(True)
    try:
        prepare_and_run(cfg, invocation)
    finally:
        torch.set_flush_denormal(False)


def prepare_and_run(cfg: DictConfig, invocation: Invocation) -> None:
    """Check the config, then train or load, and report."""
    cfg, source = config_and_source(cfg, invocation)
    config = checked(MaxRetrievalConfig, cfg)
    device = pick_device(config.device)
    seeds = list(range(config.seed, config.seed + config.seeds))
    peers = invocation.peers
    mine = seeds_of(peers.rank, peers.n, len(seeds))
    model = build(config.model, MaxRetrieval, seeds[mine])
    optimizer = build(config.optim, OptimizerFactory)
    optimizer.check(model, sharded=False)
    for node in config.normalisers.values():  # check also those that are not evaluated
        build(node, AttentionSoftmax, head_shape(config.model.width, config.max_items))
    softmaxes = {name: softmax_of(config, name) for name in config.names}
    if config.one_temperature and not any(isinstance(softmax, AdaptiveTemperature) for softmax in softmaxes.values()):
        raise UserError("one_temperature=true needs an adaptive temperature; give --temp adaptive too")
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
    """The config, and the run whose trained models are evaluated; None if this run trains its own."""
    directory, overrides = invocation.directory, invocation.overrides
    if cfg.resume is not None:
        if invocation.sweep is not None and cfg.resume != str(directory):  # unless a job resumes its own
            raise UserError(ONE_RUN)
        if cfg.run is not None:
            raise UserError("run= evaluates trained models again, and resume= continues training; give one of them")
        if trained(directory) != directory:
            raise UserError(
                f"{directory} only evaluated the models of {trained(directory)}; there is nothing to resume"
            )
        return config_of_run(cfg, read_manifest(directory), directory, overrides, verb=VERB), None
    if cfg.run is None:
        return cfg, None
    source = trained(find_run(str(cfg.run), cfg.outputs, VERB, done=True))  # 5 is read as a number
    manifest = read_manifest(source)
    logger = cfg.logger  # this run's own, not that of the source
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
    """The run that trained the models: this run, or the run whose models it evaluated."""
    source = read_manifest(directory).get("run")
    return Path(source) if source else directory


def train_all(
    run: Run,
    config: MaxRetrievalConfig,
    seeds: list[int],
    model: MaxRetrieval,
    optimizer: torch.optim.Optimizer,
    peers: Peers,
) -> None:
    """Train all seeds, a share in each process; continue from the newest checkpoint if there is one."""
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
            if log or save or (stop is not None and peers.n == 1):  # several processes stop only at these steps
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
    """Load this process's seeds from the newest checkpoint; returns its step, or 0 if there is no checkpoint."""
    newest = peers.gather(checkpoints.newest(run.directory / "checkpoints"))[0]
    if newest is None:
        return 0
    whole = checkpoints.load(newest)
    checkpoints.load_into(model, share_of(whole.weights, mine), newest)
    optimizer.load_state_dict(share_of(whole.optimizer, mine))
    first_step = int(whole.state["step"])
    print_status(f"resuming after step {first_step:,}")
    return first_step


# -- evaluation of trained models: fit a temperature, measure every size, tabulate and draw


def report_on(
    run: Run,
    config: MaxRetrievalConfig,
    seeds: list[int],
    model: MaxRetrieval,
    softmaxes: dict[str, AttentionSoftmax],
    peers: Peers,
) -> None:
    """Fit a temperature if the config asks for one, evaluate, tabulate and draw. seeds: this process's seeds."""
    alone = {seed: model.only(place) for place, seed in enumerate(seeds)}
    models: Models = alone
    own = [torch.cat(slope_and_spread(one)) for one in alone.values()]  # of the heads as they were trained
    if config.bfloat16 == "factors":
        for one in alone.values():
            one.round_products()
    elif config.bfloat16 == "true":
        models = {seed: InBfloat16(model) for seed, model in alone.items()}
    points = None
    if "fitted" in softmaxes:
        try:
            points, softmaxes["fitted"] = fit_temperature(run, config, models, peers)
        except ValueError as error:  # a failed fit must not lose half an hour of training
            print_status(
                f"the temperature could not be fitted: {error}. To fit it without training again: roundround "
                f"max-retrieval run={run.directory}"
            )
            softmaxes = {name: softmax for name, softmax in softmaxes.items() if name != "fitted"}
    measured = measure(run, config, models, softmaxes, peers)
    both_S2 = torch.stack([two for theirs in peers.gather(own) for two in theirs]).numpy()
    measured.of_heads = dict(zip(report.OF_HEADS, both_S2.T, strict=True))
    tabulate(run, config, measured)
    if run.writes:
        draw(config, models, softmaxes, measured, points, run.directory)


def softmax_of(config: MaxRetrievalConfig, name: str, **replaced: Any) -> AttentionSoftmax:
    """The normaliser with this name, in eval mode.

    Raises UserError if the normaliser needs inputs that this head lacks, or if it is the baseline but not the plain
    softmax.
    """
    node = config.normalisers[name]
    if replaced:
        node = OmegaConf.merge(node, replaced)
        assert isinstance(node, DictConfig)
    shape = head_shape(config.model.width, config.max_items)
    softmax: AttentionSoftmax = build(node, AttentionSoftmax, shape).eval().to(pick_device(config.device))
    if name == report.BASELINE and not isinstance(softmax, Softmax):
        raise UserError(
            f"normalisers.{name} is the baseline, and must be the plain softmax; give other normalisers another name"
        )
    if (
        softmax.window is not None
        or softmax.orders_keys
        or type(softmax).row_parameters is not AttentionSoftmax.row_parameters
    ):
        raise UserError(
            f"normalisers.{name} has a window, parameters of each token, or an order of keys, but the items of a set "
            "are not tokens in order; leave it out"
        )
    return softmax


def fit_temperature(
    run: Run, config: MaxRetrievalConfig, models: Models, peers: Peers
) -> tuple[torch.Tensor, AttentionSoftmax]:
    """Fit the temperature as in the paper, over all seeds.

    Returns the fitted points [inputs, 2], and the adaptive temperature with the fitted polynomial. The polynomial is
    limited to the range of the points' entropies, because a quartic has no meaning outside it. Raises ValueError if
    there are too few points.
    """
    every: list[torch.Tensor] = []
    for n in config.fit_sizes:
        own = []
        for seed, model in models.items():
            sets = sets_of_size(seed, n=n, n_sets=most_sets(n), n_classes=model.n_classes, stream=FITTING)
            own.append(fit_points(model, sets, n_inputs=config.fit_inputs))
        every += [points for theirs in peers.gather(own) for points in theirs]
    points = torch.cat(every)
    entropies = points[:, 0].numpy()
    coefficients = [float(f"{c:.6g}") for c in fit_quartic(entropies, points[:, 1].numpy())]
    found = {
        "coefficients": coefficients,
        "entropy_range": [float(f"{x:.6g}") for x in (entropies.min(), entropies.max())],
    }
    node = OmegaConf.merge(config.normalisers.fitted, found)
    path = run.directory / "conf" / "softmax" / "fitted.yaml"
    if run.writes:
        path.parent.mkdir(parents=True, exist_ok=True)
        head = f"# roundround train --config-dir {run.directory / 'conf'} softmax=fitted\n"
        write_atomically(
            path, f"{head}# Adaptive temperature fitted to {len(points):,} inputs.\n{OmegaConf.to_yaml(node)}"
        )
        by_seed = fits_by_seed(every, len(every) // len(config.fit_sizes))
        run.note(fit={**found, "inputs": len(points), "sizes": config.fit_sizes, "by_seed": by_seed})
        typed = " ".join(f"softmax.{key}=[{','.join(map(str, numbers))}]" for key, numbers in found.items())
        print_status(f"fitted to {len(points):,} inputs: softmax=adaptive_temperature {typed}")
    return points, softmax_of(config, "fitted", **found)


def fits_by_seed(points: Sequence[torch.Tensor], n_seeds: int) -> list[list[float]]:
    """The coefficients fitted to each seed's points; empty if there are too few points.

    points: the points of all sizes and seeds, ordered by size, then by seed."""
    own = [torch.cat(list(points[seed::n_seeds])).numpy() for seed in range(n_seeds)]
    try:
        return [fit_quartic(points_N2[:, 0], points_N2[:, 1]) for points_N2 in own]
    except ValueError:
        return []


def measure(
    run: Run, config: MaxRetrievalConfig, models: Models, softmaxes: dict[str, AttentionSoftmax], peers: Peers
) -> report.Measured:
    """Measure every size, seed and normaliser."""
    seeds = [seed for theirs in peers.gather(list(models)) for seed in theirs]
    measured = report.Measured(seeds, config.test_sizes)
    display = Display(sum(config.test_sizes) * len(models), 0, shown=run.writes, unit="evaluated")
    display.start()
    plain = {report.BASELINE: softmaxes[report.BASELINE]}
    done = 0
    try:
        for n in config.test_sizes:
            own: list[tuple[int, Any]] = []
            for seed, model in models.items():
                options = {"n": n, "n_sets": config.test_sets, "n_classes": model.n_classes, "stream": TEST}
                here = softmaxes
                if config.one_temperature:
                    of_plain, _ = evaluate(model, plain, sets_of_size(seed, **options))
                    here = at_one_temperature(softmaxes, of_plain[report.BASELINE]["entropy"])
                own.append((seed, evaluate(model, here, sets_of_size(seed, **options))))
                display.advance(done := done + n)
            for seed, (of_softmaxes, of_logits) in (pair for theirs in peers.gather(own) for pair in theirs):
                for name, means_of_one in [*of_softmaxes.items(), (None, of_logits)]:
                    measured.put(seed, n, name, means_of_one)
            means = {name: measured.mean_accuracy(name, n) for name in softmaxes}
            display.metrics(done, f"{n:,} items: {', '.join(f'{name} {mean:.1f} %' for name, mean in means.items())}")
            run.log(config.max_steps + n, n=n, **{f"accuracy_{name}": mean for name, mean in means.items()})
    finally:
        display.close()
    return measured


def tabulate(run: Run, config: MaxRetrievalConfig, measured: report.Measured) -> None:
    """Write the results, and print the table."""
    largest = measured.sizes[-1]
    headline = {f"{name}_{largest}": measured.mean_accuracy(name, largest) for name in measured.values}
    apart = report.distances(measured)
    records = measured.records()
    if apart is not None:
        for metric, distance in zip(report.FROM_PAPER, apart, strict=True):
            headline[metric] = distance.value
            # one seed has no interval
            interval = {"low": distance.low, "high": distance.high} if math.isfinite(distance.low) else {}
            records.append({"metric": metric, "value": distance.value, **interval})
    run.results(records, **headline)
    if run.writes:
        table, lines = report.table(measured), report.scope(measured, run.manifest["config"])
        write_atomically(run.directory / "table.md", "\n\n".join([table.markdown(), *lines]) + "\n")
        print_table(table.rich())
        for line in lines:
            print_status(line)


def draw(
    config: MaxRetrievalConfig,
    models: Models,
    softmaxes: dict[str, AttentionSoftmax],
    measured: report.Measured,
    points: torch.Tensor | None,
    directory: Path,
) -> None:
    """Draw every figure of the run. Also save the heat maps, which show the first seed, as arrays [sets, items]."""
    shown = {name: softmaxes[name] for name in (report.BASELINE, report.ADAPTIVE) if name in softmaxes}
    seed, model = next(iter(models.items()))
    arrays = {}
    for place, n in enumerate(measured.sizes):
        sets = sets_of_size(seed, n=n, n_sets=HEAT_MAP["n_sets"], n_classes=model.n_classes, stream=TEST)
        entropy = measured.values[report.BASELINE]["entropy"][0, place]
        here = at_one_temperature(shown, float(entropy)) if config.one_temperature else shown
        for name, alpha in attention_by_priority(model, here, sets, **HEAT_MAP).items():
            arrays[f"{name}.{n}"] = alpha.numpy()
    save_file(arrays, directory / "attention.safetensors")
    usual_mode(directory / "attention.safetensors")
    drawings = [*report.drawings(measured), *report.heat_maps(arrays)]
    if points is not None:
        polynomial = softmaxes["fitted"]
        assert isinstance(polynomial, AdaptiveTemperature)
        drawings.append(report.temperature_fit(points.numpy(), polynomial.coefficients, config.fit_sizes))
    for drawing in drawings:
        save_drawing(drawing, directory / "figures", config.figures)
