"""llama.cpp by llama-cpp-python, with the converter to GGUF of llama.cpp's source.

Tested by tests/engines/test_suite.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from roundround.engines.cases import chosen
from roundround.engines.engine import Answers, Engine, convert, package
from roundround.support.errors import UserError
from roundround.support.files import home_expanded

# The converter refuses a tokenizer that it does not know; which one it is makes no difference to prompts of ids.
CONVERT = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import conversion.base, convert_hf_to_gguf
conversion.base.TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
convert_hf_to_gguf.main()
"""


@final
@dataclass(kw_only=True)
class LlamaCpp(Engine):
    """llama.cpp in float32, its cache too. source: a folder of llama.cpp's source of the same version."""

    source: str

    def log_probs(self, checkpoint: Path, ids: list[int], folder: Path) -> Answers:
        source, n = home_expanded(self.source, "engine.source"), len(ids)
        if not (source / "convert_hf_to_gguf.py").is_file():
            raise UserError(f"engine.source={source} has no convert_hf_to_gguf.py; give a folder of llama.cpp's source")
        llama = package("llama_cpp", "llama-cpp-python sentencepiece")
        file = folder / "model.gguf"
        convert(["-c", CONVERT, source, checkpoint, "--outtype", "f32", "--outfile", file])
        sizes = {"n_ctx": n, "n_batch": n, "n_ubatch": n, "type_k": 0, "type_v": 0}  # 0: float32
        model = llama.Llama(str(file), logits_all=True, verbose=False, **sizes)
        model.eval(ids)
        return chosen(model.scores, ids)
