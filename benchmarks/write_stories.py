"""What wrote roundround/pretrained/stories260k/stories.txt: python benchmarks/write_stories.py 1 24 > stories.txt

Story n is what the model says after <s> with torch.manual_seed(n): sampled from its whole distribution at temperature 1
until <s>, with which the next story would begin, or until its context of 512 tokens is full. A blank line separates two
stories; there is none inside these 24. torch 2.13.0 and transformers 5.23.0, on a CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

FOLDER = Path(__file__).parents[1] / "roundround" / "pretrained" / "stories260k"


def stories(first: int, last: int) -> list[str]:
    """The stories of the seeds from `first` to `last`."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(FOLDER)
    beginning = tokenizer.bos_token_id
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_length": 512}
    told = []
    for seed in range(first, last + 1):
        torch.manual_seed(seed)
        ids = model.generate(torch.tensor([[beginning]]), **options, eos_token_id=beginning, pad_token_id=beginning)
        told.append(tokenizer.decode(ids[0], skip_special_tokens=True).strip())
    return told


if __name__ == "__main__":
    disable_progress_bar()
    print("\n\n".join(stories(*map(int, sys.argv[1:]))))
