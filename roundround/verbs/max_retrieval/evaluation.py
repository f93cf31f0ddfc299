"""What trained models of max retrieval are asked: fit a temperature, measure every size, tabulate and draw.

Tested by tests/papers/test_max_retrieval_command.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save_file

from roundround.config.build import build
from roundround.distributed.device import pick_device
from roundround.distributed.peers import Peers
from roundround.papers.max_retrieval.evaluation import (
    InBfloat16,
    at_one_temperature,
    attention_by_priority,
    evaluate,
    fit_points,
    fit_quartic,
    most_sets,
    slope_and_spread,
)
from roundround.papers.max_retrieval.model import MaxRetrieval, head_shape
from roundround.papers.max_retrieval.sets import FITTING, TEST, sets_of_size
from roundround.records.run import Run
from roundround.report import max_retrieval as report
from roundround.report.drawing.figures import save_drawing
from roundround.softmax.adaptive_temperature import AdaptiveTemperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.softmax import Softmax
from roundround.support.console import print_status, print_table
from roundround.support.errors import UserError
from roundround.support.files import usual_mode, write_atomically
from roundround.training.bookkeeping import Display
from roundround.verbs.max_retrieval import MaxRetrievalConfig

Models = Mapping[int, MaxRetrieval | InBfloat16]  # by seed
ROUNDED = {"true": "weights, items and every result in between", "factors": "the factors of matrix products"}
HEAT_MAP = {"n_sets": 32, "n_items": 16}  # rows and columns of the paper's figures 2 and 6


def report_on(
    run: Run,
    config: MaxRetrievalConfig,
    seeds: list[int],
    model: MaxRetrieval,
    softmaxes: dict[str, AttentionSoftmax],
    peers: Peers,
) -> None:
    """Fit a temperature where one is asked for, evaluate, tabulate and draw; `seeds` are those of this process."""
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
        except ValueError as error:  # half an hour of training is not lost for that
            print_status(f"no fit: {error}, with roundround max-retrieval run={run.directory}")
            softmaxes = {name: softmax for name, softmax in softmaxes.items() if name != "fitted"}
    measured = measure(run, config, models, softmaxes, peers)
    both_S2 = torch.stack([two for theirs in peers.gather(own) for two in theirs]).numpy()
    measured.of_heads = dict(zip(report.OF_HEADS, both_S2.T, strict=True))
    tabulate(run, config, measured)
    if run.writes:
        draw(config, models, softmaxes, measured, points, run.directory)


def softmax_of(config: MaxRetrievalConfig, name: str, **replaced: Any) -> AttentionSoftmax:
    """The normaliser of this name, at inference; UserError for one that this head cannot feed, or another baseline."""
    node = config.normalisers[name]
    if replaced:
        node = OmegaConf.merge(node, replaced)
        assert isinstance(node, DictConfig)
    shape = head_shape(config.model.width, config.max_items)
    softmax: AttentionSoftmax = build(node, AttentionSoftmax, shape).eval().to(pick_device(config.device))
    if name == report.BASELINE and not isinstance(softmax, Softmax):
        raise UserError(f"normalisers.{name} is the baseline and what is trained with; give others another name")
    if type(softmax).row_parameters is not AttentionSoftmax.row_parameters:
        raise UserError(
            f"normalisers.{name} reads parameters off each token, which this head does not learn; leave it out"
        )
    if softmax.window is not None:
        raise UserError(f"normalisers.{name} has a window, and the items of a set have no order; leave it out")
    return softmax


def fit_temperature(
    run: Run, config: MaxRetrievalConfig, models: Models, peers: Peers
) -> tuple[torch.Tensor, AttentionSoftmax]:
    """The paper's fit over all seeds: its points [inputs, 2], and adaptive temperature with the polynomial found.

    It holds at the entropies of the points: what a quartic does beyond its last points is an accident of its sign.
    Raises ValueError where there are too few points.
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
    """The fit to each seed's own points, which come seed by seed for one size after the other; none where too few."""
    own = [torch.cat(list(points[seed::n_seeds])).numpy() for seed in range(n_seeds)]
    try:
        return [fit_quartic(points_N2[:, 0], points_N2[:, 1]) for points_N2 in own]
    except ValueError:
        return []


def measure(
    run: Run, config: MaxRetrievalConfig, models: Models, softmaxes: dict[str, AttentionSoftmax], peers: Peers
) -> report.Measured:
    """Every size, seed and normaliser."""
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
    """Write the results, and show the table."""
    largest = measured.sizes[-1]
    headline = {f"{name}_{largest}": measured.mean_accuracy(name, largest) for name in measured.values}
    apart = report.distances(measured)
    records = measured.records()
    if apart is not None:
        headline |= {"baseline_from_paper": apart[0].value, "gains_from_paper": apart[1].value}
        for metric, distance in zip(("baseline_from_paper", "gains_from_paper"), apart, strict=True):
            several = math.isfinite(distance.low)  # of one seed there is no interval
            interval = {"low": distance.low, "high": distance.high} if several else {}
            records.append({"metric": metric, "value": distance.value, **interval})
    run.results(records, **headline)
    notes = report.notes(measured, config.fit_sizes)
    if config.bfloat16 != "false":
        notes.append(f"bfloat16={config.bfloat16}: {ROUNDED[config.bfloat16]} rounded to bfloat16, in evaluation alone")
    if config.one_temperature:
        notes.append(
            f"one_temperature=true: adaptive temperatures follow the mean entropy of {config.test_sets:,} sets, those "
            "of a seed and size, not each set's own"
        )
    if run.writes:
        lines = [report.markdown(measured), *(f"\n{note}\n" for note in notes)]
        write_atomically(run.directory / "table.md", "".join(lines))
        print_table(report.table(measured, title="max retrieval: accuracy in per cent"))
        for note in notes:
            print_status(note)


def draw(
    config: MaxRetrievalConfig,
    models: Models,
    softmaxes: dict[str, AttentionSoftmax],
    measured: report.Measured,
    points: torch.Tensor | None,
    directory: Path,
) -> None:
    """Every figure of the run; heat maps of the first seed, plain and adaptive, also as arrays [sets, items]."""
    folder, arrays = directory / "figures", directory / "attention.safetensors"
    for drawing in report.drawings(measured):
        save_drawing(drawing, folder, config.figures)
    shown = {name: softmaxes[name] for name in (report.BASELINE, report.ADAPTIVE) if name in softmaxes}
    seed, model = next(iter(models.items()))
    frames = {}
    for place, n in enumerate(measured.sizes):
        sets = sets_of_size(seed, n=n, n_sets=HEAT_MAP["n_sets"], n_classes=model.n_classes, stream=TEST)
        entropy = measured.values[report.BASELINE]["entropy"][0, place]
        here = at_one_temperature(shown, float(entropy)) if config.one_temperature else shown
        frames[n] = attention_by_priority(model, here, sets, **HEAT_MAP)
    save_file({f"{name}.{n}": alpha for n, found in frames.items() for name, alpha in found.items()}, arrays)
    usual_mode(arrays)
    for name in shown:
        report.heat_maps({n: weights[name].numpy() for n, weights in frames.items()}, name, folder, config.figures)
    if points is not None:
        polynomial = softmaxes["fitted"]
        assert isinstance(polynomial, AdaptiveTemperature)
        save_drawing(
            report.temperature_fit(points.numpy(), polynomial.coefficients, config.fit_sizes), folder, config.figures
        )
