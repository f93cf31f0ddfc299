"""Does llama.cpp read a value of config.json? python llama_ask.py FOLDER CHANGES

Findings of ../engines_found.md (llama-cpp-python 0.3.36): every command prints "llama.cpp moves by 0.000" and, for
transformers, the number at its end. S and F stand for "sliding_attention" and "full_attention"; "..." is the rest of
rope_parameters as it is.

1  SUITE/mistral/transformers5 '{"sliding_window": 1000}'  8.312
1  SUITE/qwen2/transformers5 '{"sliding_window": 1000}'  5.520
2  SUITE/gpt_oss/transformers5 '{"rope_parameters": {..., "truncate": true}}'  3.165
3  SUITE/llama-dynamic/transformers5 '{"rope_parameters": {..., "factor": 16.0}}'  7.028
4  SUITE/llama-longrope/transformers5 '{"rope_parameters": {..., "long_factor": the short ones}}'  8.617
5  SUITE/gemma3/transformers5 '{"query_pre_attn_scalar": 32}'  2.903
6  SUITE/gemma3-order/transformers5 '{"layer_types": [S, S, S, S, S, F]}'  4.473
7  SUITE/smollm3-order/transformers5 '{"no_rope_layers": [1, 1, 1, 0, 1, 1]}'  4.021
8  SUITE/exaone4/transformers5 '{"sliding_window": 1000}'  10.036
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
import torch
from transformers import AutoModelForCausalLM

SRC = "llama.cpp"  # vendor/llama.cpp of its sdist
CODE = f"""
import sys; sys.path.insert(0, '{SRC}')
import conversion.base as b, convert_hf_to_gguf as c
b.TextModel.get_vocab_base_pre = lambda *_: 'gpt-2'  # the converter knows no random tokenizer
c.main()
"""


def ask(folder, **changes):
    d, ids = tempfile.mkdtemp(), [*range(94)] * 2
    shutil.copytree(folder, d, dirs_exist_ok=True)
    config = Path(d, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    convert = [sys.executable, "-c", CODE, d, "--outtype", "f32", "--outfile", d + "/m.gguf"]
    subprocess.run(convert, check=True, capture_output=True)
    n = len(ids)
    m = llama_cpp.Llama(
        d + "/m.gguf", n_ctx=n, n_batch=n, n_ubatch=n, n_threads=1, type_k=0, type_v=0, logits_all=True, verbose=False
    )
    m.eval(ids)
    return m.scores, AutoModelForCausalLM.from_pretrained(d)(torch.tensor([ids])).logits.detach().numpy()[0]


answers = zip(ask(sys.argv[1]), ask(sys.argv[1], **json.loads(sys.argv[2])), strict=True)
for name, (a, b) in zip(("llama.cpp", "transformers"), answers, strict=True):
    print(f"{name} moves by {np.abs(a - b).max():.3f}")
