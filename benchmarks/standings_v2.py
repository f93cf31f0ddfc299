"""Fills the stored values of version 2 of the standard set.

    python benchmarks/standings_v2.py measure FOLDER    # hours; what stored variants lack; resumable
    python benchmarks/standings_v2.py tuned FOLDER      # hours; ten variants at the second learning rate
    python benchmarks/standings_v2.py merge FOLDER      # seconds; adds both to roundround/standings/v2
    python benchmarks/standings_v2.py larger FOLDER     # half an hour each; docs/results/larger_size.md

Several processes can measure with one FOLDER, which keeps the runs. Costs are not among what is measured: they need a
quiet machine. Values with a commit older than version 2 were carried over from version 1, which has the same parts but
`induction` (1,500 steps in place of 600) and `flip_flop`, which left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import sys
from pathlib import Path

from roundround.analysis.standings import (
    RATE,
    STANDINGS,
    TUNED,
    Standing,
    add,
    read_set,
    read_standing,
    read_yaml,
    stored,
)
from roundround.config.options import options_of
from roundround.support.files import write_atomically

SET, SIZE, SEEDS, NOT_YET = "v2", "default", (1, 2, 3), "not measured yet"
AT_BOTH_RATES = [
    "pe=rope", "pe=nope", "pe=alibi", "pe=p_rope", "pe=rope_500k", "pe=partial_rope_25", "pe=t5_bias", "pe=fox",
    "softmax=sink", "softmax=ssmax",
]  # fmt: skip
LARGER = [
    "pe=rope", "pe=alibi", "pe=nope", "pe=p_rope", "softmax=ssmax", "pe=fox", "pe=nape", "pe=p_rope_25",
    "pe=sinusoidal",
]  # fmt: skip


def run_parts(parts: list[str], folder: Path, *words: str) -> None:
    """`roundround bench` with a set of these parts alone."""
    found, name = options_of("bench", None), "_".join([SET, *parts])
    (own := folder / "conf" / "bench" / name).mkdir(parents=True, exist_ok=True)
    for part in parts:
        (own / f"{part}.yaml").write_text(found[f"{SET}/{part}"].read_text())
    keep = read_yaml(found[SET])
    write_atomically(
        own.with_suffix(".yaml"),
        json.dumps({key: keep[key] for key in ("train", "rate", "sizes")} | {"parts": parts}),
    )
    run(folder, *words, f"set={name}", "--config-dir", str(folder / "conf"))


def run(folder: Path, *words: str) -> None:
    """`roundround bench` with these words; nothing if another process is at it."""
    with (folder / f"{hashlib.sha256(' '.join(words).encode()).hexdigest()[:16]}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        command = [sys.executable, "-m", "roundround", "bench", *words, f"outputs={folder / 'outputs'}"]
        subprocess.run(command, check=True)


def lacking(one: Standing, parts: list[str]) -> dict[int, list[str]]:
    """The parts without a value, by seed."""
    remarks = {(part, line) for part, lines in one.remarks.items() for line in lines}
    return {
        seed: found
        for seed in SEEDS
        if (found := [p for p in parts if seed not in one.made or (p, f"seed {seed}: {NOT_YET}") in remarks])
    }


def measure(folder: Path) -> None:
    parts = [part.name for part in read_set(SET, SIZE, None).parts if part.name != "cost"]
    jobs = [(len(own), seed, own, one) for one in stored(SET, SIZE) for seed, own in lacking(one, parts).items()]
    for _, seed, own, one in sorted(jobs, key=lambda job: job[:2]):
        words = [f"{key}={value}" for key, value in one.variant.items()]
        run_parts(own, folder, *words, f"seed={seed}", "seeds=1", f"baseline={','.join(words)}", "device=cpu")


def tuned(folder: Path) -> None:
    for seed in SEEDS:
        for variant in AT_BOTH_RATES:
            words = (variant, f"baseline={variant}", "tune=true")
            run(folder, *words, f"seed={seed}", "seeds=1", "device=cpu")


def larger(folder: Path) -> None:
    for variant in LARGER:
        run_parts(["language"], folder, variant, "size=small", "seeds=1", f"baseline={variant}")


def merge(folder: Path) -> None:
    measured = [read_standing(path) for path in sorted(folder.rglob("values/*.json"))]
    for made in (made for one in measured for made in one.made.values()):
        made["command"] = made["command"].split(" set=")[0].split(" outputs=")[0]
    for one in stored(SET, SIZE):
        for more in measured:
            if (more.variant, more.size, more.rate) == (one.variant, SIZE, one.rate):
                fill(one, more)
        write_atomically(STANDINGS / SET / SIZE / one.file_name, one.as_json())
    found = {one.name: one for one in stored(SET, TUNED)}
    for more in measured:
        if RATE in more.variant:
            more.numbers = {key: some for key, some in more.numbers.items() if key[0] != "cost"}
            add(found, more)
    for one in found.values():
        (STANDINGS / SET / TUNED).mkdir(exist_ok=True)
        write_atomically(STANDINGS / SET / TUNED / one.file_name, one.as_json())


def fill(one: Standing, more: Standing) -> None:
    """Add the parts that one lacks."""
    parts = {part for part, _ in more.numbers} | {*more.remarks}
    for seed, made in more.made.items():
        own = set(lacking(one, [*parts]).get(seed, ()))
        if not own:
            continue
        for name, values in more.numbers.items():
            if name[0] in own and seed in values:
                one.numbers.setdefault(name, {})[seed] = values[seed]
        for part in own:
            lines = [line for line in one.remarks.pop(part, ()) if line != f"seed {seed}: {NOT_YET}"]
            lines += [line for line in more.remarks.get(part, ()) if line.startswith(f"seed {seed}:")]
            one.remarks |= {part: lines} if lines else {}
        old = one.made.get(seed, made)
        commits = dict.fromkeys(f"{old['commit']} and {made['commit']}".split(" and "))
        one.made[seed] = old | {"commit": " and ".join(commits)}


if __name__ == "__main__":
    {"measure": measure, "tuned": tuned, "merge": merge, "larger": larger}[sys.argv[1]](Path(sys.argv[2]).resolve())
