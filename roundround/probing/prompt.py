"""Short prompts: one looked at whole, token by token, and the entropy at the end of questions of growing length.

The first rides along with the first texts of a probe, so that the weights pass through the model once. The others are
questions about the largest of ever more listed numbers, after Velickovic et al. 2024, arXiv:2410.01104, figure 3, whose
prompt is not printed; ours is in `texts`.
Shapes: L layers, T tokens, H heads, G key heads, C head channels, P pairs.

Tested by tests/probing/test_probe.py and tests/papers/test_papers_models.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundround.kernels.blocks import logits_of_rows, rows_between
from roundround.kernels.keys import Keys
from roundround.kernels.precision import at_least_float32
from roundround.kernels.row_measures import entropy_of_weights
from roundround.kernels.sdpa import repeated
from roundround.probing.layout import Layout, stacked
from roundround.probing.probed_model import ProbedModel, run, watching
from roundround.probing.texts import maximum_prompt
from roundround.softmax.base import AttentionSoftmax
from roundround.support.errors import UserError

LONGEST = 256  # tokens: everything is kept, so a prompt is short


@dataclass(frozen=True)
class LayerRecord:
    """One layer: chunk norms [H, T, P] and [G, T, P], scaled logits and weights [H, T, T], whole norms [H, T]."""

    query_norms: Tensor
    key_norms: Tensor
    logits: Tensor
    weights: Tensor
    bound: Tensor  # scale |q_i| |k_j|: no logit exceeds it (Cauchy-Schwarz), [H, T, T]


@dataclass(frozen=True)
class PromptRecord:
    """A prompt's tokens as words, and what every layer does with them, by the layer's number."""

    words: list[str]
    layers: dict[int, LayerRecord]

    def alignment(self, layer: int, head: int) -> dict[str, list[float | None]]:
        """How near to their bounds a head's logits on itself and on the token before come, token by token.

        Barbero et al. 2024, arXiv:2410.06205, tables 3 to 5. `bound` is |q_t| |k_t|; `previous` is the logit of query t
        on key t - 1 and `bound_previous` its own bound; `next` is the logit of query t + 1 on key t, which is how the
        paper's column may be read.
        """
        record = self.layers[layer]
        logits, bound = record.logits[head], record.bound[head]
        below, bound_below = logits.diagonal(-1).tolist(), bound.diagonal(-1).tolist()
        return {
            "bound": bound.diagonal().tolist(),
            "diagonal": logits.diagonal().tolist(),
            "previous": [None, *below],
            "bound_previous": [None, *bound_below],
            "next": [*below, None],
        }

    def arrays(self) -> dict[str, Tensor]:
        """query_norms [L, H, T, P], key_norms [L, G, T, P], logits and weights [L, H, T, T], float32."""
        names = ("query_norms", "key_norms", "logits", "weights", "bound")
        numbers, records = list(self.layers), self.layers.values()
        return {name: stacked([getattr(record, name) for record in records], numbers) for name in names}


def check_prompt(tokens: Sequence[int]) -> None:
    """UserError for fewer than 2 or more than LONGEST tokens."""
    if not 2 <= len(tokens) <= LONGEST:
        raise UserError(f"the prompt has {len(tokens)} tokens; from 2 to {LONGEST} can be looked at whole")


def record_layer(
    softmax: AttentionSoftmax,
    layout: Layout,
    q_HTC: Tensor,
    k_GTC: Tensor,
    *,
    scale: float,
    keys: Keys,
    rows: Mapping[str, Tensor],
) -> LayerRecord:
    """What a layer does with the prompt; `rows` are its row parameters, [1, H, T, 1]."""
    n = q_HTC.shape[1]
    q, k = at_least_float32(q_HTC)[None], at_least_float32(k_GTC)[None]
    logits, visible = logits_of_rows(q, k, scale, keys, None, 0, n)
    weights = softmax.weights(logits, visible, rows_between(rows, visible, 0, n))
    lengths = q.norm(dim=-1)[..., None] * repeated(k, q).norm(dim=-1)[..., None, :] * abs(scale)
    found = (layout.norms(q), layout.norms(k), logits.masked_fill(~visible, torch.nan), weights, lengths)
    return LayerRecord(*(x[0].float().cpu() for x in found))


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


def last_row(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> Tensor:
    """Weights [B, H, K] of the last query of a call that `watching` shows, over the last K keys, all that it sees."""
    keys = options["keys"]
    a, b = keys.n_queries - 1, keys.n_queries
    logits, visible = logits_of_rows(qkv[0], qkv[1], options["scale"], keys, options["bias"], a, b)
    return softmax.weights(logits, visible, rows_between(options["rows"], visible, a, b))[:, :, 0]


def last_row_entropy(probed: ProbedModel, tokens: Sequence[int]) -> list[Tensor]:
    """Entropy of each head's last row, [H] for every layer, in nats."""
    entropies: dict[int, Tensor] = {}

    def take_in(softmax: AttentionSoftmax, qkv: Sequence[Tensor], options: dict[str, Any]) -> None:
        entropies[softmax.shape.layer] = entropy_of_weights(last_row(softmax, qkv, options))[0].cpu().double()

    with watching(probed.normalisers, take_in):
        run(probed, [(tokens, None)])
    return [entropies[layer] for layer in sorted(entropies)]
