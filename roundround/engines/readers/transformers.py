"""transformers itself, the reference of the suite.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from transformers import AutoModelForCausalLM

from roundround.engines.cases import log_probs
from roundround.engines.engine import Answers, Engine


@final
@dataclass(kw_only=True)
class Transformers(Engine):
    """transformers, without a cache. precision: its dtype. attention: sdpa, eager or another name it knows."""

    attention: str

    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        options = {"dtype": self.precision, "attn_implementation": self.attention}
        return log_probs(AutoModelForCausalLM.from_pretrained(checkpoint, local_files_only=True, **options).eval(), ids)
