"""ONNX Runtime GenAI, with its builder of models.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from roundround.engines.cases import chosen
from roundround.engines.engine import Answers, Engine, convert, package

OPTIONS = ("-p", "fp32", "-e", "cpu", "--extra_options", "hf_remote=false")


@final
class OnnxruntimeGenai(Engine):
    """ONNX Runtime GenAI in float32 on the CPU."""

    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        genai = package("onnxruntime_genai", "onnxruntime-genai onnx-ir")
        paths = ("-i", checkpoint, "-o", folder, "-c", folder)
        convert(["-m", "onnxruntime_genai.models.builder", *paths, *OPTIONS])
        model = genai.Model(str(folder))
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=len(ids) + 1)
        generator = genai.Generator(model, parameters)
        generator.append_tokens(ids)
        return chosen(generator.get_output("logits"), ids)
