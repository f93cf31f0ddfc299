"""Makes the stored values of version 2 of the standard set from those of version 1 and from what is measured anew.

    python benchmarks/standings_v2.py measure FOLDER    # hours; the part `induction` for every variant; resumable
    python benchmarks/standings_v2.py merge FOLDER      # seconds; writes roundround/standings/v2/default
    python benchmarks/standings_v2.py larger FOLDER     # half an hour each; docs/results/larger_size.md

The versions differ in the part `induction` (1,500 steps in place of 600) and in `flip_flop`, which left. A part that is
the same in both is trained and measured by the same words, so its values hold for both. FOLDER keeps the runs. More
seeds, such as RoPE's 4 to 12, are measured by `roundround bench set=v2 pe=rope seed=4 seeds=9`; their files go into
FOLDER too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from roundround.analysis.standings import STANDINGS, Standing, add, read_set, read_standing, read_yaml, stored
from roundround.config.options import options_of
from roundround.support.files import write_atomically

PART, OLD, NEW, SIZE = "induction", "v1", "v2", "default"
LARGER = [
    "pe=rope",
    "pe=alibi",
    "pe=nope",
    "pe=p_rope",
    "softmax=ssmax",
    "pe=fox",
    "pe=nape",
    "pe=p_rope_25",
    "pe=sinusoidal",
]


def run_part(part: str, folder: Path, *words: str) -> None:
    """`roundround bench` with a set of one part alone, trained as in the new version."""
    config, found = folder / "conf", options_of("bench", None)
    whole = read_yaml(found[NEW]) | {"parts": [part]}
    (config / "bench" / part).mkdir(parents=True, exist_ok=True)
    keep = {key: whole[key] for key in ("parts", "train", "rate", "sizes")}
    (config / "bench" / f"{part}.yaml").write_text(json.dumps(keep))
    (config / "bench" / part / f"{part}.yaml").write_text(found[f"{NEW}/{part}"].read_text())
    more = [f"set={part}", "--config-dir", str(config), f"outputs={folder / 'outputs'}"]
    subprocess.run([sys.executable, "-m", "roundround", "bench", *words, *more], check=True)


def measure(folder: Path) -> None:
    like = read_yaml(options_of("bench", None)[NEW])["like"]
    standings = sorted(stored(OLD, SIZE), key=lambda one: (one.name != "rope", one.name not in like, -len(one.made)))
    for one in standings:
        run_part(PART, folder, *(f"{key}={value}" for key, value in one.variant.items()), f"seeds={len(one.made)}")


def larger(folder: Path) -> None:
    for variant in LARGER:
        run_part("language", folder, variant, "size=small", f"baseline={variant}")


def merge(folder: Path) -> None:
    new, old = read_set(NEW, SIZE, None), read_set(OLD, SIZE, None)
    parts = {part.name: part for part in new.parts}
    same = {part.name for part in old.parts if part.name in parts and part.train == parts[part.name].train}
    assert same | {PART} == {*parts}
    measured: dict[str, Standing] = {}
    whole: dict[str, Standing] = {}
    for path in sorted(folder.rglob("values/*.json")):
        one = read_standing(path)
        add(whole if one.hash == new.hash else measured, one)
    for one in stored(OLD, SIZE):
        again = measured.get(one.name) or Standing(NEW, SIZE, new.hash, one.variant, one.rate)
        if missing := one.made.keys() - again.made.keys():
            print(f"{one.name}: {PART} is not measured yet for seed {', '.join(map(str, sorted(missing)))}")
        found = Standing(NEW, SIZE, new.hash, one.variant, one.rate)
        found.numbers = {key: some for key, some in one.numbers.items() if key[0] in same}
        found.numbers |= {key: some for key, some in again.numbers.items() if key[0] == PART}
        found.remarks = {part: some for part, some in (one.remarks | again.remarks).items() if part in parts}
        if missing:
            found.remarks[PART] = [f"seed {seed}: not measured yet" for seed in sorted(missing)]
        for seed, made in one.made.items():
            both = dict.fromkeys(str(own["commit"]) for own in (made, again.made.get(seed, made)))
            found.made[seed] = made | {"commit": " and ".join(both), "command": made["command"].split(" outputs=")[0]}
        into = {found.name: found}
        if found.name in whole:
            more = whole[found.name]  # its costs are RoPE's over RoPE's
            more.numbers = {key: some for key, some in more.numbers.items() if key[0] != "cost"}
            more.remarks.pop("cost", None)
            add(into, more)
        place = STANDINGS / NEW / SIZE
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / found.file_name, into[found.name].as_json())


if __name__ == "__main__":
    {"measure": measure, "merge": merge, "larger": larger}[sys.argv[1]](Path(sys.argv[2]).resolve())
