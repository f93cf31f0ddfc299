"""Changes the training recipe in one place at a time, in a copy, and looks whether `test_recipe.py` sees it.

    make mutants

Prints a line a mutant; exit code 1 where one survives. It takes about three minutes, so `make test` leaves it out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST = "tests/training/test_recipe.py"
COPIED = ("roundround", "conf", "tests", "pyproject.toml")  # all tests: conftest.py takes plugins from their folders
MODULE, OPTIM, SCHEDULES, TEXT = (
    f"roundround/training/{name}.py" for name in ("module", "optim", "schedules", "material")
)
TRAINER, ADAMW, COSINE, WSD = (
    f"conf/{name}.yaml" for name in ("trainer/default", "optim/adamw", "schedule/cosine", "schedule/wsd")
)

MUTANTS = [  # what it is, the file, what stands there, what takes its place
    ("no clipping", MODULE, "if limit is None:", "if True:"),
    ("no clipping by default", TRAINER, "gradient_clip_val: 1.0", "gradient_clip_val: null"),
    ("clipping by value", MODULE, 'gradient_clip_algorithm == "value"', "True"),
    ("twice the clipping limit", TRAINER, "gradient_clip_val: 1.0", "gradient_clip_val: 2.0"),
    ("everything decays", OPTIM, "if self.decay_biases:", "if True:"),
    ("nothing decays", OPTIM, "if p.ndim < 2 or name", "if True or name"),
    ("gains decay", OPTIM, "p.ndim < 2 or name", "name"),
    ("decay inside the gradient", OPTIM, "torch.optim.AdamW(", "torch.optim.Adam("),
    ("decay of 0.01", ADAMW, "weight_decay: 0.1", "weight_decay: 0.01"),
    ("beta1 of 0.8", ADAMW, "[0.9, 0.95]", "[0.8, 0.95]"),
    ("beta2 of 0.999", ADAMW, "[0.9, 0.95]", "[0.9, 0.999]"),
    ("eps of 1e-5", ADAMW, "eps: 1.0e-8", "eps: 1.0e-5"),
    ("no warm-up", SCHEDULES, "if step < self.warmup_steps:", "if False:"),
    ("warm-up one step late", SCHEDULES, "return (step + 1) /", "return step /"),
    ("linear for cosine", SCHEDULES, "(1 + math.cos(math.pi * progress)) / 2", "(1 - progress)"),
    ("cosine down to 0", COSINE, "final_fraction: 0.1", "final_fraction: 0.0"),
    ("the decay begins late", SCHEDULES, "(progress - (1 - self.decay_fraction))", "(progress - 0.9)"),
    ("the decay ends above 0", WSD, "final_fraction: 0.0", "final_fraction: 0.1"),
    ("a sum for the mean", TEXT, "return loss_BT.mean()", "return loss_BT.sum()"),
]


def survives(name: str, file: str, before: str, after: str, home: Path) -> bool:
    """Whether the tests pass with this change. ValueError where the text to change does not stand there once."""
    for path in COPIED:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / path
        shutil.copytree(source, home / path) if source.is_dir() else shutil.copy(source, home / path)
    text = (home / file).read_text(encoding="utf-8")
    if text.count(before) != 1:
        raise ValueError(f"{name}: {before!r} stands {text.count(before)} times in {file}; bring the mutant up to date")
    (home / file).write_text(text.replace(before, after), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", TEST],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{name}: the tests did not run:\n{done.stdout}{done.stderr}")
    seen = re.search(r"^FAILED \S+::(\S+)", done.stdout, re.MULTILINE)
    print(f"{name:28} {'killed by ' + seen[1] if seen else 'all tests pass'}", flush=True)
    return seen is None


def main() -> int:
    with tempfile.TemporaryDirectory() as home:
        if not survives("nothing changed", MODULE, "import torch\n", "import torch\n", home=Path(home, "sound")):
            raise RuntimeError("the tests fail without any change")
        alive = [m[0] for i, m in enumerate(MUTANTS) if survives(*m, home=Path(home, str(i)))]
    print(f"{len(MUTANTS) - len(alive)} of {len(MUTANTS)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
