"""Corpora that do not fit: how fast they are prepared and read, and how much memory that takes.

    python benchmarks/scale_corpora.py prepare FILE ...          # tokens a second: 1 and 2 processes, and tokenizers' own batches
    python benchmarks/scale_corpora.py reader FILE               # waiting for data from a cold cache, beside a step at small
    python benchmarks/scale_corpora.py memory FILE --megabytes 1 100 5000   # peak memory of preparing and reading

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

from roundround.data.batches import Shares, TrainingWindows
from roundround.data.places import Folder, place_of
from roundround.data.prepared import Prepared
from roundround.data.text import TextFiles
from roundround.data.token_data import opened
from roundround.data.tokenizers import BPE, AlreadyOpen, Bytes
from roundround.data.tokens import make

SEPARATOR = r"\n\s*\n"


def corpus_of(*paths: Path) -> TextFiles:
    return TextFiles(
        path=[str(path) for path in paths], column=["text"], split_regex=SEPARATOR, max_chars=None, held_out=0.1
    )


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def prepare(paths: list[Path], rounds: int) -> None:
    """Each way tokenises the same documents with the same learnt tokenizer; reading and writing count for ours."""
    corpus = corpus_of(*paths)
    vocabulary = BPE(vocab_size=4096, max_train_bytes=10**6).build(corpus.training_texts())
    texts = [text for _, text in corpus.documents()]
    recipe = AlreadyOpen(vocabulary)
    ways: dict[str, list[float]] = {"1 process": [], "2 processes": [], "tokenizers, 2 threads": []}
    os.environ["RAYON_NUM_THREADS"] = "2"
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for n, way in (1, "1 process"), (2, "2 processes"):
                made = lambda n=n: make(corpus, recipe, Folder(folder / f"{n}"), folder, n_processes=n)  # noqa: E731
                ways[way].append(seconds_of(made))
            n_tokens = sum(entry_tokens(folder / "1"))
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        encode = vocabulary.tokenizer.encode_batch_fast
        ways["tokenizers, 2 threads"].append(seconds_of(lambda: encode(texts, add_special_tokens=False)))
    for way, seconds in ways.items():
        print(f"{way:24} {n_tokens / statistics.median(seconds):12,.0f} tokens/s")
    gain = statistics.median(one / two for one, two in zip(ways["1 process"], ways["2 processes"], strict=True))
    own = zip(ways["tokenizers, 2 threads"], ways["2 processes"], strict=True)
    print(f"two processes against one: {gain:.2f}; against tokenizers' own: {statistics.median(a / b for a, b in own):.2f}")


def entry_tokens(folder: Path) -> list[int]:
    from roundround.data.entry import SPLITS, read_entry

    meta = read_entry(Folder(folder)).meta
    return [meta[split]["tokens"] for split in SPLITS]


def reader(path: Path, n_steps: int) -> None:
    """Batches of a corpus in memory:// through an empty cache: the first, with its fetch, and the others."""
    from train_throughput import BATCH, read

    model = read("model", "small")
    with tempfile.TemporaryDirectory() as name:
        make(corpus_of(path), Bytes(), place_of("memory://benchmark", "to"), Path(name))
        data = opened(Prepared(path="memory://benchmark", cache_gb=1).entry(), Path(name))
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(path, folder / "text.txt", megabytes * 10**6)
        began = time.perf_counter()
        entry = make(corpus_of(folder / "text.txt"), Bytes(), Folder(folder / "mine"), folder, n_processes=1)
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
        prepare(args.files, args.rounds)
    elif args.what == "reader":
        reader(args.files[0], args.steps)
    elif args.what == "memory":
        memory(args.files[0], args.megabytes)
    else:
        one(args.files[0], args.megabytes[0])


if __name__ == "__main__":
    main()
