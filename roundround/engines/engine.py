"""Engines that answer a case: one class each, with a yaml in conf/engine. A class of your own is one more engine.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from roundround.engines.cases import PRECISIONS, Case, log_probs, rms
from roundround.support.errors import UserError, one_line


class Engine(ABC):
    """What answers a case. precision: that of its weights and activations: float32, float16, bfloat16 or int8."""

    precision: str = "float32"

    @abstractmethod
    def log_probs(self, checkpoint: Path, ids: Sequence[int]) -> Sequence[float]:
        """ln p of each token after the first. Whatever it raises is a refusal by the engine."""


def package(name: str, install: str) -> Any:
    """An optional package. Raises UserError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"this engine needs {name}, which is not installed: pip install {install}") from error


@final
class Transformers(Engine):
    """transformers itself. dtype: of weights and activations. attention: sdpa, eager or another name it knows."""

    def __init__(self, *, dtype: str, attention: str) -> None:
        if dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"dtype is {dtype}; it must be float32, float16 or bfloat16")
        self.precision, self.attention = dtype, attention

    def log_probs(self, checkpoint: Path, ids: Sequence[int]) -> Sequence[float]:
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, self.precision)
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=dtype, attn_implementation=self.attention, local_files_only=True, use_safetensors=True
        )
        found: list[float] = log_probs(model.eval(), list(ids)).tolist()
        return found


@final
class MlxLm(Engine):
    """Apple's mlx-lm, on a CPU too (`pip install 'mlx[cpu]' mlx-lm`); it reads a checkpoint without conversion."""

    def log_probs(self, checkpoint: Path, ids: Sequence[int]) -> Sequence[float]:
        mx, utils = package("mlx.core", "'mlx[cpu]'"), package("mlx_lm.utils", "mlx-lm")
        mx.set_default_device(mx.cpu)
        model = utils.load_model(checkpoint)[0]
        logits_TV = model(mx.array([list(ids)]))[0, :-1].astype(mx.float32)
        log_p_TV = logits_TV - mx.logsumexp(logits_TV, axis=-1, keepdims=True)
        found: list[float] = mx.take_along_axis(log_p_TV, mx.array(ids[1:])[:, None], axis=-1)[:, 0].tolist()
        return found


# -- answers in a file


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
    values, precision = said.get("log_probs"), said.get("precision", "float32")
    if precision not in ("float32", *PRECISIONS):
        raise UserError(f"{file}: precision is {precision}; it must be float32, {', '.join(PRECISIONS)}")
    if said.get("sha256", case.sha256) != case.sha256:
        raise UserError(
            f"{file}: its sha256 is that of another prompt; answer the ids of {case.folder / 'prompt.json'}"
        )
    if isinstance(values, list) and values[:1] == [None]:
        values = values[1:]
    if not isinstance(values, list) or not all(isinstance(one, int | float) for one in values):
        raise UserError(f"{file}: log_probs must be a list of numbers, one for each token after the first")
    if len(values) != len(case.ids) - 1:
        raise UserError(
            f"{file} has {len(values):,} numbers; the prompt has {len(case.ids) - 1:,} tokens after the first"
        )
    return checked_answers(torch.tensor(values, dtype=torch.float32), case, str(file)), precision


def checked_answers(answers: Tensor, case: Case, name: str) -> Tensor:
    """The answers. Raises UserError if they are not natural logarithms of probabilities."""
    if not answers.isfinite().all():
        raise UserError(
            f"{name}: the answer to token {int((~answers.isfinite()).nonzero()[0]) + 1} is not a finite number"
        )
    if (answers > 1e-3).any():
        what = "probabilities" if ((answers >= 0) & (answers <= 1)).all() else "numbers above 0"
        raise UserError(f"{name} holds {what}; it must hold the natural logarithm of each probability")
    if rms(answers * math.log(2) - case.right) < 0.05 * rms(answers - case.right):
        raise UserError(f"{name} holds logarithms of base 2; it must hold natural logarithms")
    return answers
