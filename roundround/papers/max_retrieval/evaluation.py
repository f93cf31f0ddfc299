"""How max retrieval does on sets of any size, by every normaliser on the same sets, in bounded memory.

Shapes: S seeds, B sets, N items, M normalisers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from roundround.attention.row_measures import entropy_bound, largest_weight_bound, shannon_entropy
from roundround.papers.max_retrieval.bfloat16 import InBfloat16
from roundround.papers.max_retrieval.model import MaxRetrieval, weights_of
from roundround.papers.max_retrieval.sets import Sets
from roundround.softmax.adaptive_temperature import AdaptiveTemperature
from roundround.softmax.base import AttentionSoftmax
from roundround.softmax.temperature import Temperature

OF_LOGITS = ("logit_spread", "entropy_bound", "largest_weight_bound", "largest_logit_is_right")
Means = dict[str, float]


@torch.no_grad()
def evaluate(
    model: MaxRetrieval | InBfloat16, softmaxes: Mapping[str, AttentionSoftmax], blocks: Iterable[Sets]
) -> tuple[dict[str, Means], Means]:
    """Means over the sets of one seed, for each normaliser and of the logits themselves.

    Of each normaliser: `accuracy`, `entropy` in nats and `largest_weight`. Of the logits: `logit_spread` delta, largest
    minus smallest of a set; what Lemma 2.1 of arXiv:2410.01104 makes of it for the plain softmax, `entropy_bound`
    max(ln n - delta, 0) and `largest_weight_bound` min(exp(delta) / n, 1); and `largest_logit_is_right`, how often the
    largest is that of the item of the largest priority.
    """
    totals: dict[str, Tensor] = {}
    n_sets = 0
    for block in blocks:
        sets = block.to(model.device)
        e_SBN, a_SBND = model.attended(sets)
        alpha_SBMN = torch.stack([weights_of(softmax, e_SBN, None) for softmax in softmaxes.values()], 2)
        mean_SBMD, total_SBM = alpha_SBMN.to(a_SBND.dtype) @ a_SBND, alpha_SBMN.sum(-1)
        logits = model.answer_from(mean_SBMD.flatten(1, 2), total_SBM.flatten(1, 2)).view(*total_SBM.shape, -1)
        spread_SB = e_SBN.amax(-1) - e_SBN.amin(-1)
        ln_n = math.log(e_SBN.shape[-1])
        measured = {
            "accuracy": logits.argmax(-1) == sets.answers_SB[..., None],
            "entropy": shannon_entropy(alpha_SBMN),
            "largest_weight": alpha_SBMN.amax(-1),
            "logit_spread": spread_SB,
            "entropy_bound": entropy_bound(ln_n, spread_SB),
            "largest_weight_bound": largest_weight_bound(ln_n, spread_SB),
            "largest_logit_is_right": e_SBN.argmax(-1) == sets.largest_SB,
        }
        for metric, value in measured.items():
            totals[metric] = totals.get(metric, torch.zeros((), device=model.device)) + value.double().sum((0, 1))
        n_sets += sets.queries_SB.numel()
    means: dict[str, Any] = {metric: (total / n_sets).tolist() for metric, total in totals.items()}
    of_logits = {metric: means.pop(metric) for metric in OF_LOGITS}
    return {name: {metric: means[metric][m] for metric in means} for m, name in enumerate(softmaxes)}, of_logits


@torch.no_grad()
def attention_by_priority(
    model: MaxRetrieval | InBfloat16,
    softmaxes: Mapping[str, AttentionSoftmax],
    blocks: Iterable[Sets],
    *,
    n_sets: int,
    n_items: int,
) -> dict[str, Tensor]:
    """Weights [n_sets, n_items] of the items of highest priority, the highest last, of one seed's first sets."""
    found: dict[str, list[Tensor]] = {name: [] for name in softmaxes}
    n_found = 0
    for block in blocks:
        sets = block.to(model.device)
        e_SBN, _ = model.attended(sets)
        order = sets.priorities_SBN.argsort(-1)[..., -n_items:]
        for name, softmax in softmaxes.items():
            found[name].append(weights_of(softmax, e_SBN, None).gather(-1, order)[0].cpu())
        n_found += sets.queries_SB.numel()
        if n_found >= n_sets:
            break
    return {name: torch.cat(rows)[:n_sets] for name, rows in found.items()}


def at_one_temperature(softmaxes: Mapping[str, AttentionSoftmax], entropy: float) -> dict[str, AttentionSoftmax]:
    """The normalisers with every adaptive temperature held at the one that it gives for this entropy in nats."""
    of_all = torch.tensor(entropy, dtype=torch.float64)
    return {
        name: Temperature(softmax.shape, temperature=1 / float(softmax.beta_at(of_all)))
        if isinstance(softmax, AdaptiveTemperature)
        else softmax
        for name, softmax in softmaxes.items()
    }


def bytes_of_one_set(n: int, *, width: int, n_classes: int, n_softmaxes: int) -> int:
    """About the most memory that `evaluate` needs for a single set of n items."""
    return 4 * n * (3 * width + 4 * n_classes + 6 * n_softmaxes)
