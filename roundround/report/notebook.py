"""The figures of results for Python and notebooks (`rr.plot`).

Tested by tests/test_api.py and tests/test_notebook.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundround.analysis.comparison import Comparison, training_curves
from roundround.report import comparison
from roundround.report.drawing.figures import (
    HEAT,
    SCREEN,
    Sizes,
    add_heat,
    colour_map,
    figure_of,
    finish,
    styled,
    subplots,
)
from roundround.report.page.view import shown_word, view_of
from roundround.support.errors import UserError, nearest
from roundround.support.panels import Drawing

if TYPE_CHECKING:
    from roundround.probing.rows import AttentionWeights

Pictures = dict[str, Callable[[Sizes], Any]]  # the function that draws each picture, by the picture's name
ALL_HEADS = "all"
CELL = 1.1  # inches of a head if all heads are drawn
LETTER, ROW = 0.085, 0.2  # inches of a letter of a token and of a token's row
DPI = 85  # in a notebook


def pictures_of(result: object) -> Pictures:
    """The pictures of a comparison, a probe, attention weights or a run directory. UserError for anything else.

    Attention weights have a picture `all`, in which every head is a small map, and one picture of each head with its
    tokens, such as `2.3` for head 3 in layer 2.
    """
    if isinstance(result, Comparison):
        curves, _ = training_curves(result.groups)
        records = [{**record, "value": record["mean"]} for record in result.table]
        drawings = comparison.drawings(records, comparison.summary(result, curves))
        return {drawing.name: partial(comparison.picture_of, drawing) for drawing in drawings}
    if isinstance(result, Path):
        files, _, view = view_of(result)
        title = " ".join([files.run.manifest["verb"], *files.run.manifest["overrides"]])
        named = {section.title.lower(): section.drawn for section in view.sections if section.drawn}
        return {name: partial(figure_of, Drawing("run", f"{title}: {name}", panels)) for name, panels in named.items()}
    from roundround.probing.probe import Probe
    from roundround.probing.rows import AttentionWeights

    if isinstance(result, AttentionWeights):
        found: Pictures = {ALL_HEADS: partial(draw_heads, result)}
        for layer, weights_HQK in zip(result.numbers, result, strict=True):
            found |= {f"{layer}.{head}": partial(draw_head, result, layer, head) for head in range(len(weights_HQK))}
        return found
    if isinstance(result, Probe):
        from roundround.report.probe_results import pictures

        return {name: partial(draw, result) for name, draw in pictures(result).items()}
    raise UserError(
        "rr.plot takes what rr.probe, rr.compare, rr.attention or rr.train returns, or the path of a run, not "
        f"{type(result).__name__}"
    )


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
    finish(figure, sizes, repr(weights), "each map is named layer.head; its rows are queries, its columns are keys")
    return figure


def draw_head(weights: AttentionWeights, layer: int, head: int, sizes: Sizes) -> Any:
    """The map of one head, with the tokens along both sides."""
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


def drawn(pictures: Pictures, what: str | None) -> Any:
    """The picture named `what`, or the first, as a figure that a notebook displays. UserError if there is none."""
    what = next(iter(pictures), "") if what is None else what
    if what not in pictures:
        raise UserError(f"there is no picture '{what}'{nearest(what, pictures)}")
    with styled(SCREEN) as sizes:
        figure = pictures[what](sizes)
    figure.savefig = partial(save_styled, figure)
    figure._repr_png_ = partial(as_png, figure)  # IPython's display hook, which works without pyplot
    return figure


def save_styled(figure: Any, *args: Any, **options: Any) -> None:
    """`Figure.savefig` in the style in which the figure was drawn, not in matplotlib's default style."""
    with styled(SCREEN):
        type(figure).savefig(figure, *args, **options)


def as_png(figure: Any) -> bytes:
    """The PNG that a notebook displays."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    found = io.BytesIO()
    save_styled(figure, found, format="png", dpi=DPI)
    return found.getvalue()
