"""A training step on documents that do not see each other against one on documents joined, timed in interleaved rounds.

    python benchmarks/documents.py                                # model=small on data=stories
    python benchmarks/documents.py --pe alibi --softmax ssmax

Same weights, batch, loss, clipping and optimiser for both; a round times one step of each. Printed are the medians over
rounds, and the median and the range of the ratios of each round. Budget: 1.15 times the joined step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor
from train_throughput import read, timed

from roundround.config.build import build
from roundround.data.batches import Windows
from roundround.data.corpora import Corpus
from roundround.data.prepared import TokenData, prepare
from roundround.data.tokenizers import TokenizerRecipe
from roundround.distributed.device import describe_device
from roundround.kernels.documents import documents_of
from roundround.model.decoder import Decoder
from roundround.trained.models import build_decoder
from roundround.training.optim import AdamW


def stories(cache: Path) -> TokenData:
    config = OmegaConf.create({"data": read("data", "stories"), "tokenizer": read("tokenizer", "bpe")})
    config.data.held_out = 0.2
    return prepare(build(config.data, Corpus), build(config.tokenizer, TokenizerRecipe), cache)  # type: ignore[type-abstract]


def stepper(decoder: Decoder, tokens: Tensor, ends_BT: Tensor | None, precision: str) -> Callable[[], None]:
    adam = AdamW(lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1).create(decoder)

    def step() -> None:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = decoder(tokens[:, :-1], targets_BT=tokens[:, 1:], ends_BT=ends_BT).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        adam.step()
        adam.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small")
    parser.add_argument("--pe", default="p_rope")
    parser.add_argument("--softmax", default="softmax")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bf16-mixed"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        data, model = stories(Path(folder)), read("model", options.size)
        tokens = Windows(data.train, seed=0, length=model.train_length).read(np.arange(options.batch)).to(device)
    ends_BT = tokens[:, :-1] == data.end_of_document
    lengths = documents_of(ends_BT, lambda pos_1T: pos_1T).offsets.diff()
    print(
        f"{describe_device(device)}, torch {torch.__version__}; {options.size}, pe={options.pe}, "
        f"softmax={options.softmax}, {options.batch} windows of {model.train_length}: {len(lengths)} documents of "
        f"{int(lengths.min())} to {int(lengths.max())} tokens"
    )
    for precision in options.precisions:
        decoder = build_decoder(model, read("pe", options.pe), read("softmax", options.softmax), data.n_vocab).to(
            device
        )
        joined, apart = (stepper(decoder, tokens, ends, precision) for ends in (None, ends_BT))
        joined(), apart()
        seconds = [(timed(joined, 1, device), timed(apart, 1, device)) for _ in range(options.rounds)]
        ratios = sorted(b / a for a, b in seconds)
        of_joined, of_apart = (statistics.median(each) for each in zip(*seconds, strict=True))
        print(
            f"{precision:11} joined {of_joined:.3f} s, apart {of_apart:.3f} s: {statistics.median(ratios):.2f} times "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
