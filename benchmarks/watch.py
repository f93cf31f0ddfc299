"""What `rr.watch` costs a training loop: steps with it and without, in turn.

    python benchmarks/watch.py [--rounds 7] [--width 256] [--layers 4] [--length 256]

A round times a step that is measured between two steps that are not; `every=n` pays the difference once in n steps. On
the other steps the watch has one hook, whose cost is timed apart.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import roundround as rr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rounds": 7, "width": 256, "layers": 4, "length": 256, "batch": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    sizes = parser.parse_args()
    config = LlamaConfig(
        hidden_size=sizes.width, intermediate_size=3 * sizes.width, num_hidden_layers=sizes.layers, vocab_size=4096,
        num_attention_heads=sizes.width // 32, num_key_value_heads=sizes.width // 32, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(4096, (sizes.batch, sizes.length))

    def step() -> float:
        begin = time.perf_counter()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    for _ in range(3):
        step()
    plain, other, measured = list[float](), list[float](), list[float]()
    for _ in range(sizes.rounds):
        plain.append(step())
        with rr.watch(every=2):
            other.append(step())
            measured.append(step())
    normal = statistics.median(plain)
    share = [(one - near) / near for one, near in zip(measured, plain, strict=True)]
    hooked, seen = statistics.median(other), statistics.median(measured)
    print(f"a step without a watch: {normal:.4f} s; with one, not measured: {hooked:.4f} s; measured: {seen:.4f} s")
    print(f"a measured step takes {statistics.median(share):.1%} more ({min(share):.1%} to {max(share):.1%});", end=" ")
    print(f"every=100: {statistics.median(share) / 100:.3%} of a step")


if __name__ == "__main__":
    main()
