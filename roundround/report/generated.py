"""What a run of `roundround generate` shows: its texts, and the attention of one head while it wrote the first.

Shapes: S tokens that the model wrote, T tokens of the text.

Tested by tests/asking/test_generation.py and tests/report/test_page_in_browser.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table as Shown
from rich.text import Text
from safetensors.numpy import save_file

from roundround.report.drawing.tables import Record, Table, tables_of
from roundround.report.page.view import RunFiles, Section, View, shown_word
from roundround.support.console import print_table
from roundround.support.files import usual_mode

TEXTS, ATTENTION = "texts.json", "attention.safetensors"
MOST_ROWS = 40  # of the table in a terminal, and of the prompt's tokens in it
FAINT = 0.02  # a weight below which a token has no colour in a terminal
DARK, BRIGHT = (20, 40, 70), (120, 180, 240)  # what stands behind a token: red, green, blue
MOST_WEIGHTS = 200_000  # on a page


def leave_attention(
    directory: Path, words: Sequence[str], places: Sequence[int], weights_ST: NDArray[Any], *, layer: int, head: int
) -> None:
    """Save the weights of a head, from the token at each of `places` to all tokens, and the tokens as `words`."""
    about = {"words": json.dumps(list(words)), "layer": str(layer), "head": str(head)}
    arrays = {"weights": np.ascontiguousarray(weights_ST, np.float32), "places": np.asarray(places, np.int64)}
    save_file(arrays, directory / ATTENTION, metadata=about)
    usual_mode(directory / ATTENTION)


def show_attention(
    words: Sequence[str], places: Sequence[int], weights_ST: NDArray[Any], *, n_prompt: int, title: str
) -> None:
    """Print a row for each written token; a terminal also shows the prompt, in brighter colours for larger weights."""
    found = Shown("token", "on the prompt", "most on", title=title)
    prompt_SP = weights_ST[:, :n_prompt]
    by_weight = np.argsort(-prompt_SP.max(0), kind="stable") if len(places) else np.arange(0)
    kept = sorted(by_weight[:MOST_ROWS].tolist())
    if colours := sys.stderr.isatty():
        found.add_column("the prompt" if len(kept) == n_prompt else f"{len(kept)} of the prompt's tokens")
    for place, weights_T in list(zip(places, weights_ST, strict=True))[:MOST_ROWS]:
        most = int(weights_T.argmax())
        row: list[str | Text] = [
            shown_word(words[place]),
            f"{weights_T[:n_prompt].sum():.2f}",
            f"{shown_word(words[most])} ({most}) {weights_T[most]:.2f}",
        ]
        if colours:
            spans = [(shown_word(words[at]), behind(float(weights_T[at]))) for at in kept]
            row.append(Text.assemble(*(part for span in spans for part in (span, " "))))
        found.add_row(*row)
    if len(places) > MOST_ROWS:
        found.caption = f"the first {MOST_ROWS} of {len(places):,} tokens; the page has more"
    print_table(found)


def behind(weight: float) -> str:
    """The terminal style of a token with this weight."""
    if not weight >= FAINT:
        return ""
    red, green, blue = (round(dark + weight * (bright - dark)) for dark, bright in zip(DARK, BRIGHT, strict=True))
    return f"{'black' if weight > 0.5 else 'white'} on rgb({red},{green},{blue})"


# -- the page


def view(files: RunFiles, records: list[Record]) -> View:
    """A row for each text, the attention of the head, then the numbers."""
    found = files.json(TEXTS) or {"texts": []}
    rows = [
        [number, text["text"], text["tokens"], "the model" if text["ended"] else "length"]
        for number, text in enumerate(found["texts"], 1)
    ]
    written = [Table("texts", ["number", "text", "tokens", "ended by"], rows)] if rows else []
    data = attention_of(files)
    where = {} if data is None else {"where": f"layer {data['layer']}, head {data['head']}"}
    looked = Section("Attention", part=None if data is None else "attention.html.j2", values=where)
    sections = [Section("Texts", tables=written), looked, Section("Results", tables=tables_of(records))]
    return View(sections, data=data, scripts=() if data is None else ("attention.js",))


def attention_of(files: RunFiles) -> dict[str, Any] | None:
    """For the page's script: the words, and for each written token its place and its weights in thousandths."""
    arrays = files.arrays(ATTENTION)
    if "weights" not in arrays or not len(arrays["weights"]):
        return None
    weights_ST, places = arrays["weights"], arrays["places"].tolist()
    about = files.about(ATTENTION)
    words = list(map(shown_word, json.loads(about["words"])))
    n_kept = max(1, int((np.cumsum(places) <= MOST_WEIGHTS).sum()))
    if n_kept < len(places):
        files.remarks.append(
            f"attention is shown for the first {n_kept:,} of {len(places):,} written tokens, because a page has no "
            f"room for more; {ATTENTION} has all"
        )
    thousandths_ST = np.rint(1000 * np.nan_to_num(weights_ST)).astype(int)
    steps = [
        {"place": place, "weights": weights_T[:place].tolist()}
        for place, weights_T in zip(places[:n_kept], thousandths_ST, strict=False)
    ]
    words = words[: places[n_kept - 1] + 1]
    return {"layer": about.get("layer"), "head": about.get("head"), "words": words, "steps": steps}
