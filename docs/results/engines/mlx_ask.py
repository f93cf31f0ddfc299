"""Does mlx-lm read a value of config.json? python mlx_ask.py FOLDER CHANGES

Findings of ../engines_found.md (mlx-lm 0.32.2): every command prints "mlx-lm moves by 0.000" and, for transformers, the
number at its end. S and F stand for "sliding_attention" and "full_attention".

2  SUITE/mistral/transformers4 '{"sliding_window": 1000}'  8.312
2  SUITE/qwen2/transformers4 '{"sliding_window": 1000}'  5.520
2  SUITE/gemma2/transformers4 '{"sliding_window": 1000}'  7.111
3  SUITE/gemma3-order/transformers4 '{"layer_types": [S, S, S, S, S, F]}'  4.473
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model
from transformers import AutoModelForCausalLM

mx.set_default_device(mx.cpu)


def ask(folder, **changes):
    d, ids = tempfile.mkdtemp(), [*range(94)] * 2
    shutil.copytree(folder, d, dirs_exist_ok=True)
    config = Path(d, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    return [
        np.array(load_model(Path(d))[0](mx.array([ids])).astype(mx.float32)),
        AutoModelForCausalLM.from_pretrained(d)(torch.tensor([ids])).logits.detach().numpy(),
    ]


answers = zip(ask(sys.argv[1]), ask(sys.argv[1], **json.loads(sys.argv[2])), strict=True)
for name, (a, b) in zip(("mlx-lm", "transformers"), answers, strict=True):
    print(f"{name} moves by {np.abs(a - b).max():.3f}")
