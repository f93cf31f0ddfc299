"""Does CTranslate2 read a value of config.json? python ct2_ask.py FOLDER CHANGES

Findings of ../engines_found.md (CTranslate2 4.8.5): every command prints "CTranslate2 moves by 0.000" and, for
transformers, the number at its end.

1  SUITE/llama-llama3/transformers5 '{"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}}'  5.683
2  SUITE/qwen2/transformers5 '{"sliding_window": 1000}'  5.520
3  SUITE/gemma4/transformers5 '{"sliding_window": 1000}'  9.797
4  SUITE/gemma2/transformers5 '{"sliding_window": 1000}'  7.111
4  SUITE/gemma2/transformers5 '{"attn_logit_softcapping": null}'  5.487
4  SUITE/gemma2/transformers5 '{"final_logit_softcapping": null}'  12.145
4  SUITE/gemma2/transformers5 '{"query_pre_attn_scalar": 32}'  1.736
4  SUITE/gemma2/transformers5 '{"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}'  5.353
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np
import torch
from transformers import AutoModelForCausalLM


def ask(folder, **changes):
    d, ids = tempfile.mkdtemp(), [*range(94)] * 2
    shutil.copytree(folder, d, dirs_exist_ok=True)
    config = Path(d, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    ctranslate2.converters.TransformersConverter(d).convert(d + "/m")
    g = ctranslate2.Generator(d + "/m", intra_threads=1)
    right = AutoModelForCausalLM.from_pretrained(d)(torch.tensor([ids])).logits.detach().numpy()[0]
    return np.array(g.forward_batch([ids]))[0], right


answers = zip(ask(sys.argv[1]), ask(sys.argv[1], **json.loads(sys.argv[2])), strict=True)
for name, (a, b) in zip(("CTranslate2", "transformers"), answers, strict=True):
    print(f"{name} moves by {np.abs(a - b).max():.3f}")
