"""Does ONNX Runtime GenAI read a value of config.json? python ort_ask.py FOLDER CHANGES

Finding of ../engines_found.md (0.18): with '{"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}'
every command prints "ONNX Runtime GenAI moves by 0.000" and, for transformers, the number at its end.

SUITE/llama-linear/transformers5  6.964
SUITE/llama-yarn/transformers5  7.545
SUITE/llama-longrope/transformers5  10.164
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import torch
from transformers import AutoModelForCausalLM

OPTIONS = ["-p", "fp32", "-e", "cpu", "--extra_options", "hf_remote=false"]


def ask(folder, **changes):
    d, o, ids = tempfile.mkdtemp(), tempfile.mkdtemp(), [*range(94)] * 2
    shutil.copytree(folder, d, dirs_exist_ok=True)
    config = Path(d, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    build = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", d, "-o", o, "-c", o, *OPTIONS]
    subprocess.run(build, check=True, capture_output=True)
    m = og.Model(o)
    p = og.GeneratorParams(m)
    p.set_search_options(max_length=len(ids) + 1)
    g = og.Generator(m, p)
    g.append_tokens(ids)
    right = AutoModelForCausalLM.from_pretrained(d)(torch.tensor([ids])).logits.detach().numpy()[0]
    return np.array(g.get_output("logits"))[0], right


answers = zip(ask(sys.argv[1]), ask(sys.argv[1], **json.loads(sys.argv[2])), strict=True)
for name, (a, b) in zip(("ONNX Runtime GenAI", "transformers"), answers, strict=True):
    print(f"{name} moves by {np.abs(a - b).max():.3f}")
