"""`rr.watch` in training code that others wrote, fetched for this and never kept: nanoGPT, nanochat, x-transformers.

    make watch-others
    python benchmarks/watch_others.py [--clones FOLDER]    # FOLDER has nanoGPT and nanochat; no network is needed

Each trains a few steps with the watch and without; the weights must be the same bits, and each layer must be seen.
x-transformers is used if it is installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import roundround as rr

N_LAYERS = 3


def nano_gpt(clones: Path) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
    sys.path.insert(0, str(clones / "nanoGPT"))
    model = importlib.import_module("model")
    config = model.GPTConfig(block_size=64, vocab_size=128, n_layer=N_LAYERS, n_head=4, n_embd=64, dropout=0.1)
    return model.GPT(config), lambda gpt, tokens: gpt(tokens[:, :-1], tokens[:, 1:].contiguous())[1]


def nanochat(clones: Path) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
    sys.path.insert(0, str(clones / "nanochat"))
    gpt = importlib.import_module("nanochat.gpt")
    sizes = {"n_layer": N_LAYERS, "n_head": 4, "n_kv_head": 2, "n_embd": 64}
    model = gpt.GPT(gpt.GPTConfig(sequence_len=64, vocab_size=128, **sizes))
    model.init_weights()
    return model, lambda gpt, tokens: gpt(tokens[:, :-1], tokens[:, 1:].contiguous())


def x_transformers(clones: Path) -> tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=64, depth=N_LAYERS, heads=4, rotary_pos_emb=True, attn_flash=True)
    wrapped = TransformerWrapper(num_tokens=128, max_seq_len=64, attn_layers=layers)
    return AutoregressiveWrapper(wrapped), lambda model, tokens: model(tokens)


def train(make: Callable[[Path], tuple[nn.Module, Callable[[nn.Module, Tensor], Tensor]]], clones: Path) -> nn.Module:
    torch.manual_seed(0)
    model, loss_of = make(clones)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(4):
        loss_of(model, torch.randint(128, (4, 65))).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clones", type=Path)
    given = parser.parse_args().clones
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        clones = given or Path(scratch)
        for name in ("nanoGPT", "nanochat") if given is None else ():
            address = f"https://github.com/karpathy/{name}"
            done = subprocess.run(["git", "clone", "--quiet", "--depth", "1", address, str(clones / name)], check=False)
            if done.returncode:
                print(f"no {name}: it could not be fetched; is there a network? --clones takes a folder of clones")
        for make, where in ((nano_gpt, "nanoGPT"), (nanochat, "nanochat"), (x_transformers, None)):
            if not (importlib.util.find_spec("x_transformers") if where is None else (clones / where).exists()):
                print(f"{make.__name__}: not here, left out")
                continue
            plain = train(make, clones)
            with rr.watch(every=2) as seen:
                watched = train(make, clones)
            pairs = zip(plain.state_dict().values(), watched.state_dict().values(), strict=True)
            same = all(torch.equal(a, b) for a, b in pairs)
            good = same and len(seen.layers) == N_LAYERS and len(seen.records) == 2
            wrong += not good
            told = seen.layouts[""].pairing if "" in seen.layouts else "both reported"
            print(f"{make.__name__}: {'as it should be' if good else 'WRONG'}; same weights: {same}; pairs: {told}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
