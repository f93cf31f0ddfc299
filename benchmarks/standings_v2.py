"""Fills the stored values of version 2 of the standard set.

    python benchmarks/standings_v2.py measure FOLDER    # hours; seeds that stored variants lack; resumable
    python benchmarks/standings_v2.py tuned FOLDER      # hours; ten variants at the second learning rate
    python benchmarks/standings_v2.py merge FOLDER      # seconds; adds both to roundround/standings/v2
    python benchmarks/standings_v2.py larger FOLDER     # hours; what docs/results/larger_size/small.csv lacks

Several processes can measure with one FOLDER, which keeps the runs. Costs are not among what is measured: they need a
quiet machine. Values with a commit older than version 2 were carried over from version 1, which has the same parts but
`induction` (1,500 steps in place of 600) and `flip_flop`, which left.
"""

from __future__ import annotations

import csv
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
    add,
    read_set,
    read_standing,
    read_yaml,
    stored,
)
from roundround.config.options import options_of
from roundround.support.files import write_atomically

SET, SIZE, SEEDS = "v2", "default", range(1, 4)
MORE_SEEDS = range(1, 13)  # of RoPE, and of two like it that say whether seeds 4 to 12 move all alike
WITH_MORE_SEEDS = ("rope", "rope + sink", "rope_500k")
AT_BOTH_RATES = [
    "pe=rope", "pe=nope", "pe=alibi", "pe=p_rope", "pe=rope_500k", "pe=partial_rope_25", "pe=t5_bias", "pe=fox",
    "softmax=sink", "softmax=ssmax",
]  # fmt: skip
IN_ALL_PARTS = ("rope", "nope", "alibi", "p_rope", "rope + ssmax", "fox")
LARGER = {  # what is measured at `size=small`
    "language": (*IN_ALL_PARTS, "nape", "p_rope_25", "sinusoidal"),
    "needle": IN_ALL_PARTS,
    "copying": IN_ALL_PARTS,
}
LARGER_VALUES = Path(__file__).parents[1] / "docs" / "results" / "larger_size" / "small.csv"


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


def measure(folder: Path) -> None:
    parts = [part.name for part in read_set(SET, SIZE, None).parts if part.name != "cost"]
    wanted = [(one, MORE_SEEDS if one.name in WITH_MORE_SEEDS else SEEDS) for one in stored(SET, SIZE)]
    jobs = [(seed, one) for one, seeds in wanted for seed in seeds if seed not in one.made]
    for seed, one in sorted(jobs, key=lambda job: (job[1].name not in WITH_MORE_SEEDS, job[0])):
        words = [f"{key}={value}" for key, value in one.variant.items()]
        run_parts(parts, folder, *words, f"seed={seed}", "seeds=1", f"baseline={','.join(words)}", "device=cpu")


def tuned(folder: Path) -> None:
    for seed in SEEDS:
        for variant in AT_BOTH_RATES:
            words = (variant, f"baseline={variant}", "tune=true")
            run(folder, *words, f"seed={seed}", "seeds=1", "device=cpu")


def larger(folder: Path) -> None:
    """Measures seed 1 of all and seed 2 of those that are in every part; then adds what FOLDER has to the values."""
    with LARGER_VALUES.open() as file:
        values = {(row["column"], row["variant"], row["seed"]): row["value"] for row in csv.DictReader(file)}
    columns = [column for column in read_set(SET, SIZE, None).columns if column.part in LARGER and column.margin]
    wanted = [(part, name, seed) for seed in (1, 2) for part, names in LARGER.items() for name in names]
    for part, name, seed in wanted:
        done = all((column.name, name, str(seed)) in values for column in columns if column.part == part)
        if not done and (seed == 1 or name in IN_ALL_PARTS):
            (one,) = [one for one in stored(SET, SIZE) if one.name == name]
            words = [f"{key}={value}" for key, value in one.variant.items()]
            own = (f"seed={seed}", "seeds=1", f"baseline={','.join(words)}", "size=small", "device=cpu")
            run_parts([part], folder, *words, *own)
    for one in [read_standing(path) for path in sorted(folder.rglob("values/*.json"))]:
        for column in columns if one.size == "small" else ():
            values |= {(column.name, one.name, str(seed)): repr(value) for seed, value in one.values(column).items()}
    lines = [",".join((*place, value)) for place, value in sorted(values.items())]
    write_atomically(LARGER_VALUES, "\n".join(["column,variant,seed,value", *lines, ""]))


def merge(folder: Path) -> None:
    measured = [read_standing(path) for path in sorted(folder.rglob("values/*.json"))]
    for made in (made for one in measured for made in one.made.values()):
        made["command"] = made["command"].split(" set=")[0].split(" outputs=")[0]
    default, second = ({one.name: one for one in stored(SET, size)} for size in (SIZE, TUNED))
    for more in measured:
        more.numbers = {key: some for key, some in more.numbers.items() if key[0] != "cost"}
        if RATE in more.variant:
            add(second, more)
        elif more.size == SIZE and more.name in default:
            add(default, more)
    for size, found in ((SIZE, default), (TUNED, second)):
        for one in found.values():
            write_atomically(STANDINGS / SET / size / one.file_name, one.as_json())


if __name__ == "__main__":
    {"measure": measure, "tuned": tuned, "merge": merge, "larger": larger}[sys.argv[1]](Path(sys.argv[2]).resolve())
