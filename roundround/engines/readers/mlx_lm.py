"""Apple's mlx-lm, on a CPU too; it reads a checkpoint without conversion.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from roundround.engines.cases import chosen
from roundround.engines.engine import Answers, Engine, package


@final
class MlxLm(Engine):
    """mlx-lm in float32 on the CPU."""

    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        mx, utils = (package(name, "'mlx[cpu]' mlx-lm") for name in ("mlx.core", "mlx_lm.utils"))
        mx.set_default_device(mx.cpu)
        return chosen(utils.load_model(checkpoint)[0](mx.array([ids]))[0].astype(mx.float32), ids)
