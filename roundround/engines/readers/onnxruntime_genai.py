"""ONNX Runtime GenAI, with its builder of models.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import numpy as np

from roundround.engines.cases import chosen
from roundround.engines.engine import Answers, Engine, convert, package

OPTIONS = ("-p", "fp32", "-e", "cpu", "--extra_options", "hf_remote=false")


@final
class OnnxruntimeGenai(Engine):
    """ONNX Runtime GenAI in float32 on the CPU."""

    def log_probs(self, checkpoint: Path, ids: Sequence[int]) -> Answers:
        """See Engine."""
        genai = package("onnxruntime_genai", "onnxruntime-genai onnx-ir")
        with TemporaryDirectory() as folder:
            paths = ("-i", checkpoint, "-o", folder, "-c", folder)
            convert(["-m", "onnxruntime_genai.models.builder", *paths, *OPTIONS])
            model = genai.Model(folder)
            parameters = genai.GeneratorParams(model)
            parameters.set_search_options(max_length=len(ids) + 1)
            generator = genai.Generator(model, parameters)
            generator.append_tokens(np.array([ids], dtype=np.int32))
            return chosen(generator.get_output("logits")[0], ids)
