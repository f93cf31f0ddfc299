"""`roundround probe`: how a decoder uses the frequencies of its RoPE, and what changes when some of them are zero.

Tested by tests/asking/test_hf_commands.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from omegaconf import DictConfig
from safetensors.torch import save
from torch import Tensor

from roundround.asking.reader import (
    Windowed,
    probed_model_of,
    prompt_for,
    scored_of,
    subject_choices,
    texts_for,
    windows_for,
)
from roundround.config.build import checked
from roundround.config.recorded import give_theta
from roundround.config.verb import FigureStyle
from roundround.distributed.device import describe_device, pick_device
from roundround.kernels.trial import FallsBack
from roundround.model.scoring import PositionLoss, n_targets
from roundround.probing import ablation
from roundround.probing.probe import check, observe
from roundround.probing.probed_model import ProbedModel
from roundround.probing.rows import N_LISTS, entropy_by_length
from roundround.probing.texts import APOSTROPHE
from roundround.records.opening import opened_run
from roundround.records.run import Invocation, Run
from roundround.report import probe_results as report
from roundround.report.drawing.figures import save_drawing
from roundround.report.eval_panels import scope_of_text
from roundround.report.probe_panels import kept_panels, maximum_panels
from roundround.support.console import print_status, warnings_as_lines
from roundround.support.errors import UserError
from roundround.support.files import write_atomically, write_json
from roundround.support.panels import Drawing
from roundround.trained.models import TrainedRun
from roundround.verbs.probe import ProbeConfig


def probe(cfg: DictConfig, invocation: Invocation) -> None:
    """Probe a model on texts (`texts`, `data` or the run's own held-out text), and in detail on one prompt.

    If the config gives `ablate` or `prompt=maximum`, the function `ablate` or `probe_maximum` is called instead.
    """
    choices = subject_choices(cfg, invocation, with_data=True)
    config = checked(ProbeConfig, cfg)
    bands = [ablation.parse_band(text) for text in config.ablate if text != "curve"]
    device = pick_device(config.device)
    with probed_model_of(config, device) as (probed, trained):
        give_theta(cfg, probed.theta)
        if config.prompt == "maximum" and trained is not None and trained.learns_a_task:
            raise UserError("prompt=maximum asks in words, which a run that learns a task does not know")
        with warnings_as_lines(FallsBack):
            windowed = windows_for(config, probed, trained, invocation.peers, batch_tokens=config.batch_tokens)
        texts = texts_for(config, probed, trained, windowed)
        with opened_run(invocation, cfg) as run, warnings_as_lines(FallsBack):
            run.note(
                choices=choices,
                device=describe_device(device),
                run=None if trained is None else str(trained.directory),
                facts={"model": probed.name, "texts": len(texts), "tokens": sum(map(len, texts))},
                **({} if windowed is None else windowed.reading()),
            )
            if config.ablate:
                scored = scored_of(trained, config.length, len(texts))
                one_by_one = partial(ablation.text_loss, probed, texts, batch_tokens=config.batch_tokens, scored=scored)
                ablate(run, config, probed, texts, bands, windowed, windowed.loss if windowed else one_by_one)
            elif config.prompt == "maximum":
                probe_maximum(run, probed, config.figures)
            else:
                probe_texts(run, config, probed, trained, texts)


def probe_texts(
    run: Run, config: ProbeConfig, probed: ProbedModel, trained: TrainedRun | None, texts: list[list[int]]
) -> None:
    """Measure norms of queries and keys, entropies and attention rows on the texts; record a prompt token by token.

    Writes and draws these measurements.
    """
    prompt = prompt_for(config.prompt, probed, trained)
    seen = observe(
        probed, texts, batch_tokens=config.batch_tokens, rows=config.rows, entropy=config.entropy, prompt=prompt
    )
    assert seen.prompt is not None
    run.log(0, tokens=seen.n_tokens, **report.shares(seen))
    run.results(report.records(seen), **report.shares(seen))
    if not run.writes:
        return
    words = {"words": json.dumps(seen.prompt.words)}
    for name, found, about in (("probe", seen.arrays(), None), ("prompt", seen.prompt.arrays(), words)):
        write_atomically(run.directory / f"{name}.safetensors", save(found, about))
    if seen.rows is not None:
        write_json(run.directory / "alignment.json", report.alignments(seen.prompt, seen))
    report.draw_all(seen, seen.prompt, run.directory / "figures", config.figures)
    report.show(seen)
    print_status(
        f"{seen.n_texts:,} texts, {seen.n_tokens:,} tokens; arrays in probe.safetensors, figures/ has the pictures"
    )


def probe_maximum(run: Run, probed: ProbedModel, style: FigureStyle) -> None:
    """Ask for the largest of several numbers, in words, and measure every head's entropy at the question's last token.

    The lists of numbers grow from question to question.
    """
    check(probed, probed.tokens(APOSTROPHE))
    entropies = entropy_by_length(probed)
    records = [
        {**r, "n": n} for n, layers in entropies.items() for r in report.by_head("entropy", probed.layers, layers)
    ]
    run.results(records)
    if run.writes:
        panels = maximum_panels(records)
        ends = panels if len(panels) == 1 else [panels[0], panels[-1]]
        drawing = Drawing("maximum", f"{probed.name}: asked for the maximum", ends, note=f"Means of {N_LISTS} lists.")
        save_drawing(drawing, run.directory / "figures", style, alike=True)
        report.show_maximum(probed.layers, entropies)


def ablate(
    run: Run,
    config: ProbeConfig,
    probed: ProbedModel,
    texts: list[list[int]],
    bands: list[ablation.Band],
    windowed: Windowed | None,
    measure: Callable[[], PositionLoss],
) -> None:
    """Measure perplexity before and after the frequencies of all bands are set to zero.

    If there are no bands, `draw_curve` sets more and more frequencies to zero. measure: the function that returns the
    loss of the texts.
    """
    if not any(layout.n_rotated for layout in check(probed, texts[0])):
        raise UserError(f"ablate= sets frequencies to zero, and {probed.name} rotates no channels at known frequencies")
    cut = [ablation.without(table, bands) for table in probed.tables()]
    before, common = measure(), {} if windowed is None else windowed.reading()
    if run.writes:
        print_scope(before, windowed)
    if not bands:
        draw_curve(run, probed, before, measure, common, config.figures)
        return
    name = ",".join(map(str, bands))
    with probed.with_frequencies(cut):
        after = measure()
    changes, arrays = list[dict[str, Any]](), dict[str, Tensor]()
    if config.rows:
        seen = observe(probed, texts, batch_tokens=config.batch_tokens, entropy=False)
        with probed.with_frequencies(cut):
            changed = observe(probed, texts, batch_tokens=config.batch_tokens, entropy=False)
        for when, ablated, found in (("before", "none", seen), ("after", name, changed)):
            assert found.rows is not None
            changes += [{**r, "ablate": ablated} for r in report.by_place(found.layers, found.rows.places())]
            arrays |= {f"{key}_{when}": value for key, value in found.arrays().items() if key.startswith("places")}
    run.results(
        report.records_of_loss(before, **common, ablate="none")
        + report.records_of_loss(after, **common, ablate=name)
        + changes
    )
    if run.writes:
        report.show_losses({"none": before, name: after})
    if run.writes and arrays:
        write_atomically(run.directory / "ablation.safetensors", save(arrays))


def draw_curve(
    run: Run,
    probed: ProbedModel,
    before: PositionLoss,
    measure: Callable[[], PositionLoss],
    common: dict[str, Any],
    style: FigureStyle,
) -> None:
    """Draw perplexity against the fraction of frequencies kept, when the lowest or the highest are set to zero."""
    steps = ablation.curve(max(int((table > 0).sum()) for table in probed.tables()))
    losses = [ablation.ablated_loss(probed, [band], measure) for band in steps]
    records = report.records_of_loss(before, **common, ablate="none", kept=1.0)
    for band, loss in zip(steps, losses, strict=True):
        records += report.records_of_loss(loss, **common, ablate=str(band), end=band.end, kept=1 - band.fraction)
    run.results(records)
    if run.writes:
        drawing = Drawing(
            "ablation",
            f"{probed.name}: perplexity without part of the frequencies",
            kept_panels(records),
            note=f"{n_targets(before):,} targets.",
        )
        save_drawing(drawing, run.directory / "figures", style, alike=True)
        report.show_losses({"none": before, **dict(zip(map(str, steps), losses, strict=True))})


def print_scope(loss: PositionLoss, windowed: Windowed | None) -> None:
    """Print on which targets the perplexities are measured."""
    if windowed is None:
        print_status(
            "each text is read by itself, up to the model's own context; every token but the first is a target"
        )
        return
    length = windowed.length
    targets = {"metric": "scored_targets", "value": loss.n_targets, **windowed.reading()}
    for line in scope_of_text([targets], None):
        print_status(line)
    print_status(f"the text is read as roundround eval length={length} reads it")
