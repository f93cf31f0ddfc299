"""The figure of README.md, from stored values of each seed: python benchmarks/front_page.py

Left the loss of docs/results/table2.md on TinyStories, right the repetition of docs/results/length_copying.md.
"""

from __future__ import annotations

from pathlib import Path

import pandas

from roundround.analysis.intervals import half_width
from roundround.report.drawing.figures import save_drawing
from roundround.support.panels import Curve, Drawing, Mark, Panel

DOCS = Path(__file__).resolve().parents[1] / "docs"
NAMES = {"rope": "RoPE", "p_rope": "0.75-RoPE", "nope": "NoPE", "alibi": "ALiBi", "t5_bias": "T5's bias"}
NAMES |= {"rope_500k": "RoPE, base 500,000", "p_rope_reversed": "0.75-RoPE reversed"}


def curves(file: str, metric: str, encodings: list[str]) -> list[Curve]:
    """Mean and 95 % interval over the seeds at each length."""
    rows = pandas.read_csv(DOCS / "results" / file).query("metric == @metric")
    found = []
    for pe in encodings:
        by_length = rows[rows.pe == pe].pivot_table(index="length", columns="seed", values="value")
        mean, half = by_length.mean(axis=1), [float(half_width(values)) for values in by_length.to_numpy()]
        found.append(
            Curve(NAMES[pe], by_length.index, mean, low=mean - half, high=mean + half, style=list(NAMES).index(pe))
        )
    return found


if __name__ == "__main__":
    text = curves(
        "table2/tinystories.csv", "nats_per_token", ["rope", "p_rope", "nope", "rope_500k", "p_rope_reversed"]
    )
    counting = curves("length/repeat.csv", "exact_match", ["rope", "t5_bias", "nope", "alibi"])
    panels = [
        Panel("context (tokens); trained on 256", "nats per token", text, log="x", title="predicting a story",
              x_ticks=[256, 512, 1024, 2048], marks=[Mark("training", 256, 256)]),
        Panel("symbols; trained on 1 to 20", "share that is right", counting, title="repeating a symbol n times",
              possible=(0, 1), x_ticks=[20, 24, 30, 40], marks=[Mark("training", 20, 20)]),
    ]  # fmt: skip
    title = "Beyond the training length: means of five seeds, bands are 95 % intervals"
    save_drawing(Drawing("front_page", title, panels), DOCS, kinds=["svg"])
