"""What watching a model costs: time and peak memory of a probe against the model's own forward pass.

    python benchmarks/probe.py                     # times at 1k and 8k tokens and peaks: about ten minutes on two cores
    python benchmarks/probe.py --offload SCRATCH   # also a checkpoint of a billion parameters that stays on disk

A random Llama in the shape of SmolLM2-135M (9 heads of 64, 3 key heads), float32, cut to a few layers, which changes no
ratio. Timings are interleaved in one process: each round times each once. Printed are medians over rounds, of the time
and of its ratio to the plain forward pass (Hugging Face's `sdpa`) of the same round. Memory is the peak of a process of
its own, as the kernel of the operating system counts it. `docs/inside/benchmarks.md` keeps the numbers.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from roundround.hf.load import Pretrained, ProbedHuggingFaceModel
from roundround.hf.patching.attention import installed
from roundround.probing.probe import Watch, observe, run, watching

N_VOCAB = 49_152
MODES = ("plain", "norms", "norms and entropy")


def small(n_layers: int) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=n_layers, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=N_VOCAB, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def texts_of(n_tokens: int, length: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(N_VOCAB, (n_tokens // length, length), generator=generator).tolist()


@torch.no_grad()
def seconds_of(model: PreTrainedModel, length: int) -> dict[str, Callable[[], float]]:
    """For each mode, a function that runs one text of `length` tokens and returns the seconds."""
    text = texts_of(length, length)
    tokens_BT = torch.tensor(text)

    def plain() -> float:
        start = time.perf_counter()
        model.base_model(input_ids=tokens_BT, use_cache=False)
        return time.perf_counter() - start

    def watched(entropy: bool) -> float:
        with installed(model):
            subject = ProbedHuggingFaceModel("small", model, None)
            layouts = observe(subject, [text[0][:20]], rows=False, entropy=False).layouts
            seen = Watch(subject.layers, length, rows=False, entropy=entropy)
            seen.layouts = list(layouts)
            seen.begin(text, None, None)
            with watching(subject.normalisers, seen.add):
                start = time.perf_counter()
                run(subject, [(text[0], 0)])
                return time.perf_counter() - start

    return {"plain": plain, "norms": lambda: watched(False), "norms and entropy": lambda: watched(True)}


def time_all(n_layers: int, lengths: list[int], rounds: int) -> None:
    model = small(n_layers)
    for length in lengths:
        timed = seconds_of(model, length)
        taken: dict[str, list[float]] = {mode: [] for mode in MODES}
        for number in range(rounds + 1):
            with torch.no_grad():
                seconds = {mode: timed[mode]() for mode in MODES}
            if number:  # the first warms up
                for mode in MODES:
                    taken[mode].append(seconds[mode])
        for mode in MODES:
            ratios = [mine / plain for mine, plain in zip(taken[mode], taken["plain"], strict=True)]
            median, low, high = statistics.median(ratios), min(ratios), max(ratios)
            print(f"{length:>6,} tokens  {mode:<18} {statistics.median(taken[mode]):8.3f} s", end="  ")
            print(f"{median:.3f} times ({low:.3f}-{high:.3f})", flush=True)


# -- memory, in processes of their own


def peak_of(mode: str, n_layers: int, n_tokens: int, length: int) -> None:
    """Print the MiB that the process holds with the model, and its peak as n_tokens go through in one of the modes."""
    model = small(n_layers)
    text = texts_of(n_tokens, length)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = status("VmRSS")
    with torch.no_grad():
        if mode == "plain":
            for one in text:
                model.base_model(input_ids=torch.tensor([one]), use_cache=False)
        else:
            with installed(model):
                subject = ProbedHuggingFaceModel("small", model, None)
                observe(subject, text, rows=mode == "everything", entropy=mode != "norms", batch_tokens=length)
    print(json.dumps({"before": before, "after": status("VmHWM")}))


def status(field: str) -> float:
    """MiB that the kernel of the operating system counts for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def in_a_process(*args: str) -> dict[str, float]:
    exact = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}  # what is freed goes back at once, so a peak is one
    done = subprocess.run([sys.executable, __file__, *args], check=True, capture_output=True, text=True, env=exact)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_peaks(n_layers: int, length: int) -> None:
    plain = 0.0
    for mode in (*MODES, "everything"):
        sizes = ["--layers", str(n_layers), "--tokens", str(length), "--lengths", str(length)]
        peaks = in_a_process("--peak", mode, *sizes)
        above, plain = peaks["after"] - peaks["before"], plain or peaks["after"]
        ratio = peaks["after"] / plain
        print(f"peak, {length:,} tokens: {mode:<18} {peaks['after']:7.0f} MiB", end=", ")
        print(f"{above:6.0f} above the model, {ratio:.3f} times")


def print_growth() -> None:
    for n_tokens in (1_000, 10_000, 100_000):
        peaks = in_a_process("--peak", "everything", "--layers", "2", "--tokens", str(n_tokens), "--lengths", "500")
        above = peaks["after"] - peaks["before"]
        print(f"peak, {n_tokens:>7,} tokens in texts of 500, two layers: {above:6.0f} MiB above the model")


# -- a model that stays on disk


def write_billion(folder: Path) -> None:
    """A random Llama of 1.04 billion parameters in float32, 4.2 GB."""
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=32_000, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="10GB")


def probe_from(folder: Path, out: Path, *, offload: bool) -> None:
    """Probe the folder's model with 512 tokens and keep the arrays; print the peak and the time."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").exists():
        PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])), bos_token="a").save_pretrained(
            folder
        )
    start = time.perf_counter()
    source = Pretrained(
        path=str(folder), revision=None, dtype="auto", offload=offload, trust_remote_code=False, pickled=False
    )
    model, _ = source.load(torch.device("cpu"))
    loaded = time.perf_counter()
    text = torch.randint(32_000, (4, 128), generator=torch.Generator().manual_seed(0)).tolist()
    with installed(model):
        seen = observe(ProbedHuggingFaceModel("billion", model, None), text)
    save_file(seen.arrays(), out)
    print(json.dumps({"after": status("VmHWM"), "load": loaded - start, "probe": time.perf_counter() - loaded}))


def compare_offload(scratch: Path) -> None:
    from safetensors.torch import load_file

    folder = scratch / "billion"
    if not folder.exists():
        subprocess.run([sys.executable, __file__, "--write", str(folder)], check=True)
    arrays = {}
    for offload in (True, False):
        out = scratch / f"probe-{offload}.safetensors"
        found = in_a_process("--probe", str(folder), "--out", str(out), *(["--on-disk"] if offload else []))
        arrays[offload] = load_file(out)
        where = "on disk" if offload else "in memory"
        print(f"1.04 G parameters, weights {where}: peak {found['after']:,.0f} MiB, "
              f"load {found['load']:.1f} s, probe {found['probe']:.1f} s", flush=True)  # fmt: skip
    worst = max(float((arrays[True][name] - arrays[False][name]).nan_to_num().abs().max()) for name in arrays[True])
    print(f"largest difference between the two: {worst:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--lengths", default="1024,8192")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="leave the peaks out")
    parser.add_argument("--offload", metavar="SCRATCH", help="a folder with room for 4.2 GB")
    for inner in ("--peak", "--tokens", "--write", "--probe", "--out"):
        parser.add_argument(inner, help=argparse.SUPPRESS)
    parser.add_argument("--on-disk", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    lengths = [int(length) for length in args.lengths.split(",")]
    if args.peak:
        peak_of(args.peak, args.layers, int(args.tokens), lengths[0])
    elif args.write:
        write_billion(Path(args.write))
    elif args.probe:
        probe_from(Path(args.probe), Path(args.out), offload=args.on_disk)
    else:
        time_all(args.layers, lengths, args.rounds)
        if args.memory:
            for length in lengths:
                print_peaks(args.layers, length)
            print_growth()
        if args.offload:
            compare_offload(Path(args.offload))


if __name__ == "__main__":
    main()
