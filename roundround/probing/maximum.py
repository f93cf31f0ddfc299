"""Entropy of attention at the end of a question about the largest of ever more listed numbers.

Velickovic et al. 2024, arXiv:2410.01104, figure 3, whose prompt is not printed; ours is in `texts`.
Shapes: L layers, H heads.

Tested by tests/probing/test_probe.py and tests/papers/test_other_models.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from roundround.attention.blocks import logits_of_rows, rows_between
from roundround.attention.row_measures import entropy_of_weights
from roundround.probing.probe import run
from roundround.probing.probed_model import ProbedModel, watching
from roundround.probing.texts import maximum_prompt
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError

N_ELEMENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
N_LISTS = 4  # of each length, their entropies averaged


@torch.no_grad()
def entropy_by_length(
    probed: ProbedModel, n_elements: Sequence[int] = N_ELEMENTS, n_lists: int = N_LISTS
) -> dict[int, list[Tensor]]:
    """Entropy in nats of the prompt's last row, [H] for every layer, by the number of listed elements.

    Lists whose prompt is longer than the model's context are left out.
    """
    found = {}
    for n in n_elements:
        prompts = [probed.tokens(maximum_prompt(n, seed)) for seed in range(n_lists)]
        if max(map(len, prompts)) > probed.longest:
            break
        rows = [last_row_entropy(probed, prompt) for prompt in prompts]
        found[n] = [torch.stack(layer).mean(0) for layer in zip(*rows, strict=True)]
    if not found:
        raise UserError(f"{probed.name} has a context of {probed.longest} tokens, too short for prompt=maximum")
    return found


def last_row_entropy(probed: ProbedModel, tokens: Sequence[int]) -> list[Tensor]:
    """Entropy of each head's last row, [H] for every layer, in nats."""
    entropies: dict[int, Tensor] = {}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        keys = options["keys"]
        a, b = keys.n_queries - 1, keys.n_queries
        logits, visible = logits_of_rows(qkv[0], qkv[1], options["scale"], keys, options["bias"], a, b)
        alpha = softmax.weights(logits, visible, rows_between(options["rows"], visible, a, b))
        entropies[softmax.shape.layer] = entropy_of_weights(alpha)[0, :, 0].cpu().double()

    with watching(probed.normalisers, take_in):
        run(probed, [(tokens, 0)])
    return [entropies[layer] for layer in sorted(entropies)]
