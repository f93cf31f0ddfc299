"""What Python and notebooks get: verbs that run in a process of their own, and figures of results.

Tested by tests/test_api.py and tests/test_notebook.py.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundround.analysis.comparison import Comparison, training_curves
from roundround.distributed.child import VerbFailed, start
from roundround.report import comparison
from roundround.report.drawing.figures import add_heat, colour_map, figure_of, finish, subplots
from roundround.report.drawing.style import HEAT, SCREEN, Sizes, styled
from roundround.report.page.view import files_of, shown_word
from roundround.support.console import print_status
from roundround.support.errors import AlreadyReported, Interrupted, UserError, nearest
from roundround.support.panels import Drawing

if TYPE_CHECKING:
    from roundround.probing.probe import Probe
    from roundround.probing.weights import AttentionWeights

STEP = re.compile(r"\w+ (\d+)/(\d+)  .* left")  # of `Display.metrics` in training/bookkeeping.py
LINES = 12  # shown of what has been printed, the last
Pictures = Mapping[str, Callable[[Sizes], Any]]  # what draws each, by name
ALL_HEADS = "all"
CELL = 1.1  # inches of a head where all are drawn
LETTER, ROW = 0.085, 0.2  # inches of a letter of a token and of a token's row
DPI = 85  # in a notebook


def run_shown(verb: str, words: Sequence[str]) -> Path:
    """Run `roundround VERB WORDS` in a process of its own and show its lines; the run directory.

    Raises UserError if the words were refused, RuntimeError if the verb failed, and KeyboardInterrupt if a signal
    stopped it, each with the line about it.
    """
    ipython = sys.modules.get("IPython")  # in a notebook's kernel, which shows what is displayed
    in_notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    lines, show = list[str](), Shown().tell if in_notebook else print_status

    def tell(line: str) -> None:
        lines.append(line)
        show(line)

    def told(beginning: str, otherwise: str) -> str:
        return next((line.removeprefix(beginning) for line in reversed(lines) if line.startswith(beginning)), otherwise)

    command = f"roundround {verb}"
    try:
        return start([verb, *words], tell=tell)
    except AlreadyReported as error:
        raise UserError(told(f"{command}: ", str(error))) from None
    except VerbFailed as error:
        raise RuntimeError(told(f"{command}: ", str(error))) from None
    except Interrupted:
        resume = told(f"resume with: {command} ", "")
        hint = f'; rr.{verb}("{resume}") resumes it' if resume else ""
        raise KeyboardInterrupt(f"{command} was stopped{hint}") from None


class Shown:
    """The output of a notebook cell, which shows the lines of a verb and is updated with each line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.step, self.done, self.n_steps = "", 0, 0
        self.handle: Any = None

    def tell(self, line: str) -> None:
        """Show one more line; a line of progress replaces the one before."""
        found = STEP.fullmatch(line)
        if found is None:
            self.lines.append(line)
        else:
            self.step, self.done, self.n_steps = line, int(found[1]), int(found[2])
        from IPython.display import display

        if self.handle is None:
            self.handle = display(self.bundle(), raw=True, display_id=True)
        else:
            self.handle.update(self.bundle(), raw=True)

    def bundle(self) -> dict[str, str]:
        """The output as HTML and as text."""
        lines = [*self.lines[-LINES:], *([self.step] if self.step else [])]
        bar = f'<progress value="{self.done}" max="{self.n_steps}"></progress>' if self.n_steps else ""
        return {"text/plain": "\n".join(lines), "text/html": f"{bar}<pre>{escape(chr(10).join(lines))}</pre>"}


# -- figures of a probe, a comparison, attention weights or a run


def of_comparison(found: Comparison) -> Pictures:
    """What `roundround compare` draws, by the names of its files; quality by context length first."""
    curves, _ = training_curves(found.groups)
    records = [{**record, "value": record["mean"]} for record in found.table]
    drawn = comparison.drawings(records, comparison.summary(found, curves))
    return {drawing.name: partial(comparison.picture_of, drawing) for drawing in drawn}


def of_run(directory: Path) -> Pictures:
    """The curves of the run's page, by the titles of its sections. UserError where the directory is no run."""
    from roundround.report.page.write import view_of

    files = files_of(directory)
    sections = [section for section in view_of(files, files.records()).sections if section.drawn]
    title = " ".join([files.run.verb, *files.run.manifest["overrides"]])
    return {
        section.title.lower(): partial(figure_of, Drawing("run", f"{title}: {section.title.lower()}", section.drawn))
        for section in sections
    }


def of_probe(seen: Probe) -> Pictures:
    """The pictures that `roundround probe` leaves, by the names of their files."""
    from roundround.report.probe_results import pictures

    return {name: partial(draw, seen) for name, draw in pictures(seen).items()}


def of_weights(weights: AttentionWeights) -> Pictures:
    """Every head as a small map, and each by its name, such as `2.3` of head 3 in layer 2, with its tokens."""
    heads = {
        f"{layer}.{head}": partial(draw_head, weights, layer, head)
        for layer, weights_HQK in zip(weights.numbers, weights, strict=True)
        for head in range(len(weights_HQK))
    }
    return {ALL_HEADS: partial(draw_heads, weights), **heads}


def draw_heads(weights: AttentionWeights, sizes: Sizes) -> Any:
    """A map of each head: queries downwards, keys to the right, dark where the weight is near 1."""
    n_heads = max(len(weights_HQK) for weights_HQK in weights)
    figure, axes = subplots(len(weights), n_heads, figsize=(CELL * n_heads, CELL * len(weights)), squeeze=False)
    for layer, row, weights_HQK in zip(weights.numbers, axes, weights, strict=True):
        for head, axis in enumerate(row):
            if head >= len(weights_HQK):
                axis.set_visible(False)
                continue
            values_QK = weights_HQK[head].float().numpy()
            axis.imshow(values_QK, cmap=colour_map(HEAT), vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(f"{layer}.{head}", fontsize=sizes.small, pad=2)
            axis.set(xticks=[], yticks=[])
    finish(figure, sizes, repr(weights), "layer.head; rows are queries, columns keys")
    return figure


def draw_head(weights: AttentionWeights, layer: int, head: int, sizes: Sizes) -> Any:
    """One head with the tokens along both sides."""
    words = list(map(shown_word, weights.words))
    side = ROW * len(words) + LETTER * max(map(len, words))
    figure, axis = subplots(figsize=(side + 1.6, side + 0.6))
    add_heat(axis, weights[layer][head].float().numpy(), "weight", vmin=0, vmax=1)
    axis.set_aspect("equal")
    for set_ticks, options in ((axis.set_xticks, {"rotation": 90}), (axis.set_yticks, {})):
        set_ticks(range(len(words)), words, parse_math=False, **options)
    axis.set(xlabel="key", ylabel="query")
    finish(figure, sizes, f"{weights.name}: layer {layer}, head {head}")
    return figure


def drawn(of: str, pictures: Pictures, what: str | None) -> Any:
    """The figure of this name, or the first; a notebook shows it. UserError if there is none."""
    if not pictures:
        raise UserError(f"{of} has nothing to draw")
    if what is not None and what not in pictures:
        raise UserError(f"{of} has no picture '{what}'{nearest(what, pictures)}")
    with styled(SCREEN) as sizes:
        figure = pictures[next(iter(pictures)) if what is None else what](sizes)
    figure.savefig = partial(save_styled, figure)
    figure._repr_png_ = partial(as_png, figure)  # a notebook asks every object for it; pyplot need not be imported
    return figure


def save_styled(figure: Any, *args: Any, **options: Any) -> None:
    """`Figure.savefig` in the style that the figure was drawn in, because saving reads fonts and colours again."""
    with styled(SCREEN):
        type(figure).savefig(figure, *args, **options)


def as_png(figure: Any) -> bytes:
    """The figure as a notebook shows it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    found = io.BytesIO()
    save_styled(figure, found, format="png", dpi=DPI)
    return found.getvalue()
