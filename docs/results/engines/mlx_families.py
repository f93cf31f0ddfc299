"""Finding 1 of mlx-lm in ../engines_found.md: what ten families read of a config.json that transformers 5 saved.

The base in config.json is 50,000 for each; mlx-lm 0.32.2 prints

llama 10000 None, qwen2 1000000 None, olmo2 10000 None, seed_oss 10000 None, smollm3 10000 None, gemma2 10000 None,
deepseek_v3 10000.0 None, gemma3_text 1000000.0 10000.0 None, phi3 10000 None      and, right: qwen3 50000.0 linear

On a checkpoint: load_model(Path("SUITE/llama/transformers5"))[0].layers[-1].self_attn.rope.base is 10000, and 50000.0
with transformers4; for gemma3 1000000.0 and 50000.0.
"""

import importlib

from transformers import AutoConfig  # transformers 5: to_dict is what save_pretrained writes

long = {
    "rope_type": "longrope",
    "rope_theta": 5e4,
    "long_factor": [2.0] * 48,
    "short_factor": [1.0] * 48,
    "original_max_position_embeddings": 64,
}
for name in ("llama", "qwen2", "olmo2", "seed_oss", "smollm3", "gemma2", "deepseek_v3", "gemma3_text", "phi3", "qwen3"):
    rope = long if name == "phi3" else {"rope_type": "linear", "rope_theta": 5e4, "factor": 4.0}
    if name == "gemma3_text":
        rope = dict.fromkeys(("full_attention", "sliding_attention"), rope)
    config = AutoConfig.for_model(name, rope_parameters=rope).to_dict()
    args = importlib.import_module(f"mlx_lm.models.{name}").ModelArgs.from_dict(config)
    local = getattr(args, "rope_local_base_freq", "")
    print(name, args.rope_theta, local, (getattr(args, "rope_scaling", None) or {}).get("rope_type"))
