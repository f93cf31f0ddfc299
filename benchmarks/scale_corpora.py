"""Corpora that do not fit: how fast they are prepared and read, and how much memory that takes.

    python benchmarks/scale_corpora.py prepare FILE --megabytes 16   # 1 and 2 processes, and tokenizers' own batches
    python benchmarks/scale_corpora.py reader FILE               # a step at small from a cold cache
    python benchmarks/scale_corpora.py memory FILE --megabytes 1 100 5000  # peak memory

FILE is plain text. Rounds are interleaved, so that a machine whose speed drifts is fair to all; printed are medians.
`memory` writes a text of each size, and its tokens, into the temporary folder (three times the size in all).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from roundround.data.shards import Store, open_store
from roundround.data.text import TextFiles
from roundround.data.tokenizers import BPE, AlreadyOpen, Bytes

SEPARATOR = r"\n\s*\n"


def corpus_of(*paths: Path) -> TextFiles:
    return TextFiles(
        path=[str(path) for path in paths], column=["text"], split_regex=SEPARATOR, max_chars=None, held_out=0.1
    )


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def prepare(paths: list[Path], megabytes: int, rounds: int) -> None:
    """Each way tokenises the same documents with the same learnt tokenizer; reading and writing count for ours.

    Beside the clock stands the CPU time of all processes: where other work takes the cores, it alone is comparable.
    """
    from roundround.data.prepared import make  # not at the top: the processes that tokenise import this file

    os.environ["RAYON_NUM_THREADS"] = "2"
    ways: dict[str, list[tuple[float, float]]] = {"1 process": [], "2 processes": [], "tokenizers, 2 threads": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(paths[0], folder / "text.txt", megabytes * 10**6)
        corpus = corpus_of(folder / "text.txt", *paths[1:])
        vocabulary = BPE(vocab_size=4096, max_train_bytes=10**6).build(corpus.training_texts())
        texts, recipe = [text for _, text in corpus.documents()], AlreadyOpen(vocabulary)
        encode = vocabulary.tokenizer.encode_batch_fast
        for turn in range(rounds):
            for n, way in (1, "1 process"), (2, "2 processes"):
                to = Store(folder / f"{turn}-{n}")
                ways[way].append(costs_of(lambda to=to, n=n: make(corpus, recipe, to, folder, n_processes=n)))
            os.environ["TOKENIZERS_PARALLELISM"] = "true"
            ways["tokenizers, 2 threads"].append(costs_of(lambda: encode(texts, add_special_tokens=False)))
        n_tokens = sum(entry_tokens(folder / "0-1"))
    for way, costs in ways.items():
        clock, cpu = (statistics.median(values) for values in zip(*costs, strict=True))
        print(f"{way:24} {n_tokens / clock:12,.0f} tokens/s, {cpu:.1f} s of CPU time for {n_tokens:,} tokens")
    one, two, own = (statistics.median(cpu for _, cpu in costs) for costs in ways.values())
    print(
        f"by CPU time, two free cores: 2 processes against 1: {2 * one / two:.2f}, against tokenizers: {own / two:.2f}"
    )


def costs_of(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time of this process and those that it started."""
    before, began = cpu_seconds(), time.perf_counter()
    work()
    return time.perf_counter() - began, cpu_seconds() - before


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def entry_tokens(folder: Path) -> list[int]:
    from roundround.data.tokenising import SPLITS, read_entry

    meta = read_entry(Store(folder)).meta
    return [meta[split]["tokens"] for split in SPLITS]


def reader(path: Path, n_steps: int) -> None:
    """Batches of a corpus in memory:// through an empty cache: the first, with its fetch, and the others."""
    from train_throughput import BATCH, read

    from roundround.data.batches import Shares, TrainingWindows
    from roundround.data.prepared import Prepared, make, opened

    model = read("model", "small")
    with tempfile.TemporaryDirectory() as name:
        make(corpus_of(path), Bytes(), open_store("memory://benchmark", "to"), Path(name))
        data = opened(Prepared(path="memory://benchmark", cache_gb=1).entry, Path(name))
        plan = Shares(batch_size=BATCH["small"], n_steps=n_steps)
        windows = TrainingWindows(data.train, plan, seed=0, length=int(model.train_length))
        seconds = [seconds_of(lambda n=n: windows[n]) for n in range(n_steps)]
    print(f"first batch {1e3 * seconds[0]:.1f} ms, the others {1e3 * statistics.median(seconds[1:]):.3f} ms")
    print(f"mean over {n_steps} steps {1e3 * statistics.mean(seconds):.3f} ms a step")


def memory(path: Path, megabytes: list[int]) -> None:
    for size in megabytes:
        done = subprocess.run(
            [sys.executable, __file__, "one", str(path), "--megabytes", str(size)], capture_output=True, text=True
        )
        print(done.stdout.strip() or done.stderr[-500:], flush=True)


def one(path: Path, megabytes: int) -> None:
    """Write a text of this size, prepare it, read 300 batches; the most memory that took."""
    from roundround.data.batches import Shares, TrainingWindows
    from roundround.data.prepared import make, opened

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(path, folder / "text.txt", megabytes * 10**6)
        began = time.perf_counter()
        entry = make(corpus_of(folder / "text.txt"), Bytes(), Store(folder / "mine"), folder, n_processes=1)
        seconds, prepared = time.perf_counter() - began, peak()
        (folder / "text.txt").unlink()
        data = opened(entry, folder)
        windows = TrainingWindows(data.train, Shares(batch_size=8, n_steps=300), seed=0, length=128)
        for n in range(300):
            _ = windows[n]
        print(
            f"{megabytes:,} MB: {len(data.train):,} training tokens in {len(entry.meta['shards'])} shards, prepared in "
            f"{seconds:.0f} s, peak {prepared:.0f} MiB; after 300 batches peak {peak():.0f} MiB"
        )


def write_text(source: Path, to: Path, n_bytes: int) -> None:
    """Real text again and again, each time with a number in every document, so that no two are the same."""
    documents, written, turn = source.read_text(encoding="utf-8").split("\n\n"), 0, 0
    with to.open("w", encoding="utf-8") as file:
        while written < n_bytes:
            block = "\n\n".join(f"{turn} {document}" for document in documents)[: n_bytes - written] + "\n\n"
            written += file.write(block)
            turn += 1


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "reader", "memory", "one"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    if args.what == "prepare":
        prepare(args.files, args.megabytes[0], args.rounds)
    elif args.what == "reader":
        reader(args.files[0], args.steps)
    elif args.what == "memory":
        memory(args.files[0], args.megabytes)
    else:
        one(args.files[0], args.megabytes[0])


if __name__ == "__main__":
    main()
