"""CTranslate2, with its converter of checkpoints.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from roundround.engines.cases import chosen
from roundround.engines.engine import Answers, Engine, package


@final
class CTranslate2(Engine):
    """CTranslate2 on the CPU. precision: its compute type, such as float32 or int8."""

    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        ctranslate2 = package("ctranslate2", "ctranslate2")
        ctranslate2.converters.TransformersConverter(str(checkpoint)).convert(folder / "model")
        generator = ctranslate2.Generator(str(folder / "model"), device="cpu", compute_type=self.precision)
        return chosen(generator.forward_batch([ids]), ids)
