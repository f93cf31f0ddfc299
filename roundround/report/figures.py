"""How every figure is begun and saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLUE, RED, GREY, SHADE = "#1f5fa8", "#c0392b", "#8a8a8a", "#e8eef6"


def subplots(*shape: int, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, without a screen, laid out to fit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(*shape, layout="constrained", **options)
    return figure, axes


def colour_map(name: str) -> Any:
    """Matplotlib's colour map of this name: a function of numbers from 0 to 1."""
    from matplotlib import pyplot as plt

    return plt.get_cmap(name)


def save(figure: Any, folder: Path, name: str, kinds: Sequence[str] = ("svg", "pdf")) -> list[Path]:
    """Write `folder/name.<kind>` for each kind, and close the figure."""
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    for path in paths:
        figure.savefig(path, dpi=150)
    plt.close(figure)
    return paths
