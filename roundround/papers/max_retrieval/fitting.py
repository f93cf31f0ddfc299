"""The paper's fit of the temperature: the inverse temperature that helps most, as a polynomial in the entropy.

Velickovic et al. 2024, arXiv:2410.01104, section 4 and figure 5: of the inputs whose item of the largest priority does
not hold the largest logit, the inverse temperature that gives that item the most weight, fitted by a quartic.

Shapes: B sets, N items.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundround.attention.row_measures import shannon_entropy
from roundround.papers.max_retrieval.bfloat16 import InBfloat16
from roundround.papers.max_retrieval.model import MaxRetrieval
from roundround.papers.max_retrieval.sets import Sets

DEGREE = 4
ILL_CONDITIONED = 1e6  # of the powers of entropies scaled to [-1, 1]; points that are spread have about 30
LARGEST_BETA = 1e6
HALVINGS = 60
MOST_ITEMS = 2**22


@torch.no_grad()
def points(model: MaxRetrieval | InBfloat16, blocks: Iterable[Sets], *, n_inputs: int) -> Tensor:
    """Entropy in nats and best inverse temperature of up to `n_inputs` misordered inputs of one seed, [inputs, 2].

    Inputs are left out that have no best inverse temperature above 0: their largest item's logit is below the mean.
    """
    found: list[Tensor] = []
    for block in blocks:
        sets = block.to(model.device)
        e_BN, largest_B = model.attended(sets)[0][0].double(), sets.largest_SB[0]
        wrong_B = e_BN.argmax(-1) != largest_B
        e_BN, largest_B = e_BN[wrong_B], largest_B[wrong_B]
        beta_B = best_beta(e_BN, largest_B)
        entropy_B = shannon_entropy(e_BN.softmax(-1))
        found.append(torch.stack([entropy_B, beta_B], -1)[beta_B.isfinite()].cpu())
        if sum(map(len, found)) >= n_inputs:
            break
    return torch.cat(found)[:n_inputs] if found else torch.empty(0, 2, dtype=torch.float64)


def best_beta(e_BN: Tensor, k_B: Tensor) -> Tensor:
    """The inverse temperature at which softmax(beta e) gives item k the most weight, [B]; NaN where none above 0 does.

    The weight is largest where e_k equals the mean logit under softmax(beta e), which rises with beta from the plain
    mean to the largest logit: so there is one solution where e_k lies between these two, found by bisection.
    """
    e_BN = e_BN - e_BN.amax(-1, keepdim=True)
    e_k_B = e_BN.gather(-1, k_B[:, None])[:, 0]
    low_B = torch.full_like(e_k_B, -np.log(LARGEST_BETA))
    high_B = -low_B
    for _ in range(HALVINGS):
        middle_B = (low_B + high_B) / 2
        mean_B = ((middle_B.exp()[:, None] * e_BN).softmax(-1) * e_BN).sum(-1)
        low_B, high_B = torch.where(mean_B < e_k_B, middle_B, low_B), torch.where(mean_B < e_k_B, high_B, middle_B)
    exists_B = (e_k_B > e_BN.mean(-1)) & (e_k_B < 0)
    return low_B.exp().where(exists_B, torch.nan)


def most_sets(n: int) -> int:
    """Sets of n items that are looked through for misordered ones, at most."""
    return max(64, MOST_ITEMS // n)


def fit(entropies: NDArray[np.float64], betas: NDArray[np.float64]) -> list[float]:
    """Coefficients of the quartic in the entropy that is nearest to the inverse temperatures, highest power first.

    Raises ValueError where there are too few points for a quartic, or their entropies are too alike to tell one.
    """
    if len(np.unique(entropies)) <= DEGREE:
        raise ValueError(
            f"{len(entropies)} inputs whose largest item lacks the largest logit are too few for a polynomial of "
            f"degree {DEGREE}; give larger fit_sizes or more fit_inputs"
        )
    low, high = float(entropies.min()), float(entropies.max())
    powers = np.vander((2 * entropies - low - high) / (high - low), DEGREE + 1)
    if np.linalg.cond(powers) > ILL_CONDITIONED:
        raise ValueError(
            f"the entropies of {len(entropies)} inputs, {low:.3f} to {high:.3f} nats, are too alike for a polynomial "
            f"of degree {DEGREE}; train longer, or give more fit_sizes"
        )
    lowest_first = np.polynomial.Polynomial.fit(entropies, betas, DEGREE).convert().coef
    return [float(c) for c in np.pad(lowest_first, (0, DEGREE + 1 - len(lowest_first)))[::-1]]
