"""What answers a case: an engine that is asked, or a file of answers.

Letters: T tokens, V vocabulary.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundround.engines.cases import PRECISIONS, Case, hash_of, rms
from roundround.support.errors import UserError, one_line

Answers = Tensor | Sequence[float | None] | str


@dataclass(kw_only=True)
class Engine(ABC):
    """What answers a case. precision: that of its weights and activations: float32, float16, bfloat16 or int8."""

    precision: str = "float32"

    @abstractmethod
    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        """ln p of each token after the first, with or without a None in front; or why this checkpoint is not there.

        checkpoint: a folder of transformers. folder: an empty one, for what a converter writes. A UserError ends the
        command; any other error is a refusal by the engine.
        """

    def checkpoints(self, case: Case) -> Mapping[str, Path]:
        """The checkpoints to ask about: {form of config.json: folder}; the form is "" where it is unknown."""
        return {path.name: path for path in case.forms}


def package(name: str, install: str) -> Any:
    """An optional package. Raises UserError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"this engine needs {name} ({one_line(error)}): pip install {install}") from error


def convert(words: Sequence[str | Path]) -> None:
    """Run a converter of checkpoints with this Python. Raises RuntimeError with its last line if it fails."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])


def read_answers(folder: Path, case: Case) -> tuple[Tensor, str] | None:
    """The answers in CASE.json, [T - 1], and the precision that the file states, else float32; None without a file.

    The file is a list of ln p, or {"log_probs": [...], "sha256": hash of the prompt, "precision": "float16"}. A null
    for the first token may stand in front, as in vLLM's prompt_logprobs. Raises UserError if it is anything else.
    """
    file = folder / f"{case.folder.name}.json"
    if not file.exists():
        return None
    try:
        said = json.loads(file.read_text(encoding="utf-8"), parse_int=float)
        said = said if isinstance(said, dict) else {"log_probs": said}
        if wrong := [key for key in said if key not in ("log_probs", "sha256", "precision")]:
            raise ValueError(f"it has the unknown key {wrong[0]}; it may have log_probs, sha256 and precision")
        precision = said.get("precision", "float32")
        if precision not in ("float32", *PRECISIONS):
            raise ValueError(f"precision is {precision}; it must be float32, {', '.join(PRECISIONS)}")
        if said.get("sha256", hash_of(case.ids)) != hash_of(case.ids):
            raise ValueError(f"its sha256 is of another prompt; answer the ids of {case.folder / 'prompt.json'}")
        return checked(said.get("log_probs"), case), precision
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: {one_line(error)}") from error


def checked(values: Any, case: Case) -> Tensor:
    """Answers [T - 1], without a null for the first token. Raises ValueError if they are no natural logarithms."""
    if not isinstance(values, list):
        raise ValueError("log_probs must be a list of numbers, one for each token after the first")
    values, n = values[values[:1] == [None] :], len(case.ids) - 1
    answers = torch.tensor([one if isinstance(one, int | float) else math.nan for one in values], dtype=torch.float32)
    wrong = ""
    if len(values) != n:
        wrong = f"it has {len(values):,} numbers; the prompt has {n:,} tokens after the first"
    elif not answers.isfinite().all():
        wrong = f"it has no finite number for token {int((~answers.isfinite()).nonzero()[0]) + 1}"
    elif (answers > 1e-3).any():
        what = "probabilities" if ((answers >= 0) & (answers <= 1)).all() else "numbers above 0"
        wrong = f"it holds {what}; it must hold the natural logarithm of each probability"
    elif bases := [b for b in (2, 10) if rms(answers * math.log(b) - case.right) < 0.05 * rms(answers - case.right)]:
        wrong = f"it holds logarithms of base {bases[0]}; it must hold natural logarithms"
    if wrong:
        raise ValueError(wrong)
    return answers
