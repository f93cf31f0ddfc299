"""What docs/results/gap_counting.md reads: python benchmarks/gap_counting.py MODEL TEXT TO.csv N LENGTHS

    python benchmarks/gap_counting.py roundround/pretrained/stories260k stories.txt \\
        docs/results/gap_counting/stories260k.csv 8 1024,512,256,128
    python benchmarks/gap_counting.py google/gemma-3-270m valid.txt \\
        docs/results/gap_counting/gemma3.csv 5 2048,1024,512,256

MODEL: a model of the Hugging Face hub, or a folder. TEXT: a file of running text. N texts of the first length are cut
out of it, spread over it. Each is read in windows of every length, with the model's own softmax and with the adaptive
temperature in every layer. A row of TO.csv is one text, normaliser, length and head: the gap counting number, the
share of collapsed rows, and the exponent xi of Lambda ~ (ln n)^xi.
Shapes: L layers, H heads, N bins of rows by their number of visible keys, T tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from gemma3_windows import cut, write
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from roundround.asking.loaded_model import makers_of
from roundround.hf.load import ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.probing.dispersion import Dispersion, watched
from roundround.probing.probed_model import run

FEWEST = 8  # keys: rows of so many or fewer do not count for xi
NORMALISERS = ("softmax", "adaptive_temperature")


def exponents(seen: Dispersion) -> NDArray[np.float64]:
    """The slope of ln Lambda in ln ln n over the bins with more than FEWEST keys, by least squares: [L, H]."""
    bins = slice(seen.largest_n.index(FEWEST) + 1, None)
    ln_LHN, lambda_LHN = (seen.means_LHN(name)[..., bins].log().numpy() for name in ("ln_n", "gap_counting"))
    slope_LH = np.empty(ln_LHN.shape[:2])
    for place in np.ndindex(slope_LH.shape):
        there = np.isfinite(lambda_LHN[place])  # a layer with a window has no rows in the last bins
        slope_LH[place] = np.polyfit(ln_LHN[place][there], lambda_LHN[place][there], 1)[0]
    return slope_LH


def main(path: str, text: str, to: str, n_texts: str, lengths: str) -> None:
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(path)
    stream = tokenizer(Path(text).read_text(encoding="utf-8"), add_special_tokens=False, verbose=False).input_ids
    records, (longest, *others) = [], map(int, lengths.split(","))
    for softmax in NORMALISERS:
        with installed(model, None if softmax == "softmax" else makers_of(softmax, None, {})[0]):
            probed = ProbedHuggingFaceModel(Path(path).name, model, tokenizer)
            for number, (first, *tokens) in enumerate(cut(probed, stream, longest, int(n_texts))):
                assert first == probed.first_token
                for length in (longest, *others):
                    with watched(model, length + 1) as seen, torch.no_grad():
                        for window in cut(probed, tokens, length):
                            run(probed, [(window, None)])
                    xi_LH = exponents(seen)
                    lambda_LH, share_LH = (seen.means_LH(name) for name in ("gap_counting", "collapsed"))
                    for place, layer in enumerate(seen.layers):
                        for head, values in enumerate(
                            zip(lambda_LH[place], share_LH[place], xi_LH[place], strict=True)
                        ):
                            where = {"softmax": softmax, "text": number, "length": length, "layer": layer, "head": head}
                            values = dict(zip(("gap_counting", "collapsed", "xi"), map(float, values), strict=True))
                            records.append(where | values)
                print(softmax, number, flush=True)
    write(Path(to), records)


if __name__ == "__main__":
    main(*sys.argv[1:])
