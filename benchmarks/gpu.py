"""All that waits for a GPU, by one command: tests, parity, compiled runs, attention to 128k, throughput, max retrieval.

    make gpu                           # one NVIDIA GPU, no network: under 25 minutes
    python benchmarks/gpu.py --only "attention" --to results
    python benchmarks/gpu.py --dry     # each step on tiny shapes on a CPU, to see that it would run

A step that fails or runs out of its time is noted, and the next one begins. `gpu.json` holds what each step measured
and the end of what it printed, `gpu.md` the table that is also printed; both are rewritten after each step. The exit
code is 1 where a step failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from roundround.distributed.device import describe_device
from roundround.verbs import VERBS

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 25 * 60  # seconds, of all steps
KEPT = 6000  # characters of what a step prints
ATTENTION = (
    "softmax;ssmax;sink;adaptive, beta detached;adaptive, full gradient;softmax + ALiBi;sigmoid;softpick;soft_cap;"
    "entmax15;sparsemax;softmax + T5 bias"
)
UP_TO_128K = "softmax;ssmax;sink;adaptive, beta detached;adaptive, full gradient;softmax + ALiBi"


@dataclass(frozen=True)
class Step:
    """A command, the seconds that it may take, and the file of numbers that it leaves, if any.

    gpu, dry: its arguments on a GPU, and on a CPU to see that it runs.
    says: what the line has that the table shows of what it prints; by default the last line.
    """

    name: str
    limit: int
    gpu: list[str]
    dry: list[str]
    numbers: str | None = None
    says: str = ""


def steps(folder: Path) -> list[Step]:
    """All of them, in the order in which a machine that goes away early has told most."""

    def script(name: str, to: str | None, gpu: str, dry: str, limit: int, title: str) -> Step:
        path = [str(ROOT / "benchmarks" / f"{name}.py")]
        out = [] if to is None else ["--json", str(folder / to)]
        return Step(title, limit, [*path, *gpu.split("|"), *out], [*path, *dry.split("|"), *out], to)

    def verb(name: str, gpu: list[str], dry: list[str], limit: int, title: str, says: str = "") -> Step:
        common = ["-m", "roundround", name, "logger=none", f"outputs={folder / 'runs'}"]
        return Step(title, limit, [*common, *gpu], [*common, *dry], says=says)

    def tests(what: str, gpu: str, dry: str, limit: int, title: str) -> Step:
        common = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", "--maxfail=25", "--tb=line"]
        if importlib.util.find_spec("xdist"):  # most of the time is the compiler's
            common += ["-n", str(min(14, max(1, (os.cpu_count() or 2) - 2)))]
        common.append(str(ROOT / "tests" / what))
        return Step(title, limit, [*common, "-m", "cuda", "-k", gpu], [*common, "-k", dry])

    few = "softmax and plain and cpu"
    tiny = ["trainer.max_steps=2", "model.n_layers=1", "model.d_model=32", "model.d_mlp=48", "tokenizer=bytes"]
    compiled = ["compile=true", "model=small", "batch_size=16", "trainer.max_steps=60", "trainer.precision=bf16-mixed"]
    of_each_form = "(softmax- or sigmoid or sink or adaptive_temperature- or entmax15)"
    found = [
        tests("gpu/test_gpu.py", f"bfloat16 and {of_each_form}", f"{few} and bfloat16", 190, "parity in bfloat16"),
        tests("gpu/test_gpu.py", f"float32 and {of_each_form}", f"{few} and float32", 120, "parity in float32"),
        tests("gpu/test_gpu.py", "float16 and not bfloat16 and (softmax- or sink)", f"{few} and float32", 80,
              "parity in float16"),
        tests("records/test_peak_memory.py", "memory", "gpus or forgotten", 40, "tests of memory"),
        script("attention", "attention.json",
               f"--device|cuda|--dtype|bfloat16|--lengths|4096|--rounds|5|--memory|0|--only|{ATTENTION}",
               "--lengths|64|--rounds|1|--memory|0|--only|sink;sigmoid", 200, "attention, 4k"),
        script("attention", "attention_long.json",
               f"--device|cuda|--dtype|bfloat16|--lengths|32768,131072|--rounds|5|--memory|0|--only|{UP_TO_128K}",
               "--lengths|128|--rounds|1|--memory|0|--only|sink", 140, "attention, 32k and 128k"),
        script("train_throughput", "throughput.json", "--compile|--sizes|30m|125m|--precisions|bf16-mixed|--rounds|5",
               "--sizes|tiny|--precisions|float32|--rounds|1|--skip-overhead|--only-ours", 220,
               "training, 30M and 125M"),
        verb("train", [*compiled, "pe=p_rope"], [*tiny, "compile=false"], 90, "a compiled run", "tokens/s"),
        verb("train", [*compiled, "pe=t5_bias", "softmax=sigmoid"], [*tiny, "pe=t5_bias", "softmax=sigmoid"], 90,
             "a compiled run of sigmoid and T5's bias", "tokens/s"),
        script("max_retrieval", "max_retrieval.json", "--device|cuda|--rounds|10", "--rounds|1|--steps|2", 40,
               "max retrieval, speed"),
        verb("max-retrieval", ["max_steps=10000", "device=cuda"],
             ["max_steps=3", "seeds=2", "test_sizes=[16]", "test_sets=8", "device=cpu"], 100,
             "max retrieval, ten seeds", "evaluated"),
    ]  # fmt: skip
    if "bench" in {entry.name for entry in VERBS}:
        found.append(verb("bench", [], ["--help"], 90, "bench"))
    assert sum(step.limit for step in found) <= LIMIT, "the machine is lent for so long"
    return found


def run(step: Step, folder: Path, *, dry: bool) -> dict[str, Any]:
    """What came of it: status, seconds, the end of what it printed, and its numbers."""
    begin = time.monotonic()
    environment = dict(os.environ)
    if dry:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if step.numbers is not None:
        (folder / step.numbers).unlink(missing_ok=True)
    with subprocess.Popen(
        [sys.executable, *(step.dry if dry else step.gpu)],
        cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=step.limit)
            status = "done" if process.returncode == 0 else f"failed: exit code {process.returncode}"
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stopped:
            os.killpg(process.pid, signal.SIGKILL)  # its compilers and workers too
            printed, _ = process.communicate()
            if isinstance(stopped, KeyboardInterrupt):
                raise
            status = f"failed: more than {step.limit} s"
    numbers = None
    if step.numbers is not None and (folder / step.numbers).exists():
        numbers = json.loads((folder / step.numbers).read_text(encoding="utf-8"))
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    says = next(
        (line for line in reversed(lines) if status == "done" and step.says in line), lines[-1] if lines else ""
    )
    return {
        "step": step.name, "status": status, "seconds": round(time.monotonic() - begin, 1), "says": says,
        "numbers": numbers, "printed": printed[-KEPT:],
    }  # fmt: skip


def table(machine: str, results: list[dict[str, Any]]) -> str:
    """Markdown: a line a step, then the numbers that any of them left."""
    lines = [machine, "", "| step | status | seconds | it says |", "|---|---|---|---|"]
    for result in results:
        says = re.sub(r"\s+", " ", result["says"].replace("|", "/"))[:120]
        cells = (result["step"], result["status"], f"{result['seconds']:.0f}", says)
        lines.append("| " + " | ".join(cells) + " |")
    for result in results:
        if not result["numbers"]:
            continue
        columns = list(dict.fromkeys(key for row in result["numbers"] for key in row))
        lines += ["", f"**{result['step']}**", "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        for row in result["numbers"]:
            cells = (f"{x:.4g}" if isinstance(x, float) else str(x) for x in (row.get(key, "") for key in columns))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU")
    parser.add_argument("--to", type=Path, default=ROOT / "outputs" / "gpu", help="folder of gpu.json and gpu.md")
    parser.add_argument("--only", default="", help="steps whose name begins so")
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        parser.error("there is no NVIDIA GPU; --dry (make gpu DRY=1) runs each step on tiny shapes on the CPU")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a step has a session of its own, and ends with this
    folder: Path = options.to.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [step for step in steps(folder) if step.name.startswith(options.only)]
    if not chosen:
        parser.error(f"no step begins with {options.only}; there are: {', '.join(s.name for s in steps(folder))}")
    device = torch.device("cpu" if options.dry else "cuda")
    machine = f"{describe_device(device)}, torch {torch.__version__}" + (", a dry run" if options.dry else "")
    results: list[dict[str, Any]] = []
    for step in chosen:
        print(f"{step.name} (at most {step.limit} s) ...", flush=True)
        results.append(run(step, folder, dry=options.dry))
        print(f"  {results[-1]['status']}, {results[-1]['seconds']:.0f} s", flush=True)
        whole = {"machine": machine, "dry": options.dry, "steps": results}
        (folder / "gpu.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        (folder / "gpu.md").write_text(table(machine, results), encoding="utf-8")
    print("\n" + table(machine, results) + f"\n{folder / 'gpu.json'}")
    return int(any(result["status"] != "done" for result in results))


if __name__ == "__main__":
    sys.exit(main())
