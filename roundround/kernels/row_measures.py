"""Measures of a row of attention: its entropy, its extremes, and the bounds that follow from its logits.

Shapes: B batch, Q queries, K keys, H heads.

Tested by tests/probing/test_dispersion.py.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shannon_entropy(share: Tensor) -> Tensor:
    """-sum_j p_j ln p_j over the last axis, in nats."""
    entropy: Tensor = torch.special.entr(share).sum(-1)
    return entropy


def entropy_of_weights(alpha: Tensor) -> Tensor:
    """Shannon entropy in nats over the last axis; weights are first divided by their sum."""
    return shannon_entropy(alpha / alpha.sum(-1, keepdim=True).clamp(min=torch.finfo(alpha.dtype).tiny))


def entropy_of_logits(logits_BHQK: Tensor, visible_B1QK: Tensor) -> Tensor:
    """Shannon entropy of the softmax over the visible keys, in nats: [B, H, Q, 1]; differentiable."""
    hidden = ~visible_B1QK
    log_p = logits_BHQK.masked_fill(hidden, -torch.inf).log_softmax(-1)
    return -(log_p.exp() * log_p.masked_fill(hidden, 0.0)).sum(-1, keepdim=True)


def extreme_logits(logits: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """The largest and the smallest visible logit of each row; 0 and 0 for a row that sees nothing."""
    seen = visible.any(-1)
    largest = logits.masked_fill(~visible, -torch.inf).amax(-1).where(seen, 0.0)
    smallest = logits.masked_fill(~visible, torch.inf).amin(-1).where(seen, 0.0)
    return largest, smallest


def spread_of_weights(alpha: Tensor, visible: Tensor) -> Tensor:
    """ln (largest / smallest) of each row's visible weights: the spread of its logits if the weights are a softmax.

    inf for a row with a visible weight of zero, 0 for a row that sees nothing.
    """
    largest, smallest = alpha.amax(-1), alpha.masked_fill(~visible, torch.inf).amin(-1)
    return (largest.log() - smallest.log()).nan_to_num(torch.inf, posinf=torch.inf).where(visible.any(-1), 0.0)


def entropy_bound(ln_n: Tensor | float, spread: Tensor) -> Tensor:
    """A lower bound, in nats, of the entropy of a softmax over n logits with this spread.

    Velickovic et al. 2024, arXiv:2410.01104, Lemma 2.1: ln n - spread. `spread`: the largest minus the smallest logit.
    """
    return (ln_n - spread).clamp(min=0.0)


def largest_weight_bound(ln_n: Tensor | float, spread: Tensor) -> Tensor:
    """An upper bound of the weights of a softmax over n logits with this spread.

    Velickovic et al. 2024, arXiv:2410.01104, Lemma 2.1: exp(spread) / n.
    """
    return (spread - ln_n).exp().clamp(max=1.0)


def ordered_logits(logits: Tensor, visible: Tensor) -> Tensor:
    """The logits of each row in ascending order, with -inf in place of those of hidden keys. Not differentiable."""
    found = torch.where(visible, logits, -torch.inf).detach()
    if found.device.type != "cpu":
        return found.sort(-1).values
    found.numpy().sort(-1)  # in place; 20 times as fast as torch.sort, and faster than topk with 64 keys
    return found


def gap_ratios(ordered: Tensor) -> Tensor:
    """D_(k) / ln k of each row for k = K ... 1, D_(k) the largest logit less the k-th largest; inf for k = 1 and k > n.

    ordered: from `ordered_logits`. n: the number of visible keys. The least of a row is 1 / Lambda. Lambda = max over
    k >= 2 of ln k / D_(k) is the gap counting number (arXiv:2605.12697): a softmax at inverse temperature beta is
    collapsed onto few keys if beta > Lambda, and dispersed if beta < Lambda. 1 / Lambda is 0 for a tie at the top, inf
    if n is 1, and NaN if n is 0, if a visible logit is NaN or if the largest is infinite.
    """
    gaps = ordered[..., -1:] - ordered
    gaps[..., -1] += torch.inf  # D_(1) is 0, or NaN
    gaps /= torch.arange(ordered.shape[-1], 0, -1, device=gaps.device).to(gaps.dtype).log()
    return gaps


def contact_index(ratios: Tensor) -> Tensor:
    """The largest k at which ln k / D_(k) is Lambda: [...], integers; 0 if Lambda is NaN. ratios: from `gap_ratios`."""
    ranks = torch.arange(ratios.shape[-1], 0, -1, device=ratios.device)
    return ((ratios <= ratios.amin(-1, keepdim=True)) * ranks).amax(-1)
