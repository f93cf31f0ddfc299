"""The figure of README.md, from stored values of each seed: python benchmarks/front_page.py

Left the search of docs/results/distance.md at base 10,000, right the loss of docs/results/table2.md on TinyStories.
"""

from __future__ import annotations

from pathlib import Path

import pandas

from roundround.analysis.intervals import half_width
from roundround.report.drawing.figures import save_drawing
from roundround.support.panels import Curve, Drawing, Mark, Panel

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = {"rope": "RoPE", "p_rope": "0.75-RoPE", "nope": "NoPE", "p_rope_50": "0.5-RoPE"}
NAMES |= {"rope_500k": "RoPE, base 500,000", "p_rope_reversed": "0.75-RoPE reversed"}
OF_P = {1.0: "rope", 0.75: "p_rope", 0.5: "p_rope_50", 0.0: "nope"}


def curves(rows: pandas.DataFrame, x: str, encodings: list[str]) -> list[Curve]:
    """Mean and 95 % interval over the seeds at each x."""
    found = []
    for pe in encodings:
        by_x = rows[rows.pe == pe].pivot_table(index=x, columns="seed", values="value")
        mean, half = by_x.mean(axis=1), [float(half_width(values)) for values in by_x.to_numpy()]
        found.append(Curve(NAMES[pe], by_x.index, mean, low=mean - half, high=mean + half, style=list(NAMES).index(pe)))
    return found


if __name__ == "__main__":
    searched = pandas.read_csv(DOCS / "results" / "distance/distance.csv")
    searched = searched.query("metric == 'exact_match' and length == 2048 and `pe.theta` == 10000")
    search = curves(searched.assign(pe=searched["pe.p"].map(OF_P)), "distance", ["rope", "p_rope", "p_rope_50", "nope"])
    stories = pandas.read_csv(DOCS / "results" / "table2/tinystories.csv").query("metric == 'nats_per_token'")
    text = curves(stories, "length", ["rope", "p_rope", "nope", "rope_500k", "p_rope_reversed"])
    panels = [
        Panel("distance (tokens); trained on up to 128", "share that is right", search, log="x", possible=(0, 1),
              title="finding a word by its meaning", x_ticks=[4, 16, 64, 256, 1024],
              marks=[Mark("training", 128, 128)]),
        Panel("context (tokens); trained on 256", "nats per token", text, log="x", title="predicting a story",
              x_ticks=[256, 512, 1024, 2048], marks=[Mark("training", 256, 256)]),
    ]  # fmt: skip
    title = "Beyond the training length: means of five seeds, bands are 95 % intervals"
    save_drawing(Drawing("front_page", title, panels), DOCS, kinds=["svg"])
