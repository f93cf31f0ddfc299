"""Apple's mlx-lm, on a CPU too; it reads a checkpoint without conversion.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

from roundround.engines.cases import chosen
from roundround.engines.engine import Answers, Engine, package


@final
class MlxLm(Engine):
    """mlx-lm in float32 on the CPU."""

    def log_probs(self, checkpoint: Path, ids: Sequence[int]) -> Answers:
        """See Engine."""
        mx, utils = (package(name, "'mlx[cpu]' mlx-lm") for name in ("mlx.core", "mlx_lm.utils"))
        mx.set_default_device(mx.cpu)
        model = utils.load_model(checkpoint)[0]
        return chosen(model(mx.array([list(ids)]))[0].astype(mx.float32).tolist(), ids)
