"""Finding 4 of mlx-lm in ../engines_found.md: its YaRN of gpt-oss-20b is the rounded one, which `truncate` forbids.

Prints: True False [1.0, 0.997, 1.006, 1.017, 1.032, 1.054, 1.088, 1.146, 1.273, 1.763, 1.0, 1.0]   (pairs 8 to 19)
"""

import torch
from mlx_lm.models.rope_utils import initialize_rope
from transformers import GptOssConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

p = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
}  # gpt-oss-20b
exact, rounded = (
    ROPE_INIT_FUNCTIONS["yarn"](GptOssConfig(rope_parameters={**p, "truncate": t}), "cpu")[0] for t in (False, True)
)
mlx = 1 / torch.tensor(initialize_rope(64, 150000, False, {**p, "truncate": False}, 131072)._freqs.tolist())
print(
    torch.allclose(mlx, rounded, rtol=1e-4),
    torch.allclose(mlx, exact, rtol=1e-4),
    [round(x, 3) for x in (rounded / exact)[8:20].tolist()],
)
