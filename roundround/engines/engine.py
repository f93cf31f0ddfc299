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
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from roundround.engines.cases import PRECISIONS, Case, hash_of, rms
from roundround.support.errors import UserError, one_line

Answers = Tensor | Sequence[float]


@dataclass(kw_only=True)
class Engine(ABC):
    """What answers a case. precision: that of its weights and activations: float32, float16, bfloat16 or int8."""

    precision: str = "float32"

    @abstractmethod
    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        """ln p of each token after the first; nothing if the engine does not have this checkpoint.

        checkpoint: a folder of transformers. folder: an empty one, for what a converter writes. A UserError ends the
        command; any other error is a refusal by the engine.
        """


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


def read_answers(file: Path, case: Case) -> tuple[Tensor, str]:
    """The answers in CASE.json, [T - 1], and the precision that the file states, else float32.

    The file is a list of ln p, or {"log_probs": [...], "sha256": hash of the prompt, "precision": "float16"}. A null
    for the first token may stand in front, as in vLLM's prompt_logprobs. Raises UserError if it is anything else.
    """
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {one_line(error)}") from error
    said = said if isinstance(said, dict) else {"log_probs": said}
    precision = said.get("precision", "float32")
    if precision not in ("float32", *PRECISIONS):
        raise UserError(f"{file}: precision is {precision}; it must be float32, {', '.join(PRECISIONS)}")
    if said.get("sha256", hash_of(case.ids)) != hash_of(case.ids):
        raise UserError(f"{file}: its sha256 is of another prompt; answer the ids of {case.folder / 'prompt.json'}")
    return checked(said.get("log_probs"), case, str(file)), precision


def checked(values: Any, case: Case, name: str) -> Tensor:
    """Answers [T - 1], without a null for the first token. Raises UserError if they are no natural logarithms of it."""
    values, n = values[1:] if isinstance(values, list) and values[:1] == [None] else values, len(case.ids) - 1
    if not isinstance(values, list) or not all(isinstance(one, int | float) for one in values):
        raise UserError(f"{name}: log_probs must be a list of numbers, one for each token after the first")
    answers, wrong = torch.tensor(values, dtype=torch.float32), ""
    if len(values) != n:
        wrong = f"has {len(values):,} numbers; the prompt has {n:,} tokens after the first"
    elif not answers.isfinite().all():
        wrong = f"has no finite number for token {int((~answers.isfinite()).nonzero()[0]) + 1}"
    elif (answers > 1e-3).any():
        what = "probabilities" if ((answers >= 0) & (answers <= 1)).all() else "numbers above 0"
        wrong = f"holds {what}; it must hold the natural logarithm of each probability"
    elif rms(answers * math.log(2) - case.right) < 0.05 * rms(answers - case.right):
        wrong = "holds logarithms of base 2; it must hold natural logarithms"
    if wrong:
        raise UserError(f"{name} {wrong}")
    return answers
