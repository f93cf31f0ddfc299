"""transformers itself, the reference of the suite.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from transformers import AttentionInterface, AutoModelForCausalLM

from roundround.engines.cases import log_probs
from roundround.engines.engine import Answers, Engine
from roundround.support.errors import UserError


@final
@dataclass(kw_only=True)
class Transformers(Engine):
    """transformers, without a cache. precision: its dtype. attention: sdpa, eager or another name it knows."""

    attention: str

    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        options: dict[str, Any] = {"dtype": self.precision, "attn_implementation": self.attention}
        if self.precision == "int8" or self.attention not in ("eager", *AttentionInterface().valid_keys()):
            raise UserError(
                f"engine.precision={self.precision} engine.attention={self.attention}: precision must be float32, "
                f"float16 or bfloat16, attention one of eager, {', '.join(AttentionInterface().valid_keys())}"
            )
        options |= {"local_files_only": True, "output_loading_info": True}
        model, found = AutoModelForCausalLM.from_pretrained(checkpoint, **options)
        if wrong := sorted({*found["missing_keys"], *found["unexpected_keys"]}):
            raise UserError(f"{checkpoint.parent} is not a case of a suite: {checkpoint.name} lacks or adds {wrong[0]}")
        return log_probs(model.eval(), ids)
