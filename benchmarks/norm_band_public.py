"""The pairs of docs/results/norm_band_public.md: python benchmarks/norm_band_public.py FILE MODEL TEXT [MODEL TEXT ...]

MODEL: a folder of Hugging Face's; TEXT: a file of running text. FILE gets a row for each layer, queries and keys: the
pair with the largest share of the squared norm over all texts, as `roundround probe` finds it (`without` 0), and
where leaving out text 1, 2, ... gives another pair, a row with its number as `without`. A drawing stands beside FILE.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from gemma3_windows import KINDS_OF_LAYERS, Record, Sums, cut, write
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.probing.probe import Probe, observe
from roundround.report.drawing.figures import save_drawing
from roundround.support.panels import Curve, Drawing, Mark, Panel

LENGTH, N_TEXTS = 2048, 10
PREDICTED = (0.6136, 4.3127)


def strongest(seen: Probe) -> Iterator[Record]:
    for kind in ("query", "key"):
        rows = zip(seen.layers, seen.layouts, seen.contexts(), seen.strongest_pairs(kind), strict=True)
        names = [KINDS_OF_LAYERS[name] for name in seen.kinds] or ["all"] * len(seen.layers)
        for name, (layer, layout, context, (pair, share)) in zip(names, rows, strict=True):
            at: Record = {"model": seen.name, "layers": name, "layer": layer, "of": kind, "trained_length": context}
            yield at | {"pair": pair, "wavelength": layout.wavelength(pair), "share": share}


def of_model(path: str, text: str) -> Iterator[Record]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(path)
    stream = tokenizer(Path(text).read_text(encoding="utf-8"), add_special_tokens=False, verbose=False).input_ids
    with installed(model, None):
        probed = ProbedHuggingFaceModel(Path(path).name, model, tokenizer)
        length = min(LENGTH, probed.longest) - (probed.first_token is not None)
        texts = cut(probed, stream, length, N_TEXTS)
        sums = Sums([observe(probed, [text], rows=False, entropy=False) for text in texts])
    whole = list(strongest(sums.drawn([1] * N_TEXTS)))
    yield from (row | {"without": 0} for row in whole)
    for left_out in range(N_TEXTS):
        less = strongest(sums.drawn([int(own != left_out) for own in range(N_TEXTS)]))
        for row, of_all in zip(less, whole, strict=True):
            if row["pair"] != of_all["pair"]:
                yield row | {"without": 1 + left_out}


def draw(path: Path, records: Sequence[Record]) -> None:
    """The wavelengths of each case by depth."""
    rows: dict[tuple[str, str], list[Record]] = {}
    for row in records:
        if not row["without"]:
            rows.setdefault((row["model"], row["layers"]), []).append(row)
    curves = []
    for (model, layers), own in rows.items():
        n_layers = 1 + max(row["layer"] for row in records if row["model"] == model)
        depth = [(row["layer"] + 0.5) / n_layers for row in own]
        turns = [row["wavelength"] / row["trained_length"] for row in own]
        curves.append(Curve(model if layers == "all" else f"{model}, {layers}", depth, turns, points=True))
    marks = [Mark("predicted", *PREDICTED, axis="y")]
    panel = Panel("depth of the layer", "wavelength over trained length", curves, "y", marks=marks)
    title = "Strongest pair of each layer's queries and keys"
    save_drawing(Drawing(path.stem, title, [panel]), path.parent, kinds=["svg"])


def main(file: str, *models_and_texts: str) -> None:
    disable_progress_bar()
    records: list[Record] = []
    for path, text in zip(models_and_texts[::2], models_and_texts[1::2], strict=True):
        began = time.process_time()
        records += of_model(path, text)
        write(Path(file), records)
        draw(Path(file), records)
        print(f"{Path(path).name}: {(time.process_time() - began) / 60:.1f} minutes of one core", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
