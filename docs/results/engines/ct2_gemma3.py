"""Finding 5 of CTranslate2 in ../engines_found.md: python ct2_gemma3.py SUITE/gemma3-linear/transformers5

Prints "CTranslate2 moves by 0.0": other bases, another scaling and another scale of the logits change nothing.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np


def ask(folder, **changes):
    d, ids = tempfile.mkdtemp(), [*range(20)]
    shutil.copytree(folder, d, dirs_exist_ok=True)
    config = Path(d, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    ctranslate2.converters.TransformersConverter(d).convert(d + "/m")
    g = ctranslate2.Generator(d + "/m", intra_threads=1)
    return np.array(g.forward_batch([ids]))[0]


rope = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 77.0},
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 777.0},
}
changed = ask(sys.argv[1], rope_parameters=rope, query_pre_attn_scalar=99)
print("CTranslate2 moves by", np.abs(ask(sys.argv[1]) - changed).max())
