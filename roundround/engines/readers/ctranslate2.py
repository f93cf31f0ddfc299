"""CTranslate2, with its converter of checkpoints.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import numpy as np

from roundround.engines.cases import chosen
from roundround.engines.engine import Answers, Engine, package


@final
class CTranslate2(Engine):
    """CTranslate2 on the CPU. precision: its compute type, such as float32 or int8."""

    def log_probs(self, checkpoint: Path, ids: Sequence[int]) -> Answers:
        """See Engine."""
        ctranslate2 = package("ctranslate2", "ctranslate2")
        with TemporaryDirectory() as folder:
            ctranslate2.converters.TransformersConverter(str(checkpoint)).convert(f"{folder}/model")
            generator = ctranslate2.Generator(f"{folder}/model", device="cpu", compute_type=self.precision)
            return chosen(np.array(generator.forward_batch([list(ids)]))[0], ids)
